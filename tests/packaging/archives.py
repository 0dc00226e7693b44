"""The sdist and the wheel: how they are made from this checkout, and what is in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "kreplog" / "_native"
PAGES = (ROOT / "kreplog" / "console" / "static", ROOT / "kreplog" / "replay" / "static")
SCENARIOS = ROOT / "kreplog" / "sim" / "scenarios"
MODULES = {path.stem for path in NATIVE.glob("*.pyx")}

SDIST_TOP = {
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "PKG-INFO"),
    *("README.md", "SECURITY.md"),
    *("pyproject.toml", "setup.cfg", "setup.py"),
    *(".ci", "benchmarks", "docs", "examples", "kreplog", "kreplog.egg-info", "spark", "tests"),
}
"""What an sdist has at its top: all that its receiver needs to build, test and measure it."""

_SDIST_PACKAGE_FILE = re.compile(
    r"(kreplog|spark)/.*(\.py|\.pyi|\.pyx|\.pxd|\.h|py\.typed|schemas/\w+\.json|(console|replay)/static/\w+\.(html|css|js)"
    r"|sim/scenarios/[\w-]+\.(txt|md))"
)
_DIST_INFO = re.compile(r"kreplog-[\w.]+\.dist-info/")
_WHEEL_FILE = re.compile(
    r"kreplog/\w+\.pyi?|kreplog/py\.typed"
    r"|kreplog/(client|cluster|commands|console|coord|core|replay|schemas|server|sim|topic|wire)/(\w+/)?\w+\.(py|json)"
    r"|kreplog/(console|replay)/static/\w+\.(html|css|js)"
    r"|kreplog/sim/scenarios/[\w-]+\.txt"
    r"|kreplog/_native/(\w+\.(py|pyi|pxd|h)|\w+\.[\w.-]+\.so)"
    r"|pyspark_kreplog/(\w+\.py|py\.typed)"
    r"|kreplog_jobs/\w+\.py"
    r"|kreplog-[\w.]+\.dist-info/.*"
)
_OF_THIS_PROCESS = re.compile(r"PYTHON|KREPLOG_|(AR|ARCHFLAGS|CC|CFLAGS|CPPFLAGS|CXX|CXXFLAGS|LDFLAGS|LDSHARED)$")
_NOT_SOURCES = (".venv", ".git", "build", "dist", ".*_cache", ".hypothesis", ".benchmarks", "*.egg-info", "results")


class PackagingError(Exception):
    """A command has failed, or an archive is not as it must be."""


def run(*command: str | Path, cwd: Path, **settings: str) -> str:
    """Standard output of `command`, which gets `settings` as environment variables, but of this process's none for
    Python, kreplog or a compiler.

    Raises PackagingError with all that it printed."""
    mine = {name: value for name, value in os.environ.items() if not _OF_THIS_PROCESS.match(name)}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=mine | settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PackagingError(f"{' '.join(words)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def make_sdist(folder: Path, *options: str) -> tuple[Path, Path]:
    """The sdist, and where it is unpacked; both in `folder`, and made by `python -m build` from a copy, so that
    leftovers in the checkout can neither help nor be disturbed."""
    shutil.copytree(ROOT, folder / "checkout", ignore=shutil.ignore_patterns(*_NOT_SOURCES))
    run(sys.executable, "-m", "build", *options, "--sdist", "--outdir", folder, cwd=folder / "checkout")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return sdist, folder / sdist.name.removesuffix(".tar.gz")


def check_sdist(sdist: Path) -> None:
    """Raise PackagingError unless the sdist has every source and nothing built."""
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder, patterns in (
            ("kreplog/console/static", ("*",)),
            ("kreplog/replay/static", ("*",)),
            ("kreplog/sim/scenarios", ("*.txt",)),
            ("kreplog", ("*.py", "*.py[ixd]", "*.pxd", "*.h")),
            ("spark", ("*.py",)),
        )
        for pattern in patterns
        for path in (ROOT / folder).rglob(pattern)
    }
    stray = {
        name
        for name in files
        if name.partition("/")[0] not in SDIST_TOP
        or name.endswith((".so", ".pyc", ".o"))
        or (name.startswith(("kreplog/", "spark/")) and not _SDIST_PACKAGE_FILE.fullmatch(name))
    }
    tops = {name.partition("/")[0] for name in files}
    _report(sdist, missing=(sources - files) | (SDIST_TOP - tops), stray=stray)


def check_wheel(wheel: Path, extension_suffix: str) -> None:
    """Raise PackagingError unless the wheel has each module with its types, the licence, and no tests or sources in C.

    extension_suffix: of compiled modules, as in `.cpython-311-x86_64-linux-gnu.so`."""
    with zipfile.ZipFile(wheel) as archive:
        files = {member.filename for member in archive.infolist() if not member.is_dir()}
    needed = {"kreplog/py.typed", "pyspark_kreplog/py.typed", "pyspark_kreplog/__init__.py"}
    for module in MODULES:
        needed |= {f"kreplog/_native/{module}{extension_suffix}", f"kreplog/_native/{module}.pyi"}
    needed |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "kreplog").rglob("*.py")}
    needed |= {path.relative_to(ROOT).as_posix() for folder in PAGES for path in folder.iterdir()}
    needed |= {path.relative_to(ROOT).as_posix() for path in SCENARIOS.glob("*.txt")}
    needed |= {path.relative_to(ROOT).as_posix() for path in NATIVE.iterdir() if path.suffix in {".pxd", ".h"}}
    described = {_DIST_INFO.sub("", name) for name in files if _DIST_INFO.match(name)}
    needed |= {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"} - described
    _report(wheel, missing=needed - files, stray={name for name in files if not _WHEEL_FILE.fullmatch(name)})


def _report(archive: Path, missing: set[str], stray: set[str]) -> None:
    for names, fault in ((missing, "lacks"), (stray, "must not have")):
        if names:
            raise PackagingError(f"{archive.name} {fault}: {', '.join(sorted(names))}")
