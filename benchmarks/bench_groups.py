"""Groups and transactions of three brokers of ours beside three of a real Apache Kafka, in turns.

    python -m benchmarks.bench_groups [--repetitions N] [--quick] [--no-kafka] [--only PART]... [--directory DIR]
                                      [--out FILE] [--against CHECKOUT]

Both clusters run all the time, and one is idle while the other is measured. In each repetition, after a longer one
that does not count and lets Java compile, confluent-kafka commits offsets, rebalances a group of either protocol, and
commits transactions; then coordinators are killed. Numbers are medians; a ratio is that of two numbers in one
repetition. What is committed is read back. Kafka is the newest one, with its defaults but for three: offsets and
transactions have three replicas, as here; members of the consumer protocol have the heartbeat interval that those of
the classic one set; and their assignments are computed at once, as here, instead of at most once a second (KIP-1263).
Needs Java 17 and Maven. --against: in place of Kafka another checkout of kreplog with its extensions built, as the
commit before a change.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from rich.console import Console

from benchmarks import clusters, report
from benchmarks.bench_cluster import Measure, show
from benchmarks.clusters import QUIET, CheckoutCluster, Cluster, KafkaCluster, KreplogCluster
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC, partition_of_transaction
from kreplog.types import counted
from tests.interop.jvm import NEWEST, Unavailable

WITHIN_S = 120.0
INTERNAL = 50
"""Partitions of each internal topic."""

HEARTBEAT_MS = 100
GOES_ON_S = 1.0
GO_ON_WITH = 5
"""Commits after a failover; the first may still be what was acknowledged before it."""

Settings = dict[str, str | int | float | bool]
FAST: Settings = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}
KREPLOG = {
    "group.consumer.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
}
KAFKA = {
    **KREPLOG,
    "group.consumer.assignment.interval.ms": 0,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work. seconds: that each rate is measured for. copied: records of the read-process-write loop, at
    100 a second. committers, window: groups that commit at the same time, and how many requests each has under way.
    producers: that write transactions at the same time."""

    seconds: float = 3.0
    members: int = 50
    partitions: int = 200
    copied: int = 300
    committers: int = 8
    window: int = 20
    wide: int = 10
    producers: int = 16


WARM_UP = 7
"""The first repetition, which does not count, does so many times the work of the others."""

TINY = Scale(seconds=0.3, members=5, partitions=20, copied=20, committers=2, producers=3)

MEASURES = (
    Measure("commits", "offsets committed one by one, one group", "1/s", "more", 1.0),
    Measure("many_commits", "offsets committed by eight groups, ten in a request", "1/s", "more", 1.0),
    Measure("commit_cpu_us", "CPU of all brokers by offset, committed one by one", "µs", "less"),
    Measure("many_commits_cpu_us", "CPU of all brokers by offset, ten in a request", "µs", "less"),
    Measure(
        "classic_leave_ms",
        "classic: a member of the group leaves, until the others have all partitions",
        "ms",
        "less",
        1.0,
    ),
    Measure("classic_join_ms", "classic: a member joins, until all have their partitions", "ms", "less", 1.0),
    Measure("consumer_leave_ms", "consumer protocol: a member leaves", "ms", "less", 1.0),
    Measure("consumer_join_ms", "consumer protocol: a member joins", "ms", "less", 1.0),
    Measure("transactions", "transactions of one producer, ten partitions", "1/s", "more", 1.0),
    Measure("transaction_cpu_us", "CPU of all brokers by transaction", "µs", "less"),
    Measure("many_transactions", "transactions of 16 producers at once, a partition each", "1/s", "more", 1.0),
    Measure("many_transactions_cpu_us", "CPU of all brokers by one of these", "µs", "less"),
    Measure("copy_p50_ms", "read-process-write from end to end, p50", "ms", "less", 1.0),
    Measure("copy_p99_ms", "read-process-write from end to end, p99", "ms", "less", 1.0),
    Measure("group_failover_ms", "kill -9 of a group's coordinator until commits go on", "ms", "less", 0.2),
    Measure(
        "transaction_failover_ms", "kill -9 of a transaction coordinator until transactions go on", "ms", "less", 0.2
    ),
)


