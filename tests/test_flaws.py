"""Every known flaw of the base design that concerns the cores is played by a test or a scenario that bears its name.

The flaws are F1 to F34, F39 and F41. A name bears `f<n>_` in a test (`test_f12_...`) or `f<n>-` in a file of
tests/scenarios (`f1-kip-101-scenario-1.txt`). `python -m tests.test_flaws` prints which is where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FLAWS = [*range(1, 35), 39, 41]

_TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
_FLAW = re.compile(r"(?<![a-z0-9])f([0-9]+)(?=[_-])")


def named() -> Iterator[tuple[str, str]]:
    """(path in tests, name) of every test and every scenario."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in _TEST.findall(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(TESTS)), name
    for path in sorted((TESTS / "scenarios").glob("*.txt")):
        yield str(path.relative_to(TESTS)), path.stem


def places() -> dict[int, list[str]]:
    """Where each flaw is played."""
    found: dict[int, list[str]] = {flaw: [] for flaw in FLAWS}
    for where, name in named():
        for number in _FLAW.findall(name.removeprefix("test_")):
            if int(number) in found:
                found[int(number)].append(f"{where}::{name}" if where.endswith(".py") else where)
    return found


@pytest.mark.parametrize("flaw", FLAWS)
def test_flaw_has_a_test_that_bears_its_name(flaw: int) -> None:
    assert places()[flaw], f"no test or scenario bears the name f{flaw}_ or f{flaw}-"


def test_names_are_told_from_other_words() -> None:
    assert _FLAW.findall("f15_f16_who_may_join_an_isr") == ["15", "16"]
    assert _FLAW.findall("f3-kip-279") == ["3"]
    assert _FLAW.findall("header_key_that_is_no_utf8_reads") == []
    assert ("test_flaws.py", "test_names_are_told_from_other_words") in set(named())


if __name__ == "__main__":
    for number, where in places().items():
        print(f"F{number}")
        for one in where:
            print(f"    {one}")
