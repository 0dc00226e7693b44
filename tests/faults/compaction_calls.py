"""Driver: appends and compactions broken off at their n-th file call, for n = 1, 2, ... until none is reached; or the
opening that completes a swap which was broken off.

Arguments: directory, "log", "managed" or "opening", what happens there (a key of MODES), and a stride: of so many calls
it happens at one. Needs the shim. What must hold, in the process itself, in another while it lives, and after the next
opening: every record is one that was appended at its offset; the newest record of each key is there, unless it is a
tombstone, of whose key nothing older is; a reader that has begun goes on; errors are typed, and none speaks of damage;
and the log goes on, or refuses writes until it is opened again.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig, Record, errors
from kreplog.managed_log import ManagedLog
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, broken_off_at_each_call, ends_by, result_of

CONFIG = LogConfig(
    cleanup_policy="compact,delete", segment_bytes=900, index_interval_bytes=100, batch_bytes=300,
    min_cleanable_dirty_ratio=0,
)  # fmt: skip
LATER = 1 << 50
"""Milliseconds: when every tombstone has expired."""
PREPARED, ROUNDS = 48, 2
CHANGES = faults.ALL_WRITES | faults.TIMES

MODES = {
    "kill": (CHANGES, faults.KILL_BEFORE, 0),
    "halfway": (faults.WRITE, faults.KILL_HALFWAY, 0),
    "short": (faults.WRITE, faults.SHORT, 0),
    "full": (faults.WRITE | faults.OPEN | faults.RENAME | faults.TRUNCATE, faults.FAIL, errno.ENOSPC),
    "full-for-good": (faults.WRITE | faults.TRUNCATE, faults.FAIL_FROM_HERE_ON, errno.ENOSPC),
    "disk": (CHANGES | faults.READ, faults.FAIL, errno.EIO),
    "denied": (faults.OPEN | faults.RENAME | faults.UNLINK | faults.TIMES, faults.FAIL, errno.EACCES),
    "handles": (faults.OPEN, faults.FAIL, errno.EMFILE),
    "memory": (faults.MMAP, faults.FAIL, errno.ENOMEM),
}

Found = list[tuple[int, bytes | None, bytes | None]]


def content_at(offset: int) -> tuple[bytes, bytes | None]:
    """Key and value: keys that come again and again, keys that come once, and tombstones."""
    key = b"once %d" % offset if offset % 9 == 4 else b"key %d" % (offset * 7 % 5)
    return key, None if offset % 11 == 5 else b"value %d" % offset * (1 + offset % 4)


def append(log: Log, offset: int) -> None:
    key, value = content_at(offset)
    assert log.append(value, key) == offset


def survey(log: Log) -> Found:
    assert not log.verify().damages
    return [(record.offset, record.key, record.value) for record in log.read()]


def check_records(found: Found, end: int) -> None:
    """Of a log that had all records below `end`: raises AssertionError."""
    for offset, key, value in found:
        assert (key, value) == content_at(offset), f"{offset} holds {key!r}: {value!r}"
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets)) and (not offsets or offsets[-1] < end), offsets
    newest = {key: offset for offset, key, _ in found}
    for key, offset in {content_at(offset)[0]: offset for offset in range(end)}.items():
        here = newest.get(key)
        assert here == offset or (here is None and content_at(offset)[1] is None), f"{key!r}: {here}, not {offset}"


def prepare(path: Path, log_class: type[Log]) -> None:
    """A log of which one part has been compacted, and another not."""
    path.parent.mkdir()
    with log_class.open(path, CONFIG) as log:
        for offset in range(PREPARED):
            append(log, offset)
            if offset == PREPARED // 2:
                log.roll()
                log.compact(1, force=True)
        log.roll()


def play(log_class: type[Log], path: Path, mode: str, nth: int, pipe: int) -> None:
    """Append and compact; acknowledge (round, end of the log)."""
    kinds, how, error = MODES[mode]
    shim = faults.Shim()
    with log_class.open(path, CONFIG) as log, Log.open(path, CONFIG, read_only=True) as reader:
        begun = reader.read()
        first = [next(begun) for _ in range(5)]
        shim.arm(kinds, str(path.parent), nth, error, how)
        try:
            for number in range(ROUNDS):
                append(log, PREPARED + number)
                acknowledge(pipe, number, PREPARED + number + 1)
                log.roll()
                log.compact(LATER, force=True)
        except errors.StorageError as raised:
            check_error(raised)
            check_readers(log, reader, begun, first[-1].offset)
            shim.disarm()
            check_after_error(log, reader, pipe)
            os._exit(faults.REFUSED)
        fired = shim.disarm()[1]
        check_readers(log, reader, begun, first[-1].offset)
        if fired:  # nobody noticed
            check_after_error(log, reader, pipe)
    os._exit(0 if fired else faults.UNHARMED)


def check_error(error: errors.StorageError) -> None:
    assert not isinstance(error, errors.CorruptBatchError), f"no file is damaged: {error}"
    assert str(error), repr(error)


def check_readers(log: Log, reader: Log, begun: Iterator[Record], at: int) -> None:
    """Of a writer that goes on or has failed, of a reader, and of one that had begun to read before: AssertionError."""
    end = log.log_end_offset
    check_records(survey(log), end)
    check_records(survey(reader), end)
    for record in begun:
        assert record.offset > at and (record.key, record.value) == content_at(record.offset), record
        at = record.offset


def check_after_error(log: Log, reader: Log, pipe: int) -> None:
    """Once the cause has gone: the log goes on, or refuses all writes."""
    end = log.log_end_offset
    if log.failed:
        for refused in (partial(append, log, end), partial(log.compact, LATER, force=True), log.flush):
            try:
                refused()
            except errors.LogFailedError:
                continue
            raise AssertionError(f"{refused} was not refused")
    else:
        append(log, end)
        end += 1
        acknowledge(pipe, ROUNDS, end)
        log.roll()
        log.compact(LATER, force=True)
    check_records(survey(log), end)
    check_records(survey(reader), end)
    check_records(result_of(partial(read, Path(log.path))), end)


def read(path: Path) -> Found:
    """As another process finds it."""
    with Log.open(path, CONFIG, read_only=True) as log:
        return survey(log)


def look(path: Path, log_class: type[Log]) -> tuple[Found, int]:
    """What the next opening finds, and the end; the log then takes a record and is compacted."""
    with log_class.open(path, CONFIG) as log:
        found, end = survey(log), log.log_end_offset
        append(log, end)
        log.roll()
        log.compact(LATER, force=True)
        check_records(survey(log), end + 1)
    left = [file.name for file in path.iterdir() if file.name.endswith((".cleaned", ".swap"))]
    assert not left, left
    return found, end


def check(log_class: type[Log], path: Path, steps: list[tuple[int, int]]) -> None:
    done = steps[-1][1] if steps else PREPARED
    found, end = result_of(partial(look, path, log_class))
    assert done <= end <= done + 1, f"{done} records were acknowledged, there are {end}"
    check_records(found, end)


def unfinished(directory: Path, prepared: Path) -> list[Path]:
    """Logs whose process was killed in the first swap of a compaction, one for each set of files that it leaves."""
    by_files: dict[frozenset[str], Path] = {}
    kinds, how, error = MODES["kill"]
    for nth in range(1, 1000):
        path = directory / f"unfinished-{nth}" / prepared.name
        shutil.copytree(prepared, path)

        def compact(path: Path = path, nth: int = nth) -> None:
            with Log.open(path, CONFIG) as log:
                faults.Shim().arm(kinds, str(path.parent), nth, error, how)
                log.compact(LATER, force=True)

        code, _ = ends_by(compact)
        assert code in (0, -signal.SIGKILL), f"call {nth}: compaction ended with {code}"
        if code == 0:
            break
        names = frozenset(file.name for file in path.iterdir())
        if f"{0:020}.log.swap" in names:
            by_files.setdefault(names, path)
        elif by_files:
            break
    return list(by_files.values())


def open_again(path: Path, mode: str, nth: int, _: int) -> None:
    kinds, how, error = MODES[mode]
    shim = faults.Shim()
    shim.arm(kinds, str(path.parent), nth, error, how)
    try:
        Log.open(path, CONFIG).close()
    except errors.StorageError as raised:
        fired = shim.disarm()[1]
        assert fired, raised
        check_error(raised)
        check_records(result_of(partial(read, path)), PREPARED)
        os._exit(faults.REFUSED)
    os._exit(0 if shim.disarm()[1] else faults.UNHARMED)


def main(directory: Path, kind: str, mode: str, stride: int) -> None:
    log_class = ManagedLog if kind == "managed" else Log
    prepared = directory / "prepared" / "prices-0"
    result_of(partial(prepare, prepared, log_class))
    attempts: list[tuple[Path, Callable[[Path, str, int, int], None]]] = [(prepared, partial(play, log_class))]
    if kind == "opening":
        attempts = [(source, open_again) for source in unfinished(directory, prepared)]
    for source, attempt in attempts:
        broken_off_at_each_call(
            directory, mode, prepared.name, partial(shutil.copytree, source), attempt, partial(check, log_class), stride
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
