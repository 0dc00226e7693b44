"""Handshake: two brokers prove to each other that they have the cluster's key, before the first frame of a connection.

    server -> client   magic "kreplog\\x01", server nonce (32)
    client -> server   client nonce (32), HMAC-SHA-256 of the client (32)
    server -> client   HMAC-SHA-256 of the server (32)

A proof is the HMAC, under the key, of: the magic, the role ("client" or "server"), both nonces, and the purpose. The
nonces keep an earlier proof from being used again, the role keeps one's own proof from being sent back, and the
purpose, which names the endpoint that the client meant to reach, keeps a proof from being passed on to another broker.
Every message has a fixed size, so nothing is kept of a peer but the bytes of one message. What follows on the
connection is neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import secrets

from kreplog.errors import PeerProtocolError

MAGIC = b"kreplog\x01"
NONCE_BYTES = 32
PROOF_BYTES = 32

_CLIENT, _SERVER = b"client", b"server"


class ServerHandshake:
    """The side that accepted the connection. endpoint: where it is known to be reached, as its registration says.

    missing: bytes that are still to be received, 0 once the client is authenticated; to be read and given to `receive`,
    and no more of them. greeting: to be sent first.
    """

    def __init__(self, key: bytes, endpoint: str) -> None:
        self._key = key
        self._purpose = endpoint.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._received = b""
        self.greeting = MAGIC + self._nonce
        self.missing = NONCE_BYTES + PROOF_BYTES

    def receive(self, data: bytes) -> bytes:
        """Take received bytes; what to send, perhaps nothing yet. Raises PeerProtocolError: close the connection."""
        self._received += _expected(data, self.missing)
        self.missing -= len(data)
        if self.missing:
            return b""
        nonce, proof = self._received[:NONCE_BYTES], self._received[NONCE_BYTES:]
        _check(proof, _proof(self._key, _CLIENT, self._nonce, nonce, self._purpose))
        return _proof(self._key, _SERVER, self._nonce, nonce, self._purpose)


class ClientHandshake:
    """The side that connected. endpoint: where it means to be, as the other's registration says.

    missing: as of a ServerHandshake; once it is 0 the server is authenticated and requests may be sent.
    """

    def __init__(self, key: bytes, endpoint: str) -> None:
        self._key = key
        self._purpose = endpoint.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._server_nonce = b""
        self._received = b""
        self.greeting = b""
        self.missing = len(MAGIC) + NONCE_BYTES

    def receive(self, data: bytes) -> bytes:
        """As of a ServerHandshake."""
        self._received += _expected(data, self.missing)
        self.missing -= len(data)
        if self.missing:
            return b""
        if self._server_nonce:
            _check(self._received, _proof(self._key, _SERVER, self._server_nonce, self._nonce, self._purpose))
            return b""
        if not self._received.startswith(MAGIC):
            raise PeerProtocolError("no internal listener of a kreplog broker is there, or one of another version")
        self._server_nonce, self._received = self._received[len(MAGIC) :], b""
        self.missing = PROOF_BYTES
        return self._nonce + _proof(self._key, _CLIENT, self._server_nonce, self._nonce, self._purpose)


Handshake = ServerHandshake | ClientHandshake


def _expected(data: bytes, missing: int) -> bytes:
    if not 0 < len(data) <= missing:
        raise PeerProtocolError(f"a handshake of {len(data)} bytes where {missing} were missing")
    return data


def _proof(key: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes, purpose: bytes) -> bytes:
    """All parts before the purpose have a fixed size, so no two proofs are of the same bytes."""
    return hmac.digest(key, MAGIC + role + server_nonce + client_nonce + purpose, "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise PeerProtocolError("the peer did not prove the cluster's key (inter.broker.key.file)")
