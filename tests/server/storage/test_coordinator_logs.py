"""What a coordinator reads of its partitions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kreplog
from kreplog.core import effects, events
from kreplog.core.group_messages import OFFSETS_TOPIC, GroupRecord
from kreplog.core.messages import CoordinatorProduce, ProducedPartition, ProduceResponse
from kreplog.errors import ErrorCode
from kreplog.server.storage.coordinator_logs import CoordinatorLogs
from kreplog.types import TopicPartition
from kreplog.wire import group_records
from tests.server.loop import run, until

PARTITION = TopicPartition(OFFSETS_TOPIC, 0)
GROUPS = [GroupRecord(f"group-{number}", None) for number in range(5)]


@pytest.mark.parametrize(("offset", "first"), [(-1, 3), (1, 3), (4, 4), (5, 5)])
def test_reads_begin_at_the_log_start_where_that_is_higher(tmp_path: Path, offset: int, first: int) -> None:
    """Also where it has risen since the coordinator read the records before: it would read the same offset for good."""
    read: list[events.Event] = []
    with kreplog.Log.open(tmp_path / str(PARTITION)) as log:
        keys, values = zip(*map(group_records.encode_record, GROUPS), strict=True)
        for key, value in zip(keys, values, strict=True):
            log.append_many([value], [key])
        log.delete_records_before(3)
        replica = SimpleNamespace(log=log, threads=0, release=lambda: None)
        hosted: Any = SimpleNamespace(get={PARTITION: replica}.get)
        logs = CoordinatorLogs(hosted, lambda _: None, read.append)

        async def work() -> None:
            logs.execute(effects.ReadGroupRecords(PARTITION, 7, offset))
            await until(lambda: bool(read))

        run(work)
        logs.close()
    found = tuple(enumerate(GROUPS))[first:]
    assert read == [events.GroupRecordsRead(PARTITION, 7, offset, found, 5)]


def test_a_read_of_a_replica_that_is_not_open_fails_after_the_step_that_began_it() -> None:
    """The coordinator's core takes no event within a step."""
    read: list[events.Event] = []
    hosted: Any = SimpleNamespace(get={}.get)
    logs = CoordinatorLogs(hosted, lambda _: None, read.append)

    async def work() -> None:
        logs.execute(effects.ReadGroupRecords(PARTITION, 7, 2))
        assert not read
        await until(lambda: bool(read))

    run(work)
    logs.close()
    assert read == [events.GroupRecordsRead(PARTITION, 7, 2, failure="its replica is not open")]


def test_an_append_is_a_produce_and_its_response_the_outcome() -> None:
    produced: list[events.Received] = []
    outcomes: list[events.Event] = []
    hosted: Any = SimpleNamespace()
    logs = CoordinatorLogs(hosted, produced.append, outcomes.append)
    logs.execute(effects.AppendGroupRecords(3, PARTITION, 7, tuple(GROUPS), 500))
    logs.close()
    (received,) = produced
    request: Any = received.request
    assert isinstance(request, CoordinatorProduce) and request.current_leader_epoch == 7
    assert group_records.decode_batches(request.partitions[0].records, 0) == tuple(enumerate(GROUPS))
    reply_to: Any = received.reply_to
    reply_to.reply(ProduceResponse((ProducedPartition(PARTITION, ErrorCode.NOT_ENOUGH_REPLICAS, message="too few"),)))
    assert outcomes == [events.GroupRecordsAppended(3, ErrorCode.NOT_ENOUGH_REPLICAS)]


def test_appends_that_fail_again_and_again_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Any client that may use a group can have them fail, as by a TxnOffsetCommit without a producer id."""
    produced: list[events.Received] = []
    hosted: Any = SimpleNamespace()
    logs = CoordinatorLogs(hosted, produced.append, lambda _: None)
    for number in range(100):
        logs.execute(effects.AppendGroupRecords(number, PARTITION, 7, tuple(GROUPS), 500))
        reply_to: Any = produced[-1].reply_to
        error = ErrorCode.INVALID_RECORD if number < 99 else ErrorCode.NOT_ENOUGH_REPLICAS
        reply_to.reply(ProduceResponse((ProducedPartition(PARTITION, error, message=f"number {number}"),)))
    logs.close()
    found = [record.getMessage().split("has failed: ")[1] for record in caplog.records]
    assert found == [
        *(f"number {count - 1}; such failures: {count}" for count in (1, 2, 4, 8, 16, 32, 64)),
        "number 99; such failures: 1",
    ]


def test_an_error_that_no_read_is_made_for_stops_the_broker(tmp_path: Path) -> None:
    """The coordinator would wait for the answer for good."""
    failures: list[tuple[str, BaseException]] = []
    error = RuntimeError("a fault of the program")

    def decode(*_: object) -> None:
        raise error

    with kreplog.Log.open(tmp_path / str(PARTITION)) as log:
        log.append_many([b"value"], [b"key"])
        replica = SimpleNamespace(log=log, threads=0, release=lambda: None)
        background = SimpleNamespace(fail=lambda *failure: failures.append(failure))
        hosted: Any = SimpleNamespace(get={PARTITION: replica}.get, background=background)
        logs = CoordinatorLogs(hosted, lambda _: None, lambda _: None, SimpleNamespace(decode_batches=decode))

        async def work() -> None:
            logs.execute(effects.ReadGroupRecords(PARTITION, 7, 0))
            await until(lambda: bool(failures))

        run(work)
        logs.close()
    assert failures == [("a read of a coordinator's records", error)]
