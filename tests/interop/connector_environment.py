"""What Spark's own Kafka connector runs in: an environment with the PySpark of its pom.xml, its jars, and a Java.

The connector's newest version is one for another PySpark than ours, which therefore gets an environment of its own in
the user's cache folder, made once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.interop.jvm import Unavailable, cache_folder, classpath, java

FOLDER = Path(__file__).parent / "connector"
INSTALL_S = 900


def interpreter() -> Path:
    """Of an environment that has the PySpark of the connector's pom.xml. Raises Unavailable."""
    found = re.search(r"<spark.version>(.+)</spark.version>", (FOLDER / "pom.xml").read_text())
    assert found is not None
    python = cache_folder() / f"pyspark-{found[1]}-{sys.version_info[0]}.{sys.version_info[1]}" / "bin" / "python"
    installed = python.parent.parent / "installed"
    if not installed.exists():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(python.parent.parent)],
            [str(python), "-m", "pip", "install", "--quiet", f"pyspark=={found[1]}"],
        ):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S)
            if done.returncode:
                raise Unavailable(f"pyspark {found[1]} cannot be installed: {(done.stderr or done.stdout)[-500:]}")
        installed.touch()
    return python


def jars() -> str:
    """The connector's jars, as spark.jars takes them. Raises Unavailable."""
    return ",".join(classpath(FOLDER / "pom.xml").split(os.pathsep))


def environment(python: Path) -> dict[str, str]:
    """For a job run by `python`, which sees nothing of the environment that starts it. Raises Unavailable."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    return {**inherited, "PYSPARK_PYTHON": str(python), "JAVA_HOME": str(Path(java()).parent.parent)}
