"""UserCredentials: the SCRAM credentials of a cluster's users, as a broker knows them; and their texts in the store.

A credential's text is Kafka's: salt=BASE64,stored_key=BASE64,server_key=BASE64,iterations=N. An unknown user has a
credential, too, which no password fits: it is derived from the name and the cluster's secret, so that it stays the
same, and looks like the others. So nobody can find out who is a user.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping

from kreplog.core.security.scram import MIN_ITERATIONS, SCRAM_MECHANISMS, ScramCredential, ScramMechanism

SALT_BYTES = 32
"""Of the credentials that kreplog makes."""

_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
"""Of a salt that Kafka's admin client makes: a number of 130 bits in base 36."""

SECRET_BYTES = 32
"""Of the cluster's secret, from which the credentials of unknown users are derived."""

Credentials = Mapping[str, ScramCredential]
"""The credentials of a user, by the name of the mechanism."""


_Shape = tuple[str, int, int]
"""Mechanism, bytes of the salt and iterations of a credential; 0 bytes for the digits of Kafka's admin client."""


class UserCredentials:
    """All users with their credentials. secret: the cluster's."""

    def __init__(self, secret: bytes = b"") -> None:
        self.secret = secret
        self.users: dict[str, Credentials] = {}
        self._shapes: Counter[_Shape] = Counter()

    def put(self, user: str, credentials: Credentials) -> None:
        """Replace the credentials of a user; none removes it."""
        shapes = Counter(self._shapes)
        shapes.subtract(_shape(*item) for item in self.users.pop(user, {}).items())
        shapes.update(_shape(*item) for item in credentials.items())
        self._shapes = +shapes  # another one, since a thread may read the former
        if credentials:
            self.users[user] = credentials

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """A user's credential, or one that no password fits; the same work in either case."""
        unknown = self._unknown(mechanism, user)
        return self.users.get(user, {}).get(mechanism.name, unknown)

    def is_password(self, user: str, password: str) -> bool:
        """Whether it is the password of the user's credential of any mechanism; the same work for an unknown user."""
        found = [(mechanism, self.find(mechanism, user)) for mechanism in SCRAM_MECHANISMS.values()]
        matches = [
            hmac.compare_digest(
                mechanism.stored_key(mechanism.salted_password(password, credential.salt, credential.iterations)),
                credential.stored_key,
            )
            for mechanism, credential in found
        ]
        return any(matches)

    def _unknown(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """The credential of an unknown user, with salt and iterations like those of some user."""
        digest = [hmac.digest(self.secret, f"{part}:{mechanism.name}:{user}".encode(), "sha512") for part in range(3)]
        shapes = sorted(shape for shape in self._shapes if shape[0] == mechanism.name)
        shapes = shapes or [(mechanism.name, SALT_BYTES, MIN_ITERATIONS)]
        _, salt_bytes, iterations = shapes[digest[0][0] % len(shapes)]
        salt = _salt(digest[0], salt_bytes)
        stored_key, server_key = (key[: mechanism.key_bytes] for key in digest[1:])
        return ScramCredential(salt, stored_key, server_key, iterations)


def _shape(mechanism: str, credential: ScramCredential) -> _Shape:
    salt = credential.salt
    return mechanism, 0 if len(salt) in (25, 26) and set(salt) <= set(_DIGITS) else len(salt), credential.iterations


def _salt(seed: bytes, size: int) -> bytes:
    """A salt that shows nothing of its seed. size: as in a _Shape."""
    if size:
        return hashlib.shake_256(seed).digest(size)
    number = int.from_bytes(hashlib.shake_256(seed).digest(17)) >> 6
    digits = bytearray()
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))


def credential_text(credential: ScramCredential) -> str:
    """A credential as Kafka writes it."""
    salt, stored_key, server_key = (
        b64encode(part).decode() for part in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={credential.iterations}"


def parse_credential(mechanism: ScramMechanism, text: str) -> ScramCredential:
    """The credential of a text, with iterations that may be used. Raises ValueError, which does not quote the text."""
    try:
        parts = dict(part.split("=", 1) for part in text.split(","))
        salt, stored_key, server_key = (
            b64decode(parts.pop(name), validate=True) for name in ("salt", "stored_key", "server_key")
        )
        iterations = int(parts.pop("iterations"))
    except (ValueError, KeyError):
        raise ValueError("not a SCRAM credential") from None
    if parts or not salt or {len(stored_key), len(server_key)} != {mechanism.key_bytes} or iterations < MIN_ITERATIONS:
        raise ValueError("not a SCRAM credential that may be used")
    return ScramCredential(salt, stored_key, server_key, iterations)
