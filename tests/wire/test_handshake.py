"""The handshake, byte by byte: what is accepted, and that nothing else is."""

from __future__ import annotations

import pytest

from kreplog.errors import PeerProtocolError
from kreplog.wire.handshake import MAGIC, NONCE_BYTES, PROOF_BYTES, ClientHandshake, Handshake, ServerHandshake

KEY = b"k" * 64
ENDPOINT = "10.0.0.1:9093"


def pair(server_key: bytes = KEY, client_key: bytes = KEY, client_endpoint: str = ENDPOINT) -> tuple[bytes, ...]:
    """The three messages of a handshake, which has to succeed."""
    server, client = ServerHandshake(server_key, ENDPOINT), ClientHandshake(client_key, client_endpoint)
    second = client.receive(server.greeting)
    third = server.receive(second)
    assert client.receive(third) == b""
    assert server.missing == client.missing == 0
    return server.greeting, second, third


def test_both_prove_the_key() -> None:
    first, second, third = pair()
    assert first.startswith(MAGIC)
    assert [len(message) for message in (first, second, third)] == [
        len(MAGIC) + NONCE_BYTES,
        NONCE_BYTES + PROOF_BYTES,
        PROOF_BYTES,
    ]
    assert len({*pair(), *pair()}) == 6, "a nonce or a proof came twice"


def test_messages_may_come_byte_by_byte() -> None:
    server, client = ServerHandshake(KEY, ENDPOINT), ClientHandshake(KEY, ENDPOINT)
    message, sides = server.greeting, (client, server)
    for turn in range(3):
        receiver = sides[turn % 2]
        answers = [receiver.receive(bytes([byte])) for byte in message]
        assert not any(answers[:-1])
        message = answers[-1]
    assert message == b""
    assert client.missing == server.missing == 0


@pytest.mark.parametrize("keys", [(KEY, b"x" * 64), (KEY, KEY[:-1]), (KEY, KEY + b"k")])
def test_another_key_is_refused_by_the_server(keys: tuple[bytes, bytes]) -> None:
    with pytest.raises(PeerProtocolError, match=r"inter\.broker\.key\.file"):
        pair(*keys)


def test_a_server_without_the_key_is_refused_by_the_client() -> None:
    client, impostor = ClientHandshake(KEY, ENDPOINT), ServerHandshake(b"x" * 64, ENDPOINT)
    nonce = client.receive(impostor.greeting)[:NONCE_BYTES]
    own = ClientHandshake(b"x" * 64, ENDPOINT)
    theirs = impostor.receive(own.receive(impostor.greeting))
    for proof in (theirs, bytes(PROOF_BYTES), nonce):
        fresh = ClientHandshake(KEY, ENDPOINT)
        fresh.receive(impostor.greeting)
        with pytest.raises(PeerProtocolError):
            fresh.receive(proof)


def test_a_proof_is_good_for_the_endpoint_that_the_client_meant() -> None:
    """A broker that was led to another address is of no use to who passes its proof on."""
    with pytest.raises(PeerProtocolError):
        pair(client_endpoint="10.0.0.2:9093")


def test_a_proof_is_good_for_the_connection_of_tls_that_it_was_made_on() -> None:
    """Who stands between both ends has two connections, and can pass the proofs of neither on to the other."""
    for server_binding, client_binding in ((b"one", b"one"), (b"one", b"other"), (b"one", b""), (b"", b"one")):
        server = ServerHandshake(KEY, ENDPOINT, server_binding)
        client = ClientHandshake(KEY, ENDPOINT, client_binding)
        if server_binding == client_binding:
            assert client.receive(server.receive(client.receive(server.greeting))) == b""
            assert server.missing == client.missing == 0
        else:
            with pytest.raises(PeerProtocolError):
                server.receive(client.receive(server.greeting))
    server, client = ServerHandshake(KEY, ENDPOINT, b"one"), ClientHandshake(KEY, ENDPOINT, b"one")
    honest = ServerHandshake(KEY, ENDPOINT, b"other")
    client.receive(server.greeting)
    with pytest.raises(PeerProtocolError):
        client.receive(honest.receive(ClientHandshake(KEY, ENDPOINT, b"other").receive(honest.greeting)))


def test_replayed_proofs_are_refused() -> None:
    first, second, third = pair()
    with pytest.raises(PeerProtocolError):
        ServerHandshake(KEY, ENDPOINT).receive(second)
    client = ClientHandshake(KEY, ENDPOINT)
    client.receive(first)
    with pytest.raises(PeerProtocolError):
        client.receive(third)


def test_reflected_proofs_are_refused() -> None:
    server = ServerHandshake(KEY, ENDPOINT)
    nonce = server.greeting[len(MAGIC) :]
    client = ClientHandshake(KEY, ENDPOINT)
    own = client.receive(server.greeting)[NONCE_BYTES:]
    with pytest.raises(PeerProtocolError):
        client.receive(own)  # the client's own proof as the server's
    genuine = ClientHandshake(KEY, ENDPOINT).receive(server.greeting)
    theirs = server.receive(genuine)
    again = ServerHandshake(KEY, ENDPOINT)
    for message in (genuine[:NONCE_BYTES] + theirs, nonce + theirs, nonce + genuine[NONCE_BYTES:]):
        with pytest.raises(PeerProtocolError):
            again.receive(message)  # what a server has proved as a client's proof
        again = ServerHandshake(KEY, ENDPOINT)


def test_every_flipped_bit_is_refused() -> None:
    for position in range(NONCE_BYTES + PROOF_BYTES):
        server, client = ServerHandshake(KEY, ENDPOINT), ClientHandshake(KEY, ENDPOINT)
        message = bytearray(client.receive(server.greeting))
        message[position] ^= 1 << position % 8
        with pytest.raises(PeerProtocolError):
            server.receive(bytes(message))
    for position in range(len(MAGIC) + NONCE_BYTES + PROOF_BYTES):
        server, client = ServerHandshake(KEY, ENDPOINT), ClientHandshake(KEY, ENDPOINT)
        greeting = bytearray(server.greeting)
        if position < len(greeting):
            greeting[position] ^= 1 << position % 8
            with pytest.raises(PeerProtocolError):
                client.receive(server.receive(client.receive(bytes(greeting))))
        else:
            proof = bytearray(server.receive(client.receive(server.greeting)))
            proof[position - len(greeting)] ^= 1 << position % 8
            with pytest.raises(PeerProtocolError):
                client.receive(bytes(proof))


def test_a_message_that_is_cut_anywhere_authenticates_nobody() -> None:
    first, second, third = pair()
    for length in range(1, len(second)):
        server = ServerHandshake(KEY, ENDPOINT)
        assert server.receive(second[:length]) == b""
        assert server.missing == len(second) - length
    for length in range(1, len(first)):
        client = ClientHandshake(KEY, ENDPOINT)
        assert client.receive(first[:length]) == b""
        assert client.missing == len(first) - length
    for length in range(1, len(third)):
        client = ClientHandshake(KEY, ENDPOINT)
        client.receive(first)
        assert client.receive(third[:length]) == b""
        assert client.missing == len(third) - length


@pytest.mark.parametrize("handshake", [ServerHandshake(KEY, ENDPOINT), ClientHandshake(KEY, ENDPOINT)])
def test_more_than_the_message_is_refused(handshake: Handshake) -> None:
    for data in (bytes(handshake.missing + 1), bytes(1 << 20), b""):
        with pytest.raises(PeerProtocolError, match="expected"):
            handshake.receive(data)
