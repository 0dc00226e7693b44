"""The offset of a streaming query, as Spark keeps it in the checkpoint: Kafka's JSON, and a key of kreplog's own.

    {"flights": {"0": 23, "1": 7}, "@kreplog": {"topicIds": {"flights": "4b1f..."}, "leaderEpochs": {"flights": 5}}}

Each number is the offset of the next record to read. The key's "@" is legal in no topic name. Below it stand
- topicIds: by topic, so that a topic which was deleted and created again is noticed (KIP-516); an object by partition
  where the partitions of a topic differ, since embedded logs have ids of their own;
- incarnationIds: likewise, of logs that no broker made, so that a partition is noticed which was deleted and made again
  under the topic id of its neighbours; left out where there are none;
- leaderEpochs: likewise, the epoch of the last record that was read, so that a truncation is noticed (KIP-320);
- startedAt: in the end of batch 0 alone, the offsets at which that batch starts. Spark writes the end of a batch to the
  checkpoint before it plans the batch, but the start of batch 0 nowhere: "latest" is pinned by this;
- initial: true in the start of batch 0, which holds nothing else.
Kafka's own JSON, as of a query that moves over from Spark's Kafka source, is accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kreplog.errors import InvalidTopicError, UsageError
from kreplog.types import TopicPartition, check_partition

RESERVED_KEY = "@kreplog"

_Value = TypeVar("_Value", str, int)

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a query stands in each partition: the offset of the next record, [start, end) of a batch when in pairs.

    initial: no position yet, the options say where to start. started_at: see above.
    """

    offsets: Offsets
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict)
    incarnation_ids: Mapping[TopicPartition, str] = field(default_factory=dict)
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    started_at: Offsets | None = None
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain dicts in a fixed order, since Spark compares offsets by their text."""
        if self.initial:
            return {RESERVED_KEY: {"initial": True}}
        added: dict[str, Any] = {
            "topicIds": _by_topic(self.topic_ids, self.offsets),
            "leaderEpochs": _by_topic(self.leader_epochs, self.offsets),
        }
        if self.incarnation_ids:
            added["incarnationIds"] = _by_topic(self.incarnation_ids, self.offsets)
        if self.started_at is not None:
            added["startedAt"] = offsets_to_json(self.started_at)
        return offsets_to_json(self.offsets) | {RESERVED_KEY: added}

    @classmethod
    def from_json(cls, document: Any) -> StreamOffset:
        """Raises UsageError when it is no such offset, as in the checkpoint of another source."""
        if not isinstance(document, dict):
            raise _malformed(document)
        added = document.get(RESERVED_KEY, {})
        if not isinstance(added, dict):
            raise _malformed(document)
        offsets = offsets_from_json({topic: value for topic, value in document.items() if topic != RESERVED_KEY})
        started_at = added.get("startedAt")
        return cls(
            offsets,
            topic_ids=_by_partition(added.get("topicIds", {}), offsets, str),
            incarnation_ids=_by_partition(added.get("incarnationIds", {}), offsets, str),
            leader_epochs=_by_partition(added.get("leaderEpochs", {}), offsets, int),
            started_at=None if started_at is None else offsets_from_json(started_at),
            initial=added.get("initial") is True,
        )


INITIAL = StreamOffset({}, initial=True)


def offsets_to_json(offsets: Offsets) -> dict[str, Any]:
    """Kafka's JSON of offsets: by topic, then by partition, both in order."""
    document: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        document.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return document


def offsets_from_json(document: Any) -> dict[TopicPartition, int]:
    """The reverse of offsets_to_json. Raises UsageError."""
    if not isinstance(document, dict):
        raise _malformed(document)
    offsets = {}
    for topic, by_partition in document.items():
        if not isinstance(by_partition, dict):
            raise _malformed(document)
        for number, offset in by_partition.items():
            if not number.isdecimal() or isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise _malformed(document)
            try:
                partition = check_partition(TopicPartition(topic, int(number)))
            except InvalidTopicError as error:
                raise _malformed(document) from error
            offsets[partition] = offset
    return offsets


def behind_latest(position: Offsets, latest: Offsets) -> dict[str, dict[str, float]]:
    """The number of offsets by which `position` is behind `latest`, by topic: min, max and avg over its partitions.

    Spark's Kafka source reports the same three numbers, but over all topics together.
    """
    lags: dict[str, list[int]] = {}
    for partition, end in sorted(latest.items()):
        if partition in position:
            lags.setdefault(partition.topic, []).append(max(0, end - position[partition]))
    return {
        topic: {"min": min(lag), "max": max(lag), "avg": round(sum(lag) / len(lag), 3)} for topic, lag in lags.items()
    }


def _by_topic(values: Mapping[TopicPartition, Any], offsets: Offsets) -> dict[str, Any]:
    """The value of a topic where all its partitions in `offsets` have the same, else values by partition."""
    document: dict[str, Any] = {}
    for partition in sorted(values):
        document.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    partitions = Counter(partition.topic for partition in offsets)
    return {
        topic: next(iter(found.values()))
        if len(found) == partitions[topic] and len(set(found.values())) == 1
        else found
        for topic, found in document.items()
    }


def _by_partition(document: Any, offsets: Offsets, kind: type[_Value]) -> dict[TopicPartition, _Value]:
    """The reverse of _by_topic. Raises UsageError for a value of another type than `kind`."""
    if not isinstance(document, dict):
        raise _malformed(document)
    values = {}
    for partition in offsets:
        found = document.get(partition.topic)
        value = found.get(str(partition.partition)) if isinstance(found, dict) else found
        if value is not None:
            if not isinstance(value, kind):
                raise _malformed(document)
            values[partition] = value
    return values


def _malformed(document: Any) -> UsageError:
    return UsageError(
        f"{document!r:.200} is no offset of a kreplog stream: the checkpoint is of another source; use a new "
        "checkpointLocation"
    )
