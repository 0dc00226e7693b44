"""What the dynamic settings of logs do: a topic without its own behaves by the altered default at once, one with its
own by that; and both so after a restart."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core.dynamic_configs import CLUSTER_WIDE, DYNAMIC_OF_LOGS
from kreplog.core.events import RetentionDue
from kreplog.managed_log import recompressed
from kreplog.server.broker import Broker
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.reference import Batch, Rec, encode
from tests.server.brokers import eventually
from tests.server.handlers.test_broker_configs import alter, with_brokers
from tests.server.test_broker import Client

Observe = Callable[[Client, TopicPartition], Awaitable[Any]]

NEVER = str(2**63 - 1)


class Case(NamedTuple):
    """An altered default, the built-in value of the topic's setting, what is observed with either, and further settings
    of both topics."""

    value: str
    topic_setting: str
    built_in: str
    observe: Observe
    altered: Any
    before: Any
    others: tuple[tuple[str, str], ...] = ()


async def produce(client: Client, at: TopicPartition, age_ms: int = 0) -> Any:
    record = Rec(0, int(time.time() * 1000) - age_ms, b"k", b"v" * 200)
    (response,) = (await client.produce(encode(Batch((record,))), at=at)).partitions
    return response


async def three_records(client: Client, at: TopicPartition) -> Any:
    """Their log; the records are some seconds old, a second apart."""
    for age_ms in (5000, 4000, 3000):
        assert (await produce(client, at, age_ms)).error == 0
    return client.broker.hosted.of(at).log


async def segments(client: Client, at: TopicPartition) -> int:
    return len((await three_records(client, at)).segments)


async def deleted(client: Client, at: TopicPartition) -> bool:
    log = await three_records(client, at)
    client.broker.runners.replicas.put(RetentionDue(at))
    return bool(log.log_start_offset > 0)


async def compacted(client: Client, at: TopicPartition) -> bool:
    log = await three_records(client, at)
    before = log.size
    log.compact()
    return bool(log.size < before)


async def error(client: Client, at: TopicPartition) -> str:
    return str((await produce(client, at)).error.name)


async def error_of_old(client: Client, at: TopicPartition) -> str:
    return str((await produce(client, at, age_ms=100_000)).error.name)


async def error_of_future(client: Client, at: TopicPartition) -> str:
    return str((await produce(client, at, age_ms=-100_000)).error.name)


async def has_append_time(client: Client, at: TopicPartition) -> bool:
    return bool((await produce(client, at)).log_append_time_ms >= 0)


async def codec(client: Client, at: TopicPartition) -> int:
    await produce(client, at)
    (fetched,) = (await client.fetch(at)).partitions
    return bytes(fetched.records)[22] & 7


def level(codec: str, *levels: int) -> Observe:
    """Which of these levels of a codec a batch is compressed at."""
    numbers = random.Random(1).choices(range(10_000), k=5000)
    value = b" ".join(b"value %d" % number for number in numbers)

    async def observe(client: Client, at: TopicPartition) -> int:
        batch = encode(Batch((Rec(0, int(time.time() * 1000), b"k", value),)))
        (response,) = (await client.produce(batch, at=at)).partitions
        assert response.error == 0
        (fetched,) = (await client.fetch(at)).partitions
        by_size = {len(recompressed(batch, codec, level, 1 << 20, "topic-0")): level for level in levels}
        assert len(by_size) == len(levels)
        return by_size[len(fetched.records)]

    return observe


async def fsynced(client: Client, at: TopicPartition) -> int:
    """How many of the acknowledged records are."""
    assert (await produce(client, at)).error == 0
    return client.broker.manager.partitions[at].flushed


async def is_to_be_fsynced_in_time(client: Client, at: TopicPartition) -> bool:
    assert (await produce(client, at)).error == 0
    return client.broker.hosted.of(at).flush_timer is not None


SMALL = (("segment.bytes", "300"),)
COMPACTED = (*SMALL, ("cleanup.policy", "compact"))
GZIP, LZ4, ZSTD = ((("compression.type", codec),) for codec in ("gzip", "lz4", "zstd"))
CASES = {
    "log.retention.ms": Case("1", "retention.ms", "-1", deleted, True, False, SMALL),
    "log.retention.bytes": Case("1", "retention.bytes", "-1", deleted, True, False, SMALL),
    "log.segment.bytes": Case("300", "segment.bytes", str(1 << 30), segments, 3, 1),
    "log.roll.ms": Case("1", "segment.ms", str(7 * 24 * 3_600_000), segments, 3, 1),
    "message.max.bytes": Case("150", "max.message.bytes", "1048588", error, "MESSAGE_TOO_LARGE", "NONE"),
    "log.message.timestamp.type": Case(
        "LogAppendTime", "message.timestamp.type", "CreateTime", has_append_time, True, False
    ),
    "log.message.timestamp.before.max.ms": Case(
        "50000", "message.timestamp.before.max.ms", NEVER, error_of_old, "INVALID_TIMESTAMP", "NONE"
    ),
    "log.message.timestamp.after.max.ms": Case(
        "50000", "message.timestamp.after.max.ms", "3600000", error_of_future, "INVALID_TIMESTAMP", "NONE"
    ),
    "compression.type": Case("gzip", "compression.type", "producer", codec, 1, 0),
    "compression.gzip.level": Case("1", "compression.gzip.level", "-1", level("gzip", 1, -1), 1, -1, GZIP),
    "compression.lz4.level": Case("1", "compression.lz4.level", "9", level("lz4", 1, 9), 1, 9, LZ4),
    "compression.zstd.level": Case("-50", "compression.zstd.level", "3", level("zstd", -50, 3), -50, 3, ZSTD),
    "log.flush.interval.messages": Case("1", "flush.messages", NEVER, fsynced, 1, 0),
    "log.flush.interval.ms": Case("3600000", "flush.ms", NEVER, is_to_be_fsynced_in_time, True, False),
    "log.cleaner.min.cleanable.ratio": Case(
        "1.0", "min.cleanable.dirty.ratio", "0.5", compacted, False, True, COMPACTED
    ),
    "log.cleaner.max.compaction.lag.ms": Case(
        "1", "max.compaction.lag.ms", NEVER, compacted, True, False, (*COMPACTED, ("min.cleanable.dirty.ratio", "1"))
    ),
    "log.cleaner.min.compaction.lag.ms": Case(
        str(10**12), "min.compaction.lag.ms", "0", compacted, False, True, COMPACTED
    ),
}


REACHES_LOGS = (
    "tests/server/handlers/test_broker_configs.py::test_a_setting_of_logs_applies_to_open_logs_and_to_new_ones"
)
"""Only that the log has the altered value: for what shows late, in large logs, or by memory."""

ELSEWHERE = {
    # two brokers
    "min.insync.replicas": "tests/server/handlers/test_dynamic_log_settings.py::"
    "test_a_produce_with_acks_all_needs_the_altered_min_insync_replicas",
    # a partition without a leader
    "unclean.leader.election.enable": "tests/core/controller/test_topic_defaults.py::"
    "test_f19_the_default_allows_unclean_elections_of_partitions_without_a_leader",
    # of the cleaner, not of a log
    "log.cleaner.threads": "tests/server/handlers/test_broker_configs.py::test_settings_of_the_cleaner_reach_it",
    "log.cleaner.dedupe.buffer.size": REACHES_LOGS,
    "log.cleaner.delete.retention.ms": REACHES_LOGS,
    "log.index.interval.bytes": REACHES_LOGS,
    "log.index.size.max.bytes": REACHES_LOGS,
    "producer.id.expiration.ms": REACHES_LOGS,
}
"""Tests of the settings that have no case."""


def test_each_dynamic_setting_of_logs_is_tested() -> None:
    assert CASES.keys() | ELSEWHERE.keys() == DYNAMIC_OF_LOGS | CLUSTER_WIDE
    assert not CASES.keys() & ELSEWHERE.keys()
    root = Path(__file__).parents[3]
    for where in ELSEWHERE.values():
        file, _, test = where.partition("::")
        assert f"\ndef {test}(" in (root / file).read_text(encoding="utf-8")


async def create(client: Client, name: str, configs: dict[str, str], replicas: tuple[int, ...] = (1,)) -> None:
    given = [{"name": setting, "value": value} for setting, value in configs.items()]
    assigned = [{"partition_index": number, "broker_ids": list(replicas)} for number in range(3)]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assigned, "configs": given}
    answer = await client.call(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False)
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_log_behaves_by_the_altered_default_unless_its_topic_has_its_own(tmp_path: Path, name: str) -> None:
    case = CASES[name]

    async def observed(client: Client, partition: int) -> tuple[Any, Any]:
        """By the topic that has its own setting, and by the other."""
        own = await case.observe(client, TopicPartition("own", partition))
        return own, await case.observe(client, TopicPartition("plain", partition))

    async def alters(client: Client, broker: Broker) -> None:
        await create(client, "own", {**dict(case.others), case.topic_setting: case.built_in})
        await create(client, "plain", dict(case.others))
        assert await observed(client, 0) == (case.before, case.before)
        assert await alter(client, "", {name: case.value}) == (0, None)
        assert await observed(client, 1) == (case.before, case.altered)

    async def restarted(client: Client, broker: Broker) -> None:
        assert await observed(client, 2) == (case.before, case.altered)

    with_brokers(tmp_path, alters)
    with_brokers(tmp_path, restarted)


def test_a_record_is_at_most_an_hour_ahead_of_the_clock_by_default(tmp_path: Path) -> None:
    """As from Kafka 4.0 on (KIP-1030)."""
    day_ms = 24 * 3_600_000

    async def work(client: Client, broker: Broker) -> None:
        await create(client, "plain", {})
        await create(client, "own", {"message.timestamp.after.max.ms": NEVER})
        errors = [
            (await produce(client, TopicPartition(name, 0), age_ms)).error.name
            for name, age_ms in (("plain", -day_ms), ("plain", 1_000 * day_ms), ("own", -day_ms))
        ]
        assert errors == ["INVALID_TIMESTAMP", "NONE", "NONE"]

    with_brokers(tmp_path, work)


def test_a_produce_with_acks_all_needs_the_altered_min_insync_replicas(tmp_path: Path) -> None:
    async def work(client: Client, leader: Broker, follower: Broker) -> None:
        own, plain = TopicPartition("own", 0), TopicPartition("plain", 0)
        await create(client, "own", {"min.insync.replicas": "1"}, (1, 2))
        await create(client, "plain", {}, (1, 2))
        assert await alter(client, "", {"min.insync.replicas": "2"}) == (0, None)
        assert [await error(client, at) for at in (own, plain)] == ["NONE", "NONE"]
        follower.stop()

        async def alone() -> bool:
            return all(leader.manager.partitions[at].isr == (1,) for at in (own, plain))

        await eventually(alone)
        assert [await error(client, at) for at in (own, plain)] == ["NONE", "NOT_ENOUGH_REPLICAS"]
        assert await alter(client, "", {"min.insync.replicas": None}) == (0, None)
        assert [await error(client, at) for at in (own, plain)] == ["NONE", "NONE"]

    with_brokers(tmp_path, work, (1, 2))
