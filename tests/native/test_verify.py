"""Verification by several processors finds what one finds."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog.types import VerifyReport

MIB = 1 << 20


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 MiB: a small segment, a large one with stretches of lz4 and new leader epochs, and the active one."""
    path = tmp_path_factory.mktemp("verify") / "t-0"
    values = [random.Random(number).randbytes(1000) for number in range(1000)]
    for epoch, (mib, compression, rolls) in enumerate(
        ((1, "none", True), (14, "none", False), (3, "lz4", False), (9, "none", True), (12, "none", False))
    ):
        with Log.open(path, LogConfig(compression_type=compression)) as log:
            log.assign_leader_epoch(epoch)
            for _ in range(mib):
                log.append_many(values)
            if rolls:
                log.roll()
    return path


def report(
    path: Path, processors: int, monkeypatch: pytest.MonkeyPatch, **where: int
) -> tuple[VerifyReport, list[int]]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(processors), raising=False)
    progress: list[int] = []
    with Log.open(path, read_only=True) as log:
        return log.verify(progress=lambda done, total: progress.append(done), **where), progress


def test_of_a_sound_log(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in ({}, {"start": 1500}, {"start": 700, "stop": 21_500}, {"stop": 39_000}):
        alone, _ = report(filled, 1, monkeypatch, **where)
        assert not alone.damages
        for processors in (2, 3, 8):
            together, progress = report(filled, processors, monkeypatch, **where)
            assert together == alone
            assert progress == sorted(progress)


def test_of_damage_at_every_place(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(1)
    segment = sorted(filled.glob("*.log"))[1]
    for _ in range(12):
        places = [random_.randrange(segment.stat().st_size) for _ in range(random_.choice((1, 3)))]
        with segment.open("r+b") as file:
            originals = [(place, os.pread(file.fileno(), 1, place)) for place in places]
            for place, byte in originals:
                os.pwrite(file.fileno(), bytes([byte[0] ^ 0x55]), place)
            alone, _ = report(filled, 1, monkeypatch)
            together, _ = report(filled, 4, monkeypatch)
            for place, byte in originals:
                os.pwrite(file.fileno(), byte, place)
        assert together == alone
        assert 1 <= len(alone.damages) <= len(places)


def test_of_a_piece_that_is_missing(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is sound, and the second does not follow the first: what lies between was cut out of the file."""
    copy = tmp_path / "t-0"
    copy.mkdir()
    for file in filled.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    segment = sorted(copy.glob("*.log"))[1]
    index = segment.with_suffix(".index")
    entries = [index.read_bytes()[at : at + 8] for at in range(0, index.stat().st_size, 8)]
    positions = [int.from_bytes(entry[4:], "big") for entry in entries]
    first = next(at for at in positions if at >= MIB)  # where the second piece begins
    after = next(at for at in positions if at > first)
    data = segment.read_bytes()
    segment.write_bytes(data[:first] + data[after:])
    entries = [
        entry[:4] + (at - (after - first) * (at >= after)).to_bytes(4, "big")
        for entry, at in zip(entries, positions, strict=True)
        if at != first
    ]
    index.write_bytes(b"".join(entries))
    alone, _ = report(copy, 1, monkeypatch)
    together, _ = report(copy, 2, monkeypatch)
    assert together == alone
    assert [damage.position for damage in alone.damages] == [first]


def test_segments_that_are_deleted_meanwhile_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log start offset moves up first, so what a reader's listing lacks then is below it."""
    with Log.open(tmp_path / "t-0", LogConfig(segment_bytes=1000)) as log:
        log.append_many([bytes(100)] * 50)
        first_left = log.segments[2].base_offset
        listdir = os.listdir

        def listed(path: str) -> list[str]:
            monkeypatch.setattr(os, "listdir", listdir)
            log.delete_records_before(first_left)
            return listdir(path)

        with Log.open(tmp_path / "t-0", read_only=True) as reader:
            monkeypatch.setattr(os, "listdir", listed)
            found = reader.verify()
    assert not found.damages and found.start_offset == first_left
