"""Copying: a group of processes that copy a topic by transactions, with those that watch it; and a group of none."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place

from kreplog.client import Consumer as BulkConsumer
from kreplog.types import TopicPartition
from tests.integration import copy_member, copy_reader
from tests.integration.clusters import eventually
from tests.integration.workload import QUICK

WITHIN_S = 180.0
"""In which a loop goes on after a fault: a session and a transaction end, brokers start, and the machine is busy."""

_PAUSE_S = 0.1


class Copying:
    """Members that copy the topic `source` into `target` as the group `target`, a reader that checks the copy, and an
    observer of the committed offsets. From `with` to the end of it.

    protocol: the group's, `classic` or `consumer`. folder: of what the processes report. hung: how many members were
    replaced since a call of their library did not return."""

    def __init__(self, bootstrap: str, source: str, target: str, partitions: int, protocol: str, folder: Path) -> None:
        self.group = self.target = target
        self.source = source
        self.partitions = partitions
        self.protocol = protocol
        self._bootstrap = bootstrap
        self._connection = json.dumps({**QUICK, "bootstrap.servers": bootstrap})
        self._folder = folder
        self._members: dict[int, subprocess.Popen[bytes]] = {}
        self.hung = 0
        self._reader = _Reader(self._connection, target, partitions, folder / f"{target}-reader")
        self._observer = Observer(_consumer(bootstrap, self.group), self.group, source, partitions)

    def __enter__(self) -> Self:
        self._reader.start()
        self._observer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._observer.stop()
        for slot in list(self._members):
            self.kill(slot)
        self._reader.stop()

    # Members, by their slots: the member in a slot has the slot's transactional id

    @property
    def slots(self) -> list[int]:
        return sorted(self._members)

    def transactional_id(self, slot: int) -> str:
        return f"{self.group}-{slot}"

    def join(self, slot: int) -> None:
        """Start a member; one that has this slot is fenced."""
        self._members[slot] = self._spawn(slot)

    def leave(self, slot: int) -> None:
        """SIGTERM: it leaves the group once its transaction has ended."""
        self._members[slot].terminate()
        self._members.pop(slot).wait(WITHIN_S)

    def kill(self, slot: int) -> None:
        """kill -9, and wait until it is gone."""
        self._members[slot].kill()
        self._members.pop(slot).wait()

    def pause(self, slot: int, seconds: float, *, replaced: bool) -> None:
        """SIGSTOP for this time. replaced: another has joined in its slot before it goes on, and both run for a while
        before this one is killed."""
        zombie = self._members[slot]
        zombie.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)  # how long it is away is the point
            if replaced:
                self.join(slot)
                time.sleep(1)  # likewise: in which its successor begins to work
        finally:
            zombie.send_signal(signal.SIGCONT)
        if replaced:
            time.sleep(1)  # in which it tries to go on
            zombie.kill()
            zombie.wait()

    def replace_hung(self) -> None:
        for slot, member in self._members.items():
            if member.poll() == -signal.SIGALRM:
                self.hung += 1
                self.join(slot)

    def _spawn(self, slot: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"{self.target}-member-{slot}").open("ab") as reports:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", copy_member.__name__, self._connection, self.source, self.target),
                    *(self.group, self.protocol, self.transactional_id(slot)),
                ],
                stderr=reports,
            )

    # What has to hold

    @property
    def copied(self) -> int:
        """Records that the reader has seen."""
        return sum(self._reader.seen)

    def violations(self) -> list[str]:
        """As of now, each as "kind: text"."""
        ended = [slot for slot, member in self._members.items() if member.poll() is not None]
        reports = [f"ended: member {slot} of {self.group}: {self._last_report(slot)}" for slot in ended]
        return [*self._reader.violations, *self._observer.violations, *reports]

    def goes_on(self, records: int = 1) -> None:
        """Wait until the reader has seen so many more records of each partition, and all those whose offsets had been
        committed. Fails at the first violation."""
        before = list(self._reader.seen)
        wanted = [
            max(seen + records, committed) for seen, committed in zip(before, self._observer.committed, strict=True)
        ]
        self._await_seen(wanted)

    def await_end(self, ends: Sequence[int]) -> None:
        """Wait until all of `source` is copied, up to these offsets by partition, and so are the committed offsets."""
        self._await_seen(ends)
        self._wait(
            lambda: self._observer.committed == list(ends),
            lambda: f"{self.group}: committed up to {self._observer.committed}, copied up to {ends}",
        )
        assert self._reader.seen == list(ends), f"{self.target}: {self._reader.seen} is copied of {ends}"

    def differences(self) -> list[str]:
        """Between the topic and its copy as another client reads them from the beginning, when no member runs."""
        with BulkConsumer(self._bootstrap, isolation_level="read_committed") as consumer:
            return [
                f"copy: {self.target}-{partition} is no copy of {self.source}-{partition}"
                for partition in range(self.partitions)
                if not is_copy(
                    _values(consumer, TopicPartition(self.source, partition)),
                    _values(consumer, TopicPartition(self.target, partition)),
                )
            ]

    def _await_seen(self, wanted: Sequence[int]) -> None:
        self._wait(
            lambda: all(seen >= goal for seen, goal in zip(self._reader.seen, wanted, strict=True)),
            lambda: (
                f"{self.target}: the reader has seen {self._reader.seen} of {wanted}, committed is "
                f"{self._observer.committed}; members: {[(slot, self._last_report(slot)) for slot in self.slots]}"
            ),
        )

    def _wait(self, true: Callable[[], bool], text: Callable[[], str]) -> None:
        def ended() -> bool:
            self.replace_hung()
            violations = self.violations()
            assert not violations, "\n".join(violations[:20])
            return true()

        eventually(ended, text, WITHIN_S)

    def _last_report(self, slot: int) -> str:
        lines = (self._folder / f"{self.target}-member-{slot}").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""


class _Reader(threading.Thread):
    """Reads what copy_reader.py prints. seen: by partition, how many records. violations: its lines."""

    def __init__(self, connection: str, topic: str, partitions: int, errors: Path) -> None:
        super().__init__(name=f"reader of {topic}", daemon=True)
        self.seen = [0] * partitions
        self.violations: list[str] = []
        self._command = [sys.executable, "-m", copy_reader.__name__, connection, topic, str(partitions)]
        self._errors = errors
        self._stopping = False

    def start(self) -> None:
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors)
        super().start()

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"["):
                self.seen = json.loads(line)
            else:
                self.violations.append(line.decode().strip())
        if not self._stopping:
            self.violations.append(f"ended: the reader: {self._errors.read_text(errors='replace')[-500:]}")

    def stop(self) -> None:
        self._stopping = True
        self._process.kill()
        self._process.wait()
        self.join()


class Observer(threading.Thread):
    """Reads the group's committed offsets again and again, those that no open transaction may change: they never go
    back. consumer: of confluent-kafka, which is closed at the end. committed: by partition, as of last."""

    def __init__(self, consumer: Any, group: str, topic: str, partitions: int) -> None:
        super().__init__(name=f"observer of {group}", daemon=True)
        self.committed = [0] * partitions
        self.violations: list[str] = []
        self._group = group
        self._places = [Place(topic, partition) for partition in range(partitions)]
        self._consumer = consumer
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            self.look()
        self._consumer.close()

    def look(self) -> None:
        """Read them once."""
        try:
            found = self._consumer.committed(self._places, 5.0)
        except KafkaException:
            return  # a coordinator is being elected, or a transaction is open for long
        offsets = [max(0, place.offset) for place in found]
        for partition, (before, offset) in enumerate(zip(self.committed, offsets, strict=True)):
            if offset < before:
                text = f"{self._group}, partition {partition}: committed {before}, then {offset}"
                self.violations.append(f"back: {text}")
        self.committed = offsets

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class PlainCommits(threading.Thread):
    """A group without members: commits one offset after the other, and reads each back. Any acknowledged offset is
    found until a later one was sent. writer, reader: consumers of confluent-kafka, closed at the end. acknowledged: the
    last."""

    def __init__(self, writer: Any, reader: Any, group: str, topic: str) -> None:
        super().__init__(name=f"commits of {group}", daemon=True)
        self.group = group
        self.acknowledged = 0
        self.violations: list[str] = []
        self._topic = topic
        self._writer, self._reader = writer, reader
        self._stopping = threading.Event()

    @classmethod
    def to(cls, bootstrap: str, group: str, topic: str) -> Self:
        return cls(_consumer(bootstrap, group), _consumer(bootstrap, group), group, topic)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        for offset in itertools.count(1):
            if self._stopping.wait(_PAUSE_S):
                break
            self.commit(offset)
        for consumer in (self._writer, self._reader):
            consumer.close()

    def commit(self, offset: int) -> None:
        """Commit an offset, and read back what is committed then."""
        try:
            self._writer.commit(offsets=[Place(self._topic, 0, offset)], asynchronous=False)
            self.acknowledged = offset
        except KafkaException:
            pass  # it may have been committed all the same
        try:
            (place,) = self._reader.committed([Place(self._topic, 0)], 5.0)
        except KafkaException:
            return
        if not self.acknowledged <= max(0, place.offset) <= offset:
            text = f"{self.group}: acknowledged {self.acknowledged}, sent {offset}, found {place.offset}"
            self.violations.append(f"lost commit: {text}")

    def goes_on(self, commits: int = 1) -> None:
        """Wait until so many more are acknowledged; fails at the first violation."""
        wanted = self.acknowledged + commits

        def further() -> bool:
            assert not self.violations, "\n".join(self.violations[:20])
            return self.acknowledged >= wanted

        eventually(further, lambda: f"{self.group}: no commit after {self.acknowledged} is acknowledged", WITHIN_S)


def is_copy(values: Iterable[bytes], copied: Iterable[bytes]) -> bool:
    """Whether these are the values that members have copied and meant to commit, each once and in their order."""
    return [b"commit/%d/%s" % (offset, value) for offset, value in enumerate(values)] == list(copied)


def _consumer(bootstrap: str, group: str) -> Consumer:
    """Of committed offsets. A request waits for a paused broker for longer than any pause: one that is given up is
    handled all the same when the broker goes on, maybe after a later one of another connection."""
    return Consumer(
        {
            **QUICK,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "socket.timeout.ms": 60_000,
        }
    )


def _values(consumer: BulkConsumer, at: TopicPartition) -> Iterator[bytes]:
    for piece in consumer.read_arrow({at: (0, consumer.end_offsets([at])[at])}):
        yield from piece.to_arrow()["value"].to_pylist()
