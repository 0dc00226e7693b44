"""What tests of several folders share."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("kreplog", deadline=None)  # the default is a limit of 200 ms for an example
settings.load_profile("kreplog")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background; tests send it to their children
    signal.signal(signal.SIGINT, signal.default_int_handler)

_LEFT_OUT = pytest.StashKey[int]()

_FIGURE = "figure"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write into tests/scenarios what the cores do now")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked long, unless `-m` speaks of it."""
    if "long" in config.getoption("markexpr", ""):
        return
    long = [item for item in items if item.get_closest_marker("long") is not None]
    if long:
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
        config.hook.pytest_deselected(items=long)
        config.stash[_LEFT_OUT] = len(long)


def pytest_report_collectionfinish(config: pytest.Config) -> str | list[str]:
    count = config.stash.get(_LEFT_OUT, 0)
    return f"{count} left out because they take minutes: `make test-long` runs them" if count else []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, text in report.user_properties:
                if name == _FIGURE:
                    terminalreporter.write_line(text)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes what a test has measured; it is printed when all tests have ended."""
    return lambda text: request.node.user_properties.append((_FIGURE, f"{request.node.name}: {text}"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory in memory where there is one, for tests that open thousands of logs and are not about the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)
