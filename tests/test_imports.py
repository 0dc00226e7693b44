"""Imports run one way: the arrows allowed between the parts of kreplog, which ARCHITECTURE.md shows, and no others.

Every .py and .pyi is read through its syntax tree; .pyx and .pxd, which Python cannot parse, line by line. Arrows count
wherever they stand: at the top of a module, inside a function, or under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {
    "kreplog": ROOT / "kreplog",
    "kreplog_jobs": ROOT / "spark" / "jobs" / "kreplog_jobs",
    "pyspark_kreplog": ROOT / "spark" / "pyspark_kreplog",
}

# A part is a module or package with all below it; the longest name that fits is the one that counts. "kreplog" itself
# is __init__.py, which stands for the public names.
EVERYWHERE = {"kreplog.errors", "kreplog.types", "kreplog.config", "kreplog.closing"}
CORE = {
    "kreplog.core",
    "kreplog.core.messages",
    "kreplog.core.group_messages",
    "kreplog.core.consumer_group_messages",
    "kreplog.core.transaction_messages",
    "kreplog.core.throttled_replicas",
}
CORES = CORE | {
    "kreplog.core.controller",
    "kreplog.core.replication",
    "kreplog.core.replication.epochs",
    "kreplog.core.groups",
    "kreplog.core.transactions",
    "kreplog.core.security",
    "kreplog.core.quotas",
    "kreplog.core.broker",
    "kreplog.core.broker.log_cleaning",
}
ALLOWED: dict[str, set[str]] = {
    "kreplog": EVERYWHERE | {"kreplog.log", "kreplog.topic"},
    "kreplog.closing": set(),
    "kreplog.syncing": set(),
    "kreplog.tls": {"kreplog.errors"},
    "kreplog.web_request": {"kreplog.errors", "kreplog.types"},
    "kreplog.errors": set(),
    "kreplog.types": {"kreplog.errors"},
    "kreplog.config": {"kreplog.errors", "kreplog.types"},
    "kreplog.boot": set(),
    "kreplog._native": EVERYWHERE | {"kreplog.boot"},
    "kreplog.follow": EVERYWHERE | {"kreplog._native"},
    "kreplog.file_systems": EVERYWHERE | {"kreplog._native"},
    "kreplog.log": EVERYWHERE | {"kreplog.follow", "kreplog.file_systems", "kreplog._native"},
    "kreplog.bulk_append": EVERYWHERE | {"kreplog._native"},
    "kreplog.small_log": EVERYWHERE | {"kreplog.file_systems", "kreplog.log", "kreplog._native"},
    "kreplog.managed_log": EVERYWHERE | {"kreplog.log", "kreplog._native"},
    "kreplog.codecs": EVERYWHERE,
    "kreplog.schemas": EVERYWHERE | {"kreplog.codecs", "kreplog.syncing", "kreplog._native"},
    # Which partition is compacted next, where a group's offsets are, and where logs part, are rules of brokers, too;
    # which partitions a member of a cursor group owns, and which records a work queue delivers, rules by themselves.
    "kreplog.topic": EVERYWHERE
    | {"kreplog.codecs", "kreplog.file_systems", "kreplog.log", "kreplog.syncing", "kreplog._native"}
    | {"kreplog.core.broker.log_cleaning"}
    | {"kreplog.core.cursor_groups", "kreplog.core.work_queues", "kreplog.core.replication.epochs"}
    | {"kreplog.core.group_messages", "kreplog.wire.group_records"},
    "kreplog.batches": EVERYWHERE | {"kreplog.log", "kreplog._native"},
    # What `kreplog log` is made of imports no other command: it runs without the extra `cluster`.
    "kreplog.commands.interruption": EVERYWHERE,
    "kreplog.commands.options": EVERYWHERE,
    "kreplog.commands.records": EVERYWHERE | {"kreplog.log", "kreplog.commands.options"},
    "kreplog.commands.lines": EVERYWHERE | {"kreplog.log", "kreplog.batches", "kreplog.commands.options"},
    "kreplog.commands.log": EVERYWHERE
    | {"kreplog", "kreplog.batches"}
    | {f"kreplog.commands.{name}" for name in ("interruption", "lines", "options", "records")},
    "kreplog.commands.cursors": EVERYWHERE | {"kreplog", "kreplog.commands.options"},
    "kreplog.commands.topic_folders": EVERYWHERE | {"kreplog", "kreplog.commands.options"},
    "kreplog.commands": EVERYWHERE
    | {f"kreplog.commands.{name}" for name in ("interruption", "options", "records", "topic_folders")}
    | {"kreplog.client", "kreplog.cluster", "kreplog.console", "kreplog.replay"}
    | {"kreplog.core.security", "kreplog.core.quotas"},
    # batches: what is in a fetched batch; log: the logs of a directory; wire: names of error codes.
    "kreplog.console": EVERYWHERE
    | {"kreplog.batches", "kreplog.client", "kreplog.log", "kreplog.replay", "kreplog.wire"}
    | {"kreplog.core.messages", "kreplog.core.security"},
    # sim, replay: `kreplog simulate`, imported when it is run.
    "kreplog.cli": EVERYWHERE
    | {"kreplog", "kreplog.commands"}
    | {f"kreplog.commands.{name}" for name in ("cursors", "log", "options", "topic_folders")}
    | {"kreplog.replay", "kreplog.sim"},
    "kreplog.__main__": {"kreplog.cli"},
    "kreplog.core": EVERYWHERE | CORE,
    "kreplog.core.messages": EVERYWHERE | CORE,
    "kreplog.core.group_messages": EVERYWHERE | {"kreplog.core.consumer_group_messages"},
    "kreplog.core.consumer_group_messages": EVERYWHERE,
    "kreplog.core.cursor_groups": EVERYWHERE,
    "kreplog.core.throttled_replicas": EVERYWHERE,
    "kreplog.core.work_queues": EVERYWHERE,
    "kreplog.core.transaction_messages": EVERYWHERE | {"kreplog.core.group_messages"},
    "kreplog.core.replication": EVERYWHERE | CORE | {"kreplog.core.replication.epochs"},
    "kreplog.core.replication.epochs": EVERYWHERE,
    "kreplog.core.groups": EVERYWHERE | CORE,
    "kreplog.core.transactions": EVERYWHERE | CORE,
    "kreplog.core.security": EVERYWHERE | CORE,
    "kreplog.core.quotas": EVERYWHERE | CORE,
    "kreplog.core.controller": EVERYWHERE | CORE,
    "kreplog.core.broker": EVERYWHERE | CORES,
    "kreplog.core.broker.log_cleaning": EVERYWHERE,
    # Of the cores wire has their messages alone: the dataclasses that frames are decoded into and encoded from.
    "kreplog.wire": EVERYWHERE
    | {"kreplog._native", "kreplog.core.messages", "kreplog.core.group_messages"}
    | {"kreplog.core.consumer_group_messages", "kreplog.core.transaction_messages"},
    "kreplog.wire.record_fields": EVERYWHERE | {"kreplog._native"},
    "kreplog.wire.consumer_group_records": EVERYWHERE
    | {"kreplog._native", "kreplog.core.consumer_group_messages", "kreplog.wire.record_fields"},
    "kreplog.wire.group_records": EVERYWHERE
    | {"kreplog._native", "kreplog.core.group_messages"}
    | {"kreplog.wire.consumer_group_records", "kreplog.wire.record_fields"},
    "kreplog.wire.transaction_records": EVERYWHERE
    | {"kreplog._native", "kreplog.core.transaction_messages", "kreplog.wire.record_fields"},
    "kreplog.coord": EVERYWHERE | {"kreplog.boot", "kreplog.syncing", "kreplog.tls"},
    "kreplog.coord.memory": EVERYWHERE | {"kreplog.coord"},
    "kreplog.server": EVERYWHERE
    | CORES
    | {
        "kreplog.boot",
        "kreplog.coord",
        "kreplog.managed_log",
        "kreplog.syncing",
        "kreplog.tls",
        "kreplog.web_request",
        "kreplog.wire",
        "kreplog.wire.group_records",
        "kreplog.wire.transaction_records",
    },
    # wire encodes and decodes core.messages; security has the client's end of SASL, credentials, and ACLs;
    # throttled_replicas the names of settings.
    "kreplog.client": EVERYWHERE
    | {"kreplog.tls", "kreplog.web_request", "kreplog.wire", "kreplog._native", "kreplog.core.messages"}
    | {"kreplog.core.security", "kreplog.core.quotas", "kreplog.core.throttled_replicas"},
    # server: a broker's settings, the cluster's key, and serve(); managed_log: durable files for their owner alone;
    # coord, core: requests to the controller that Kafka's protocol lacks, and the plan of a rebalance.
    "kreplog.cluster": EVERYWHERE
    | {"kreplog.client", "kreplog.server", "kreplog.managed_log"}
    | {"kreplog.coord", "kreplog.core", "kreplog.core.controller", "kreplog.core.security", "kreplog.core.quotas"},
    # managed_log: the real log as brokers use it, on which a quarter of the seeds run. wire: coordinators' records.
    "kreplog.sim": EVERYWHERE
    | CORES
    | {
        "kreplog.coord.memory",
        "kreplog.managed_log",
        "kreplog.wire.group_records",
        "kreplog.wire.transaction_records",
    },
    "kreplog.replay": EVERYWHERE | {"kreplog.sim", "kreplog.core.replication"},
    "pyspark_kreplog": EVERYWHERE | {"kreplog", "kreplog.bulk_append", "kreplog.client", "kreplog.small_log"},
    "kreplog_jobs": EVERYWHERE | {"kreplog", "kreplog.bulk_append", "kreplog.client", "pyspark_kreplog"},
}

_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""'
    + r"|'''(?:\\.|[^\\])*?'''"
    + r'|"(?:\\.|[^"\\\n])*"'
    + r"|'(?:\\.|[^'\\\n])*'"
    + r"|#[^\n]*"
)
_CYTHON_FROM = re.compile(r"^\s*from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_CYTHON_IMPORT = re.compile(r"^\s*c?import\s+([^\n]+)", re.MULTILINE)

Imported = tuple[str, tuple[str, ...]]
"""What an import statement names: a module (leading dots kept) and the names taken from it, if any."""


@cache
def python_imports(text: str) -> tuple[Imported, ...]:
    found: list[Imported] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(("." * node.level + (node.module or ""), tuple(alias.name for alias in node.names)))
    return tuple(found)


@cache
def cython_imports(text: str) -> tuple[Imported, ...]:
    found: list[Imported] = []
    code = _STRING_OR_COMMENT.sub('""', text).replace("\\\n", " ")
    for module, names in _CYTHON_FROM.findall(code):
        found.append((module, _names(names.strip("() \n"))))
    for modules in _CYTHON_IMPORT.findall(code):
        found += [(module, ()) for module in _names(modules)]
    return tuple(found)


def _names(clause: str) -> tuple[str, ...]:
    return tuple(name.split()[0] for name in clause.replace(";", " ").split(",") if name.split())


def module_name(path: Path) -> str:
    for package, folder in SOURCES.items():
        if path.is_relative_to(folder):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    raise ValueError(f"{path} belongs to no package of ours")


def targets(importer: str, is_package: bool, imported: Imported, known: set[str]) -> Iterator[str]:
    """The modules of ours that one import statement reaches; `from kreplog import log` reaches kreplog.log."""
    module, names = imported
    level = len(module) - len(module.lstrip("."))
    if level:
        base = importer.split(".")
        base = base[: len(base) - level + is_package]
        module = ".".join([*base, *filter(None, [module[level:]])])
    if module.split(".")[0] not in SOURCES:
        return
    inner = [f"{module}.{name}" for name in names if f"{module}.{name}" in known]
    yield from inner
    if len(inner) < len(names) or not names:
        yield module


def part_of(module: str) -> str | None:
    """The part of ALLOWED that `module` belongs to; None for one that has no rule yet."""
    pieces = module.split(".")
    for length in range(len(pieces), 0, -1):
        part = ".".join(pieces[:length])
        if part in ALLOWED:
            return None if part == "kreplog" != module else part
    return None


def arrows(files: dict[Path, str]) -> Iterator[tuple[Path, str, str]]:
    """(file, importing module, imported module) of all imports in `files` (path to text) of modules of ours."""
    known = {module_name(path) for path in files}
    for path, text in files.items():
        importer = module_name(path)
        read = python_imports if path.suffix in (".py", ".pyi") else cython_imports
        for imported in read(text):
            for target in targets(importer, path.stem == "__init__", imported, known):
                yield path, importer, target


def wrong_arrows(files: dict[Path, str]) -> list[str]:
    """One line for each import in `files` (path to text) that ALLOWED does not allow."""
    modules = sorted({module_name(path) for path in files})
    wrong = [f"{name} belongs to no part in ALLOWED: give it a rule" for name in modules if part_of(name) is None]
    for path, importer, target in arrows(files):
        source, part = part_of(importer), part_of(target)
        if source is not None and part != source and part not in ALLOWED[source]:
            wrong.append(f"{importer} ({path.name}) imports {target}: no arrow from {source} to {part or target}")
    return wrong


def unused_arrows(files: dict[Path, str]) -> list[str]:
    """What ALLOWED allows and no import needs; a part inside another is allowed with it, and not looked at."""
    used = {(part_of(importer), part_of(target)) for _, importer, target in arrows(files)}
    inner = {part for part in ALLOWED for outer in ALLOWED if part.startswith(outer + ".") and outer != "kreplog"}
    return [
        f"{source} to {part}"
        for source, allowed in ALLOWED.items()
        for part in sorted(allowed - EVERYWHERE - inner - {source})
        if not source.startswith(part + ".") and (source, part) not in used
    ]


def source_files() -> dict[Path, str]:
    return {
        path: path.read_text(encoding="utf-8")
        for folder in SOURCES.values()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd")
    }


def test_imports_run_one_way() -> None:
    assert wrong_arrows(source_files()) == []


def test_no_arrow_is_allowed_that_no_import_needs() -> None:
    assert unused_arrows(source_files()) == []


Row = tuple[str, ...]
"""The parts in the first column of a row of ARCHITECTURE.md's map."""


