"""PLAIN (RFC 4616): the client sends its password. As in Kafka the authorization id is empty or the name.

message    [authorization id] NUL name NUL password
"""

from __future__ import annotations

from collections.abc import Callable

from kreplog.errors import AuthenticationError

PLAIN = "PLAIN"


def plain_message(username: str, password: str) -> bytes:
    """The client's only message."""
    return f"\0{username}\0{password}".encode()


class PlainClient:
    """The client's end of one exchange."""

    def __init__(self, username: str, password: str) -> None:
        self.is_complete = False
        self._message = plain_message(username, password)

    def first(self) -> bytes:
        """The only message."""
        return self._message

    def respond(self, message: bytes) -> bytes:
        """The server accepts the password, by any message."""
        self.is_complete = True
        return b""


class PlainServer:
    """The server's end of one exchange. is_password: whether it is the user's password; takes milliseconds of CPU."""

    lifetime_ms = 0

    def __init__(self, is_password: Callable[[str, str], bool]) -> None:
        self.is_complete = False
        self.username = ""
        self._is_password = is_password

    def respond(self, message: bytes) -> bytes:
        """The empty response to the right password. Raises AuthenticationError, with Kafka's messages."""
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError as error:
            raise AuthenticationError("Invalid SASL/PLAIN response: not UTF-8") from error
        if len(parts) != 3:
            raise AuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization, self.username, password = parts
        for name, value in (("username", self.username), ("password", password)):
            if not value:
                raise AuthenticationError(f"Authentication failed: {name} not specified")
        if not self._is_password(self.username, password):
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorization not in ("", self.username):
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.is_complete = True
        return b""
