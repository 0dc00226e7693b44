"""Principal: who a connection belongs to, as Kafka's KafkaPrincipal."""

from __future__ import annotations

from dataclasses import dataclass

from kreplog.errors import UsageError

USER = "User"


@dataclass(frozen=True, slots=True)
class Principal:
    """A principal; its text is `User:alice`. kind: User, the only one that listeners give."""

    name: str
    kind: str = USER

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """The principal of a text `Kind:name`. Raises UsageError."""
        kind, colon, name = text.partition(":")
        if not kind or not colon or not name:
            raise UsageError(f"{text!r} is no principal: write it as User:NAME")
        return cls(name, kind)


ANONYMOUS = Principal("ANONYMOUS")
"""The principal of connections that prove none: of plaintext listeners, and of TLS without a client certificate."""
