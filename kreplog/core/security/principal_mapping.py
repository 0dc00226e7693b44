"""ssl.principal.mapping.rules: principals' names from the distinguished names of certificates (KIP-371)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kreplog.core.patterns import whole_text_matcher
from kreplog.errors import UsageError

_NAME = "ssl.principal.mapping.rules"
_FORM = "rules are DEFAULT or RULE:pattern/replacement/, with L or U behind it, and commas between them"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule of the setting. match: says whether the whole name matches. replacement: literal texts and numbers of
    groups. case: "L" or "U" for the result in lower or upper case, else ""."""

    match: Callable[[str], Any]
    replacement: tuple[str | int, ...]
    case: str


class PrincipalMapping:
    """The rules of a text, as Kafka's SslPrincipalMapper has them, but patterns are RE2's, without lookaround.

    Raises UsageError for a text that has other than rules."""

    def __init__(self, text: str) -> None:
        self._rules = _parse(text)

    def name_of(self, distinguished_name: str) -> str | None:
        """The principal's name by the first rule whose pattern matches the whole `distinguished_name`, or None."""
        for rule in self._rules:
            if rule is None:
                return distinguished_name
            found = rule.match(distinguished_name)
            if found:
                name = "".join(part if isinstance(part, str) else _group(found, part) for part in rule.replacement)
                return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
        return None


def _parse(text: str) -> list[_Rule | None]:
    """The rules in order; None for DEFAULT."""
    rules: list[_Rule | None] = []
    rest = text.strip()
    while rest:
        if rest.startswith("DEFAULT"):
            rules.append(None)
            rest = rest.removeprefix("DEFAULT")
        elif rest.startswith("RULE:"):
            pattern, rest = _until_slash(rest.removeprefix("RULE:"), text)
            replacement, rest = _until_slash(rest, text)
            case = rest[:1] if rest[:1] in ("L", "U") else ""
            rules.append(_rule(pattern, replacement, case))
            rest = rest[len(case) :]
        else:
            raise UsageError(f"{_NAME} = {text!r}: {rest!r} is no rule: {_FORM}")
        rest = rest.lstrip()
        if rest and not rest.startswith(","):
            raise UsageError(f"{_NAME} = {text!r}: {rest!r} stands behind a rule: {_FORM}")
        rest = rest[1:].lstrip()
    return rules or [None]


def _until_slash(text: str, whole: str) -> tuple[str, str]:
    """The text before the next slash that has no backslash before it, and the text behind."""
    at = 0
    while at < len(text) and text[at] != "/":
        at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise UsageError(f"{_NAME} = {whole!r}: a rule has too few slashes: {_FORM}")
    return text[:at], text[at + 1 :]


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    match = whole_text_matcher(pattern)
    if match is None:
        raise UsageError(f"{_NAME}: {pattern!r} is no regular expression of RE2, which has no lookaround")
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        character = replacement[at]
        following = replacement[at + 1 : at + 2]
        if character == "$" and following.isascii() and following.isdigit():
            parts.append(int(following))
            at += 2
        elif character == "\\" and following:
            parts.append(following)
            at += 2
        else:
            parts.append(character)
            at += 1
    return _Rule(match, tuple(parts), case)


def _group(found: Any, number: int) -> str:
    """The text of a group; a reference to one that the pattern lacks is literal, as in Kafka."""
    return (found.group(number) or "") if number <= found.re.groups else f"${number}"
