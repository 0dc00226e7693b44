"""Handshake of brokers: mutual challenge-response authentication by the cluster's key, before the first frame.

    server -> client   magic "kreplog\\x01", server nonce (32)
    client -> server   client nonce (32), HMAC-SHA-256 of the client (32)
    server -> client   HMAC-SHA-256 of the server (32)

A proof is the HMAC, under the key, of the magic, the prover's role ("client" or "server"), both nonces, and the
endpoint that the client means to reach. The nonces prevent replay, the role prevents reflection of the peer's own
proof, and the endpoint prevents relaying a proof to another broker. Every message has a fixed size, so an
unauthenticated peer costs no more memory than one message. What follows on the connection is neither encrypted nor
signed.
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
    """The side that accepted the connection. endpoint: its own, as its registration names it.

    greeting: to be sent first. missing: number of bytes to read next and give to `receive`, and not one more; 0 once
    the client is authenticated.
    """

    def __init__(self, key: bytes, endpoint: str) -> None:
        self._key = key
        self._endpoint = endpoint.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._received = b""
        self.greeting = MAGIC + self._nonce
        self.missing = NONCE_BYTES + PROOF_BYTES

    def receive(self, data: bytes) -> bytes:
        """Take received bytes; return the bytes to send, b"" for none. Raises PeerProtocolError."""
        self._received += _expected(data, self.missing)
        self.missing -= len(data)
        if self.missing:
            return b""
        nonce, proof = self._received[:NONCE_BYTES], self._received[NONCE_BYTES:]
        _check(proof, _proof(self._key, _CLIENT, self._nonce, nonce, self._endpoint))
        return _proof(self._key, _SERVER, self._nonce, nonce, self._endpoint)


class ClientHandshake:
    """The side that connected. endpoint: the server's, as its registration names it.

    greeting, missing: as in ServerHandshake; once missing is 0 the server is authenticated and requests may be sent.
    """

    def __init__(self, key: bytes, endpoint: str) -> None:
        self._key = key
        self._endpoint = endpoint.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._server_nonce = b""
        self._received = b""
        self.greeting = b""
        self.missing = len(MAGIC) + NONCE_BYTES

    def receive(self, data: bytes) -> bytes:
        """As ServerHandshake.receive."""
        self._received += _expected(data, self.missing)
        self.missing -= len(data)
        if self.missing:
            return b""
        if self._server_nonce:
            _check(self._received, _proof(self._key, _SERVER, self._server_nonce, self._nonce, self._endpoint))
            return b""
        if not self._received.startswith(MAGIC):
            raise PeerProtocolError(
                "the peer is no internal listener of this kreplog version: check inter.broker.listener and versions"
            )
        self._server_nonce, self._received = self._received[len(MAGIC) :], b""
        self.missing = PROOF_BYTES
        return self._nonce + _proof(self._key, _CLIENT, self._server_nonce, self._nonce, self._endpoint)


Handshake = ServerHandshake | ClientHandshake


def _expected(data: bytes, missing: int) -> bytes:
    if not 0 < len(data) <= missing:
        raise PeerProtocolError(f"{len(data)} bytes within a handshake where at most {missing} were expected")
    return data


def _proof(key: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes, endpoint: bytes) -> bytes:
    """All parts before the endpoint have a fixed size, so the concatenation is unambiguous."""
    return hmac.digest(key, MAGIC + role + server_nonce + client_nonce + endpoint, "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise PeerProtocolError("the peer does not have the same cluster key (inter.broker.key.file)")
