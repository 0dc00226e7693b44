"""SCRAM: RFC vectors, both ends against each other, and whatever a hostile client or server may send."""

from __future__ import annotations

import random
from base64 import b64encode
from dataclasses import replace

import pytest

from kreplog.core.security import scram
from kreplog.core.security.scram import (
    MAX_MESSAGE_BYTES,
    SCRAM_MECHANISMS,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    scram_mechanism,
)
from kreplog.errors import AuthenticationError, InvalidCredentialsError, UnsupportedMechanismError

SALT = b"a salt of some bytes"


def credential(mechanism: ScramMechanism = SCRAM_SHA_256, password: str = "pencil") -> ScramCredential:
    return mechanism.credential(mechanism.salted_password(password, SALT, 4096), SALT, 4096)


CREDENTIAL = credential()


def server(known: ScramCredential = CREDENTIAL, nonce: str = "server") -> ScramServer:
    return ScramServer(SCRAM_SHA_256, lambda user: known, nonce)


def client(password: str = "pencil", user: str = "alice", nonce: str = "client") -> ScramClient:
    return ScramClient(SCRAM_SHA_256, user, password, nonce)


def final_message(at: ScramServer, password: str = "pencil") -> bytes:
    """The client's last message, of an exchange that `at` has begun."""
    peer = client(password)
    return peer.respond(at.respond(peer.first()))


def test_the_exchange_of_rfc_7677() -> None:
    """Section 3, by both ends."""
    first = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server_first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    server_final = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    peer = client(user="user", nonce="rOprNGfwEbeRWgbNEkqO")
    assert peer.first() == first
    assert (peer.respond(server_first), peer.is_complete) == (final, False)
    assert (peer.respond(server_final), peer.is_complete) == (b"", True)

    salt = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")
    known = SCRAM_SHA_256.credential(SCRAM_SHA_256.salted_password("pencil", salt, 4096), salt, 4096)
    at = server(known, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert (at.respond(first), at.is_complete) == (server_first, False)
    assert (at.respond(final), at.is_complete) == (server_final, True)
    assert at.username == "user"


def test_the_example_of_rfc_5802_but_for_its_hash() -> None:
    """Section 5: the messages are those of SCRAM-SHA-1, which is not offered."""
    sha_1 = ScramMechanism("SCRAM-SHA-1", "sha1", 0, 20)
    peer = ScramClient(sha_1, "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL")
    final = peer.respond(b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096")
    assert final == b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    assert peer.respond(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=") == b""


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS.values(), ids=str)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "jos\u00e9", "\u0661", "a b"])
def test_both_ends_agree(mechanism: ScramMechanism, user: str) -> None:
    known = credential(mechanism, "p\u00e4ss,w=rd")
    at = ScramServer(mechanism, {user: known}.__getitem__, "s")
    peer = ScramClient(mechanism, user, "p\u00e4ss,w=rd", "c")
    assert peer.respond(at.respond(peer.respond(at.respond(peer.first())))) == b""
    assert at.is_complete
    assert at.username == user
    assert len(known.stored_key) == len(known.server_key) == mechanism.key_bytes


def test_names_and_passwords_are_not_normalized() -> None:
    """RFC 4013 would make both of these one; Kafka takes the bytes."""
    at = server(credential(password="\u2168"))
    with pytest.raises(InvalidCredentialsError, match="wrong password"):
        at.respond(final_message(at, "IX"))


def test_a_wrong_password_is_refused() -> None:
    at = server()
    with pytest.raises(InvalidCredentialsError, match="wrong password of 'alice'"):
        at.respond(final_message(at, "pencil "))
    assert not at.is_complete


@pytest.mark.parametrize("nonce", ["server", "xclientserver", "clientserve", "clientserverx", "CLIENTSERVER", ""])
def test_another_nonce_in_the_final_message_is_refused(nonce: str) -> None:
    """CVE-2024-56128: Kafka accepted one that ends like its own. The proof is right for what is sent."""
    at = server()
    peer = client()
    response = at.respond(peer.first())
    peer._nonce = ""
    final = peer.respond(response.replace(b"r=clientserver", f"r={nonce}".encode()) if nonce else response)
    with pytest.raises(InvalidCredentialsError, match=r"nonce|wrong password|not the final"):
        at.respond(final if nonce else final.replace(b"r=clientserver", b"r="))
    assert not at.is_complete


def test_a_replayed_final_message_is_refused() -> None:
    first, second = server(nonce="one"), server(nonce="two")
    final = final_message(first)
    first.respond(final)
    second.respond(client().first())
    with pytest.raises(InvalidCredentialsError, match="another nonce"):
        second.respond(final)
    with pytest.raises(InvalidCredentialsError, match="after the last"):
        first.respond(final)


