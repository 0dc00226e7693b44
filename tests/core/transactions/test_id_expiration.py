"""Transactional ids that nobody uses are deleted; those with an open transaction stay."""

from __future__ import annotations

import pytest

from kreplog.config import TransactionConfig
from kreplog.core.deletion_batches import MAX_BATCH_BYTES
from kreplog.core.memory import MemoryAccount
from kreplog.core.transaction_messages import AddPartitionsToTxnRequest, InitProducerIdRequest, TransactionRecord
from kreplog.core.transactions import id_expiration
from kreplog.core.transactions.transaction_shard import ACCOUNT
from kreplog.errors import ErrorCode
from tests.core.transactions.shell import A, B, Shell

CONFIG = TransactionConfig(
    transactional_id_expiration_ms=5000, transaction_remove_expired_transaction_cleanup_interval_ms=1000
)
DELETED = TransactionRecord("id", None)


def idle() -> Shell:
    """A producer that has committed a transaction."""
    shell = Shell(MemoryAccount(), CONFIG)
    shell.init()
    assert shell.add(A, B) is ErrorCode.NONE
    assert shell.end() is ErrorCode.NONE
    return shell


def pass_time(shell: Shell, ms: int) -> None:
    """In steps of the interval of checks."""
    for _ in range(ms // 1000):
        shell.tick(1000)


def test_an_id_is_deleted_once_it_is_expired() -> None:
    shell = idle()
    assert shell.memory is not None and shell.memory.held[ACCOUNT] > 0
    pass_time(shell, 4000)
    assert DELETED not in shell.log
    pass_time(shell, 1000)
    assert shell.log[-1] == DELETED
    assert shell.memory.held[ACCOUNT] == 0
    assert shell.add(A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING, "its producer has to begin again"
    shell.start()
    assert shell.add(A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a later coordinator knows"
    response = shell.init(new_id=101)
    assert (response.error, response.producer_id, response.producer_epoch) == (ErrorCode.NONE, 101, 0)


def test_its_producer_recovers_with_another_producer_id() -> None:
    """As a client does by itself, once it has aborted the transaction that was refused (KIP-360)."""
    shell = idle()
    pass_time(shell, 5000)
    assert shell.add(A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    response = shell.init(new_id=101, known=(100, 0))
    assert (response.error, response.producer_id, response.producer_epoch) == (ErrorCode.NONE, 101, 0)
    assert shell.init(new_id=102, known=(100, 0)).error is ErrorCode.PRODUCER_FENCED, "the id is in use"


def test_use_puts_it_off() -> None:
    shell = idle()
    for _ in range(3):
        pass_time(shell, 4000)
        assert shell.add(A) is ErrorCode.NONE
        assert shell.end() is ErrorCode.NONE
    assert DELETED not in shell.log
    pass_time(shell, 5000)
    assert shell.log[-1] == DELETED


def test_an_open_transaction_and_one_without_all_markers_stay() -> None:
    shell = Shell(MemoryAccount(), CONFIG)
    shell.init(timeout_ms=60_000)
    shell.add(A)
    pass_time(shell, 10_000)
    assert shell.state == "Ongoing"
    shell.automatic = False
    shell.end()
    shell.commit()
    pass_time(shell, 10_000)
    assert shell.state == "PrepareCommit"


def test_an_id_is_busy_until_its_deletion_is_committed() -> None:
    shell = idle()
    shell.automatic = False
    pass_time(shell, 5000)
    assert len(shell.appends) == 1
    assert shell.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    parked = AddPartitionsToTxnRequest("id", 100, 0, (A,), from_leader=True)
    assert shell.request(parked) is None, "a leader waits"
    shell.commit()
    assert shell.replies[shell.count].partitions == ((A, ErrorCode.INVALID_PRODUCER_ID_MAPPING),)
    assert shell.appends == []


def test_a_deletion_that_fails_is_tried_again() -> None:
    shell = idle()
    shell.automatic = False
    pass_time(shell, 5000)
    shell.commit(ErrorCode.NOT_ENOUGH_REPLICAS, written=False)
    shell.automatic = True
    assert shell.add(A) is ErrorCode.NONE, "the id is as it was"
    assert shell.end() is ErrorCode.NONE
    pass_time(shell, 5000)
    assert shell.log[-1] == DELETED


def test_many_ids_are_deleted_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_expiration, "IDS_PER_STEP", 10)
    shell = Shell(MemoryAccount(), CONFIG)
    for number in range(25):
        response = shell.request(InitProducerIdRequest(f"id{number}", 1000, number))
        assert response.error is ErrorCode.NONE
    left = 25
    while left:
        shell.tick(1000)
        before, left = left, 25 - sum(record.value is None for record in shell.log)
        assert before - left <= 10
        assert shell.now_ms < 20_000
    assert not any(shard.transactions for shard in shell.core.shards.values())


def test_ids_that_no_batch_has_room_for_are_deleted_in_several() -> None:
    shell = Shell(MemoryAccount(), CONFIG)
    for number in range(40):
        name = f"{number:02}" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 10_000
        assert shell.request(InitProducerIdRequest(name, 1000, number)).error is ErrorCode.NONE
    shell.automatic = False
    pass_time(shell, 5000)
    sizes = [sum(len(record.transactional_id.encode()) for record in append.records) for append in shell.appends]
    assert len(sizes) == 4 and all(size < MAX_BATCH_BYTES for size in sizes)
    shell.commit()
    assert not any(shard.transactions for shard in shell.core.shards.values())
