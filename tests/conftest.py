"""What tests of several folders share."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from tests import orphans
from tests.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

settings.register_profile("kreplog", deadline=None)  # the default is a limit of 200 ms for an example
settings.load_profile("kreplog")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background; tests send it to their children
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start a thousand processes, each of which would compile the package again: half of a broker's start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Most of what a test spends in a Java virtual machine is its start, which compiling less shortens by a third.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

_FIGURE = "figure"

WORKER_GROUPS = {
    "server": ("coord", "hostile", "server"),
    "clients": ("client", "client_libraries", "commands", "interop"),
    "clusters": ("cluster", "console", "integration"),
    "spark": ("spark",),
}
"""Folders whose tests run one at a time: of brokers within pytest's process, of clusters of processes, and of Spark,
since a process has one JVM. No group takes more than a third of the time, so that each worker has its share."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write into kreplog/sim/scenarios what the cores do now")


def pytest_sessionstart() -> None:
    orphans.watch()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each of WORKER_GROUPS to one worker, and each other module; of the long tests of faults each alone, since
    those of one module take a quarter of an hour, each in its own process."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = partial(_worker_group, runs_long=_runs_long(config))
    return scheduler


def _worker_group(nodeid: str, runs_long: bool) -> str:
    module = nodeid.partition("::")[0]
    folder = module.split("/")[1]
    for group, folders in WORKER_GROUPS.items():
        if folder in folders:
            return group
    return nodeid if runs_long and folder == "faults" else module


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is long, unless `-m` speaks of it."""
    if _runs_long(config):
        return
    long = [item for item in items if item.get_closest_marker("long") is not None]
    if long:
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
        config.hook.pytest_deselected(items=long)


def _runs_long(config: pytest.Config) -> bool:
    return "long" in config.getoption("markexpr", "")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Limit the fixtures' end too: pytest gives a test that has failed its limit no more."""
    limit_s = float(item.config.getini("faulthandler_timeout"))
    if limit_s > 0:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit_s, file=stderr, exit=True)


def pytest_report_header(config: pytest.Config) -> str | None:
    return None if _runs_long(config) else "Tests that take minutes are left out: `make test-long` runs them"


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests of a module, each of which opens a page or a context of its own: `browser.new_page()`."""
    with chromium() as running:
        yield running
