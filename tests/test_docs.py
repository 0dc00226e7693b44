"""The documentation: links lead somewhere, paths exist, code runs, and what is generated covers what it should.

Blocks of a page are run in order in one empty directory, those of Python in one namespace, those of the shell by bash.
One that cannot be is preceded by a comment, `<!-- not run: reason -->`. Ports from 9092 on are replaced by free ones.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest

import kreplog
from kreplog import errors
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.config import LogConfig
from kreplog.core import topic_settings
from kreplog.server import settings
from tests.integration import clusters

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WITHIN_S = 300
FIRST_PORT = 9092
SOURCES = ("kreplog", "spark", "tests", "docs")
RUN_EACH_TIME = "README.md"
"""Of the pages that start Spark, the one whose blocks every run of the tests runs; the others' are long tests."""

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?^```(?P<kind>\S*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S
)
_NAME = re.compile(r"`([A-Za-z_]\w*)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|pyx|md))`")
_HEADING = re.compile(r"^#+ (.+)$", re.M)

RUNNER = """
import json, subprocess, sys
names = {"__name__": "__main__"}
for kind, line, code in json.load(sys.stdin):
    print(f"line {line}", flush=True)
    if kind == "python":
        exec(compile("\\n" * line + code, "the page", "exec"), names)
    else:
        subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=True, stdin=subprocess.DEVNULL)
"""


class Block(NamedTuple):
    kind: str
    line: int
    code: str
    reason: str | None


def blocks(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        yield Block(found["kind"], line, found["code"], found["reason"])


def prose(text: str) -> str:
    return _BLOCK.sub("", text)


def anchors(text: str) -> set[str]:
    """As GitHub and MyST make them of headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(prose(text))}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    for link in _LINK.findall(prose(text)):
        if link.startswith(("https://", "#kreplog.")):  # the second: of the API reference, which Sphinx checks
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), f"{name}: ({link}) leads nowhere"
        if anchor:  # only a page can have one: other links are to pictures, too
            found = anchors(target.read_text(encoding="utf-8"))
            assert anchor in found, f"{name}: ({link}) names no heading of that page"


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/benchmarks.md", "docs/settings.md"])
def test_paths_that_are_named_exist(name: str) -> None:
    folders = [ROOT, ROOT / "kreplog", ROOT / "kreplog" / "server", ROOT / "spark" / "pyspark_kreplog"]
    found = _PATH.findall(prose((ROOT / name).read_text(encoding="utf-8")))
    assert found
    made = {"build/docs", "dist/"}
    missing = [path for path in found if path not in made and not any((folder / path).exists() for folder in folders)]
    assert not missing


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_names_of_the_code_that_are_given_exist(name: str) -> None:
    sources = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.p*") if path.suffix in (".py", ".pyx")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in sources)))
    given = set(_NAME.findall(prose((ROOT / name).read_text(encoding="utf-8"))))
    assert given
    assert not given - words


def runnable(name: str) -> list[Block]:
    return [block for block in blocks((ROOT / name).read_text(encoding="utf-8")) if block.kind in ("python", "sh")]


def _marked(name: str) -> object:
    found = [block.code for block in runnable(name) if block.reason is None]
    starts_spark = any("pyspark_kreplog" in code or "kreplog_jobs" in code for code in found)
    duration = pytest.mark.slow if name == RUN_EACH_TIME else pytest.mark.long
    return pytest.param(name, marks=[duration, pytest.mark.spark] if starts_spark else [])


def test_every_block_has_a_language() -> None:
    bare = [
        f"{name}:{block.line}" for name in NAMES for block in blocks((ROOT / name).read_text("utf-8")) if not block.kind
    ]
    assert not bare


def test_every_cluster_that_a_page_makes_has_ports_of_its_own() -> None:
    """Those that a page names are replaced by free ones; other tests, and other programs, may use the default."""
    without = [
        f"{name}:{block.line}"
        for name in NAMES
        for block in runnable(name)
        if block.reason is None
        and any("kreplog cluster create" in line and "--port" not in line for line in block.code.splitlines())
    ]
    assert not without


@pytest.mark.parametrize(
    "name", [_marked(name) for name in NAMES if any(block.reason is None for block in runnable(name))]
)
def test_code_blocks_run(name: str, tmp_path: Path) -> None:
    first = free_ports(3)
    code = [(block.kind, block.line, with_ports(block.code, first)) for block in runnable(name) if block.reason is None]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KREPLOG_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "spark"), str(ROOT / "spark" / "jobs")])
    with ExitStack() as stack:
        for line in re.findall(r"kreplog cluster create .* (\S+)$", "\n".join(block[2] for block in code), re.M):
            stack.callback(kill_brokers, tmp_path / line)
        done = subprocess.run(
            [sys.executable, "-c", RUNNER],
            input=json.dumps(code),
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    assert done.returncode == 0, f"{name}: {done.stdout}"


def kill_brokers(directory: Path) -> None:
    if (directory / "cluster.json").exists():
        clusters.end(LocalCluster(directory))


def with_ports(code: str, first: int) -> str:
    return re.sub(r"\b909[2-4]\b", lambda port: str(first + int(port[0]) - FIRST_PORT), code)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens at."""
    for first in range(20_000 + os.getpid() % 10_000, 32_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def test_operations_names_each_error_and_says_what_to_do() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+Error)` \| (.+?) \| (.+?) \|$", text, re.M)
    public = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.KreplogError) and kind is not errors.KreplogError
    }
    assert {name for name, _, _ in rows} == public
    assert len(rows) == len(public), "an error has two rows"


