"""kcat, an old librdkafka (2.0), as Debian has it: the command, unmodified."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from kreplog import Record
from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.scenarios import Message, Scenarios, Sender, made
from tests.integration.clusters import WITHIN_S

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
