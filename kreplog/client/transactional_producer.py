"""TransactionalProducer: one transaction of the bulk producer, over partitions and the offsets of one group (KIP-98).

All of it becomes visible to read_committed readers, or nothing. A transactional id has one producer at a time: the
latest to begin ends the open transaction of the one before, and brokers refuse that one's requests from then on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kreplog.client.bulk_errors import GroupRequestError, ProduceError, TransactionRequestError
from kreplog.client.coordinator_requests import GROUP, TRANSACTION, Refusal, call_coordinator, refused_offsets
from kreplog.client.producer import AppendedRange, Producer
from kreplog.errors import ErrorCode, KreplogError, ProducerFencedError, UsageError
from kreplog.types import NO_EPOCH, TopicPartition
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_STABLE_OFFSETS_FROM = 7
"""OffsetFetch says from here on whether a transaction may yet change an offset (KIP-447, Kafka 2.5)."""


class TransactionalProducer(Producer):
    """One transaction: begin(), append_arrow() any number of times, then commit() or abort().

    transactional_id: the same for all that must not write beside each other. transaction_timeout_s: how long the
    transaction may be open before the coordinator aborts it. Other settings: as for Producer; a request to a
    coordinator is tried for delivery_timeout_s.
    Raises, beside what Producer does, ProducerFencedError and TransactionRequestError.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        transactional_id: str,
        transaction_timeout_s: float = 60.0,
        **settings: Any,
    ) -> None:
        if not transactional_id:
            raise UsageError("transactional_id is empty")
        self._transactional_id: str = transactional_id
        self._transaction_timeout_s = transaction_timeout_s
        self._added: set[TopicPartition] = set()
        super().__init__(bootstrap, **settings)

    def require_transactions(self) -> None:
        """Raises UnsupportedBrokerError where the brokers lack what this client needs, TransactionRequestError where it
        may not use its transactional id, BrokersUnreachableError."""
        deadline = time.monotonic() + self._max_block_s
        self._cluster.refresh((), deadline)
        for api in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT):
            self._cluster.version_of_any(api, deadline)
        self._cluster.version_of_any(ApiKey.OFFSET_FETCH, deadline, _STABLE_OFFSETS_FROM)
        key = {"key": self._transactional_id, "key_type": TRANSACTION}
        if self._cluster.call_any(ApiKey.FIND_COORDINATOR, deadline, **key).error_code == _DENIED:
            raise TransactionRequestError(
                f"transactional id {self._transactional_id}: the brokers do not allow this client's principal to use "
                f"it: {_DENIED.name}",
                transactional_id=self._transactional_id,
                code=_DENIED,
            )

    def begin(self) -> None:
        """Returns once the transaction of the producer before, if it left one, has ended to its last marker."""
        response = self._call(
            ApiKey.INIT_PRODUCER_ID,
            _refused,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=int(self._transaction_timeout_s * 1000),
            producer_id=-1,
            producer_epoch=-1,
        )
        self._identity = response.producer_id, response.producer_epoch

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All committed offsets of a group, none of which an open transaction is about to change."""
        response, _ = call_coordinator(
            self._cluster,
            group,
            ApiKey.OFFSET_FETCH,
            time.monotonic() + self._delivery_timeout_s,
            refused_offsets,
            group_id=group,
            topics=None,
            require_stable=True,
        )
        return {
            TopicPartition(topic.name, partition.partition_index): partition.committed_offset
            for topic in response.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    def append_arrow(self, topic: str, data: object, *, partition: int | None = None) -> tuple[AppendedRange, ...]:
        """As Producer's. Raises ProducerFencedError also where a leader knows of the next producer."""
        try:
            return super().append_arrow(topic, data, partition=partition)
        except ProduceError as error:
            if error.code not in _FENCED:
                raise
            raise _fenced(error) from error

    def commit(self, group: str | None = None, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the rows, and the group's offsets with them. Where this raises, rows and offsets are not committed,
        unless the message says that it is not known."""
        if group is not None and offsets:
            self._add_offsets(group, offsets)
        unknown = "it is not known whether the transaction is committed"
        try:
            self._end(committed=True)
        except ProducerFencedError as error:
            raise ProducerFencedError(f"{unknown}: {error}") from error
        except TransactionRequestError as error:
            raise TransactionRequestError(
                f"{unknown}: {error}", transactional_id=self._transactional_id, code=error.code
            ) from error

    def abort(self) -> None:
        """Best effort: where the coordinator cannot be reached, it aborts once transaction_timeout_s is over."""
        if self._identity is not None:
            with suppress(KreplogError):
                self._end(committed=False)

    def _admit(self, partitions: Sequence[TopicPartition]) -> None:
        added = sorted(set(partitions) - self._added)
        if not added:
            return
        topics: dict[str, list[int]] = {}
        for at in added:
            topics.setdefault(at.topic, []).append(at.partition)
        self._call(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            _refused_partitions,
            **{f"v3_and_below_{name}": value for name, value in self._producer().items()},
            v3_and_below_topics=[{"name": topic, "partitions": numbers} for topic, numbers in topics.items()],
        )
        self._added.update(added)

    def _add_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._call(ApiKey.ADD_OFFSETS_TO_TXN, _refused, **self._producer(), group_id=group)
        topics: dict[str, list[dict[str, Any]]] = {}
        for at, offset in sorted(offsets.items()):
            topics.setdefault(at.topic, []).append({
                "partition_index": at.partition,
                "committed_offset": offset,
                "committed_leader_epoch": NO_EPOCH,
                "committed_metadata": "",
            })  # fmt: skip
        self._call(
            ApiKey.TXN_OFFSET_COMMIT,
            refused_offsets,
            key=group,
            **self._producer(),
            group_id=group,
            topics=[{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
        )

    def _end(self, *, committed: bool) -> None:
        if not self._added:
            return  # there is nothing that could be visible, and the coordinator has no transaction
        self._call(ApiKey.END_TXN, _refused, **self._producer(), committed=committed)
        self._identity = None

    def _producer(self) -> dict[str, Any]:
        if self._identity is None:
            raise UsageError(f"transactional id {self._transactional_id}: no transaction is open, begin one")
        producer_id, producer_epoch = self._identity
        return {
            "transactional_id": self._transactional_id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
        }

    def _call(self, api: ApiKey, refusal: Any, key: str | None = None, **fields: Any) -> Any:
        """The response of the coordinator. key: of a group, None for the transactional id."""
        deadline = time.monotonic() + self._delivery_timeout_s
        try:
            if key is None:
                name, kind = self._transactional_id, TRANSACTION
            else:
                name, kind = key, GROUP
            return call_coordinator(self._cluster, name, api, deadline, refusal, kind=kind, **fields)[0]
        except (TransactionRequestError, GroupRequestError) as error:
            if error.code not in _FENCED:
                raise
            raise _fenced(error) from error


def _fenced(error: KreplogError) -> ProducerFencedError:
    return ProducerFencedError(
        f"{error}: another producer has begun with this transactional id, or its transaction has timed out"
    )


def _refused(response: Any) -> Refusal | None:
    if not response.error_code:
        return None
    return generic.error_of(response.error_code), "the coordinator refuses the transaction"


def _refused_partitions(response: Any) -> Refusal | None:
    for topic in response.results_by_topic_v3_and_below:
        for partition in topic.results_by_partition:
            if partition.partition_error_code:
                at = TopicPartition(topic.name, partition.partition_index)
                return generic.error_of(partition.partition_error_code), f"{at} is not added to the transaction"
    return None
