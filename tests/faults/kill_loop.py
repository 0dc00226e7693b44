"""Driver: a writer killed with SIGKILL at random moments, hundreds of times, opening and recovery included.

Arguments: directory, kills, seed. The writer reports what was acknowledged; the parent keeps that outside the log and
compares after each death. Directories and settings are redrawn every few kills.
"""

from __future__ import annotations

import random
import shutil
import sys
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig
from tests.faults import content, script
from tests.faults.forked import acknowledge, kill_after, result_of, start

KILLS_PER_DIRECTORY = 15
RECORDS_PER_LIFE = 4000
UNKNOWN = -1
OPENED, DELETING = -1, -2


def write(path: Path, config: LogConfig, generation: int, seed: int, pipe: int) -> None:
    """Append in every way until killed, or until RECORDS_PER_LIFE; never closes."""
    rng = random.Random(seed)
    log = Log.open(path, config)
    acknowledge(pipe, OPENED, log.log_end_offset)
    stop = log.log_end_offset + RECORDS_PER_LIFE
    while (first := log.log_end_offset) < stop:
        count = rng.choice((1, 1, 3, 20, 200))
        values = [content.value(offset, generation) for offset in range(first, first + count)]
        way = rng.random()
        if way < 0.4:
            log.append_many(values)
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


def one_directory(path: Path, rng: random.Random, kills: int) -> tuple[int, int]:
    """Kill writers of one log; return the records acknowledged, and the kills that fell before the log was open."""
    config = LogConfig(
        segment_bytes=rng.choice((1000, 20_000, 1 << 30)),
        index_interval_bytes=rng.choice((0, 100, 4096)),
        batch_bytes=rng.choice((300, 65536)),
        compression_type=rng.choice(("none", "none", "lz4")),
    )
    owners: list[int] = []
    acked_end = acked = while_opening = 0
    deleted = 0
    for generation in range(kills):
        pid, pipe = start(partial(write, path, config, generation, rng.getrandbits(32)))
        _, reports = kill_after(pid, pipe, rng.choice((0.003, 0.01, 0.03)) * rng.random() * 2)
        while_opening += not reports
        for first, stop in reports:
            if first == OPENED:
                assert stop >= acked_end, f"acknowledged up to {acked_end}, recovered only up to {stop}"
                owners = owners[:stop] + [UNKNOWN] * (stop - len(owners))
            elif first == DELETING:
                deleted = max(deleted, stop)
            else:
                owners = owners[:first] + [generation] * (stop - first)
                acked_end = stop
                acked += stop - first
        if rng.random() < 0.7 or generation == kills - 1:
            found = result_of(partial(look, path, config, close=rng.random() < 0.1))
            assert found.start <= deleted, f"records up to {found.start} are gone, only {deleted} were asked for"
            assert found.end >= acked_end, f"acknowledged up to {acked_end}, found only {found.end}"
            for offset, writer in enumerate(found.generations, found.start):
                known = owners[offset] if offset < acked_end else UNKNOWN
                assert known in (UNKNOWN, writer), f"{offset} was acknowledged to {known}, now holds {writer}'s record"
            owners = [UNKNOWN] * found.start + list(found.generations)
            acked_end = found.end
    return acked, while_opening


def main(directory: Path, kills: int, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    acked = while_opening = done = 0
    while done < kills:
        path = directory / f"killed-{done}"
        records, early = one_directory(path, rng, min(KILLS_PER_DIRECTORY, kills - done))
        acked, while_opening, done = acked + records, while_opening + early, done + KILLS_PER_DIRECTORY
        shutil.rmtree(path)
    print(f"kills={kills} acknowledged={acked} while_opening={while_opening}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
