"""A real Apache Kafka from Maven Central: its jars, its tools, and a broker of its own for a test.

The jars stay in Maven's own repository (~/.m2, or where its settings say); what their paths are is remembered in the
user's cache folder, so that Maven runs once for each state of pom.xml. Nothing is downloaded or written here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kreplog.cluster.files import free_ports
from kreplog.errors import UsageError
from pyspark_kreplog.session import java_home

POM = Path(__file__).parent / "pom.xml"
NEWEST = "4.4.0"
"""The newest release of Kafka on Maven Central when this was written; pom.xml has the last that knew ZooKeeper."""

RESOLVE_S = 900
TOOL_S = 120
START_S = 90
STOP_S = 60
REFUSE_S = 30
POLL_S = 0.05
HOST = "127.0.0.1"
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
CLUSTER_ID = "a3JlcGxvZy1pbnRlcm9wMQ"

DUMP = "kafka.tools.DumpLogSegments"
FORMAT = "kafka.tools.StorageTool"
BROKER = "kafka.Kafka"
CONSOLE_PRODUCER = "kafka.tools.ConsoleProducer"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERF = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERF = "org.apache.kafka.tools.ConsumerPerformance"

_LOG4J = """\
log4j.rootLogger=WARN, console
log4j.logger.kafka.server.KafkaRaftServer=INFO
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %m (%c)%n
"""

_BROKER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{control}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{control}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
replica.high.watermark.checkpoint.interval.ms=100
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=200
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=100
log.cleaner.dedupe.buffer.size=2000000
log.cleaner.io.buffer.size=65536
num.network.threads=1
num.io.threads=2
num.recovery.threads.per.data.dir=1
"""


class Unavailable(Exception):
    """Maven, Java or the jars cannot be had on this machine; says which, and why."""


@contextmanager
def skipped_where_unavailable() -> Iterator[None]:
    """Skips the test where Maven, Java or the jars are lacking: kreplog itself needs none of them."""
    try:
        yield
    except Unavailable as error:
        pytest.skip(f"a real Apache Kafka cannot be had here: {error}")


def java() -> str:
    """The `java` to run: that of JAVA_HOME or PATH, whichever is 17 or newer. Raises Unavailable."""
    try:
        home = java_home()
    except UsageError as error:
        raise Unavailable(str(error)) from None
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if found is None:
        raise Unavailable("no java on PATH")
    return found


