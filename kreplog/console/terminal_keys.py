"""Keys of a terminal, from the bytes that it sends."""

from __future__ import annotations

import re
from collections.abc import Iterator

_KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\r": "open",
    b"\n": "open",
    b"\x1b[C": "open",
    b"\x1bOC": "open",
    b"\x1b": "back",
    b"\x7f": "back",
    b"\x1b[D": "back",
    b"\x1bOD": "back",
    b"\t": "list",
    b"/": "filter",
    b"q": "quit",
}
_TYPING_KEYS = {b"\r": "open", b"\n": "open", b"\x1b": "back", b"\x7f": "erase", b"\x08": "erase"}
_TOKEN = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])|\x1b(?![\[O])"
    rb"|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|[^\x1b]",
    re.DOTALL,
)


class Keys:
    """The keys in a stream of bytes, of which a sequence may come in parts. typing: printable characters are keys
    themselves, and not those of `_KEYS`."""

    def __init__(self) -> None:
        self.typing = False
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The keys that are complete; others than those of `_KEYS` are dropped."""
        data = self._pending + data
        end = 0
        while end < len(data) and data[end:] != b"\x1b" and (token := _TOKEN.match(data, end)):
            end = token.end()
            if key := self._key(token[0]):
                yield key
        self._pending = data[end:]

    def _key(self, token: bytes) -> str:
        """ "" for none."""
        if not self.typing:
            return _KEYS.get(token, "")
        character = token.decode(errors="ignore")
        return character if character.isprintable() and len(character) == 1 else _TYPING_KEYS.get(token, "")

    @property
    def pending(self) -> bool:
        """Whether an escape has come that may begin a sequence."""
        return bool(self._pending)

    def flush(self) -> Iterator[str]:
        """No more of the sequence has come for a while: the escape was a key, and what follows it is dropped."""
        pending, self._pending = self._pending, b""
        if pending == b"\x1b":
            yield _KEYS[pending]
