"""SECURITY.md: what it promises has a test beside it, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECURITY = ROOT / "SECURITY.md"

_HEADS = ("| promise | tests |", "| promise | tested by |")
_FILE = re.compile(r"`(tests/[\w/]+\.py)`")
_TEST = re.compile(r"`(test_\w+)`")
_DEFINED = re.compile(r"def (test_\w+)\(")


def promises() -> list[tuple[str, str]]:
    """(promise, tests) of each row of the tables of promises."""
    found: list[tuple[str, str]] = []
    within = False
    for line in SECURITY.read_text(encoding="utf-8").splitlines():
        if line in _HEADS:
            within = True
        elif not line.startswith("|"):
            within = False
        elif within and not line.startswith("|---"):
            promise, _, tests = line.strip("| ").rpartition(" | ")
            found.append((promise, tests))
    return found


PROMISES = promises()
DEFINED = {
    name for path in (ROOT / "tests").rglob("test_*.py") for name in _DEFINED.findall(path.read_text(encoding="utf-8"))
}


def test_each_table_of_promises_is_read() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    assert text.count("| promise |") == sum(text.count(head) for head in _HEADS)
    assert len(PROMISES) > 30


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[promise[:60] for promise, _ in PROMISES])
def test_a_promise_names_tests_that_exist(promise: str, tests: str) -> None:
    files, names = _FILE.findall(tests), _TEST.findall(tests)
    assert files or names, f"no test is named beside: {promise}"
    for file in files:
        assert (ROOT / file).is_file(), file
    for name in names:
        assert name in DEFINED, name
