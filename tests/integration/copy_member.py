"""A process of its own, to be killed and paused: one member of a group whose read-process-write loop copies a topic.

Each record is written to the partition that it was read from, as `outcome/offset/value`: whether the member means to
commit or to abort the transaction, the record's offset in the topic read, and its value. One transaction in eight is
aborted. SIGTERM: the member leaves the group and the process ends. SIGALRM ends it where a call of the library has not
returned long after its time-out.

Arguments: librdkafka's settings of connections, as JSON, the topic read, the topic written, the group, group.protocol,
the transactional id.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

WITHIN_S = 30.0
HUNG_S = 45
"""librdkafka 2.16 may wait for ever in send_offsets_to_transaction, without a request in flight."""

RECORDS = 200
"""Of a transaction, at most."""

SESSION_MS = 6000
TRANSACTION_MS = 8000


class CopyMember:
    def __init__(
        self, connection: str, source: str, target: str, group: str, protocol: str, transactional_id: str
    ) -> None:
        self.leaving = False
        self._connection: dict[str, Any] = json.loads(connection)
        self._target = target
        self._transactional_id = transactional_id
        session = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500} if protocol == "classic" else {}
        self._consumer = Consumer(
            {
                **self._connection,
                **session,
                "group.id": group,
                "group.protocol": protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "max.partition.fetch.bytes": 10_000,  # what waits of one partition does not keep another waiting
            }
        )
        self._consumer.subscribe([source])

    def run(self) -> None:
        producer: Producer | None = None
        for number in itertools.count():
            if self.leaving:
                break
            signal.alarm(HUNG_S)
            try:
                if producer is None:
                    producer = self._new_producer()
                if self._copy(producer, number % 8 == 7):
                    continue
            except KafkaException as error:
                _report(error)
                producer = self._after(error, producer)
            self._rewind()
        signal.alarm(HUNG_S)
        self._consumer.close()

    def _new_producer(self) -> Producer:
        """Fence the producer before it, whose transaction is ended."""
        made = Producer(
            {
                **self._connection,
                "transactional.id": self._transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
                "socket.timeout.ms": TRANSACTION_MS,
                "linger.ms": 2,
            }
        )
        made.init_transactions(WITHIN_S)
        return made

    def _copy(self, producer: Producer, aborts: bool) -> bool:
        """Whether to go on from here; else from the committed offsets.

        The offsets are committed as of the generation in which the records were read: after a rebalance it is another,
        and so is the owner of their partitions."""
        before = self._consumer.consumer_group_metadata()
        messages = [each for each in self._consumer.consume(RECORDS, 0.2) if each.error() is None]
        if not messages:
            return True
        if self._consumer.consumer_group_metadata() != before:
            return False
        producer.begin_transaction()
        ends: dict[int, int] = {}
        outcome = b"abort" if aborts else b"commit"
        topic = str(messages[0].topic())
        for message in messages:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None and offset is not None and value is not None
            ends[partition] = offset + 1
            producer.produce(self._target, b"%s/%d/%s" % (outcome, offset, value), partition=partition)
        offsets = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
        signal.alarm(HUNG_S)
        producer.send_offsets_to_transaction(offsets, before, WITHIN_S)
        signal.alarm(HUNG_S)
        if aborts:
            producer.flush(WITHIN_S)  # else the abort drops what is not sent yet
            signal.alarm(HUNG_S)
            producer.abort_transaction(WITHIN_S)
        else:
            producer.commit_transaction(WITHIN_S)
        return not aborts

    def _after(self, error: KafkaException, producer: Producer | None) -> Producer | None:
        """The producer to go on with; None for a new one, which ends the transaction of this one."""
        if producer is None or not error.args[0].txn_requires_abort():
            return None
        signal.alarm(HUNG_S)
        try:
            producer.abort_transaction(WITHIN_S)
        except KafkaException as failed:
            _report(failed)
            return None
        return producer

    def _rewind(self) -> None:
        """To the committed offsets, once no transaction may change them."""
        while not self.leaving:
            signal.alarm(HUNG_S)
            try:
                for place in self._consumer.committed(self._consumer.assignment(), WITHIN_S):
                    self._consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))
                return
            except KafkaException as error:  # also of a partition that is being revoked
                _report(error)
                self._consumer.poll(0)


def _report(error: KafkaException) -> None:
    print(error, file=sys.stderr, flush=True)


def main(*arguments: str) -> None:
    member = CopyMember(*arguments)

    def leave(*_: object) -> None:
        member.leaving = True

    signal.signal(signal.SIGTERM, leave)
    member.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
