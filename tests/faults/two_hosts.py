"""Driver: a log and a topic on a network file system, by two mounts that stand for two hosts.

Arguments: directory, kind.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kreplog import Log, Topic
from kreplog.errors import LogLockedError, NetworkFileSystemWarning, UnsupportedFileSystemError
from kreplog.managed_log import ManagedLog
from tests.faults.mounted import second_host
from tests.waiting import InChild

VALUES = [b"%d" % i for i in range(100)]


def appended_to(path: Path) -> Topic:
    """A topic whose partition, of which a writer has the log alone, is opened by an append."""
    topic = Topic.open(path, partitions=1)
    try:
        topic.append(VALUES[0])
    except BaseException:
        topic.close()
        raise
    return topic


def refused(call: Callable[[], Any], error: type[Exception]) -> str:
    try:
        call().close()
    except error as refusal:
        return str(refusal)
    raise AssertionError(f"no {error.__name__}")


def without_locks(first: Path, server: Path) -> None:
    """A writer is refused, and makes nothing; a reader is warned."""
    for call in (lambda: Log.open(first / "t-0"), lambda: Topic.open(first / "orders", partitions=2)):
        assert "whose locks hold on one host only" in refused(call, UnsupportedFileSystemError)
    assert os.listdir(server) == []
    with Log.open(server / "t-0") as log, Topic.open(server / "orders", partitions=1) as topic:
        log.append_many(VALUES)
        topic.append(VALUES[0])
    require_whole(first)


def require_whole(host: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Log.open(host / "t-0", read_only=True) as log, Topic.open(host / "orders", read_only=True) as topic:
            assert [record.value for record in log.read()] == VALUES
            assert [record.value for record in topic.read()] == VALUES[:1]
    assert [(warning.category, warning.filename) for warning in caught] == [(NetworkFileSystemWarning, __file__)] * 2


def with_locks(first: Path, second: Path) -> None:
    """One host writes at a time: a second is refused until the first has closed, or has died."""
    log = Log.open(first / "t-0")
    topic = Topic.open(first / "orders", partitions=1)
    assert log.append_many(VALUES[:50]) == range(50)
    InChild(lambda: None).result()  # forked, it lets go of its copy of the lock alone
    for _ in range(2):
        assert f"open for writing in process {os.getpid()} on host" in refused(
            lambda: Log.open(second / "t-0"), LogLockedError
        )
        refused(lambda: Topic.open(second / "orders"), LogLockedError)
    refused(lambda: Log.open(first / "t-0"), LogLockedError)
    assert log.append_many(VALUES[50:60]) == range(50, 60)
    topic.append(VALUES[0])
    refused(lambda: appended_to(second / "t"), LogLockedError)
    refused(lambda: ManagedLog.open(second / "t-0"), LogLockedError)
    refused(lambda: Log.open(second / "orders-0"), LogLockedError)
    log.close()
    topic.close()

    reports, reporting = os.pipe()

    def write() -> None:
        log = Log.open(second / "t-0")
        log.append_many(VALUES[60:])
        os.write(reporting, b"!")
        signal.pause()

    writer = InChild(write)
    assert os.read(reports, 1) == b"!"
    refused(lambda: Log.open(first / "t-0"), LogLockedError)
    os.kill(writer.pid, signal.SIGKILL)
    os.waitpid(writer.pid, 0)
    with Log.open(first / "t-0") as log:
        assert [record.value for record in log.read()] == VALUES
    require_whole(first)


def main(first: Path, kind: str) -> None:
    if kind == "fuse.sshfs":
        without_locks(first, first.with_name(first.name + "-beside") / "server")
    else:
        with_locks(first, second_host(first))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
