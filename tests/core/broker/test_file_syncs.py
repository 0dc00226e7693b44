"""FileSyncs: an fsync of new replicas counts as done after those before it: its LeaderAndIsr may be a resent one."""

from __future__ import annotations

from kreplog.core.broker.file_syncs import FileSync, FileSyncs


def nothing() -> None:
    raise AssertionError("the shell calls it")


def begun(syncs: FileSyncs[str], *opened: str) -> FileSync[str]:
    for log in opened:
        syncs.opened(log)
    return syncs.begin(nothing)


def test_an_fsync_covers_what_was_opened_since_the_last() -> None:
    syncs = FileSyncs[str]()
    assert begun(syncs, "a", "b", "a").logs == ("a", "b")
    assert begun(syncs).logs == ()
    assert begun(syncs, "c").logs == ("c",)


def test_an_fsync_without_logs_waits_for_the_one_in_flight() -> None:
    syncs = FileSyncs[str]()
    first, resent = begun(syncs, "a"), begun(syncs)
    assert syncs.finished(resent) == []
    assert syncs.finished(first) == [first, resent]
    alone = begun(syncs)
    assert syncs.finished(alone) == [alone]


def test_fsyncs_count_as_done_in_order() -> None:
    syncs = FileSyncs[str]()
    first, second, third = begun(syncs, "a"), begun(syncs, "b"), begun(syncs, "c")
    assert syncs.finished(third) == []
    assert syncs.finished(first) == [first]
    assert syncs.finished(second) == [second, third]
