"""Handshake of brokers: mutual challenge-response authentication by the cluster's key, before the first frame.

    server -> client   magic "kreplog\\x01", with TLS "kreplog\\x02", server nonce (32)
    client -> server   client nonce (32), HMAC-SHA-256 of the client (32)
    server -> client   HMAC-SHA-256 of the server (32)

A proof is the HMAC, under the key, of the magic, the prover's role ("client" or "server"), both nonces, with TLS the
SHA-256 of its channel binding, and the endpoint that the client means to reach. The nonces prevent replay, the role
prevents reflection of the peer's own proof, and the endpoint prevents relaying a proof to another broker. The binding
prevents relaying it to the same one: who stands between both with a certificate has two connections of TLS, each with
its own. Every message has a fixed size, so an unauthenticated peer costs no more memory than one message. Without TLS
what follows on the connection is neither encrypted nor signed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from kreplog.errors import PeerProtocolError

MAGIC, BOUND_MAGIC = b"kreplog\x01", b"kreplog\x02"
NONCE_BYTES = 32
PROOF_BYTES = 32

_CLIENT, _SERVER = b"client", b"server"


class ServerHandshake:
    """The side that accepted the connection. endpoint: its own, as its registration names it. binding: the channel
    binding of TLS, b"" without.

    greeting: to be sent first. missing: number of bytes to read next and give to `receive`, and not one more; 0 once
    the client is authenticated.
    """

    def __init__(self, key: bytes, endpoint: str, binding: bytes = b"") -> None:
        self._prove = _Prover(key, endpoint, binding)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._received = b""
        self.greeting = self._prove.magic + self._nonce
        self.missing = NONCE_BYTES + PROOF_BYTES

    def receive(self, data: bytes) -> bytes:
        """Take received bytes; return the bytes to send, b"" for none. Raises PeerProtocolError."""
        self._received += _expected(data, self.missing)
        self.missing -= len(data)
        if self.missing:
            return b""
        nonce, proof = self._received[:NONCE_BYTES], self._received[NONCE_BYTES:]
        _check(proof, self._prove(_CLIENT, self._nonce, nonce))
        return self._prove(_SERVER, self._nonce, nonce)


class ClientHandshake:
    """The side that connected. endpoint: the server's, as its registration names it. binding: as in ServerHandshake.

    greeting, missing: as in ServerHandshake; once missing is 0 the server is authenticated and requests may be sent.
    """

    def __init__(self, key: bytes, endpoint: str, binding: bytes = b"") -> None:
        self._prove = _Prover(key, endpoint, binding)
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
            _check(self._received, self._prove(_SERVER, self._server_nonce, self._nonce))
            return b""
        if not self._received.startswith(self._prove.magic):
            raise PeerProtocolError(
                "the peer is no internal listener of this kreplog version: check inter.broker.listener and versions"
            )
        self._server_nonce, self._received = self._received[len(MAGIC) :], b""
        self.missing = PROOF_BYTES
        return self._nonce + self._prove(_CLIENT, self._server_nonce, self._nonce)


Handshake = ServerHandshake | ClientHandshake


def _expected(data: bytes, missing: int) -> bytes:
    if not 0 < len(data) <= missing:
        raise PeerProtocolError(f"{len(data)} bytes within a handshake where at most {missing} were expected")
    return data


class _Prover:
    """Makes the proofs of one connection. magic: that of its kind of handshake."""

    def __init__(self, key: bytes, endpoint: str, binding: bytes) -> None:
        self.magic = BOUND_MAGIC if binding else MAGIC
        self._key = key
        self._endpoint = endpoint.encode()
        self._binding = hashlib.sha256(binding).digest() if binding else b""

    def __call__(self, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
        """All parts before the endpoint have a fixed size, so the concatenation is unambiguous."""
        text = self.magic + role + server_nonce + client_nonce + self._binding + self._endpoint
        return hmac.digest(self._key, text, "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise PeerProtocolError("the peer does not have the same cluster key (inter.broker.key.file)")