def cache_folder() -> Path:
    """Where what was installed or resolved is remembered between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kreplog")


def classpath(pom: Path = POM, version: str | None = None) -> str:
    """The class path of `pom`, by default Kafka's and its tools'; the first time jars are downloaded. version: of
    Kafka, where not what the pom says. Raises Unavailable."""
    cache = cache_folder()
    state = hashlib.sha256(pom.read_bytes() + (version or "").encode()).hexdigest()
    known = cache / f"interop-{state[:16]}.classpath"
    if known.exists() and all(Path(jar).exists() for jar in known.read_text().split(os.pathsep)):
        return known.read_text()
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("no mvn on PATH to resolve Apache Kafka's jars with (on Debian: apt install maven)")
    cache.mkdir(parents=True, exist_ok=True)
    fresh = known.with_suffix(f".{os.getpid()}")
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={fresh}"]
    command += [f"-Dkafka.version={version}"] if version else []
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cache, timeout=RESOLVE_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not resolve {pom} within {RESOLVE_S} s") from None
    if done.returncode:
        said = next((line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line), "nothing")
        raise Unavailable(f"Maven cannot resolve {pom}: {said}")
    fresh.replace(known)
    return known.read_text()


class Kafka:
    """Kafka's programs. `run` and `start` are java with Kafka's class path and a small heap.

    version: where not the one of the pom. jvm: Java's options. pom: what Maven resolves."""

    def __init__(
        self, folder: Path, version: str | None = None, jvm: Sequence[str] = QUICK_JVM, pom: Path = POM
    ) -> None:
        self._folder = folder
        self._jvm = jvm
        self._classpath = classpath(pom, version)
        self._java = java()
        folder.joinpath("log4j.properties").write_text(_LOG4J)

    def command(self, main: str | Path, *arguments: str | os.PathLike[str]) -> list[str]:
        """main: a class, or a Java source file."""
        log4j = f"-Dlog4j.configuration=file:{self._folder}/log4j.properties"
        return [self._java, *self._jvm, log4j, "-cp", self._classpath, str(main), *map(str, arguments)]

    def dump(self, *arguments: str) -> str:
        """What the dump-log tool prints, which must complain of nothing."""
        return self._run(self.command(DUMP, *arguments), b"", True)

    def run(self, main: str | Path, *arguments: str | os.PathLike[str], given: bytes = b"") -> str:
        """What it prints. Fails the test with what it complains of where it leaves with another code than 0."""
        return self._run(self.command(main, *arguments), given, False)

    def _run(self, command: list[str], given: bytes, silent: bool) -> str:
        # Java says that it has options from there, where a tool must say nothing; it gets them in the command.
        environment = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
        done = subprocess.run(command, input=given, env=environment, capture_output=True, timeout=TOOL_S)
        output, errors = done.stdout.decode(), done.stderr.decode(errors="replace")
        good = done.returncode == 0 and not (silent and errors)
        classpath = command[command.index("-cp") + 2]
        assert good, f"{classpath} left with {done.returncode}:\n{output[-2000:]}\n{errors[-4000:]}"
        return output

    def start(self, main: str | Path, *arguments: str | os.PathLike[str], log: Path) -> subprocess.Popen[bytes]:
        with open(log, "ab") as out:
            return subprocess.Popen(
                self.command(main, *arguments), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )


class Broker:
    """One real broker, its own controller, on free loopback ports; data: its log directory. settings: lines of its
    properties that come last."""

    def __init__(self, kafka: Kafka, folder: Path, settings: str = "") -> None:
        self._kafka = kafka
        self.data = folder / "data"
        self._settings = folder / "server.properties"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port, control = free_ports(2)
        given = _BROKER.format(host=HOST, port=self.port, control=control, data=self.data)
        self._settings.write_text(given + settings)
        kafka.run(FORMAT, "format", "-t", CLUSTER_ID, "-c", self._settings)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def partition(self, topic: str, number: int = 0) -> Path:
        return self.data / f"{topic}-{number}"

    def start(self) -> None:
        """Until it serves; nothing where it does already."""
        if self._process is not None:
            return
        before = self._log.stat().st_size if self._log.exists() else 0
        process = self._process = self._kafka.start(BROKER, self._settings, log=self._log)
        deadline = time.monotonic() + START_S
        while b"Kafka Server started" not in self._log.read_bytes()[before:]:
            code = process.poll()
            if code is not None:
                self._process = None
            assert code is None, f"Kafka left with {code} instead of starting:\n{self.words(before)}"
            assert time.monotonic() < deadline, f"Kafka has not started in {START_S} s:\n{self.words(before)}"
            time.sleep(POLL_S)

    def refuses_to_start(self) -> str:
        """What it says when it gives up, as it must."""
        assert self._process is None
        before = self._log.stat().st_size if self._log.exists() else 0
        process = self._kafka.start(BROKER, self._settings, log=self._log)
        try:
            assert process.wait(REFUSE_S) != 0
        except subprocess.TimeoutExpired:
            raise AssertionError(f"Kafka has not given up in {REFUSE_S} s:\n{self.words(before)}") from None
        finally:
            process.kill()
            process.wait()
        return self.words(before)

    def words(self, since: int = 0) -> str:
        """The end of what it logged behind that byte."""
        return self._log.read_bytes()[since:].decode(errors="replace")[-8000:]

    def stop(self) -> None:
        """As its script does: it closes its logs and says so in its directory."""
        self._end(signal.SIGTERM)
        assert (self.data / ".kafka_cleanshutdown").exists(), self.words()

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(STOP_S)
            finally:
                process.kill()
                process.wait()
