"""Driver: a writer killed with SIGKILL at random moments, hundreds of times, opening and recovery included.

Arguments: directory, kills, seed. The writer reports what was acknowledged; the parent keeps that outside the log and
compares after each death. Directories and settings are redrawn every few kills. A bulk append that a death has broken
off is there as a whole or not at all; the next life repeats it, which writes it in the latter case alone.
"""

from __future__ import annotations

import random
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig
from kreplog._native import batch
from tests.faults import content, script
from tests.faults.forked import acknowledge, kill_after, result_of, shares, start

KILLS_PER_DIRECTORY = 15
RECORDS_PER_LIFE = 4000
UNKNOWN = -1
OPENED, DELETING, APPENDING_ONCE = -1, -2, -3


@dataclass(frozen=True)
class Broken:
    """A bulk append that was not acknowledged before its process died."""

    first: int
    stop: int
    generation: int

    def require_whole(self, end: int) -> None:
        assert end in (self.first, self.stop), (
            f"{end - self.first} records of a bulk append of {self.stop - self.first}"
        )


def append_once(log: Log, values: list[bytes], sequence: int) -> range | None:
    """One call with batches of a few records."""
    encoded = [batch.build(values[at : at + 7]) for at in range(0, len(values), 7)]
    return log.append_once(encoded, writer="killed", sequence=sequence)


def repeat(log: Log, broken: Broken, pipe: int) -> None:
    """Write it again under the generation that it has had; it is in the log once, whatever its fate was."""
    end = log.log_end_offset
    values = [content.value(offset, broken.generation) for offset in range(broken.first, broken.stop)]
    written = append_once(log, values, broken.first)
    assert written is None if end == broken.stop else written == range(broken.first, broken.stop), (written, end)
    acknowledge(pipe, broken.first, broken.stop)


def write(path: Path, config: LogConfig, generation: int, seed: int, broken: Broken | None, pipe: int) -> None:
    """Append in every way until killed, or until RECORDS_PER_LIFE; never closes."""
    rng = random.Random(seed)
    log = Log.open(path, config)
    acknowledge(pipe, OPENED, log.log_end_offset)
    if broken is not None:
        repeat(log, broken, pipe)
    stop = log.log_end_offset + RECORDS_PER_LIFE
    while (first := log.log_end_offset) < stop:
        count = rng.choice((1, 1, 3, 20, 200))
        values = [content.value(offset, generation) for offset in range(first, first + count)]
        way = rng.random()
        if way < 0.3:
            log.append_many(values)
            acknowledge(pipe, first, first + count)
        elif way < 0.4:
            acknowledge(pipe, APPENDING_ONCE, first + count)
            assert append_once(log, values, first) == range(first, first + count)
            acknowledge(pipe, first, first + count)
        elif way < 0.7:
            for offset, value in enumerate(values, first):
                assert log.append(value) == offset
                acknowledge(pipe, offset, offset + 1)
        elif way < 0.95:
            with log.appender(batch_bytes=rng.choice((200, 4000))) as out:
                for value in values:
                    out.append(value)
                out.flush()
                acknowledge(pipe, first, first + count)
        elif way < 0.98:
            log.flush()
        else:
            before = rng.randrange(log.log_start_offset, first + 1)
            acknowledge(pipe, DELETING, before)
            log.delete_records_before(before)


def look(path: Path, config: LogConfig, close: bool) -> script.State:
    log = Log.open(path, config)
    found = script.survey(log)
    if close:
        log.close()
    return found


def one_directory(path: Path, rng: random.Random, kills: int) -> tuple[int, int, int]:
    """Kill writers of one log; return the records acknowledged, the kills that fell before the log was open, and those
    that broke off a bulk append."""
    config = LogConfig(
        segment_bytes=rng.choice((1000, 20_000, 1 << 30)),
        index_interval_bytes=rng.choice((0, 100, 4096)),
        batch_bytes=rng.choice((300, 65536)),
        compression_type=rng.choice(("none", "none", "lz4")),
    )
    owners: list[int] = []
    acked_end = acked = while_opening = in_bulk = 0
    deleted = 0
    broken: Broken | None = None
    for generation in range(kills):
        pid, pipe = start(partial(write, path, config, generation, rng.getrandbits(32), broken))
        _, reports = kill_after(pid, pipe, rng.choice((0.003, 0.01, 0.03)) * rng.random() * 2)
        while_opening += not reports
        for first, stop in reports:
            if first == OPENED:
                assert stop >= acked_end, f"acknowledged up to {acked_end}, recovered only up to {stop}"
                if broken is not None:
                    broken.require_whole(stop)
                owners = owners[:stop] + [UNKNOWN] * (stop - len(owners))
            elif first == APPENDING_ONCE:
                broken = Broken(len(owners), stop, generation)
            elif first == DELETING:
                deleted = max(deleted, stop)
            else:
                writer = generation if broken is None else broken.generation
                owners = owners[:first] + [writer] * (stop - first)
                acked_end = stop
                broken = None
                acked += stop - first
        in_bulk += broken is not None
        if rng.random() < 0.7 or generation == kills - 1:
            found = result_of(partial(look, path, config, close=rng.random() < 0.1))
            assert found.start <= deleted, f"records up to {found.start} are gone, only {deleted} were to be deleted"
            assert found.end >= acked_end, f"acknowledged up to {acked_end}, found only {found.end}"
            if broken is not None:
                broken.require_whole(found.end)
                assert set(found.generations[broken.first - found.start :]) <= {broken.generation}
            for offset, writer in enumerate(found.generations, found.start):
                known = owners[offset] if offset < acked_end else UNKNOWN
                assert known in (UNKNOWN, writer), f"{offset} was acknowledged to {known}, now holds {writer}'s record"
            owners = [UNKNOWN] * found.start + list(found.generations)
            acked_end = found.end
    return acked, while_opening, in_bulk


def directories(root: Path, kills: int, seed: int, numbers: range) -> tuple[int, int, int]:
    """These directories, one after the other; each has so many kills."""
    acked = while_opening = in_bulk = 0
    for number in numbers:
        path = root / f"killed-{number}"
        records, early, bulk = one_directory(path, random.Random(f"{seed}-{number}"), kills)
        acked, while_opening, in_bulk = acked + records, while_opening + early, in_bulk + bulk
        shutil.rmtree(path)
    return acked, while_opening, in_bulk


def main(directory: Path, kills: int, seed: int) -> None:
    print(f"seed {seed}")
    numbers = range(kills // KILLS_PER_DIRECTORY)
    killed = shares(lambda share, step: directories(directory, KILLS_PER_DIRECTORY, seed, numbers[share::step]))
    acked, while_opening, in_bulk = map(sum, zip(*killed, strict=True))
    kills = len(numbers) * KILLS_PER_DIRECTORY
    print(f"kills={kills} acknowledged={acked} while_opening={while_opening} in_bulk={in_bulk}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
