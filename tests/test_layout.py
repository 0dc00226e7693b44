"""The layout of the tree: tests stand in the folder of what they test, and files are short enough to be read."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

from tests.conftest import WORKER_GROUPS

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
MAX_LINES = 700
MAX_MEDIAN_LINES = 200
SOURCES = {".py", ".pyi", ".pyx", ".pxd"}


def folders(within: Path) -> set[str]:
    """The names of the folders directly below `within` that have sources or scenarios."""
    return {path.relative_to(within).parts[0] for path in within.rglob("*/*") if path.suffix in SOURCES | {".txt"}}


def test_tests_stand_in_the_folders_of_the_package() -> None:
    """Folders of any other name are in CONTRIBUTING.md, which says what is in them."""
    listed = set(re.findall(r"^\| `tests/(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M))
    package = {name.lstrip("_") for name in folders(ROOT / "kreplog")} | {"spark"}
    assert folders(TESTS) - package == listed
    for name in ("core", "server", "sim"):
        assert folders(TESTS / name) <= folders(ROOT / "kreplog" / name), name


def test_the_folders_that_one_worker_runs_exist() -> None:
    assert folders(TESTS) >= set().union(*WORKER_GROUPS.values())


def test_files_are_short_enough_to_be_read() -> None:
    lines = {
        path: path.read_text(encoding="utf-8").count("\n")
        for top in ("benchmarks", "docs", "examples", "kreplog", "spark", "tests")
        for path in (ROOT / top).rglob("*")
        if path.suffix in SOURCES
    }
    assert not {path: count for path, count in lines.items() if count > MAX_LINES}
    modules = [count for path, count in lines.items() if path.is_relative_to(ROOT / "kreplog")]
    assert median(modules) < MAX_MEDIAN_LINES