class Turn:
    """One cluster's turn of a repetition, and what was measured in it. tag: names topics, groups and transactional ids
    of this turn alone."""

    def __init__(self, cluster: Cluster, scale: Scale, tag: str) -> None:
        self.cluster = cluster
        self.scale = scale
        self.found: dict[str, float] = {}
        self._tag = tag

    def run(self, only: Sequence[str] = ()) -> dict[str, float]:
        for part in (
            self._commits,
            self._classic,
            self._consumer,
            self._transactions,
            self._copies,
            self._failover,
        ):
            if not only or part.__name__.strip("_") in only:
                part()
        return self.found

    @contextmanager
    def _measured(self, name: str, cpu: str) -> Iterator[Callable[[int], None]]:
        """Measure a rate, of as many as the function is called with, and the brokers' CPU time by each of them."""
        counts: list[int] = []
        cpu_s, began = clusters.cpu_s(self.cluster), time.perf_counter()
        yield counts.append
        self.found[name] = counts[0] / (time.perf_counter() - began)
        self.found[cpu] = (clusters.cpu_s(self.cluster) - cpu_s) / counts[0] * 1e6

    def _topic(self, name: str, partitions: int) -> str:
        topic = f"{name}-{self._tag}"
        clusters.create_topic(self.cluster, topic, partitions)
        clusters.wait_in_sync(self.cluster, topic)
        return topic

    def consumer_of(self, group: str, **settings: Any) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **FAST,
                **QUIET,
                **settings,
            }
        )

    def producer_of(self, transactional_id: str) -> Producer:
        made = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                **FAST,
                **QUIET,
            }
        )
        eventually(lambda: made.init_transactions(WITHIN_S))
        return made

    # Commits

    def _commits(self) -> None:
        topic = self._topic("committed", self.scale.wide)
        with closing(self.consumer_of(f"one-{self._tag}")) as consumer:
            eventually(lambda: consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False))
            number, deadline = 1, time.perf_counter() + self.scale.seconds
            with self._measured("commits", "commit_cpu_us") as count:
                while time.perf_counter() < deadline:
                    number += 1
                    consumer.commit(offsets=[TopicPartition(topic, 0, number)], asynchronous=False)
                count(number - 1)
            check_committed(consumer, [TopicPartition(topic, 0, number)])
        self._many_commits(topic)

    def _many_commits(self, topic: str) -> None:
        with ExitStack() as stack:
            committers = [
                _Committer(stack, self, f"many-{number}-{self._tag}", topic) for number in range(self.scale.committers)
            ]
            deadline = time.perf_counter() + self.scale.seconds
            with self._measured("many_commits", "many_commits_cpu_us") as count:
                while time.perf_counter() < deadline:
                    for committer in committers:
                        committer.commit(self.scale.window)
                self._drain(committers)
                count(sum(committer.acknowledged for committer in committers))
            for committer in committers:
                committer.check()

    def _drain(self, committers: Sequence[_Committer]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while any(committer.under_way for committer in committers):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.cluster.name}: commits without a response")
            for committer in committers:
                committer.poll()

    # Groups

    def _classic(self) -> None:
        self._rebalance("classic", **{"heartbeat.interval.ms": HEARTBEAT_MS, "session.timeout.ms": 45_000})

    def _consumer(self) -> None:
        self._rebalance("consumer")

    def _rebalance(self, protocol: str, **settings: Any) -> None:
        """Measure a member that leaves and one that joins. Members do nothing else: the topic has no records."""
        topic = self._topic(f"shared-{protocol}", self.scale.partitions)
        group = f"{protocol}-{self._tag}"
        quiet = {"group.protocol": protocol, "fetch.wait.max.ms": 5000, **settings}

        def member() -> Consumer:
            made = self.consumer_of(group, **quiet)
            made.subscribe([topic])
            return made

        members = [member() for _ in range(self.scale.members)]
        try:
            self._await_shared(members)
            began = time.perf_counter()
            members.pop(0).close()
            self._await_shared(members)
            self.found[f"{protocol}_leave_ms"] = (time.perf_counter() - began) * 1e3
            began = time.perf_counter()
            members.append(member())
            self._await_shared(members)
            self.found[f"{protocol}_join_ms"] = (time.perf_counter() - began) * 1e3
        finally:
            for made in members:
                made.close()

    def _await_shared(self, members: Sequence[Consumer]) -> None:
        """Wait until each partition has one owner, and each member as many as another, or one more or less."""
        deadline = time.monotonic() + WITHIN_S
        fewest, rest = divmod(self.scale.partitions, len(members))
        while True:
            owned = []
            for member in members:
                member.poll(0)
                owned.append({place.partition for place in member.assignment()})
            counts = [len(partitions) for partitions in owned]
            if (
                sum(counts) == len(set().union(*owned)) == self.scale.partitions
                and fewest <= min(counts)
                and max(counts) <= fewest + bool(rest)
            ):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.cluster.name}: partitions are owned as {sorted(counts)}")
            time.sleep(0.001)  # clients report nothing while nobody polls them

    # Transactions

    def _transactions(self) -> None:
        topic = self._topic("written", self.scale.wide)
        partitions = range(self.scale.wide)
        producer = self.producer_of(f"writer-{self._tag}")
        transact(producer, topic, partitions)
        number, deadline = 0, time.perf_counter() + self.scale.seconds
        with self._measured("transactions", "transaction_cpu_us") as count:
            while time.perf_counter() < deadline:
                transact(producer, topic, partitions)
                number += 1
            count(number)
        self._count(topic, (number + 1) * self.scale.wide)
        self._many_transactions()

    def _many_transactions(self) -> None:
        """Each producer has a thread, for a commit waits for its response."""
        topic = self._topic("written-at-once", self.scale.wide)

        def partition_of(index: int) -> Sequence[int]:
            return (index % self.scale.wide,)

        def write(index: int) -> int:
            number = 0
            while time.perf_counter() < deadline:
                transact(producers[index], topic, partition_of(index))
                number += 1
            return number

        indexes = range(self.scale.producers)
        producers = [self.producer_of(f"writer-{index}-{self._tag}") for index in indexes]
        for index in indexes:
            transact(producers[index], topic, partition_of(index))
        with ThreadPoolExecutor(self.scale.producers) as pool:
            deadline = time.perf_counter() + self.scale.seconds
            with self._measured("many_transactions", "many_transactions_cpu_us") as count:
                number = sum(pool.map(write, indexes))
                count(number)
        self._count(topic, self.scale.producers + number)

    def _count(self, topic: str, wanted: int) -> None:
        """Read what is committed, which has to be so many records."""
        with closing(self.consumer_of("none", **{"isolation.level": "read_committed"})) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(self.scale.wide)])
            seen, deadline = 0, time.monotonic() + WITHIN_S
            while seen < wanted and time.monotonic() < deadline:
                seen += sum(message.error() is None for message in consumer.consume(1000, 0.2))
            if seen != wanted:
                raise AssertionError(f"{self.cluster.name}: {seen} records of {topic} are committed, not {wanted}")

    def _copies(self) -> None:
        """Measure the loop. Each record has the time at which it was sent. The first is copied once the copier has
        joined its group, and does not count."""
        source, target = self._topic("read", 1), self._topic("copied", 1)
        done = threading.Event()
        with ExitStack() as stack:
            reader = stack.enter_context(closing(self.consumer_of("none", **{"isolation.level": "read_committed"})))
            reader.assign([TopicPartition(target, 0, 0)])
            copying = threading.Thread(target=self._copy, args=(source, target, done), daemon=True)
            copying.start()
            stack.callback(copying.join)
            stack.callback(done.set)
            self._feed(source, 1)
            self._delays(reader, 1)
            feeding = threading.Thread(target=self._feed, args=(source, self.scale.copied), daemon=True)
            feeding.start()
            steady = sorted(self._delays(reader, self.scale.copied)[self.scale.copied // 5 :])
            feeding.join()
        self.found["copy_p50_ms"] = steady[len(steady) // 2] * 1e3
        self.found["copy_p99_ms"] = steady[len(steady) * 99 // 100] * 1e3

    def _delays(self, reader: Consumer, count: int) -> list[float]:
        """Seconds since each of so many records was sent."""
        delays: list[float] = []
        deadline = time.monotonic() + WITHIN_S
        while len(delays) < count:
            message = reader.poll(1.0)
            if message is not None and message.error() is None:
                delays.append(time.perf_counter() - float(message.value() or b""))
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.cluster.name}: {len(delays)} of {count} records are copied")
        return delays

    def _feed(self, topic: str, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 0, **FAST, **QUIET})
        start = time.perf_counter()
        for number in range(count):
            producer.produce(topic, repr(time.perf_counter()).encode(), partition=0)
            while (wait := start + (number + 1) / 100 - time.perf_counter()) > 0:
                producer.poll(wait)
        producer.flush(WITHIN_S)

    def _copy(self, source: str, target: str, done: threading.Event) -> None:
        producer = self.producer_of(f"copier-{self._tag}")
        with closing(self.consumer_of(f"copiers-{self._tag}")) as consumer:
            consumer.subscribe([source])
            while not done.is_set():
                first = consumer.poll(0.05)
                if first is None:
                    continue
                messages = [first, *consumer.consume(100, 0)]
                values = [message.value() or b"" for message in messages if message.error() is None]
                if not values:
                    continue
                producer.begin_transaction()
                for value in values:
                    producer.produce(target, value, partition=0)
                places = consumer.position(consumer.assignment())
                producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), WITHIN_S)
                producer.commit_transaction(WITHIN_S)

    # Failover

    def _failover(self) -> None:
        topic = self._topic("surviving", self.scale.wide)
        group, writer = f"surviving-{self._tag}", f"surviving-{self._tag}"
        with closing(self.consumer_of(group)) as consumer:
            numbers = itertools.count(1)

            def commit() -> None:
                consumer.commit(offsets=[TopicPartition(topic, 0, next(numbers))], asynchronous=False)

            eventually(commit)
            coordinator = OFFSETS_TOPIC, partition_of_group(group, INTERNAL)
            self.found["group_failover_ms"] = self._longest_wait(*coordinator, lambda: eventually(commit)) * 1e3
        producer = [self.producer_of(writer)]

        def try_transaction() -> None:
            try:
                transact(producer[0], topic, range(self.scale.wide))
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    eventually(lambda: producer[0].abort_transaction(WITHIN_S))
                else:
                    producer[0] = self.producer_of(writer)

        coordinator = TRANSACTIONS_TOPIC, partition_of_transaction(writer, INTERNAL)
        self.found["transaction_failover_ms"] = self._longest_wait(*coordinator, try_transaction) * 1e3

    def _longest_wait(self, topic: str, partition: int, act: Callable[[], object]) -> float:
        """Seconds between the ends of two calls of `act`, while the leader of a partition is killed."""
        leader, _ = clusters.wait_in_sync(self.cluster, topic)[partition]
        ends: list[float] = []
        enough = threading.Event()

        def go_on() -> None:
            while not enough.is_set():
                act()
                ends.append(time.perf_counter())

        acting = threading.Thread(target=go_on, daemon=True)
        acting.start()
        time.sleep(GOES_ON_S)  # what a client does when it begins is over then
        killed = time.perf_counter()
        clusters.kill(self.cluster, leader)
        wanted, deadline = len(ends) + GO_ON_WITH, time.monotonic() + WITHIN_S
        while len(ends) < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.cluster.name}: does not go on without broker {leader}")
            time.sleep(clusters.POLL_S)  # the other thread is about its own work
        enough.set()
        acting.join()
        self.cluster.spawn([leader])
        clusters.wait_in_sync(self.cluster, topic)
        return max(after - before for before, after in pairwise(ends) if after > killed)