OF_OTHER_MODULES = {"generation", "linger"}
"""Methods of public classes that other modules of the package call, and nobody else."""


@pytest.mark.parametrize("name", ["Log", "Topic", "Cursor", "GroupCursor", "WorkQueue", "Table", "Appender", "Fetched"])
def test_the_api_reference_has_each_member_with_a_docstring(name: str) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (listed,) = re.findall(rf"^\.\. autoclass:: kreplog\.{name}\(\)\n   :members: ((?:.+\n)+)", page, re.M)
    kind = getattr(kreplog, name)
    own = dir(kind) if name != "Table" else set(dir(kind)) - set(dir(Mapping))
    public = {member for member in own if not member.startswith("_") and inspect.getdoc(getattr(kind, member))}
    assert public - OF_OTHER_MODULES <= {member.strip() for member in listed.split(",")}


POLICIES = 'delete; compact; compact,delete; delete,compact; ""'
RATE, MAX_DOUBLE = "log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308"
OF_BROKER = "the broker's `log.cleaner.min.compaction.lag.ms`"


class TestGenerated:
    """The output of docs/generated.py, which takes Sphinx: `make setup` installs it."""

    @pytest.fixture(autouse=True)
    def _path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("sphinx", reason="needs the extra `docs`")
        monkeypatch.syspath_prepend(str(ROOT / "docs"))

    def test_each_setting_has_a_row_and_a_meaning(self) -> None:
        import generated

        for kind, names in (("broker", settings.SETTINGS), ("topic", topic_settings.NAMES)):
            rows = generated.SETTINGS_TABLES[kind]().splitlines()
            for name in names:
                (row,) = [row for row in rows if row.startswith(f"| `{name}` |")]
                assert not row.endswith("|  |"), f"the docstrings say nothing of {name}"

    @pytest.mark.parametrize(
        ("kind", "name", "expected"),
        [
            ("broker", "max.connections", ("int", "1 to 2147483647", "10000", "", "2147483647")),
            ("broker", "connections.max.idle.ms", ("long", "10 to 2^40", "600000", "ms", "the same")),
            ("broker", "offsets.retention.minutes", ("int", "1 to 2147483647", "10080", "min", "the same")),
            ("broker", "queued.max.request.bytes", ("long", "1048576 to 2^40", "268435456", "bytes", "-1: no limit")),
            ("broker", "log.cleaner.dedupe.buffer.size", ("long", "1024 to 2^40", "134217728", "bytes", "the same")),
            ("broker", "allow.plaintext.remote", ("boolean", "true or false", "false", "", "not a setting of Kafka's")),
            ("broker", "log.cleaner.min.cleanable.ratio", ("double", "0 to 1", "0.5", "", "the same")),
            ("broker", RATE, ("double", "1 to 1.7976931348623157e+308", "none", "bytes/s", f"{MAX_DOUBLE}: no limit")),
            ("broker", "log.dirs", ("list", "texts", "**required**", "", "/tmp/kafka-logs (log.dir)")),
            ("broker", "log.cleanup.policy", ("list", POLICIES, "delete", "", "the same")),
            ("broker", "server.log.format", ("string", "json; text", "json", "", "not a setting of Kafka's")),
            ("topic", "min.compaction.lag.ms", ("long", "0 to 2^63-1", OF_BROKER, "ms", "the same")),
            ("topic", "preallocate", ("boolean", "true or false", "false", "", "the same")),
            (
                "topic",
                "cleanup.policy",
                ("list", POLICIES, "the broker's `log.cleanup.policy`: delete", "", "the same"),
            ),
            ("log", "segment_bytes", ("int", "256 to 2147483647", "1073741824", "bytes", "the same")),
            ("log", "retention_ms", ("int", "-1 to 2^63-1", "-1", "ms", "604800000")),
            ("log", "compression_type", ("str", "none; gzip; snappy; lz4; zstd", "none", "", "producer")),
            ("log", "batch_bytes", ("int", "1 to 1073741824", "65536", "bytes", "not a setting of Kafka's")),
            ("log", "min_cleanable_dirty_ratio", ("float", "0 to 1", "0.5", "", "the same")),
        ],
    )
    def test_a_setting_has_its_type_and_values(self, kind: str, name: str, expected: tuple[str, ...]) -> None:
        import generated

        head, _, *rows = [row.strip("| ").split(" | ") for row in generated.SETTINGS_TABLES[kind]().splitlines()]
        (row,) = [dict(zip(head, row, strict=True)) for row in rows if row[0] == f"`{name}`"]
        columns = ("Type", "Allowed", "Default", "Unit", "Kafka's default")
        assert tuple(row[column].strip() for column in columns) == expected

    def test_what_is_said_of_kafka_is_about_settings_that_exist(self) -> None:
        import generated

        known = settings.SETTINGS.keys() | topic_settings.NAMES.keys() | topic_settings.UNUSED.keys()
        assert generated.NOT_OF_KAFKA | generated.KAFKA_DEFAULTS.keys() <= known
        assert not generated.NOT_OF_KAFKA & generated.KAFKA_DEFAULTS.keys()

    def test_each_setting_of_topics_and_logs_says_when_it_takes_effect(self) -> None:
        import generated

        assert generated.TOPIC_TAKES_EFFECT.keys() == topic_settings.NAMES.keys()
        assert generated.LOG_TAKES_EFFECT.keys() == {field.name for field in fields(LogConfig)}
        for kind in ("broker", "topic", "log"):
            head, _, *rows = [row.split(" | ") for row in generated.SETTINGS_TABLES[kind]().splitlines()]
            column = head.index("Takes effect")
            assert all(len(row) == len(head) and row[column].strip() for row in rows)

    def test_items_of_a_docstring(self) -> None:
        import generated

        text = "What it is.\n\none: a number.\n    It goes on. two: another.\nthree, four: both.\n\nThe rest: no item."
        both = dict.fromkeys(("three", "four"), "both.")
        assert generated.described(text) == {"one": "a number. It goes on.", "two": "another.", **both}

    def test_each_flaw_has_a_heading_and_its_coverage(self) -> None:
        text = (ROOT / "docs" / "known-flaws.md").read_text(encoding="utf-8")
        flaws = [str(number) for number in range(1, 43)]
        assert re.findall(r"^## F(\d+): ", text, re.M) == flaws
        assert re.findall(r"^```\{coverage\} (\d+)$", text, re.M) == flaws
