"""SCRAM (RFC 5802, RFC 7677): both ends of an exchange, and the credentials that a server stores in place of passwords.

    client-first    n,[a=NAME],n=NAME,r=CLIENT
    server-first    r=CLIENT SERVER,s=SALT,i=ITERATIONS
    client-final    c=base64 of n,[a=NAME],r=CLIENT SERVER,p=PROOF
    server-final    v=SIGNATURE

As in Kafka names and passwords are UTF-8 without SASLprep, there is no channel binding, and attributes after the
required ones are ignored. Nonces and salts are random bytes or texts of the caller.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac

from kreplog.errors import AuthenticationError, InvalidCredentialsError, UnsupportedMechanismError

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
"""Of a stored credential: bounds of AlterUserScramCredentials. Source: RFC 7677, Kafka's ScramControlManager."""

MAX_CLIENT_ITERATIONS = 1 << 20
"""Iterations that a client carries out at most, whatever a server requests."""

MAX_MESSAGE_BYTES = 8192
"""Maximum of a client's message; real ones have about a hundred bytes."""


@dataclass(frozen=True, slots=True)
class ScramMechanism:
    """SCRAM with one hash function. name: as SaslHandshake has it. number: in requests of credentials.
    key_bytes: length of each key."""

    name: str
    hash: str
    number: int
    key_bytes: int

    def hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash)

    def stored_key(self, salted_password: bytes) -> bytes:
        return new_hash(self.hash, self.hmac(salted_password, b"Client Key")).digest()

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """PBKDF2, which takes milliseconds of CPU: not for the event loop."""
        return pbkdf2_hmac(self.hash, password.encode(), salt, iterations)

    def credential(self, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
        server_key = self.hmac(salted_password, b"Server Key")
        return ScramCredential(salt, self.stored_key(salted_password), server_key, iterations)


SCRAM_SHA_256 = ScramMechanism("SCRAM-SHA-256", "sha256", 1, 32)
SCRAM_SHA_512 = ScramMechanism("SCRAM-SHA-512", "sha512", 2, 64)
SCRAM_MECHANISMS = {mechanism.name: mechanism for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)}


def scram_mechanism(number: int) -> ScramMechanism:
    """The mechanism of a number in a request. Raises UnsupportedMechanismError."""
    for mechanism in SCRAM_MECHANISMS.values():
        if mechanism.number == number:
            return mechanism
    raise UnsupportedMechanismError("Unknown SCRAM mechanism")


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """A user's credential of one mechanism. It does not give the password away, but to whoever tries passwords."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class ScramServer:
    """The server's end of one exchange. credential_of: a user's credential, one that no password fits for an unknown
    user. nonce: random, printable and without commas. username: from the first message on."""

    lifetime_ms = 0

    def __init__(self, mechanism: ScramMechanism, credential_of: Callable[[str], ScramCredential], nonce: str) -> None:
        self.is_complete = False
        self.username = ""
        self._mechanism = mechanism
        self._credential_of = credential_of
        self._nonce = nonce
        self._credential: ScramCredential | None = None
        self._gs2_header = b""
        self._sent = b""  # client-first without its header, and server-first

    def respond(self, message: bytes) -> bytes:
        """The response to the client's next message. Raises AuthenticationError: the exchange has failed."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise InvalidCredentialsError(f"a SCRAM message of {len(message)} bytes: {MAX_MESSAGE_BYTES} at most")
        if self.is_complete:
            raise InvalidCredentialsError("a SCRAM message after the last one")
        credential = self._credential
        return self._first(message) if credential is None else self._final(message, credential)

    def _first(self, message: bytes) -> bytes:
        try:
            flag, authorization, bare = _text(message).split(",", 2)
            name, nonce, *_ = bare.split(",")
            if flag != "n" or not _is_nonce(nonce[2:]):
                raise ValueError
            self.username = _name(_value("n", name))
            requested = _name(_value("a", authorization)) if authorization else self.username
            self._nonce = _value("r", nonce) + self._nonce
        except ValueError as error:
            raise InvalidCredentialsError("not the first message of a SCRAM client") from error
        credential = self._credential = self._credential_of(self.username)
        if requested != self.username:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._gs2_header = f"{flag},{authorization},".encode()
        response = f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}".encode()
        self._sent = bare.encode() + b"," + response
        return response

    def _final(self, message: bytes, credential: ScramCredential) -> bytes:
        try:
            without_proof, _, proof_text = _text(message).rpartition(",")
            binding, nonce, *_ = without_proof.split(",")
            proof = _bytes(_value("p", proof_text))
            header = _bytes(_value("c", binding))
            nonce = _value("r", nonce)
        except ValueError as error:
            raise InvalidCredentialsError("not the final message of a SCRAM client") from error
        if header != self._gs2_header:
            raise InvalidCredentialsError("another GS2 header in the final message of a SCRAM client")
        if not hmac.compare_digest(nonce.encode(), self._nonce.encode()):  # CVE-2024-56128: the whole, not its end
            raise InvalidCredentialsError(
                "another nonce in the final message of a SCRAM client: librdkafka repeats its own before version 2.6.1"
            )
        mechanism = self._mechanism
        signed = self._sent + b"," + without_proof.encode()
        signature = mechanism.hmac(credential.stored_key, signed)
        client_key = _xor(signature, proof) if len(proof) == len(signature) else signature
        if not hmac.compare_digest(new_hash(mechanism.hash, client_key).digest(), credential.stored_key):
            raise InvalidCredentialsError(f"unknown user or wrong password of {self.username!r}")
        self.is_complete = True
        return b"v=" + _base64(mechanism.hmac(credential.server_key, signed)).encode()


