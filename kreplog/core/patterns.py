"""Regular expressions of clients, matched in time linear in the text whoever wrote them: RE2, as Kafka's RE2/J."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_MEMORY = 1 << 16
"""Maximum of bytes that a compiled expression takes: RE2's time for a name grows with that, here to at most 3 ms."""

MAX_LENGTH = 2000
"""Maximum of characters of an expression: RE2 takes up to 35 ms to read so many."""


def whole_text_matcher(pattern: str) -> Callable[[str], object] | None:
    """Says whether a whole text matches; None if `pattern` is no regular expression, or too large a one."""
    import re2  # of the extra `cluster`, which simulations do without

    if len(pattern) > MAX_LENGTH:
        return None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        matches: Callable[[str], object] = re2.compile(pattern, options).fullmatch
    except re2.error:
        return None
    return matches


def matching(pattern: str, names: Iterable[str]) -> frozenset[str] | None:
    """The names that match as a whole; None if `pattern` is no regular expression, as for whole_text_matcher."""
    matches = whole_text_matcher(pattern)
    return None if matches is None else frozenset(filter(matches, names))
