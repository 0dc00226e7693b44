"""Commit and abort of a producer whose transaction the coordinator has aborted at its time-out, by KIP-890."""

from __future__ import annotations

import pytest

from kreplog.core.transaction_messages import EndTxnResponse
from kreplog.errors import ErrorCode
from tests.core.transactions.shell import TIMEOUT_MS, A, Shell, end_second, for_leader


@pytest.mark.parametrize("later_coordinator", [False, True])
def test_kafka_20785_a_producer_whose_transaction_has_timed_out_is_fenced_at_its_commit(
    later_coordinator: bool,
) -> None:
    """INVALID_TXN_STATE, which it got as if it had aborted, is fatal to Java's applications."""
    shell = Shell()
    shell.init()
    for_leader(shell, A)
    shell.automatic = False
    shell.tick(TIMEOUT_MS)
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert end_second(shell, 0).error is concurrent, "the abort is appended"
    shell.commit()
    assert shell.state == "PrepareAbort" and end_second(shell, 0).error is concurrent
    shell.answer()
    assert end_second(shell, 0).error is concurrent
    shell.automatic = True
    shell.commit()
    if later_coordinator:
        shell.start()
    assert shell.state == "CompleteAbort" and end_second(shell, 0).error is ErrorCode.PRODUCER_FENCED


def test_kip_890_a_producer_whose_transaction_has_timed_out_aborts_and_goes_on() -> None:
    """For all that the coordinator knows, that is its own abort, sent again; so it stays where it was sent again."""
    shell = Shell()
    shell.init()
    for_leader(shell, A)
    shell.tick(TIMEOUT_MS)
    for _ in range(2):
        assert end_second(shell, 0, committed=False) == EndTxnResponse(ErrorCode.NONE, 100, 1)
    assert dict(for_leader(shell, A, epoch=1).partitions) == {A: ErrorCode.NONE}
    assert end_second(shell, 1) == EndTxnResponse(ErrorCode.NONE, 100, 2)
    assert end_second(shell, 0, committed=False).error is ErrorCode.PRODUCER_FENCED
