"""A copy of a log in another log directory takes over, in whatever role its replica is (KIP-113)."""

from __future__ import annotations

from copy import deepcopy

import pytest

from kreplog.core.effects import EnforceRetention, ReplaceLog, SyncReplacement
from kreplog.core.events import CopyCaughtUp, RetentionDue
from kreplog.core.messages import ProducePartition, ProduceRequest
from kreplog.core.replication.role import Role
from kreplog.errors import ErrorCode, LogFailedError, ResourceExhaustedError, StorageError
from tests.core.shell import TP, Shell, batch


def of_leader(shell: Shell) -> None:
    shell.update_metadata(1)
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    shell.request(ProduceRequest(1, 1000, (ProducePartition(TP, batch("a", "b")),)))


def ready(shell: Shell) -> None:
    shell.copies[TP] = deepcopy(shell.log)


def takes_over(shell: Shell) -> list[type]:
    return [type(effect) for effect in shell.step(CopyCaughtUp(TP)) if isinstance(effect, ReplaceLog | SyncReplacement)]


def test_a_leader_goes_on_with_the_copy() -> None:
    shell = Shell()
    of_leader(shell)
    ready(shell)
    copy = shell.copies[TP]
    assert takes_over(shell) == [ReplaceLog, SyncReplacement]
    answer = shell.response_to(ProduceRequest(1, 1000, (ProducePartition(TP, batch("c")),)))
    assert answer.partitions[0].error is ErrorCode.NONE and answer.partitions[0].base_offset == 2
    assert shell.log is copy and shell.content() == ["a", "b", "c"]


def test_a_copy_that_cannot_take_over_changes_nothing() -> None:
    shell = Shell()
    of_leader(shell)
    before = shell.partition.log
    assert takes_over(shell) == [ReplaceLog]
    assert shell.partition.log == before and shell.partition.role is Role.LEADER


def test_without_the_fsync_of_the_commit_the_replica_is_lost() -> None:
    """What is appended to the copy from then on would be lost with the power."""
    shell = Shell()
    of_leader(shell)
    ready(shell)
    shell.fails[SyncReplacement] = StorageError("Input/output error")
    shell.step(CopyCaughtUp(TP))
    assert shell.partition.role is Role.OFFLINE


def interrupted() -> LogFailedError:
    error = LogFailedError("no descriptor")
    error.__cause__ = ResourceExhaustedError("no descriptor")
    return error


@pytest.mark.parametrize("state", ["unknown", "offline", "interrupted"])
def test_a_replica_that_is_not_in_use_keeps_its_log(state: str) -> None:
    shell = Shell()
    if state != "unknown":
        of_leader(shell)
        ready(shell)
        shell.fails[EnforceRetention] = StorageError("broken") if state == "offline" else interrupted()
        shell.step(RetentionDue(TP))
    assert takes_over(shell) == []