def test_another_gs2_header_in_the_final_message_is_refused() -> None:
    """RFC 5802 section 6: somebody has changed the first message."""
    at = server()
    for header in ("n,a=bob,", "y,,", ""):
        at = server()
        final = final_message(at).replace(b"c=biws", b"c=" + b64encode(header.encode()))
        with pytest.raises(InvalidCredentialsError, match="GS2 header"):
            at.respond(final)


@pytest.mark.parametrize("requested", [b"", b"a=alice", b"a=bob"])
def test_the_authorization_id_is_the_name(requested: bytes) -> None:
    at = server()
    first = b"n," + requested + b",n=alice,r=client"
    if requested == b"a=bob":
        with pytest.raises(AuthenticationError, match="authorization id that is different from username"):
            at.respond(first)
    else:
        assert at.respond(first).startswith(b"r=clientserver,s=")


def test_extensions_are_ignored_and_mandatory_ones_refused() -> None:
    at = server()
    assert at.respond(b"n,,n=alice,r=client,tokenauth=true").startswith(b"r=clientserver,s=")
    with pytest.raises(InvalidCredentialsError, match="first message"):
        server().respond(b"n,,m=unknown,n=alice,r=client")


def mutations(message: bytes, seed: int) -> bytes:
    """The message with some bytes changed, left out, doubled, or cut."""
    rng = random.Random(seed)
    data = bytearray(message)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + 8]
            case _:
                data[at:at] = rng.choice((b",", b"=", b"\0", b"\xff", b"n=", b"=2C"))
    return bytes(data)


@pytest.mark.parametrize("message", [b"", b",", b"n", b"n,,", b"n,,n=,r=x", b"n,,n=a,r=", b"p=tls-unique,,n=a,r=x"])
def test_what_is_no_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidCredentialsError, match="not the first message"):
        server().respond(message)


def test_an_oversized_message_is_refused_before_it_is_parsed() -> None:
    fits = b"n,,n=a,r=" + b"x" * (MAX_MESSAGE_BYTES - 9)
    assert server().respond(fits).startswith(b"r=xx")
    with pytest.raises(InvalidCredentialsError, match="8193 bytes"):
        server().respond(fits + b"x")


def test_any_bytes_fail_as_authentication_and_nothing_changed_succeeds() -> None:
    at = server()
    final = final_message(at)
    for seed in range(3000):
        other = server()
        changed = mutations(client().first(), seed)
        try:
            other.respond(changed)
            other.respond(final)
            assert changed == client().first()
        except AuthenticationError:
            assert not other.is_complete
        again = server()
        again.respond(client().first())
        changed = mutations(final, seed)
        try:
            again.respond(changed)
        except AuthenticationError:
            continue
        assert changed == final


# The client


def test_a_server_without_the_credential_is_found_out() -> None:
    peer = client()
    at = server(replace(CREDENTIAL, server_key=bytes(32)))
    final = at.respond(peer.respond(at.respond(peer.first())))
    with pytest.raises(AuthenticationError, match="not proved"):
        peer.respond(final)
    assert not peer.is_complete


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"r=other,s=QSXC,i=4096", "nonce"),
        (b"r=client,s=QSXC,i=4096", "nonce"),
        (b"r=clientx,s=QSXC,i=4095", "4095 iterations"),
        (b"r=clientx,s=QSXC,i=2147483647", "2147483647 iterations"),
        (b"r=clientx,s=QSX,i=4096", "first message"),
        (b"r=clientx,s=QSXC,i=x", "first message"),
        (b"r=clientx", "first message"),
        (b"\xff", "first message"),
        (b"", "first message"),
    ],
)
def test_a_client_refuses_what_is_no_server(message: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason):
        client().respond(message)


@pytest.mark.parametrize("message", [b"", b"v=", b"v=x", b"e=other-error", b"\xff", b"p=QSXC"])
def test_a_client_refuses_what_is_no_proof(message: bytes) -> None:
    peer = client()
    peer.respond(server().respond(peer.first()))
    with pytest.raises(AuthenticationError):
        peer.respond(message)
    assert not peer.is_complete


def test_mechanisms_have_numbers() -> None:
    assert [scram_mechanism(number) for number in (1, 2)] == [SCRAM_SHA_256, SCRAM_SHA_512]
    for number in (-1, 0, 3):
        with pytest.raises(UnsupportedMechanismError):
            scram_mechanism(number)


def test_credentials_are_not_printed() -> None:
    assert repr(CREDENTIAL) == f"ScramCredential(iterations={CREDENTIAL.iterations})"
    assert scram.MIN_ITERATIONS == 4096
