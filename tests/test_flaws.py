"""Every known flaw of the base design is played by a test or a scenario that bears its number.

The flaws are F1 to F42. A test bears `f<n>_` in its name
(`test_f12_...`) or F<n> in its docstring, a scenario `f<n>-` in the name of its file (`f1-kip-101-scenario-1.txt`).
`python -m tests.test_flaws` prints which is where; docs/known-flaws.md says what they are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SCENARIOS = TESTS.parent / "kreplog" / "sim" / "scenarios"
FLAWS = range(1, 43)

_FLAW = re.compile(r"(?<![a-z0-9])f([0-9]+)(?=[_-])")
_CITED = re.compile(r"\bF([0-9]+)\b")


def named() -> Iterator[tuple[str, str, str]]:
    """(path in tests, name, docstring) of every test and every scenario."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield str(path.relative_to(TESTS)), node.name, ast.get_docstring(node) or ""
    for path in sorted(SCENARIOS.glob("*.txt")):
        yield str(path.relative_to(TESTS.parent)), path.stem, ""


@cache
def places() -> dict[int, list[str]]:
    """Where each flaw is played."""
    found: dict[int, list[str]] = {flaw: [] for flaw in FLAWS}
    for where, name, docstring in named():
        for number in {*_FLAW.findall(name.removeprefix("test_")), *_CITED.findall(docstring)}:
            if int(number) in found:
                found[int(number)].append(f"{where}::{name}" if where.endswith(".py") else where)
    return found


@pytest.mark.parametrize("flaw", FLAWS)
def test_flaw_has_a_test_that_bears_its_number(flaw: int) -> None:
    assert places()[flaw], f"no test or scenario bears f{flaw}_ or f{flaw}- in its name or F{flaw} in its docstring"


def test_names_are_distinguished_from_other_words() -> None:
    assert _FLAW.findall("f15_f16_who_may_join_an_isr") == ["15", "16"]
    assert _FLAW.findall("f3-kip-279") == ["3"]
    assert _FLAW.findall("header_key_that_is_no_utf8_reads") == []
    assert ("test_flaws.py", "test_names_are_distinguished_from_other_words", "") in set(named())


if __name__ == "__main__":
    for number, where in places().items():
        print(f"F{number}")
        for test in where:
            print(f"    {test}")