class _Committer:
    """A group that commits offsets of ten partitions again and again, several requests at a time. acknowledged: the
    offsets that were."""

    def __init__(self, stack: ExitStack, turn: Turn, group: str, topic: str) -> None:
        self.under_way = 0
        self.acknowledged = 0
        self._topic = topic
        self._partitions = range(turn.scale.wide)
        self._number = 0
        self._refused: list[str] = []
        self._consumer = stack.enter_context(closing(turn.consumer_of(group, on_commit=self._committed)))
        eventually(lambda: self._consumer.commit(offsets=self._places(), asynchronous=False))
        self.under_way = self.acknowledged = 0
        self._refused.clear()

    def commit(self, window: int) -> None:
        """Send as many requests as the window has room for."""
        while self.under_way < window:
            self._number += 1
            self.under_way += 1
            self._consumer.commit(offsets=self._places(), asynchronous=True)
        self.poll()

    def poll(self) -> None:
        self._consumer.poll(0)

    def check(self) -> None:
        if self._refused:
            raise AssertionError(f"{len(self._refused)} commits were refused, such as by {self._refused[0]}")
        check_committed(self._consumer, self._places())

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition, self._number) for partition in self._partitions]

    def _committed(self, error: object, places: list[TopicPartition]) -> None:
        if error is not None:
            self._refused.append(str(error))
        self.under_way -= 1
        self.acknowledged += len(places)


