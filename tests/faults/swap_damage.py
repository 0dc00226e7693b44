"""Driver: each byte of what a swap of compaction leaves behind is damaged in turn, at each step where a kill may end
it, before the log is opened again.

Arguments: directory, a stride: of so many places one is damaged. Needs the shim. What must hold: the log opens, without
damage, with the newest record of each key, and nothing that was deleted comes back; or a typed error refuses to, and
has lost nothing: it opens once the byte is as it was. The same where another program wrote the .log.swap, without a
checkpoint, and has moved segments away in the order of their offsets, as Kafka does; there a batch whose offset is
wrong may stay so.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kreplog import Log, errors
from tests.faults.compaction_calls import CONFIG, PREPARED, check_records, content_at, prepare, survey, unfinished
from tests.faults.forked import result_of, shares

BASE = f"{0:020}"
UNSUMMED = 17
"""Bytes at the head of a batch that its CRC does not cover, with the CRC itself 21."""

Place = tuple[Path, str, int, int]
"""A log, a file in it, a byte of that, and the bits to be turned over."""


def main(directory: Path, stride: int) -> None:
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    prepared = directory / "prepared" / "prices-0"
    result_of(partial(prepare, prepared, Log))
    ours = unfinished(directory, prepared)
    assert any(replaced_in(log, prepared) for log in ours), "no kill came after a segment was deleted"
    logs = [*ours, *as_kafka_leaves_them(directory, prepared, ours[0])]
    places = [place for log in logs for place in places_in(log)][::stride]
    outcomes: Counter[str] = Counter()
    for counts in shares(lambda share, step: damage_in_turn(directory / str(share), places[share::step])):
        outcomes += counts
    print(f"steps={len(logs)} damaged={len(places)} opened={outcomes['opened']} refused={outcomes['refused']}")


def replaced_in(log: Path, prepared: Path) -> int:
    """How many of the segments have gone."""
    return len(list(prepared.glob("*.log"))) - len(list(log.glob("*.log")))


def as_kafka_leaves_them(directory: Path, prepared: Path, begun: Path) -> Iterator[Path]:
    """begun: a log whose .log.swap is there, and nothing replaced."""
    sources = sorted(file.stem for file in begun.glob("*.log") if int(file.stem) < end_of_swap(begun))
    for count in range(len(sources) + 1):
        path = directory / f"kafka-{count}" / prepared.name
        shutil.copytree(begun, path)
        (path / f"{BASE}.swap-checkpoint").unlink(missing_ok=True)
        swap = path / f"{BASE}.log.swap"
        swap.write_bytes(without_empty_end(swap.read_bytes()))
        for source in sources[:count]:
            for file in path.glob(f"{source}.*"):
                if file.suffix in (".log", ".index", ".timeindex"):
                    file.rename(f"{file}.deleted")
        yield path


def end_of_swap(log: Path) -> int:
    swap = (log / f"{BASE}.log.swap").read_bytes()
    *_, last = batches_in(swap)
    offset, delta = struct.unpack_from(">q", swap, last)[0], struct.unpack_from(">i", swap, last + 23)[0]
    return int(offset + delta + 1)


def without_empty_end(data: bytes) -> bytes:
    """Kafka keeps no empty batch of no producer."""
    end = len(data)
    for at in reversed(list(batches_in(data))):
        if struct.unpack_from(">i", data, at + 57)[0]:
            break
        end = at
    return data[:end]


def batches_in(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        yield at
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]


def places_in(log: Path) -> Iterator[Place]:
    """All bits where the batches' CRC does not reach, else a bit of each byte."""
    for file in sorted(log.glob(f"{BASE}.*")):
        is_swap = file.name.endswith((".log.swap", ".log.cleaned"))
        if file.suffix == ".deleted" or (file.name.endswith(".log") and not is_linked(log)):
            continue
        data = file.read_bytes()
        heads = {at + i for at in batches_in(data) for i in range(UNSUMMED)} if is_swap else set()
        for at in range(len(data)):
            for bit in range(8) if at in heads else (at % 8,):
                yield log, file.name, at, 1 << bit


def is_linked(log: Path) -> bool:
    file = log / f"{BASE}.log"
    return file.exists() and file.samefile(log / f"{BASE}.log.swap")


def copy(log: Path, path: Path) -> None:
    """With its links."""
    shutil.rmtree(path.parent, ignore_errors=True)
    shutil.copytree(log.parent, path.parent)
    if is_linked(log):
        (path / f"{BASE}.log").unlink()
        os.link(path / f"{BASE}.log.swap", path / f"{BASE}.log")


def turn_over(file: Path, at: int, bits: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    with file.open("r+b") as opened:
        opened.write(data)


def damage_in_turn(folder: Path, places: list[Place]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for log, name, at, bits in places:
        path = folder / log.name
        copy(log, path)
        turn_over(path / name, at, bits)
        try:
            outcomes[outcome(path, name, at, bits, None if is_proved(log) else end_of_swap(log))] += 1
        except Exception as error:
            raise AssertionError(f"{log.parent.name}: byte {at} of {name} ^ {bits}: {error!r}") from error
    return outcomes


def is_proved(log: Path) -> bool:
    return (log / f"{BASE}.swap-checkpoint").exists()


def outcome(path: Path, name: str, at: int, bits: int, end: int | None) -> str:
    """`opened` or `refused`. end: where the .log.swap ends, if that has no checkpoint. Raises AssertionError where
    anything was lost."""
    files = {file.name: file.read_bytes() for file in path.glob("*.log*")}
    try:
        with Log.open(path, CONFIG) as log:
            if end is None:
                check_records(survey(log), PREPARED)
            else:
                check_values(log, path, files, end)
            assert log.log_end_offset == PREPARED
        return "opened"
    except (errors.CorruptBatchError, errors.CorruptCheckpointError) as error:
        assert error.path and "restore the partition" in str(error), error
    left = {file.name: file.read_bytes() for file in path.glob("*.log*")}
    assert left == files, "files have changed"
    turn_over(path / name, at, bits)
    with Log.open(path, CONFIG) as log:
        check_records(survey(log), PREPARED)
    return "refused"


def check_values(log: Log, path: Path, files: dict[str, bytes], end: int) -> None:
    """The newest value of each key is there, though maybe not at its offset, or reading says what is damaged; no
    segment is gone that was not replaced. Raises AssertionError."""
    newest = dict(content_at(offset) for offset in range(PREPARED))
    for file, data in files.items():
        if file.endswith(".log") and int(file[:20]) >= end:
            assert (path / file).read_bytes()[: len(data)] == data, f"{file} is gone"
    try:
        found = [(record.key, record.value) for record in log.read()]
    except errors.CorruptBatchError:
        return
    lost = {key for key, value in newest.items() if value is not None and (key, value) not in found}
    assert not lost, lost


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
