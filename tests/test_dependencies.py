"""Dependencies: what the packages import while they run is declared in pyproject.toml, and nothing else is required."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "kreplog", ROOT / "spark" / "pyspark_kreplog", ROOT / "spark" / "jobs" / "kreplog_jobs")
OF_DEVELOPERS = {"bench", "bench-arrow", "bench-queues", "demo", "dev", "docs"}
"""Extras whose packages nothing that is installed may import."""

_CYTHON = re.compile(r"^\s*(?:from\s+(\w+)[\w.]*\s+import|import\s+(\w+))", re.MULTILINE)
_NAME = re.compile(r"[\w.-]+")


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names that a module imports while it runs: not what it imports for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).split(".")[0]
        yield from imported(node)


def others() -> set[str]:
    """Top-level names that the packages import, neither ours nor the standard library's."""
    found: set[str] = set()
    for path in (path for package in PACKAGES for path in package.rglob("*")):
        if path.suffix == ".py":
            found |= set(imported(ast.parse(path.read_text(encoding="utf-8"))))
        elif path.suffix == ".pyx":
            found |= {first or second for first, second in _CYTHON.findall(path.read_text(encoding="utf-8"))}
    return found - sys.stdlib_module_names - {package.name for package in PACKAGES}


def canonical(requirement: str) -> str:
    """The name of a distribution as PyPI has it."""
    (name,) = _NAME.findall(requirement)[:1]
    return re.sub(r"[-_.]+", "-", str(name)).lower()


def test_what_is_imported_is_declared_and_what_is_required_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {canonical(requirement) for requirement in project["dependencies"]}
    extras = project["optional-dependencies"]
    declared = required.union(
        canonical(requirement) for extra in extras.keys() - OF_DEVELOPERS for requirement in extras[extra]
    )
    distributions = packages_distributions()
    made_by = {name: {canonical(made) for made in distributions.get(name, [name])} for name in others()}
    assert not {name for name, makers in made_by.items() if not makers & declared}
    assert not required - set().union(*made_by.values())


def test_imports_for_type_checkers_are_left_out() -> None:
    text = "import os.path\nif TYPE_CHECKING:\n    import numpy\ndef later():\n    from lz4.frame import compress\n"
    assert list(imported(ast.parse(text))) == ["os", "lz4"]
