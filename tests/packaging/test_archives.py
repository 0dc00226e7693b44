"""The sdist and the wheel: what is in them, and that the wheel works where there is no checkout."""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.packaging import wheels
from tests.packaging.archives import MODULES, ROOT, PackagingError, check_sdist, check_wheel, make_sdist, run

SUFFIX = EXTENSION_SUFFIXES[0]


class Built(NamedTuple):
    sdist: Path
    wheel: Path


def copy_compiled(unpacked: Path) -> None:
    """Put what the checkout has compiled where a build of the unpacked sdist looks for it."""
    made = unpacked / "build"
    shutil.copytree(ROOT / "build" / "cython", made / "cython")
    shutil.copy(ROOT / "build" / "flavour", made)
    lib = made / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "kreplog" / "_native"
    lib.mkdir(parents=True)
    for module in MODULES:
        compiled = Path("kreplog", "_native", module + SUFFIX)
        shutil.copy2(ROOT / "build" / "editable" / "lib" / compiled, lib)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both archives with what was compiled before; the wheel is built from the unpacked sdist. `make wheel`, which a
    long test runs, compiles them."""
    folder = tmp_path_factory.mktemp("packaging")
    sdist, unpacked = make_sdist(folder, "--no-isolation")
    copy_compiled(unpacked)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return Built(sdist, wheel)


def changed(wheel: Path, folder: Path, *, without: str = "", extra: str = "") -> Path:
    """A copy of the wheel without one file, or with one more."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(copy, "w") as written:
        assert not without or without in archive.namelist()
        for name in [name for name in archive.namelist() if name != without]:
            written.writestr(name, archive.read(name) if name.endswith((".so", "WHEEL", "RECORD")) else b"")
        if extra:
            written.writestr(extra, b"")
    return copy


def test_the_sdist_has_every_source_and_nothing_built(built: Built, tmp_path: Path) -> None:
    check_sdist(built.sdist)
    worse = tmp_path / built.sdist.name
    (tmp_path / "log.c").touch()
    with tarfile.open(built.sdist) as archive, tarfile.open(worse, "w:gz") as written:
        for member in archive:
            written.addfile(member, archive.extractfile(member) if member.isfile() else None)
        written.add(tmp_path / "log.c", "kreplog-0.1.0/kreplog/_native/log.c")
    with pytest.raises(PackagingError, match=r"must not have: kreplog/_native/log\.c"):
        check_sdist(worse)


@pytest.mark.parametrize(
    ("without", "extra", "fault"),
    [
        ("kreplog/_native/log.pyi", "", r"lacks: kreplog/_native/log\.pyi"),
        ("kreplog/py.typed", "", r"lacks: kreplog/py\.typed"),
        (f"kreplog/_native/log{SUFFIX}", "", "lacks: kreplog/_native/log"),
        ("", "kreplog/_native/log.c", r"must not have: kreplog/_native/log\.c"),
        ("", "tests/test_log.py", "must not have: tests/test_log"),
    ],
)
def test_the_wheel_has_each_module_with_its_types_and_no_tests(
    built: Built, tmp_path: Path, without: str, extra: str, fault: str
) -> None:
    check_wheel(built.wheel, SUFFIX)
    with pytest.raises(PackagingError, match=fault):
        check_wheel(changed(built.wheel, tmp_path, without=without, extra=extra), SUFFIX)


def test_the_wheel_works_in_a_clean_environment(built: Built, tmp_path: Path) -> None:
    """In a new virtual environment, in a folder outside the checkout, without a compiler."""
    assert str(tmp_path / "venv") in wheels.try_wheel(sys.executable, built.wheel, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel reads the modules of Linux")
def test_a_wheel_is_tagged_by_the_symbols_that_it_needs(built: Built, tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match="repair it with auditwheel"):
        wheels.check_portable(built.wheel, tmp_path)
    with zipfile.ZipFile(built.wheel) as archive:
        modules = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".so"))
    needed = max((int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", modules))
    tags = re.findall(r"manylinux_(\d+)_(\d+)_", wheels.repair(built.wheel, tmp_path).name)
    assert [(int(major), int(minor)) for major, minor in tags] == [needed]


@pytest.mark.long
def test_make_wheel_compiles_and_tries_what_it_puts_into_dist(tmp_path: Path) -> None:
    output = run(sys.executable, "-m", "tests.packaging", "--out", tmp_path / "dist", cwd=ROOT)
    sdist, wheel = sorted((tmp_path / "dist").iterdir(), key=lambda path: path.suffix)
    assert (sdist.suffix, wheel.suffix) == (".gz", ".whl")
    wheels.check_portable(wheel, tmp_path)
    assert "cluster" in output.partition(f"Trying {wheel.name}")[2]
