"""`make spark-cluster`: Spark on many workers that share no log directory, from an installed wheel; a worker is killed.

    worker-1   Spark worker, broker 1 ─┐
    worker-2   Spark worker, broker 2 ─┼── one network ── driver   Spark's master, the driver, the jobs
    worker-3   Spark worker           ─┘

Builds the wheel, installs it into a new virtual environment, and starts all that in network namespaces of this machine;
see hosts.py. driver.py and the jobs then run there. Prints what has been proved; exits with status 1 on any difference.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from kreplog.errors import KreplogError, UsageError
from pyspark_kreplog.session import java_home
from tests.spark.cluster import brokers, hosts
from tests.spark.cluster.driver import PARTITIONS, SENT, TOPIC, DifferenceError, Settings, check, table
from tests.spark.cluster.standalone import Standalone

ROOT = Path(__file__).parents[3]
WORKERS = ("worker-1", "worker-2", "worker-3")
BROKERS = {1: "worker-1", 2: "worker-2"}
VICTIM = "worker-1"
STAGES = ("read", "write", "stream", "send")
ROWS = 120_000


def main() -> None:
    arguments = _arguments()
    cannot = hosts.cannot_isolate()
    if cannot:
        sys.exit(f"spark-cluster: {cannot}")
    directory = arguments.directory.absolute()
    if not os.environ.get(hosts.INSIDE):
        _install(directory, arguments.wheel, reuse=arguments.reuse)
    hosts.isolate("tests.spark.cluster", sys.argv[1:])
    try:
        _run(directory, arguments.rows)
    except (DifferenceError, KreplogError, AssertionError) as error:
        sys.exit(f"spark-cluster: {error}\nThe logs are in {directory / 'logs'}")
    print("All of it held.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spark-cluster", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "spark-cluster", help="for all its files")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"records of the topic (default {ROWS:,})")
    parser.add_argument("--wheel", type=Path, help="install this wheel instead of one that is built here")
    parser.add_argument("--reuse", action="store_true", help="keep the virtual environment of the last run")
    return parser.parse_args()


# What is installed


def _install(directory: Path, wheel: Path | None, *, reuse: bool) -> None:
    """A virtual environment with the wheel and what Spark and brokers need, as a user would make it."""
    venv = directory / "venv"
    if reuse and (venv / "bin" / "python").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    if wheel is None:
        print("Building the wheel", flush=True)
        shutil.rmtree(directory / "dist", ignore_errors=True)
        _quietly(sys.executable, "-m", "build", "--outdir", directory / "dist", ROOT)
        (wheel,) = (directory / "dist").glob("*.whl")
    print(f"Installing {wheel.name} into a new virtual environment", flush=True)
    _quietly(sys.executable, "-m", "venv", "--clear", venv)
    extras = "cluster,jobs" if _has_java() else "cluster,jobs,spark-jvm"
    _quietly(
        venv / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", f"{wheel.absolute()}[{extras}]"
    )


def _has_java() -> bool:
    try:
        java_home()
    except UsageError:
        return False
    return True


def _quietly(*words: object) -> None:
    """Run a command without this process's Python settings; it is shown with all its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KREPLOG_"))}
    command = [str(word) for word in words]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    if done.returncode:
        sys.exit(f"spark-cluster: {' '.join(command)}\n{done.stdout}")


# What runs


def _run(directory: Path, rows: int) -> None:
    for name in ("logs", "cluster"):
        shutil.rmtree(directory / name, ignore_errors=True)
    logs = directory / "logs"
    logs.mkdir()
    with hosts.hosts(("driver", *WORKERS), directory / "scratch") as network:
        Run(network, directory, rows).run()