def part_named(name: str) -> str:
    """The part that ARCHITECTURE.md names: `core/messages.py` is kreplog.core.messages."""
    pieces = name.removesuffix(".py").removesuffix("/__init__").split("/")
    if pieces[0] == "spark" or pieces[0] in SOURCES:
        return ".".join([pieces[-1]] if pieces[0] == "spark" else pieces)
    return ".".join(["kreplog", *pieces])


def table_of(text: str) -> dict[Row, set[str]]:
    """The rows of ARCHITECTURE.md's map, and the names in the last column; rows without one are inside other parts."""
    rows: dict[Row, set[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(("| `kreplog", "| `spark")) and len(cells) == 3 and cells[2]:
            used = set() if cells[2] == "nothing else" else set(cells[2].replace("`", "").split(", "))
            rows[tuple(part_named(name) for name in re.findall("`([^`]+)`", cells[0]))] = used
    return rows


def row_of(part: str, rows: Iterable[Row]) -> Row:
    """The row that `part` is in, by the longest name that fits; () for none."""
    fits = {
        name: row for row in rows for name in row if part == name or (part.startswith(name + ".") and name != "kreplog")
    }
    return fits[max(fits, key=len)] if fits else ()


def differences(rows: dict[Row, set[str]]) -> list[str]:
    """Arrows that ALLOWED has and the map lacks, and the other way round.

    `core` stands for the modules of that row, `core/*` for all rows below it, too. Arrows within a row are left out."""
    allowed: dict[Row, set[str]] = {row: set() for row in rows}
    for source, parts in ALLOWED.items():
        if source not in EVERYWHERE:
            allowed.setdefault(row_of(source, rows), set()).update(parts - EVERYWHERE)
    found = []
    for row, parts in allowed.items():
        covered: set[str] = set()
        for name in rows.get(row, ()):
            part = part_named(name.removesuffix("/*"))
            below = {other for (other, *_) in rows if name.endswith("/*") and other.startswith(part + ".")}
            found += [f"{row[0]}: {name}, and no arrow to {each}" for each in sorted({part, *below} - parts)]
            covered |= {each for each in parts if each == part or {part, *below}.intersection(row_of(each, rows))}
        found += [
            f"{'/'.join(row) or 'no row'}: no {part}" for part in sorted(parts - covered) if row_of(part, rows) != row
        ]
    return found


def test_the_map_shows_the_arrows_that_are_allowed() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert differences(table_of(text)) == []
    (everywhere,) = re.findall(r"(`errors`.*) may be used everywhere", text)
    assert {part_named(name) for name in re.findall("`([^`]+)`", everywhere)} == EVERYWHERE


@pytest.mark.parametrize(
    ("row", "used", "found"),
    [
        ("kreplog.wire", {"_native", "core"}, ["kreplog.wire: core, and no arrow to kreplog.core"]),
        (
            "kreplog.sim",
            {"core/*", "coord/memory.py", "managed_log", "wire/group_records.py"},
            ["kreplog.sim: no kreplog.wire.transaction_records"],
        ),
        ("kreplog.codecs", {"log"}, ["kreplog.codecs: log, and no arrow to kreplog.log"]),
        ("kreplog.server", {"core/*", "coord", "managed_log"}, ["kreplog.server: no kreplog.wire"]),
    ],
)
def test_a_map_that_differs_is_found(row: str, used: set[str], found: list[str]) -> None:
    rows = table_of((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert set(found) <= set(differences(rows | {(row,): used}))


PURE = {
    "__future__",
    "base64",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "ipaddress",
    "itertools",
    "json",
    "math",
    "operator",
    "re2",
    "typing",
    "uuid",
}
"""What `core` may import, re2 alone not of the standard library: nothing that reads a clock, a file, a socket or global
randomness."""


def test_the_cores_touch_neither_clock_nor_thread_nor_socket_nor_file_nor_randomness() -> None:
    core = ROOT / "kreplog" / "core"
    found = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in core.rglob("*.py")
        for module, _ in python_imports(path.read_text(encoding="utf-8"))
        if module.lstrip(".").split(".")[0] not in PURE | {"kreplog", ""}
    }
    assert not found
    for path in core.rglob("*.py"):
        called = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & {"open", "print", "input", "exec", "eval"}, path
        assert "uuid1" not in path.read_text() and "uuid4" not in path.read_text(), path


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("kreplog/errors.py", "import kreplog.types"),
        ("kreplog/types.py", "from kreplog import log"),
        ("kreplog/log.py", "from kreplog.cli import main"),
        ("kreplog/log.py", "def late():\n    from . import cli"),
        ("kreplog/__init__.py", "from ._native.batch import Record"),
        ("kreplog/_native/batch.pyi", "from kreplog.log import Log"),
        ("kreplog/_native/batch.pyx", "cimport kreplog._native.cursor, kreplog.log as log"),
        ("kreplog/_native/batch.pyx", "from ..log import Log"),
        ("kreplog/_native/batch.pyx", "from kreplog import (\n    errors,\n    log,\n)"),
        ("kreplog/_native/batch.pyx", '"""Text."""\ncdef f():\n    from kreplog cimport cli  # why\n'),
        ("kreplog/_native/batch.pxd", "from kreplog import Log"),
        ("kreplog/core/replication/isr.py", "from kreplog.core.controller import controller"),
        ("kreplog/core/messages.py", "from kreplog.wire import frames"),
        ("kreplog/novelty.py", "import os"),
        ("spark/pyspark_kreplog/read.py", "from kreplog._native.arrow import ArrowBuilder"),
        ("spark/pyspark_kreplog/read.py", "import kreplog.cli"),
    ],
)
def test_a_wrong_arrow_is_found(file: str, text: str) -> None:
    """The check itself: one planted import among the real files is reported, and nothing else is."""
    files = source_files()
    planted = {ROOT / "kreplog" / name: "" for name in ("log.py", "cli.py", "coord/embedded.py", "wire/frames.py")}
    before = wrong_arrows(planted | files)
    after = wrong_arrows(planted | files | {ROOT / file: text})
    assert len([line for line in after if line not in before]) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("kreplog/_native/batch.pyx", '"""\nfrom kreplog.log import Log\n"""\n# import kreplog.cli\n'),
        (
            "kreplog/_native/batch.pyx",
            "from kreplog import errors\nfrom kreplog._native cimport cursor\nfrom . cimport cursor",
        ),
        ("kreplog/_native/batch.pyx", "from libc.stdint cimport uint8_t\ncimport cython\nimport os, sys"),
        (
            "kreplog/log.py",
            "from kreplog._native import batch\nfrom kreplog.errors import UsageError\nfrom .types import Damage",
        ),
        ("kreplog/sim/machines/disk.py", "from kreplog.coord.memory import Store"),
        ("spark/pyspark_kreplog/read.py", "import kreplog\nfrom kreplog.errors import UsageError\nfrom . import plan"),
    ],
)
def test_a_right_arrow_passes(file: str, text: str) -> None:
    assert (
        wrong_arrows({ROOT / file: text, ROOT / "kreplog/errors.py": "", ROOT / "kreplog/_native/cursor.pxd": ""}) == []
    )