def transact(producer: Producer, topic: str, partitions: Sequence[int]) -> None:
    """Write a record to each partition, and commit."""
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, b"value", partition=partition)
    producer.commit_transaction(WITHIN_S)


def check_committed(consumer: Consumer, wanted: list[TopicPartition]) -> None:
    """Raise AssertionError where other offsets are committed."""
    found = [place.offset for place in consumer.committed(wanted, WITHIN_S)]
    if found != [place.offset for place in wanted]:
        raise AssertionError(f"committed is {found} and not {wanted}")


def eventually(act: Callable[[], object]) -> None:
    """Call it until it succeeds: while coordinators are elected or load, clients give up some calls. Raises its last
    error."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            act()
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(clusters.POLL_S)  # brokers report to nobody when they are ready


@contextmanager
def both(root: Path, kafka: bool, against: Path | None) -> Iterator[list[Cluster]]:
    """The clusters, running. Raises Unavailable."""
    made: list[Cluster] = [KreplogCluster(root / "kreplog", KREPLOG)]
    if against is not None:
        made.append(CheckoutCluster(root / "against", against, KREPLOG))
    elif kafka:
        made.append(KafkaCluster(root / "kafka", KAFKA, NEWEST))
    with ExitStack() as started:
        for cluster in made:
            started.callback(cluster.stop)
            cluster.spawn()
        yield made


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Turns of either cluster that count.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: shows that it works, not how fast it is.")] = False,
    kafka: Annotated[bool, typer.Option(help="Measure a real Apache Kafka too.")] = True,
    only: Annotated[
        list[str] | None, typer.Option(help="commits, classic, consumer, transactions, copies or failover.")
    ] = None,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for every sample.")] = None,
    against: Annotated[Path | None, typer.Option(help="Another checkout, in place of Apache Kafka.")] = None,
) -> None:
    """Groups and transactions of kreplog's cluster and of Apache Kafka's, or of another checkout's."""
    console = Console(width=170, soft_wrap=True)
    scale = TINY if quick else Scale()
    root = Path(tempfile.mkdtemp(prefix="kreplog-groups-", dir=directory))
    tags = itertools.count()
    try:
        for name, fact in report.host(root).items():
            console.print(f"{name}: {fact}", highlight=False)
        with both(root, kafka, against) as made:
            samples: dict[str, list[dict[str, float]]] = {cluster.name: [] for cluster in made}
            warm_up = replace(scale, seconds=WARM_UP * scale.seconds, copied=WARM_UP * scale.copied)
            for repetition in range(repetitions + 1):
                for cluster in made[:: -1 if repetition % 2 else 1]:
                    found = Turn(cluster, scale if repetition else warm_up, str(next(tags))).run(only or ())
                    console.print(
                        f"{cluster.name}, {repetition}, load {os.getloadavg()[0]:.1f}: {_rounded(found)}",
                        highlight=False,
                    )
                    if repetition:
                        samples[cluster.name].append(found)
                if out is not None:
                    out.write_text(json.dumps(samples, indent=1) + "\n")
    except Unavailable as error:
        console.print(f"no Apache Kafka to compare with: {error}", highlight=False)
        raise typer.Exit(1) from None
    finally:
        shutil.rmtree(root)
    console.print(f"{counted(repetitions, 'repetition')}; load at the end {os.getloadavg()[0]:.1f}", highlight=False)
    if kafka or against is not None:
        show(console, samples, MEASURES)
    else:
        for measure in MEASURES:
            if measure.name in found:
                numbers = [turn[measure.name] for turn in samples[KreplogCluster.name]]
                console.print(f"{measure.title}: {statistics.median(numbers):,.3g} {measure.unit}", highlight=False)


def _rounded(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.3g}" for name, value in found.items())


if __name__ == "__main__":
    typer.run(main)
