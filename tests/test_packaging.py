"""The sdist and the wheel: what is in them, and that the wheel works where there is no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "kreplog" / "_native"
MODULES = {path.stem for path in NATIVE.glob("*.pyx")}

SDIST_TOP = {
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "PKG-INFO"),
    *("README.md", "SECURITY.md"),
    *("pyproject.toml", "setup.cfg", "setup.py"),
    *(".ci", "benchmarks", "docs", "examples", "kreplog", "kreplog.egg-info", "spark", "tests"),
}
SDIST_PACKAGE_FILE = re.compile(r"(kreplog|spark)/.*(\.py|\.pyi|\.pyx|\.pxd|\.h|py\.typed|schemas/\w+\.json)")
WHEEL_FILE = re.compile(
    r"kreplog/\w+\.pyi?|kreplog/py\.typed"
    r"|kreplog/(client|cluster|commands|coord|core|schemas|server|sim|topic|wire)/(\w+/)?\w+\.(py|json)"
    r"|kreplog/_native/(\w+\.(py|pyi|pxd|h)|\w+\.[\w.-]+\.so)"
    r"|pyspark_kreplog/(\w+\.py|py\.typed)"
    r"|kreplog_jobs/\w+\.py"
    r"|kreplog-[\w.]+\.dist-info/.*"
)


@dataclass(frozen=True)
class Built:
    """Paths of the built archives, and their members: the sdist's without its leading folder, files only."""

    sdist: Path
    sdist_files: set[str]
    wheel: Path
    wheel_files: set[str]


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of `command`, run without this process's Python settings; fails the test with all it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KREPLOG_"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_compiled(unpacked: Path) -> None:
    """Put what the checkout has compiled where a build of the unpacked sdist looks for it."""
    made = unpacked / "build"
    shutil.copytree(ROOT / "build" / "cython", made / "cython")
    shutil.copy(ROOT / "build" / "flavour", made)
    lib = made / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "kreplog" / "_native"
    lib.mkdir(parents=True)
    for module in MODULES:
        compiled = Path("kreplog", "_native", module + EXTENSION_SUFFIXES[0])
        shutil.copy2(ROOT / "build" / "editable" / "lib" / compiled, lib)


@pytest.fixture(scope="module", params=["compiled before", pytest.param("from scratch", marks=pytest.mark.long)])
def built(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Built:
    """Both archives, made by `python -m build` from a copy, so that leftovers in the checkout can neither help nor
    be disturbed; the wheel is built from the unpacked sdist."""
    folder = tmp_path_factory.mktemp("packaging")
    hidden = shutil.ignore_patterns(".venv", ".git", "build", "dist", ".*_cache", ".hypothesis", ".benchmarks")
    shutil.copytree(ROOT, folder / "checkout", ignore=hidden)
    build = (sys.executable, "-m", "build", "--outdir", folder / "dist")
    from_scratch = request.param == "from scratch"
    isolation = () if from_scratch else ("--no-isolation",)
    run(*build, *isolation, "--sdist", cwd=folder / "checkout")
    (sdist,) = folder.glob("dist/*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    if not from_scratch:
        copy_compiled(unpacked)
    run(*build, *isolation, "--wheel", cwd=unpacked)
    (wheel,) = folder.glob("dist/*.whl")
    with tarfile.open(sdist) as archive:
        sdist_files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        wheel_files = set(archive.namelist())
    return Built(sdist, sdist_files, wheel, wheel_files)


def test_the_sdist_has_every_source_and_nothing_built(built: Built) -> None:
    assert {name.partition("/")[0] for name in built.sdist_files} == SDIST_TOP
    stray = {
        name
        for name in built.sdist_files
        if name.endswith((".so", ".pyc", ".o"))
        or (name.startswith(("kreplog/", "spark/")) and not SDIST_PACKAGE_FILE.fullmatch(name))
    }
    assert stray == set()
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder, patterns in (("kreplog", ("*.py", "*.py[ixd]", "*.pyx", "*.pxd", "*.h")), ("spark", ("*.py",)))
        for pattern in patterns
        for path in (ROOT / folder).rglob(pattern)
    }
    assert sources <= built.sdist_files


def test_the_wheel_has_each_module_with_its_types_and_no_tests(built: Built) -> None:
    suffix = EXTENSION_SUFFIXES[0]
    needed = {"kreplog/__init__.py", "kreplog/py.typed", "pyspark_kreplog/__init__.py", "pyspark_kreplog/py.typed"}
    for module in MODULES:
        needed |= {f"kreplog/_native/{module}{suffix}", f"kreplog/_native/{module}.pyi"}
    needed |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "kreplog").rglob("*.py")}
    assert needed <= built.wheel_files
    assert {name for name in built.wheel_files if not WHEEL_FILE.fullmatch(name)} == set()


def test_the_wheel_works_in_a_clean_environment(built: Built, tmp_path: Path) -> None:
    """Appends and reads in a new virtual environment, from a folder outside the checkout."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", built.wheel, cwd=tmp_path)
    shutil.copy(ROOT / "tests" / "smoke.py", tmp_path)
    assert str(tmp_path / "venv") in run(python, tmp_path / "smoke.py", cwd=tmp_path)
    assert "log" in run(tmp_path / "venv" / "bin" / "kreplog", "--help", cwd=tmp_path)
