"""replica.lag.max.bytes: a follower leaves the ISR once the leader's log is more bytes ahead of its position."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core import nodes
from kreplog.core.effects import SizeFrom, SubmitMulti
from kreplog.core.events import StoreReplied, Tick
from kreplog.core.messages import FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from kreplog.core.replication import isr
from kreplog.errors import BadVersionError, KreplogError, OffsetOutOfRangeError, StorageError
from kreplog.types import Node, NodeStat, SetData
from tests.core.shell import TP, Shell, batch

SIZE = sum(record_batch.size for record_batch in batch("a").batches)
HOURS_MS = 10_000_000


def leader(max_bytes: int, members: tuple[int, ...] = (1, 2, 3), config: TopicConfig | None = None) -> Shell:
    """Leads, its log empty and its followers at its end. No follower lags by time for hours."""
    shell = Shell(config=ReplicationConfig(replica_lag_time_max_ms=HOURS_MS, replica_lag_max_bytes=max_bytes))
    shell.update_metadata(1, 2, 3)
    shell.leader_and_isr(1, 1, members, config=config)
    for follower in members[1:]:
        fetch(shell, follower, 0)
    return shell


def append(shell: Shell, *values: str) -> None:
    shell.request(ProduceRequest(1, 1000, (ProducePartition(TP, batch(*values)),)))


def fetch(shell: Shell, follower: int, offset: int, epoch: int = 1) -> None:
    shell.request(FetchRequest(follower, 1, 0, 1, 1 << 20, (FetchPartition(TP, "id", epoch, offset, -1),)))


def proposals(shell: Shell) -> list[tuple[int, ...]]:
    """The ISRs that were written, oldest first."""
    writes = [effect for effect in shell.effects if isinstance(effect, SubmitMulti)]
    changes = [write.operations[0] for write in writes if isinstance(write.operations[0], SetData)]
    return [nodes.decode_leader_and_isr("", Node(change.data, NodeStat(0, 0, 0))).isr for change in changes]


def in_sync(shell: Shell) -> tuple[int, ...]:
    return shell.partition.isr


def replied(shell: Shell, version: int) -> None:
    shell.step(StoreReplied(last_write(shell), (NodeStat(version, 0, 0), "/isr")))


def last_write(shell: Shell) -> Hashable:
    return [effect.tag for effect in shell.effects if isinstance(effect, SubmitMulti)][-1]


def test_an_append_that_takes_the_end_out_of_reach() -> None:
    shell = leader(SIZE)
    append(shell, "a")
    assert proposals(shell) == [], "as many bytes behind as are allowed"
    fetch(shell, 2, 1)
    append(shell, "b")
    assert proposals(shell) == [(1, 2)]


def test_bytes_count_and_offsets_do_not() -> None:
    shell = leader(2 * SIZE)
    append(shell, *["x"] * 3)
    assert shell.log.leo == 3
    assert shell.log.size_from(0) < 2 * SIZE
    assert proposals(shell) == []
    for follower in (2, 3):
        fetch(shell, follower, 3)
    append(shell, "x" * 3 * SIZE)
    assert proposals(shell) == [(1,)], "one offset behind"


def test_a_fetch_that_shows_how_far_a_member_is_behind() -> None:
    """In a new epoch the leader knows no position until a follower fetches."""
    shell = leader(SIZE, (1, 2))
    append(shell, "a")
    append(shell, "b")
    replied(shell, 2)
    assert in_sync(shell) == (1,)
    shell.leader_and_isr(1, 2, (1, 2))
    assert in_sync(shell) == (1, 2)
    shell.step(Tick())
    assert proposals(shell) == [(1,)], "its position is not known"
    fetch(shell, 2, 0, epoch=2)
    assert proposals(shell) == [(1,), (1,)]


@pytest.mark.parametrize("error", [StorageError("no descriptor is left"), OffsetOutOfRangeError("just deleted")])
def test_a_tick_judges_a_member_whose_lag_could_not_be_read_before(error: KreplogError) -> None:
    shell = leader(0)
    shell.fails[SizeFrom] = error
    append(shell, "a")
    assert proposals(shell) == [(1, 2)], "3 is judged, 2 could not be"
    shell.fails[SizeFrom] = error
    replied(shell, 1)
    assert proposals(shell) == [(1, 2)]
    shell.now_ms = HOURS_MS // 2
    shell.step(Tick())
    assert proposals(shell) == [(1, 2), (1,)]


@pytest.mark.parametrize("refused", [False, True])
def test_a_member_that_falls_behind_while_a_change_is_in_flight_leaves_after_it(refused: bool) -> None:
    shell = leader(SIZE)
    append(shell, "a")
    fetch(shell, 2, 1)
    append(shell, "b")
    append(shell, "c")
    assert proposals(shell) == [(1, 2)], "one change in flight (KIP-497)"
    if refused:
        shell.step(StoreReplied(last_write(shell), error=BadVersionError("registered again", index=1)))
    else:
        replied(shell, 1)
    assert proposals(shell) == [(1, 2), (1,)]


def test_a_follower_too_far_behind_does_not_join() -> None:
    """The high watermark stands while the ISR is too small for it to move: reaching it is not enough."""
    shell = leader(SIZE, (1, 2), TopicConfig(min_insync_replicas=2))
    for value in "abc":
        append(shell, value)
    replied(shell, 1)
    assert (in_sync(shell), shell.partition.high_watermark, shell.log.leo) == ((1,), 0, 3)
    fetch(shell, 2, 1)
    assert proposals(shell) == [(1,)]
    fetch(shell, 2, 2)
    assert proposals(shell) == [(1,), (1, 2)]


def test_without_a_bound_the_log_is_not_read() -> None:
    shell = leader(-1)
    shell.fails[SizeFrom] = AssertionError("looked at")
    for value in "abc":
        append(shell, value)
    fetch(shell, 2, 1)
    shell.step(Tick())
    assert proposals(shell) == []
    assert SizeFrom in shell.fails


def test_the_rule() -> None:
    assert not isr.is_lagging_in_bytes(1 << 40, -1)
    assert not isr.is_lagging_in_bytes(0, 0)
    assert isr.is_lagging_in_bytes(1, 0)
    assert not isr.is_lagging_in_bytes(100, 100)
