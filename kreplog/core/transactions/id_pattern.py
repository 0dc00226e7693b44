"""IdPattern: a regular expression for transactional ids, which matches in time linear in the id whoever wrote it.

The syntax is RE2's without flags, classes by name (`[[:alpha:]]`, `\\p{Greek}`), and word boundaries; what backtracks,
as a back reference, is in neither. The expression is made into a nondeterministic automaton, whose sets of states are
those of a deterministic one, made as ids need them. Source: KIP-1152; Thompson, "Regular Expression Search Algorithm".

    expression  = sequence { "|" sequence }            sequence = { item [ "*" | "+" | "?" | "{m,n}" ] [ "?" ] }
    item        = character | "." | "[" class "]" | "(" ["?:"] expression ")" | "^" | "$" | escape
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_STATES = 5_000
"""Of the automaton: what a repetition of repetitions would exceed."""

MAX_REPETITION = 1_000
MAX_DEPTH = 50
MAX_VISITS = 200_000
"""States that are visited to make steps of the deterministic automaton, for all ids: a bound on time and memory."""

_LAST = 0x10FFFF
_DIGIT = ((48, 57),)
_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE = ((9, 10), (12, 13), (32, 32))
_NAMED = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_LITERAL = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}

Ranges = tuple[tuple[int, int], ...]


class InvalidPatternError(Exception):
    """The message has what is wrong with the expression, and where; or it takes too much time."""


class _State(NamedTuple):
    """kind: "character" out of `ranges`, "split" without a character, "start" and "end" where the id begins and ends,
    "match". targets: the states after it."""

    kind: str
    ranges: Ranges
    targets: list[int]


@dataclass(slots=True)
class _Repeat:
    item: _Node
    least: int
    most: int | None


@dataclass(slots=True)
class _Choice:
    """One of several sequences of items."""

    sequences: list[list[_Node]] = field(default_factory=lambda: [[]])


_Node = str | tuple[tuple[int, int], ...] | _Repeat | _Choice
"""Of the parsed expression: an anchor, "start" or "end", or a character out of ranges, or what has others in it."""


class IdPattern:
    """Raises InvalidPatternError."""

    def __init__(self, expression: str) -> None:
        self._states: list[_State] = []
        match = self._add("match", ())
        first = self._compile(_Parser(expression).parsed(), match)
        self._match = match
        self._begin = self._closure({first}, at_start=True)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._visits = 0

    def matches(self, text: str) -> bool:
        """Whether the expression matches the whole of `text`. Raises InvalidPatternError past MAX_VISITS."""
        reached = self._begin
        for character in text:
            reached = self._after(reached, character)
            if not reached:
                return False
        return self._match in self._closure(set(reached), at_start=not text, at_end=True)

    def _after(self, reached: frozenset[int], character: str) -> frozenset[int]:
        found = self._steps.get((reached, character))
        if found is None:
            code, after = ord(character), set()
            for number in reached:
                state = self._states[number]
                if state.kind == "character" and any(low <= code <= high for low, high in state.ranges):
                    after.update(state.targets)
            found = self._closure(after)
            self._visits += len(reached) + len(found)
            if self._visits > MAX_VISITS:
                raise InvalidPatternError("it takes too much time: repeat less")
            self._steps[reached, character] = found
        return found

    def _closure(self, numbers: set[int], at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """All states that are reached from these without a character."""
        free = {"split", *(("start",) if at_start else ()), *(("end",) if at_end else ())}
        found, left = set(numbers), list(numbers)
        while left:
            state = self._states[left.pop()]
            if state.kind in free:
                fresh = [target for target in state.targets if target not in found]
                found.update(fresh)
                left += fresh
        return frozenset(found)

    # The automaton, from its end

    def _add(self, kind: str, targets: tuple[int, ...], ranges: Ranges = ()) -> int:
        if len(self._states) >= MAX_STATES:
            raise InvalidPatternError(f"it repeats too much: {MAX_STATES} states are allowed")
        self._states.append(_State(kind, ranges, list(targets)))
        return len(self._states) - 1

    def _compile(self, node: _Node, after: int) -> int:
        """The first state of what matches `node` and goes on at `after`."""
        if isinstance(node, str):
            return self._add(node, (after,))
        if isinstance(node, tuple):
            return self._add("character", (after,), node)
        if isinstance(node, _Choice):
            return self._add("split", tuple(self._sequence(items, after) for items in node.sequences))
        first = after
        if node.most is None:
            first = self._add("split", (after,))
            self._states[first].targets.append(self._compile(node.item, first))
        else:
            for _ in range(node.most - node.least):
                first = self._add("split", (after, self._compile(node.item, first)))
        for _ in range(node.least):
            first = self._compile(node.item, first)
        return first

    def _sequence(self, items: list[_Node], after: int) -> int:
        for item in reversed(items):
            after = self._compile(item, after)
        return after


class _Parser:
    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self._depth = 0

    def parsed(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._wrong("a ) without its (")
        return node

    def _wrong(self, reason: str) -> InvalidPatternError:
        return InvalidPatternError(f"{reason} at position {self._at} of {self._text[:100]!r}")

    def _next(self, reason: str) -> str:
        if self._at >= len(self._text):
            raise self._wrong(reason)
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _choice(self) -> _Choice:
        found = _Choice()
        while self._at < len(self._text) and not self._text.startswith(")", self._at):
            if self._take("|"):
                found.sequences.append([])
            else:
                found.sequences[-1].append(self._repeated(self._item()))
        return found

    def _item(self) -> _Node:
        character = self._next("nothing")
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character in "*+?":
            raise self._wrong(f"nothing that {character} repeats")
        if character == ".":
            return (0, 9), (11, _LAST)
        if character in "^$":
            return "start" if character == "^" else "end"
        return ((ord(character), ord(character)),)

    def _group(self) -> _Node:
        if self._take("?") and not self._take(":"):
            raise self._wrong("a kind of group that is not supported")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"more than {MAX_DEPTH} groups in one another")
        node = self._choice()
        if not self._take(")"):
            raise self._wrong("no ) for a (")
        self._depth -= 1
        return node

    def _repeated(self, item: _Node) -> _Node:
        if self._take("*"):
            found = _Repeat(item, 0, None)
        elif self._take("+"):
            found = _Repeat(item, 1, None)
        elif self._take("?"):
            found = _Repeat(item, 0, 1)
        else:
            counts = self._counts()
            if counts is None:
                return item
            found = _Repeat(item, *counts)
        self._take("?")  # the shortest match first: the same for a match of the whole
        if self._text.startswith(("*", "+", "?"), self._at):
            raise self._wrong("a repetition of a repetition")
        return found

    def _counts(self) -> tuple[int, int | None] | None:
        """{m}, {m,} or {m,n}; anything else is as it stands, as in RE2."""
        end = self._text.find("}", self._at, self._at + 12)
        if not self._text.startswith("{", self._at) or end < 0:
            return None
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        if not (least.isdecimal() and least.isascii()) or not (most == "" or (most.isdecimal() and most.isascii())):
            return None
        self._at = end + 1
        counts = int(least), int(most) if most else None if comma else int(least)
        if max(counts[0], counts[1] or 0) > MAX_REPETITION or (counts[1] is not None and counts[1] < counts[0]):
            raise self._wrong(f"a wrong number of repetitions, of which {MAX_REPETITION} are allowed,")
        return counts

    def _escape(self) -> _Node:
        character = self._next("a \\ without a character")
        if character in "Az":
            return "start" if character == "A" else "end"
        self._at -= 1
        return self._escaped()

    def _escaped(self) -> Ranges:
        """The characters of an escape, in a class or outside."""
        character = self._next("a \\ without a character")
        if character.lower() in _NAMED:
            ranges = _NAMED[character.lower()]
            return ranges if character.islower() else _others(ranges)
        if character in _LITERAL:
            return ((_LITERAL[character], _LITERAL[character]),)
        if character.isascii() and character.isalnum():
            raise self._wrong(f"\\{character}, which is not supported")
        return ((ord(character), ord(character)),)

    def _class(self) -> Ranges:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        while True:
            character = self._next("no ] for a [")
            if character == "]" and found:
                break
            if character == "[" and self._text.startswith(":", self._at):
                raise self._wrong("a class by name, which is not supported")
            given = self._escaped() if character == "\\" else ((ord(character), ord(character)),)
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                character = self._next("no ] for a [")
                last = self._escaped() if character == "\\" else ((ord(character), ord(character)),)
                low, high = given[0][0], last[0][0]
                if len(given) > 1 or len(last) > 1 or given[0][1] != low or last[0][1] != high or low > high:
                    raise self._wrong("a wrong range")
                given = ((low, high),)
            found += given
        return _others(tuple(found)) if negated else tuple(found)


def _others(ranges: Ranges) -> Ranges:
    """All characters but these."""
    found, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return (*found, (start, _LAST)) if start <= _LAST else tuple(found)
