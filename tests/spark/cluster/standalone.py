"""Spark standalone out of the jars of an installed pyspark: a master and workers, on hosts of their own."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.integration.clusters import eventually
from tests.spark.cluster.hosts import Host

MASTER_PORT = 7077
WEB_PORT = 8080
WITHIN_S = 120.0
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Standalone:
    """A master and workers of Spark standalone. home: SPARK_HOME. python: of the workers. scratch: of each, on its own
    disk. logs: a directory of this host."""

    def __init__(self, home: Path, python: Path, scratch: Path, logs: Path, java_home: str | None) -> None:
        self._home = home
        self._scratch = scratch
        self._logs = logs
        self._environment = {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
            "SPARK_LOCAL_DIRS": str(scratch),
            "PYSPARK_PYTHON": str(python),
            **({"JAVA_HOME": java_home} if java_home else {}),
        }
        self._address = ""

    @property
    def url(self) -> str:
        return f"spark://{self._address}:{MASTER_PORT}"

    def start_master(self, host: Host) -> subprocess.Popen[bytes]:
        self._address = host.address
        words = ["--host", host.address, "--port", MASTER_PORT, "--webui-port", WEB_PORT]
        process = self._start(host, "org.apache.spark.deploy.master.Master", words)
        eventually(self._answers, f"Spark's master does not answer: see {self._logs}", WITHIN_S)
        return process

    def start_worker(self, host: Host) -> subprocess.Popen[bytes]:
        words = ["--host", host.address, "--cores", 1, "--memory", "1g", "--work-dir", self._scratch / "work", self.url]
        return self._start(host, "org.apache.spark.deploy.worker.Worker", words)

    def await_workers(self, hosts: Sequence[Host]) -> None:
        """Until the workers of just these hosts are registered."""
        wanted = {host.address for host in hosts}
        eventually(lambda: self._alive() == wanted, lambda: f"the master has {self._alive()} of {wanted}", WITHIN_S)

    def _start(self, host: Host, name: str, words: Sequence[object]) -> subprocess.Popen[bytes]:
        log = self._logs / f"{name.rpartition('.')[2].lower()}-{host.name}.log"
        environment = {**self._environment, "SPARK_LOCAL_IP": host.address}
        return host.start([self._home / "bin" / "spark-class", name, *words], log, environment)

    def _answers(self) -> bool:
        try:
            self._state()
        except (OSError, ValueError):  # the web server listens before it has the page, which is then empty
            return False
        return True

    def _alive(self) -> set[str]:
        return {worker["host"] for worker in self._state()["workers"] if worker["state"] == "ALIVE"}

    def _state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self._address}:{WEB_PORT}/json", timeout=10) as response:
            state: dict[str, Any] = json.load(response)
        return state