class Run:
    """All that runs on the hosts, and what is to be proved there."""

    def __init__(self, network: hosts.Network, directory: Path, rows: int) -> None:
        self._network = network
        self._rows = rows
        self._logs = directory / "logs"
        self._python = directory / "venv" / "bin" / "python"
        (home,) = directory.glob("venv/lib/python3*/site-packages/pyspark")
        self._installed = home.parent
        self._data = network.local / "kreplog"
        self._spark = Standalone(home, self._python, network.local / "spark", self._logs, _java_home(self._python))
        machines = {broker: network.hosts[name] for broker, name in BROKERS.items()}
        self._cluster = brokers.create(directory / "cluster", machines, self._python, self._data)

    def run(self) -> None:
        workers = [self._network.hosts[name] for name in WORKERS]
        self._spark.start_master(self._network.hosts["driver"])
        for worker in workers:
            self._spark.start_worker(worker)
        self._cluster.start(timeout_s=120.0)
        self._spark.await_workers(workers)
        print(f"Started: Spark's master, {len(workers)} workers, {len(BROKERS)} brokers, each on its host", flush=True)
        for topic in (TOPIC, SENT):
            create = ("topic", "create", topic, "--partitions", PARTITIONS, "--replication-factor", len(BROKERS))
            self._command("-m", "kreplog", *create, "--bootstrap", self._cluster.bootstrap())
        with self._killing():
            self._command(Path(__file__).with_name("driver.py"), json.dumps(dataclasses.asdict(self._settings())))
        self._check_disks()
        self._export()
        self._audit()

    def _settings(self) -> Settings:
        shared, local = str(self._network.shared), str(self._network.local)
        bootstrap, master = self._cluster.bootstrap(), self._spark.url
        return Settings(
            bootstrap=bootstrap,
            master=master,
            rows=self._rows,
            workers=WORKERS,
            victim=VICTIM,
            replica_hosts=tuple(BROKERS.values()),
            log_dir=str(self._data),
            local=local,
            shared=shared,
            installed=str(self._installed),
        )

    def _command(self, *words: object, status: int = 0) -> str:
        """Run a command of the installed Python on the driver's host; what it prints is shown, and returned. Raises
        DifferenceError unless it exits with `status`."""
        host = self._network.hosts["driver"]
        environment = {"PATH": os.environ["PATH"], "SPARK_LOCAL_IP": host.address, "SPARK_LOCAL_DIRS": "spark"}
        command, lines = host.command(self._python, *words), []
        with (
            (self._logs / "driver.log").open("ab") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        name = " ".join(map(str, words[:2]))
        check(process.returncode == status, f"{name} exits with status {process.returncode}, not {status}")
        return "".join(lines)

    @contextmanager
    def _killing(self) -> Iterator[None]:
        """Meanwhile Spark on the victim is killed once in each of STAGES, when a task there has arrived, and its worker
        started again."""
        done = threading.Event()

        def watch() -> None:
            victim, shared = self._network.hosts[VICTIM], self._network.shared
            broker = next(self._cluster.pid(broker) for broker, name in BROKERS.items() if name == VICTIM)
            for stage in STAGES:
                while not (shared / f"arrived-{stage}").exists():
                    if done.wait(0.05):
                        return
                victim.kill(spare=broker)
                self._spark.start_worker(victim)
                (shared / f"killed-{stage}").touch()

        thread = threading.Thread(target=watch, name="killer")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _check_disks(self) -> None:
        """What failed to be written has left nothing on the workers' disks."""
        left = [str(path.relative_to(self._network.disks)) for path in self._network.disks.glob("worker-*/logs")]
        check(not left, f"a write to a path that is not shared has left {', '.join(left)}")

    def _export(self) -> None:
        local, shared = self._network.local, self._network.shared
        job = (
            "-m",
            "kreplog_jobs.export",
            self._cluster.bootstrap(),
            "--subscribe",
            TOPIC,
            "--master",
            self._spark.url,
        )
        self._command(*job, "--output", shared / "lake")
        found = pq.read_table(shared / "lake", columns=["value"])["value"].to_pylist()
        wanted = table(self._rows)["value"].to_pylist()
        check(sorted(found) == sorted(wanted), f"export: {len(found)} rows, {len(set(found))} distinct")
        print(f"Job export: {len(found):,} rows from brokers to Parquet in the shared path, each once", flush=True)
        self._command(*job, "--output", local / "lake", status=1)
        (error,) = re.findall("error: (.*is not shared.*)", (self._logs / "driver.log").read_text())
        print(
            f"Job export, an output that is not shared: nothing is exported, and the error is\n    {error}", flush=True
        )

    def _audit(self) -> None:
        """Of replicas on two disks that no host shares: that they are equal, and then a byte that was changed."""
        brokers = ("--bootstrap", self._cluster.bootstrap(), "--subscribe", TOPIC)
        job = ("-m", "kreplog_jobs.audit", *brokers, "--master", self._spark.url, "--json")
        report = json.loads(self._command(*job))
        wanted = {"partitions": PARTITIONS, "records": len(BROKERS) * self._rows, "findings": []}
        found = {name: report[name] for name in wanted}
        check(found == wanted, f"audit: found {found}, not {wanted}")
        changed, name = max(BROKERS), f"{TOPIC}-0"
        (segment, *_) = sorted((self._network.disks / BROKERS[changed] / self._data.name / name).glob("*.log"))
        with segment.open("r+b") as file:
            file.seek(100)
            byte = file.read(1)
            file.seek(100)
            file.write(bytes([byte[0] ^ 1]))
        report = json.loads(self._command(*job, status=1))
        faults = [(finding["topic_partition"], finding["offset"], finding["broker"]) for finding in report["findings"]]
        check(faults == [(name, 0, changed)], f"audit: found {report['findings']}, and not a changed byte of {name}")
        print(
            "Job audit: replicas on disks that no host shares are equal, each read on its host; a changed byte is named"
        )


def _java_home(python: Path) -> str | None:
    code = "from pyspark_kreplog.session import java_home; print(java_home() or '')"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip() or None


if __name__ == "__main__":
    main()
