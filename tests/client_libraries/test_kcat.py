"""kcat, an old librdkafka (2.0), as Debian has it: the command, unmodified."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from kreplog import Record
from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.scenarios import Message, Scenarios, Sender, made
from tests.integration.clusters import WITHIN_S, eventually

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat: apt-get install kcat")

DELIMITER = "\x1f"


class Kcat:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def run(self, *arguments: str, given: bytes = b"") -> str:
        """What it prints; fails the test where it fails."""
        command = ["kcat", "-b", self._bootstrap, "-m", "10", *arguments]
        ended = subprocess.run(command, input=given, capture_output=True, timeout=WITHIN_S)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.decode()

    @contextmanager
    def producer(self, acks: str = "all", idempotent: bool = False, codec: str = "none") -> Iterator[Sender]:
        """A process for each run of messages that differ by their values alone: it ends when all are acknowledged."""
        settings = {
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "compression.type": codec,
            "message.max.bytes": "1048588",
            "retry.backoff.ms": "20",
            "reconnect.backoff.ms": "20",
        }
        options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]

        def send(topic: str, messages: Sequence[Message]) -> None:
            groups: dict[tuple[str, ...], list[bytes]] = {}
            for message in messages:
                words = ["-p", str(message.partition)]
                for name, value in message.headers:
                    words += ["-H", f"{name}={(value or b'').decode()}"]
                line = message.value or b""
                if message.value is None or message.key is not None:
                    words += ["-K", DELIMITER]
                    line = (message.key or b"") + DELIMITER.encode() + line
                if message.value is None:
                    words += ["-Z"]
                groups.setdefault(tuple(words), []).append(line + b"\n")
            for found, lines in groups.items():
                self.run(*options, *found, "-P", "-t", topic, given=b"".join(lines))

        yield send

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int | None = None, since_ms: int | None = None
    ) -> list[Record]:
        start = f"s@{since_ms}" if since_ms is not None else "beginning" if offset is None else str(offset)
        lines = self.run("-C", "-t", topic, "-p", str(partition), "-o", start, "-c", str(count), "-J", "-q")
        return [self._record(json.loads(line)) for line in lines.splitlines()]

    @staticmethod
    def _record(expected: dict[str, object]) -> Record:
        def content(name: str) -> bytes | None:
            text = expected[name]
            return text.encode() if isinstance(text, str) else None

        flat = expected.get("headers", [])
        assert isinstance(flat, list)
        headers = tuple((name, value.encode()) for name, value in zip(flat[::2], flat[1::2], strict=True))
        offset, timestamp = expected["offset"], expected["ts"]
        assert isinstance(offset, int) and isinstance(timestamp, int)
        return Record(offset, timestamp, content("key"), content("payload"), headers)


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Kcat:
    return Kcat(cluster.bootstrap())


class TestKcat(Scenarios):
    round = 5000


def test_the_cluster_is_described(cluster: LocalCluster, client: Kcat) -> None:
    topic = made(cluster, partitions=3)
    result = json.loads(client.run("-L", "-J"))
    assert sorted(broker["id"] for broker in result["brokers"]) == [0, 1, 2]
    assert result["controllerid"] in (0, 1, 2)
    found = next(entry for entry in result["topics"] if entry["topic"] == topic)
    assert [(partition["partition"], len(partition["isrs"])) for partition in found["partitions"]] == [
        (0, 3),
        (1, 3),
        (2, 3),
    ]


def test_offsets_by_time(cluster: LocalCluster, client: Kcat) -> None:
    topic = made(cluster)
    with client.producer() as send:
        send(topic, [Message(b"a"), Message(b"b")])
    (first, _) = client.read(topic, 2)
    assert client.run("-Q", "-t", f"{topic}:0:{first.timestamp_ms}").split() == [topic, "[0]", "offset", "0"]
    assert client.run("-Q", "-t", f"{topic}:0:-1").split() == [topic, "[0]", "offset", "2"]


class GroupMember:
    """A process that reads as a member of a group, and commits the offsets of what it has read when it leaves."""

    def __init__(self, bootstrap: str, group: str, topic: str, folder: Path, name: str) -> None:
        self._records, self._log = folder / f"{name}-records", folder / f"{name}-log"
        settings = ("auto.offset.reset=earliest", "heartbeat.interval.ms=100", "topic.metadata.refresh.interval.ms=500")
        options = [part for setting in settings for part in ("-X", setting)]
        with self._records.open("wb") as records, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["kcat", "-b", bootstrap, *options, "-u", "-G", group, topic], stdout=records, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """SIGTERM: it leaves the group."""
        self._process.terminate()
        self._process.wait(WITHIN_S)

    @property
    def values(self) -> list[str]:
        return self._records.read_text().splitlines()

    @property
    def assignment(self) -> list[int]:
        """The partitions, as of its last line on a rebalance."""
        lines = re.findall(r"^% Group .* rebalanced .*: (assigned|revoked): (.*)$", self._log.read_text(), re.MULTILINE)
        kind, partitions = lines[-1] if lines else ("revoked", "")
        return [int(number) for number in re.findall(r"\[(\d+)\]", partitions)] if kind == "assigned" else []


def test_members_share_commit_and_take_over(cluster: LocalCluster, client: Kcat, tmp_path: Path) -> None:
    topic = made(cluster, partitions=2)

    def member(name: str) -> GroupMember:
        return GroupMember(cluster.bootstrap(), f"of-{topic}", topic, tmp_path, name)

    with member("first") as first:
        eventually(lambda: first.assignment == [0, 1], "the only member does not get all")
        with member("second") as second:
            eventually(lambda: sorted(first.assignment + second.assignment) == [0, 1], "no member gets a partition")
            eventually(lambda: len(first.assignment) == len(second.assignment) == 1, "the partitions are not shared")
            with client.producer() as send:
                send(topic, [Message(b"%d" % number, partition=number % 2) for number in range(10)])
            eventually(lambda: len(first.values) == len(second.values) == 5, "the records do not come")
        eventually(lambda: first.assignment == [0, 1], "the partition of a member that has left stays without one")
    with member("third") as third:
        eventually(lambda: third.assignment == [0, 1], "the successor does not get all")
        with client.producer() as send:
            send(topic, [Message(b"%d" % number, partition=number % 2) for number in range(10, 20)])
        eventually(lambda: len(third.values) >= 10, "the records do not come")
    values = first.values + second.values + third.values
    assert sorted(map(int, values)) == list(range(20)), "none came twice"


def test_a_transaction_is_committed_at_the_end_of_input_and_aborted_by_a_signal(
    cluster: LocalCluster, client: Kcat
) -> None:
    topic = made(cluster)
    transactional = ("-X", f"transactional.id=of-{topic}", "-P", "-t", topic)
    client.run(*transactional, given=b"a\nb\n")
    aborted = subprocess.Popen(["kcat", "-b", cluster.bootstrap(), *transactional], stdin=subprocess.PIPE)
    try:
        assert aborted.stdin is not None
        aborted.stdin.write(b"never\n" * 100_000)  # it reads its input by large blocks
        aborted.stdin.flush()
        uncommitted = ("-X", "isolation.level=read_uncommitted", "-C", "-t", topic, "-o", "beginning", "-c", "3", "-q")
        assert client.run(*uncommitted).split() == ["a", "b", "never"]
        aborted.send_signal(signal.SIGINT)
        aborted.communicate(timeout=WITHIN_S)
    finally:
        aborted.kill()
        aborted.wait()
    client.run(*transactional, given=b"c\n")
    assert [record.value for record in client.read(topic, 3)] == [b"a", b"b", b"c"]
