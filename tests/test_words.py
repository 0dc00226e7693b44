"""Words: identifiers that say what they hold, no name for two things, and docstrings that say what a class is.

Read through the syntax tree of each .py and .pyi, and token by token of .pyx and .pxd, which Python cannot parse, with
the names of files and folders themselves. SHARED_MODULES has the names that modules of several packages share, each
with its reason.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("kreplog", "spark", "benchmarks", "examples", "docs", "tests")
PACKAGES = (ROOT / "kreplog", ROOT / "spark" / "pyspark_kreplog", ROOT / "spark" / "jobs" / "kreplog_jobs")

PARTS = frozenset(
    {"told", "tell", "tells", "telling", "asked", "ask", "asks", "asking", "obey", "obeys", "obeyed", "heir", "heirs"}
    | {"unborn", "condemned", "departed", "happening", "happenings", "news", "reign", "reigns"}
)
"""No identifier has these among its words, such as `_told` or `departedBrokers`."""

WHOLE = frozenset({"one", "ones", "who", "whom", "what", "some", "kept", "there", "why", "whose"})
"""No identifier is one of these: a variable is named by what it holds, such as replica, broker_id or frame."""

PROSE = re.compile(
    r"\b(told|tells?|telling|ask(?:s|ed|ing)?|obey(?:s|ed)?|heirs?|unborn|condemned|departed|happenings?|reign(?:s|ed)?|anew)\b",
    re.IGNORECASE,
)
"""In docstrings, comments and messages, in the Markdown of the docs and in scenarios: the field has words for these."""

_SIMULATED = "the simulator's counterpart of what a broker has"
_COMMAND = "commands are named by the nouns of `kreplog --help`"

SHARED_MODULES = {
    "acls": _COMMAND,
    "broker": "the cores of a broker, the process, and " + _SIMULATED,
    "controller": "the core, and the mutations of it",
    "cursors": _COMMAND,
    "files": "of the compiled log, and those of a cluster's directory",
    "log": "compiled, public, and the command of that name",
    "memory": "the store in memory, and memory budgets",
    "metadata": "the core's cache, and its handler",
    "network": "the Spark source over brokers, and " + _SIMULATED,
    "options": _COMMAND,
    "produce": _COMMAND,
    "reassignment": "a client's request, and the controller's part of it",
    "records": _COMMAND,
    "sessions": "Kafka's name of fetch sessions, and ZooKeeper's of a store's",
    "store": _SIMULATED,
    "topics": _COMMAND,
    "truncation": "the compiled rules, and the mutations of a follower's",
}
"""Modules of one name in several packages, and why."""

FIELDS_FIRST = re.compile(r"\w+(, \w+)*: ")
"""How a docstring begins that lists the fields of a class before it says what the class is."""

PARAMETERS_FIRST = re.compile(r"[a-z]\w*(, \w+)*: ")
"""How a docstring begins that lists parameters before it says what the function does."""

FRAGMENT = re.compile(r"(Of|Those|What|Whose|Whoever|Who|How|All that)\b")
"""How a docstring begins that does not name its subject, so that no search finds it. Docstrings of tests may."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CYTHON_TEXT = re.compile(r'"""(?:\\.|[^\\])*?"""' + r'|"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])*'" + r"|#[^\n]*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_CYTHON_CLASS = re.compile(r'^(?:cdef )?class [^\n]*:\n\s+"""((?:\\.|[^\\])*?)"""', re.MULTILINE)


def files(*suffixes: str) -> list[Path]:
    found = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts))


def banned(identifier: str) -> bool:
    words = [word.lower() for word in _WORD.findall(identifier)]
    return bool(PARTS.intersection(words)) or "_".join(words) in WHOLE


class Outline(NamedTuple):
    """All that the tests look at of the syntax tree of a module: each file is parsed and walked once."""

    names: list[tuple[int, str]]
    """(line, identifier) of all that the module names itself."""
    classes: list[tuple[int, str, str]]
    """(line, name, docstring) of each class."""
    functions: list[tuple[int, str]]
    """(line, docstring) of each function and method."""


def outline_of(text: str) -> Outline:
    outline = Outline([], [], [])
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                outline.names.append((node.lineno, name))
            case ast.ClassDef(name=name):
                outline.names.append((node.lineno, name))
                outline.classes.append((node.lineno, name, ast.get_docstring(node) or ""))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                outline.names.append((node.lineno, name))
                outline.functions.append((node.lineno, ast.get_docstring(node) or ""))
            case ast.alias(name=name, asname=str(renamed)):
                outline.names.append((node.lineno, renamed))
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                outline.names.append((node.lineno, name))
    return outline


@cache
def outline(path: Path) -> Outline:
    return outline_of(path.read_text(encoding="utf-8"))


def cython_names(text: str) -> Iterator[tuple[int, str]]:
    code = _CYTHON_TEXT.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        for name in _IDENTIFIER.findall(line):
            yield number, name


def names_of(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix in (".pyx", ".pxd"):
        return cython_names(path.read_text(encoding="utf-8"))
    return iter(outline(path).names)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of comments and strings, or of all that Markdown and scenarios say."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".md", ".txt"):
        yield 1, text
        return
    if path.suffix in (".pyx", ".pxd"):
        for found in _CYTHON_TEXT.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found[0]
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_no_identifier_is_a_word_of_daily_talk() -> None:
    wrong = [
        f"{place(path, line)}: {name}"
        for path in files(".py", ".pyi", ".pyx", ".pxd")
        for line, name in names_of(path)
        if banned(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_or_folder_is_named_by_a_word_of_daily_talk() -> None:
    paths = files(".py", ".pyi", ".pyx", ".pxd", ".md", ".txt")
    assert not [str(path) for path in paths if any(map(banned, path.relative_to(ROOT).with_suffix("").parts))]


def test_prose_uses_the_words_of_the_field() -> None:
    sources = [path for path in files(".py", ".pyi", ".pyx", ".pxd", ".md", ".txt") if path != Path(__file__)]
    wrong = [
        f"{place(path, line + text.count(chr(10), 0, found.start()))}: {found[0]}"
        for path in [*ROOT.glob("*.md"), *sources]
        if PROSE.search(path.read_text(encoding="utf-8"))  # tokens are made, which takes long, only where they matter
        for line, text in prose_of(path)
        for found in PROSE.finditer(text)
    ]
    assert not wrong, "\n".join(wrong)


def package_files(*suffixes: str) -> list[Path]:
    return [path for path in files(*suffixes) if any(path.is_relative_to(folder) for folder in PACKAGES)]


def classes() -> dict[str, list[str]]:
    """Public names of classes, and the modules that define them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in package_files(".py", ".pyx"):
        if path.suffix == ".pyx":
            names = re.findall(r"^(?:cdef )?class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        else:
            names = [name for _, name, _ in outline(path).classes]
        for name in names:
            found[name].append(str(path.relative_to(ROOT)))
    return found


def modules() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in package_files(".py", ".pyx"):
        if not path.stem.startswith("__"):
            found[path.stem].append(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize(("named", "shared"), [(classes, {}), (modules, SHARED_MODULES)])
def test_no_name_stands_for_two(named: object, shared: dict[str, str]) -> None:
    assert callable(named)
    twice = {name: where for name, where in named().items() if len(where) > 1}
    wrong = [f"{name}: {', '.join(where)}" for name, where in twice.items() if name not in shared]
    assert not wrong, "\n".join(wrong)
    assert not shared.keys() - twice.keys(), "these are named once only: delete their lines"


def class_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, docstring) of each class of a module that has one."""
    if path.suffix in (".pyx", ".pxd"):
        text = path.read_text(encoding="utf-8")
        for found in _CYTHON_CLASS.finditer(text):
            yield text.count("\n", 0, found.start(1)) + 1, found[1]
        return
    yield from ((line, docstring) for line, _, docstring in outline(path).classes if docstring)


def test_a_class_docstring_says_first_what_the_class_is() -> None:
    wrong = [
        f"{place(path, line)}: {docstring.splitlines()[0]}"
        for path in files(".py", ".pyi", ".pyx", ".pxd")
        for line, docstring in class_docstrings(path)
        if FIELDS_FIRST.match(docstring)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_docstring_begins_with_what_it_is_about() -> None:
    """Neither with a fragment, nor, of a function, with its parameters."""
    wrong = [
        f"{place(path, line)}: {docstring.splitlines()[0]}"
        for path in files(".py", ".pyi")
        if not path.is_relative_to(ROOT / "tests")
        for line, docstring in (*class_docstrings(path), *outline(path).functions)
        if FRAGMENT.match(docstring) or PARAMETERS_FIRST.match(docstring)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["module.py", "module.pyx"])
def test_a_docstring_that_begins_with_fields_is_seen(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = 'class Batch(Base):\n    """size: in bytes."""\n\nclass Log:\n    """A log. path: its directory."""\n'
    path.write_text(text)
    found = list(class_docstrings(path))
    assert [bool(FIELDS_FIRST.match(docstring)) for _, docstring in found] == [True, False]


@pytest.mark.parametrize(
    "text",
    ["told = 1", "def f(one): pass", "class Departed: pass", "for who in (): pass", "import os as asked", "x.news = 1"],
)
def test_a_banned_identifier_is_seen(text: str) -> None:
    assert [name for _, name in outline_of(text).names if banned(name)]
    assert banned("isHeir") and banned("TOLD_EVERY_S") and not banned("one_by_one") and not banned("somewhat")


def test_a_banned_identifier_in_cython_is_seen() -> None:
    text = 'cdef int f(int told):  # asked\n    """who"""\n    return told\n'
    assert [(line, name) for line, name in cython_names(text) if banned(name)] == [(1, "told"), (3, "told")]
