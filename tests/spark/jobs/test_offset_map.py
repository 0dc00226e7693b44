"""The map of offsets of a mirror: what it translates, and what is left of it after a kill in the middle of a write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kreplog.errors import OffsetOutOfRangeError, StorageError, UsageError
from kreplog.types import TopicPartition
from kreplog_jobs.offset_map import MAX_RUNS, OffsetMap, OffsetRun, map_path, merged, runs_of

PARTITION = TopicPartition("t", 0)


def offsets(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


def written(folder: Path, *appends: tuple[Sequence[OffsetRun], int]) -> OffsetMap:
    with OffsetMap.locked(folder, PARTITION) as found:
        if not found.exists:
            found.create("a", "b")
        for runs, position in appends:
            found.append(runs)
            found.commit(position)
    return OffsetMap(map_path(folder, PARTITION))


def test_runs_end_at_gaps_and_where_others_have_appended() -> None:
    sources = offsets(5, 6, 9, 10, 11, 20)
    assert runs_of(sources, [(100, 6)], 100) == [OffsetRun(5, 100, 2), OffsetRun(9, 102, 3), OffsetRun(20, 105, 1)]
    assert runs_of(sources, [(100, 4), (200, 2)], 100) == [
        *(OffsetRun(5, 100, 2), OffsetRun(9, 102, 2), OffsetRun(11, 200, 1), OffsetRun(20, 201, 1)),
    ]
    assert runs_of(sources, [(-1, 3), (300, 3)], 77) == [
        *(OffsetRun(5, 77, 0), OffsetRun(9, 77, 0), OffsetRun(10, 300, 2), OffsetRun(20, 302, 1)),
    ]


def test_an_offset_translates_to_the_first_record_at_or_after_it(tmp_path: Path) -> None:
    found = written(
        tmp_path, (runs_of(offsets(5, 6, 9), [(100, 3)], 0), 12), (runs_of(offsets(13, 14), [(103, 2)], 0), 15)
    )
    expected = {0: 100, 5: 100, 6: 101, 7: 102, 8: 102, 9: 102, 10: 103, 12: 103, 13: 103, 14: 104, 15: 105}
    assert {offset: found.translate(offset) for offset in expected} == expected
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: offset 16 is not in the target yet: .* below 15"):
        found.translate(16)


def test_more_gaps_than_are_recorded_never_translate_to_a_later_record(tmp_path: Path) -> None:
    sources = np.arange(0, 10_000 * 3, 3, dtype=np.int64)
    runs = runs_of(sources, [(50, len(sources))], 0)
    assert len(runs) <= MAX_RUNS + 1
    found = written(tmp_path, (runs, 30_000))
    for offset in range(30_000):
        exact = 50 + -(-offset // 3)
        assert exact - 10 <= found.translate(offset) <= exact
    assert found.translate(30_000) == 50 + 10_000


def test_a_file_that_is_cut_anywhere_has_all_that_was_committed_before(tmp_path: Path) -> None:
    written(
        tmp_path,
        ([OffsetRun(0, 0, 10)], 10),
        ([OffsetRun(12, 10, 5), OffsetRun(20, 15, 2)], 30),
        ([OffsetRun(30, 17, 1)], 31),
    )
    content = map_path(tmp_path, PARTITION).read_bytes()
    header = content.index(b"\n") + 1
    seen = set()
    for size in range(header, len(content)):
        map_path(tmp_path, PARTITION).write_bytes(content[:size])
        with OffsetMap.locked(tmp_path, PARTITION) as found:
            seen.add(found.position)
            whole = (found.position, list(found.runs))
            found.resolve(None)
            found.append([OffsetRun(1000, 500, 1)])
            found.commit(1001)
        again = OffsetMap(map_path(tmp_path, PARTITION))
        assert (again.position, again.runs) == (1001, [*merged(whole[1]), OffsetRun(1000, 500, 1)])
    assert seen == {None, 10, 30}


def test_contiguous_runs_are_joined_in_the_file(tmp_path: Path) -> None:
    written(tmp_path, *(([OffsetRun(number * 10, number * 10, 10)], number * 10 + 10) for number in range(100)))
    assert len(map_path(tmp_path, PARTITION).read_text().splitlines()) == 201
    with OffsetMap.locked(tmp_path, PARTITION) as found:
        found.resolve(None)
    assert map_path(tmp_path, PARTITION).read_text().splitlines()[1:] == ["run 0 0 1000", "committed 1000"]


def test_damage_is_named_and_two_writers_are_refused(tmp_path: Path) -> None:
    path = map_path(tmp_path, PARTITION)
    written(tmp_path, ([OffsetRun(0, 0, 10)], 10), ([OffsetRun(10, 10, 5)], 15))
    path.write_text(path.read_text().replace("committed 10\n", "committed x\n"))
    with pytest.raises(StorageError, match="damaged at line 3"):
        OffsetMap(path)
    path.write_text('{"version": 2, "source_topic_id": null, "target_topic_id": null}\n')
    with pytest.raises(UsageError, match="version 2"):
        OffsetMap(path)
    path.unlink()
    first, second = OffsetMap.locked(tmp_path, PARTITION), OffsetMap.locked(tmp_path, PARTITION)
    with first, pytest.raises(UsageError, match="another task mirrors it"), second:
        pass


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with OffsetMap.locked(tmp_path, PARTITION) as found:
        found.create("a", "b")
        found._file = os.open("/dev/full", os.O_WRONLY)
        with pytest.raises(StorageError, match=r"t-0.*cannot be written: No space left on device"):
            found.append([OffsetRun(0, 0, 1)])
        assert found.pending == []
        found._file = None
    assert written(tmp_path, ([OffsetRun(0, 5, 2)], 2)).translate(1) == 6