class ScramClient:
    """The client's end of one exchange. nonce: random, printable and without commas."""

    def __init__(self, mechanism: ScramMechanism, username: str, password: str, nonce: str) -> None:
        self.is_complete = False
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escaped_name(username)},r={nonce}"
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """The message that begins the exchange."""
        return f"n,,{self._bare}".encode()

    def respond(self, message: bytes) -> bytes:
        """The response to the server's next message; b"" to its last one, which proves that it has the user's
        credential. Carries out PBKDF2. Raises AuthenticationError."""
        return self._final(message) if self._signature is None else self._verify(message, self._signature)

    def _final(self, message: bytes) -> bytes:
        try:
            text = _text(message)
            nonce_text, salt_text, iterations_text, *_ = text.split(",")
            nonce, salt = _value("r", nonce_text), _bytes(_value("s", salt_text))
            iterations = int(_value("i", iterations_text))
        except ValueError as error:
            raise AuthenticationError("the broker has not sent the first message of a SCRAM server") from error
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationError("the broker has not taken over the nonce of this SCRAM exchange")
        if not MIN_ITERATIONS <= iterations <= MAX_CLIENT_ITERATIONS:
            raise AuthenticationError(
                f"the broker requests {iterations} iterations of {self._mechanism.name}: {MIN_ITERATIONS} to "
                f"{MAX_CLIENT_ITERATIONS} are carried out"
            )
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        proof = _xor(mechanism.hmac(salted, b"Client Key"), mechanism.hmac(mechanism.stored_key(salted), signed))
        return f"{without_proof},p={_base64(proof)}".encode()

    def _verify(self, message: bytes, expected: bytes) -> bytes:
        if message[:2] == b"e=":
            raise AuthenticationError(f"the broker refuses the SCRAM exchange: {message[2:80]!r}")
        try:
            signature = _bytes(_value("v", _text(message).partition(",")[0]))
        except ValueError as error:
            raise AuthenticationError("the broker has not sent the final message of a SCRAM server") from error
        if not hmac.compare_digest(signature, expected):
            raise AuthenticationError(
                "the broker has not proved that it has this user's credential: it may be another server in its place"
            )
        self.is_complete = True
        return b""


# Attributes of messages: letters, each with a value. ValueError: the message is none of SCRAM.


def _text(message: bytes) -> str:
    return message.decode()


def _value(letter: str, attribute: str) -> str:
    if not attribute.startswith(f"{letter}="):
        raise ValueError(letter)
    return attribute[2:]


def _name(escaped: str) -> str:
    """A name without the escapes of "," and "="."""
    parts = escaped.split("=")
    if not escaped or not all(part.startswith(("2C", "3D")) for part in parts[1:]) or "\0" in escaped:
        raise ValueError(escaped)
    return parts[0] + "".join((",", "=")[part.startswith("3D")] + part[2:] for part in parts[1:])


def escaped_name(name: str) -> str:
    """A name as messages have it, with escapes of "," and "="."""
    return name.replace("=", "=3D").replace(",", "=2C")


def _is_nonce(text: str) -> bool:
    return bool(text) and all("!" <= character <= "~" for character in text)


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))
