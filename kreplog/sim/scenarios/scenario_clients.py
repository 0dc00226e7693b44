"""Clients of a scenario: producers that send and retry on command, and consumers that fetch once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from kreplog.core import messages as m
from kreplog.errors import ErrorCode
from kreplog.sim.history import Invoke, Ok, Read
from kreplog.sim.machines.network import CLIENTS
from kreplog.sim.machines.scheduler import MS
from kreplog.sim.scenarios.scenario_arguments import ScenarioError, joined, settings
from kreplog.sim.scenarios.scenario_cluster import STEP_MS, ScenarioCluster
from kreplog.types import TopicPartition

_ACKS = {"all": -1, "1": 1, "0": 0}


class Batch(NamedTuple):
    """A batch that a producer has sent and may retry."""

    partition: TopicPartition
    values: tuple[str, ...]
    acks: int
    sequence: int


class ScenarioProducer:
    """A producer of a scenario. acked, refused: values acknowledged and errors received, in order; waiting: batches
    without a response."""

    def __init__(self, producer_id: int) -> None:
        self.id = producer_id
        self.sequences: dict[TopicPartition, int] = {}
        self.acked: list[str] = []
        self.refused: list[str] = []
        self.waiting: list[Batch] = []


class Clients:
    """All clients of one scenario, by name. What they see goes into the history that the checkers judge."""

    def __init__(self, cluster: ScenarioCluster) -> None:
        self.producers: dict[str, ScenarioProducer] = {}
        self.consumed: dict[str, list[str]] = {}
        self.cluster = cluster

    def do_produce(self, words: Sequence[str]) -> None:
        """produce p1 t-0 a b [acks=all] [to=2]: one batch to the leader that the store names, or to another."""
        given = settings(words)
        name, where, *values = [word for word in words if "=" not in word]
        partition = TopicPartition.parse(where)
        producer = self.producers.setdefault(name, ScenarioProducer(1000 + len(self.producers)))
        sequence = producer.sequences.get(partition, 0)
        producer.sequences[partition] = sequence + len(values)
        batch = Batch(partition, tuple(values), _ACKS[given.get("acks", "all")], sequence)
        producer.waiting.append(batch)
        self.cluster.history.add(Invoke(**self._event(name, producer, batch)))
        self._post(name, producer, batch, given)

    def do_retry(self, words: Sequence[str]) -> None:
        """retry p1 [to=2]: the oldest batch without a response."""
        producer = self.producers[words[0]]
        self._post(words[0], producer, producer.waiting[0], settings(words))

    def _post(self, name: str, producer: ScenarioProducer, batch: Batch, given: dict[str, str]) -> None:
        cluster = self.cluster
        values = [value.encode() for value in batch.values]
        records = cluster.disks.codec.encode(producer.id, 0, batch.sequence, values, cluster.scheduler.now_ms)
        timeout_ms = int(given.get("timeout_ms", "1500"))
        request = m.ProduceRequest(batch.acks, timeout_ms, (m.ProducePartition(batch.partition, records),))
        leader = int(given.get("to", cluster.leader_of(batch.partition)))
        if leader < 0:
            raise ScenarioError(f"{batch.partition} has no leader")
        if batch.acks == 0:
            cluster.network.send(name, f"b{leader}", CLIENTS, request)
        else:
            answered = partial(self._produced, name, producer, batch)
            cluster.network.call(name, f"b{leader}", CLIENTS, request, answered, (timeout_ms + 500) * MS)
        cluster.run_ms(STEP_MS)

    def _produced(
        self, name: str, producer: ScenarioProducer, batch: Batch, response: m.ProduceResponse | None
    ) -> None:
        batch_text = f"{' '.join(batch.values)} for {batch.partition}"
        if response is None:
            self.cluster.report(f"{name} gets no response to {batch_text}")
            return
        answer = response.partitions[0]
        if answer.error is not ErrorCode.NONE:
            self.cluster.report(f"{name} is refused {batch_text}: {answer.error.name}")
            producer.refused.append(answer.error.name)
            return
        end = answer.base_offset + len(batch.values)
        self.cluster.report(
            f"{name} gets {batch.partition} [{answer.base_offset}, {end}) acknowledged: {joined(batch.values)}"
        )
        if batch in producer.waiting:
            producer.waiting.remove(batch)
            producer.acked.extend(batch.values)
            self.cluster.history.add(Ok(**self._event(name, producer, batch), base_offset=answer.base_offset))

    def _event(self, name: str, producer: ScenarioProducer, batch: Batch) -> dict[str, Any]:
        return {
            "at_ms": self.cluster.scheduler.now_ms,
            "partition": batch.partition,
            "topic_id": self.cluster.topic_id(batch.partition),
            "client": name,
            "acks": batch.acks,
            "producer_id": producer.id,
            "sequence": batch.sequence,
            "values": batch.values,
        }

    def do_consume(self, words: Sequence[str]) -> None:
        """consume c1 t-0 [from=0] [at=2]: fetch from an offset to the end that the leader shows."""
        given = settings(words)
        name, where = [word for word in words if "=" not in word]
        partition = TopicPartition.parse(where)
        offset = int(given.get("from", 0))
        fetch = m.FetchPartition(partition, self.cluster.topic_id(partition), -1, offset)
        answer = self._call(name, partition, m.FetchRequest(m.CONSUMER, -1, 0, 0, 1 << 20, (fetch,)), given)
        if answer is None or answer.error is not ErrorCode.NONE or answer.partitions[0].error is not ErrorCode.NONE:
            error = "no response" if answer is None else (answer.error or answer.partitions[0].error).name
            self.cluster.report(f"{name} cannot read {partition} from {offset}: {error}")
            return
        found = answer.partitions[0]
        records = [record for record in self.cluster.disks.codec.decode(found.records) if record.offset >= offset]
        for record in records:
            self.cluster.history.add(
                Read(
                    at_ms=self.cluster.scheduler.now_ms,
                    partition=partition,
                    topic_id=self.cluster.topic_id(partition),
                    client=name,
                    broker=found.leader,
                    leader_epoch=found.leader_epoch,
                    offset=record.offset,
                    record_epoch=record.leader_epoch,
                    producer_id=record.producer_id,
                    sequence=record.sequence,
                    value=record.value.decode(),
                )
            )
        values = [record.value.decode() for record in records]
        self.consumed.setdefault(name, []).extend(values)
        text = f"{name} reads {partition} from {offset}: {joined(values)}"
        self.cluster.report(f"{text}; high watermark {found.high_watermark}")

    def do_end(self, words: Sequence[str]) -> None:
        """end c1 t-0 [at=2]: list the end offset that a client gets."""
        name, where = [word for word in words if "=" not in word]
        partition = TopicPartition.parse(where)
        request = m.ListOffsetsRequest((m.ListOffsetsPartition(partition, -1, m.LATEST),))
        answer = self._call(name, partition, request, settings(words))
        listed = None if answer is None else answer.partitions[0]
        if listed is None or listed.error is not ErrorCode.NONE:
            error = "no response" if listed is None else listed.error.name
            self.cluster.report(f"{name} cannot list the end of {partition}: {error}")
        else:
            self.cluster.report(f"{name} lists the end of {partition}: {listed.offset}")

    def _call(self, name: str, partition: TopicPartition, request: Any, given: dict[str, str]) -> Any:
        answers: list[Any] = []
        leader = given.get("at", self.cluster.leader_of(partition))
        self.cluster.network.call(name, f"b{leader}", CLIENTS, request, answers.append, 1000 * MS)
        self.cluster.run_while(lambda: not answers, 2000)
        return answers[0]
