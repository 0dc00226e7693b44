"""Driver: one log lives through several processes, most of them killed inside an operation, then the power is cut.

Arguments: directory, mode, first seed, seeds; or directory, mode, the name of a scenario. The modes: "flush",
"every-append" (flush_messages=1), and both "managed", as a broker has its logs. Needs the shim. A seed decides all: the
operations of each life, the system call that it dies at (in the opening that recovers from the death before, too), when
images are made (at each death, and now and then between operations), and what each image holds.

What must hold of each image: it opens, every record that was flushed and not since truncated or deleted is there, every
record is one that was written, in the epoch it was written in, and no offset is missing between the first and the last.
A bulk append is there as a whole from when its call has returned, before that as a whole or not at all; also where the
image's ledger is damaged.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig
from kreplog._native import batch
from kreplog.managed_log import ManagedLog
from tests.faults import content
from tests.faults import shim as faults
from tests.faults.forked import ends_by, result_of, shares
from tests.faults.script import CONFIG, TIMESTAMP, State, survey
from tests.faults.worlds import World, shim_of_life

CUT_SLACK = 16
"""A truncation may drop so many records below the offset it was given: it never splits a batch."""


@dataclass
class History:
    """What the lives have promised, in a file that survives them.

    bulk: first offset, count and generation of a bulk append that has not returned.
    """

    path: Path
    required: dict[int, int] = field(default_factory=dict)
    bulk: tuple[int, int, int] | None = None
    written: dict[int, set[int]] = field(default_factory=dict)
    start: int = 0

    def note(self, kind: str, *numbers: int) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([kind, *numbers]) + "\n")

    @classmethod
    def read(cls, path: Path) -> History:
        history = cls(path)
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, *numbers = json.loads(line)
            if kind == "once":
                history.bulk = numbers[0], numbers[1], numbers[2]
            elif kind != "write":  # known again from what was flushed, or cut
                history.bulk = None
            if kind in ("write", "once"):
                first, count, generation = numbers
                for offset in range(first, first + count):
                    history.written.setdefault(offset, set()).add(generation)
            elif kind == "flushed":
                first, *generations = numbers
                history.required = {
                    offset: generation
                    for offset, generation in enumerate(generations, first)
                    if offset >= history.start
                }
            elif kind == "cut":
                history.required = {
                    at: record for at, record in history.required.items() if at < numbers[0] - CUT_SLACK
                }
            elif kind == "delete":
                history.start = max(history.start, numbers[0])
                history.required = {at: record for at, record in history.required.items() if at >= numbers[0]}
            elif kind == "reopen":
                history.required = {}
                history.start = 0
        return history

    def check(self, found: State, epochs: list[tuple[int, int]]) -> None:
        """`found` holds what was promised and nothing that never was."""
        for offset, generation in self.required.items():
            assert found.start <= offset < found.end, f"{offset} was flushed; found only {found.start} to {found.end}"
            here = found.generations[offset - found.start]
            assert here == generation, f"{offset} was flushed by {generation}; found the record of {here}"
        if self.bulk is not None:
            first, count, bulk_generation = self.bulk
            here = found.generations[first - found.start : first - found.start + count].count(bulk_generation)
            assert here in (0, count), f"{here} records of a bulk append: {self.bulk}"
        for offset, generation in enumerate(found.generations, found.start):
            assert generation in self.written.get(offset, ()), f"{offset} holds a record of {generation}, never written"
            epoch = max((epoch for epoch, first in epochs if first <= offset), default=-1)
            assert epoch == generation, f"{offset} was written in epoch {generation}, not {epoch}: {epochs}"


@dataclass(frozen=True)
class LogWorld(World):
    """... and how its log is opened."""

    config: LogConfig
    log_class: type[Log]


def life(world: LogWorld, number: int, deadly: int) -> None:
    """Open, do a dozen operations, perhaps close. The `deadly`-th system call kills; 0: none does."""
    rng = random.Random(f"{world.seed}-life-{number}")
    history = History(world.events)
    shim = shim_of_life(world, rng, deadly)
    log = world.log_class.open(world.live / "power-0", world.config)
    generation = number
    log.assign_leader_epoch(generation)
    model = survey(log)
    for step in range(rng.randint(3, 14)):
        model = operate(log, model, generation, rng, history, world)
        if rng.random() < 0.1:
            save_images(world, rng, f"life {number}, step {step}")
    if rng.random() < 0.5:
        log.close()
        history.note("flushed", model.start, *model.generations)
    shim.on_sync(None)


def operate(log: Log, model: State, generation: int, rng: random.Random, history: History, world: LogWorld) -> State:
    """One operation, with what it promises noted before or after it."""
    kind = rng.choices(
        ["append", "append_many", "once", "flush", "roll", "cut", "delete", "retain", "due", "reopen"],
        [6, 5, 0 if isinstance(log, ManagedLog) else 4, 5, 2, 3, 1, 1, 2, 0.3],
    )[0]
    count = {"append": 1, "append_many": rng.randint(2, 12), "once": rng.randint(1, 12)}.get(kind, 0)
    if count:
        history.note("once" if kind == "once" else "write", model.end, count, generation)
        values = [content.value(offset, generation) for offset in range(model.end, model.end + count)]
        stamps = [TIMESTAMP + offset for offset in range(model.end, model.end + count)]
        if kind == "once":
            encoded = [batch.build(values[at : at + 3], timestamps_ms=stamps[at : at + 3]) for at in range(0, count, 3)]
            sequence = len(world.events.read_text().splitlines())
            assert log.append_once(encoded, writer=f"writer {generation % 3}", sequence=sequence) is not None
        elif count == 1:
            log.append(values[0], timestamp_ms=stamps[0])
        else:
            log.append_many(values, timestamps_ms=stamps)
        model = model.plus(count, generation)
        if world.config.flush_messages == 1 or kind == "once":
            history.note("flushed", model.start, *model.generations)
    elif kind == "flush":
        log.flush()
        history.note("flushed", model.start, *model.generations)
    elif kind == "roll":
        log.roll()
    elif kind == "cut" and model.generations:
        offset = model.end - rng.randint(0, min(len(model.generations), 25))
        history.note("cut", offset)
        model = model.cut(log.truncate_to(offset))
    elif kind == "delete" and model.generations:
        offset = model.start + rng.randint(0, len(model.generations) // 2)
        history.note("delete", offset)
        log.delete_records_before(offset)
        model = model.from_(offset)
    elif kind == "retain":
        history.note("delete", log.segments[-1].base_offset)
        log.enforce_retention()
        model = model.from_(log.log_start_offset)
    elif kind == "due" and isinstance(log, ManagedLog) and log.has_unflushed_segments:
        log.flush_sealed()
    elif kind == "reopen":
        start = model.end + rng.randint(0, 9)
        history.note("reopen")
        log.truncate_fully_and_start_at(start)
        model = State(start)
    return model


def save_images(world: LogWorld, rng: random.Random, moment: str) -> None:
    """Keep what power cuts at this moment may leave, and what is promised of them."""
    images = world.folder / "images"
    images.mkdir(exist_ok=True)
    for ordered in (True, False):
        content = pickle.dumps((ordered, world.shadow.image(rng, ordered), History.read(world.events)))
        (images / f"{moment}-{'ordered' if ordered else 'unordered'}").write_bytes(content)


def look(world: LogWorld) -> None:
    """After deaths alone, without a loss of power, all that was promised is there as well."""
    with Log.open(world.live / "power-0", world.config) as log:
        History.read(world.events).check(survey(log), log.leader_epochs)


def damage_ledger(path: Path, rng: random.Random) -> None:
    """In every third image that has one."""
    if path.exists() and rng.random() < 1 / 3:
        data = path.read_bytes()
        at = rng.randrange(len(data)) if data else 0
        path.write_bytes(data[:at] if rng.random() < 0.5 else data[:at] + bytes(16) + data[at + 16 :])


def check_image(path: Path, folder: Path, world: LogWorld) -> None:
    """Open the image, check it, and see that the log goes on from there. Raises AssertionError."""
    _, files, history = pickle.loads(path.read_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    damage_ledger(folder / "power-0" / "kreplog.writers", random.Random(f"{world.seed}-{path.name}"))
    try:
        with world.log_class.open(folder / "power-0", world.config) as log:
            found = survey(log)
            history.check(found, log.leader_epochs)
            assert log.append(b"one more") == found.end
    except Exception as error:
        sizes = {name: len(data) for name, data in files.items()}
        raise AssertionError(f"image of {path.name}: {type(error).__name__}: {error}; {sizes}") from error


def play(world: LogWorld) -> tuple[int, int]:
    """All lives of one seed, then a check of its images; returns deaths and images."""
    rng = random.Random(f"{world.seed}-world")
    world.live.mkdir(parents=True)
    lives = rng.randint(2, 4)
    deaths = 0
    for number in range(lives):
        deadly = 0 if number == lives - 1 and rng.random() < 0.7 else rng.randint(1, 60)
        code, _ = ends_by(partial(life, world, number, deadly))
        assert code in (0, -9), f"life {number} ended with {code}"
        deaths += code == -9
        save_images(world, rng, f"the end of life {number}")
    checked = 0
    for path in sorted((world.folder / "images").glob("*")):
        check_image(path, world.folder / "image", world)
        checked += 1
    look(world)
    return deaths, checked


# Scenarios


class Least(random.Random):
    """Draws the image in which nothing is but what was synced."""

    def random(self) -> float:
        return 0.0


class Flushed:
    """A log whose flushed records are noted in the world's history."""

    def __init__(self, world: LogWorld, generation: int) -> None:
        self._history = History(world.events)
        self.log = world.log_class.open(world.live / "power-0", world.config)
        self.log.assign_leader_epoch(generation)
        self._generation = generation

    def append(self, count: int) -> None:
        """And flush."""
        first, generation = self.log.log_end_offset, self._generation
        self._history.note("write", first, count, generation)
        for offset in range(first, first + count):
            self.log.append(content.value(offset, generation), timestamp_ms=TIMESTAMP + offset)
        self.log.flush()
        found = survey(self.log)
        self._history.note("flushed", found.start, *found.generations)


def truncation_is_remembered_too_long(world: LogWorld) -> None:
    """Killed in a truncation to 60; what the next process flushes stays, though it never syncs the state again."""

    def killed() -> None:
        shim = faults.Shim()
        shim.on_sync(world.shadow.synced)
        flushed = Flushed(world, 0)
        flushed.append(100)
        flushed.log.flush()
        History(world.events).note("cut", 60)
        shim.arm(faults.SYNC, str(world.live), 2, mode=faults.KILL_BEFORE)  # the first is of the state
        flushed.log.truncate_to(60)

    def next_life() -> None:
        shim = faults.Shim()
        shim.on_sync(world.shadow.synced)
        flushed = Flushed(world, 1)
        assert flushed.log.log_end_offset <= 60
        flushed.append(50)
        save_images(world, Least(), "after the flush")
        shim.on_sync(None)
        os._exit(0)

    assert ends_by(killed)[0] == -9
    assert ends_by(next_life)[0] == 0


def trim_is_not_synced(world: LogWorld) -> None:
    """Closed, which trims the last segment; opened, and the first append rolls: no later flush covers the trim."""

    def closed() -> None:
        shim = faults.Shim()
        shim.on_sync(world.shadow.synced)
        flushed = Flushed(world, 0)
        flushed.append(5)
        flushed.log.close()
        shim.on_sync(None)

    def rolled() -> None:
        shim = faults.Shim()
        shim.on_sync(world.shadow.synced)
        flushed = Flushed(world, 1)
        flushed.log.roll()
        flushed.append(5)
        assert len(flushed.log.segments) == 2
        save_images(world, Least(), "after the roll")
        shim.on_sync(None)
        os._exit(0)

    assert ends_by(closed)[0] == 0
    assert ends_by(rolled)[0] == 0


def log_start_is_beyond_the_records(world: LogWorld) -> None:
    """The power is cut after records were deleted up to 50 that were not flushed, which loses all; what is appended and
    flushed then, from 0 on, outlives the next cut."""
    after = replace(world, folder=world.folder / "after")

    def deleted() -> None:
        shim = faults.Shim()
        shim.on_sync(world.shadow.synced)
        log = world.log_class.open(world.live / "power-0", LogConfig(replicated=CONFIG.replicated))
        log.append_many([content.value(offset, 0) for offset in range(100)])
        log.advance_high_watermark(100)
        log.delete_records_before(50)
        shim.on_sync(None)
        files = world.shadow.image(Least(), ordered=False)
        shim.on_sync(after.shadow.synced)
        restore(files, after.live)
        os._exit(0)

    def next_life() -> None:
        shim = faults.Shim()
        shim.on_sync(after.shadow.synced)
        flushed = Flushed(after, 1)
        assert flushed.log.log_end_offset == 0
        flushed.append(60)
        save_images(after, Least(), "after the flush")
        shim.on_sync(None)
        os._exit(0)

    assert ends_by(deleted)[0] == 0
    assert ends_by(next_life)[0] == 0
    shutil.copytree(after.folder / "images", world.folder / "images")


def restore(files: dict[str, bytes], live: Path) -> None:
    """Write the files of an image, durably."""
    for name, data in files.items():
        (live / name).parent.mkdir(parents=True, exist_ok=True)
        (live / name).write_bytes(data)
    for path in (live, *live.rglob("*")):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


SCENARIOS = (truncation_is_remembered_too_long, trim_is_not_synced, log_start_is_beyond_the_records)


def scenario(directory: Path, mode: str, name: str) -> None:
    play_scenario = next(scenario for scenario in SCENARIOS if scenario.__name__ == name)
    world = LogWorld(directory, name, config_of(mode), class_of(mode))
    world.live.mkdir(parents=True)
    play_scenario(world)
    for path in sorted((world.folder / "images").glob("*")):
        check_image(path, world.folder / "image", world)
    print(f"scenario={name} images={len(list((world.folder / 'images').glob('*')))}")


def class_of(mode: str) -> type[Log]:
    return ManagedLog if mode.startswith("managed") else Log


def config_of(mode: str) -> LogConfig:
    return replace(CONFIG, flush_messages=1) if "every-append" in mode else CONFIG


def seeds_in_turn(directory: Path, mode: str, numbers: range) -> tuple[int, int, list[str]]:
    """Play these seeds; returns deaths, images, and what failed."""
    config = config_of(mode)
    deaths = images = 0
    failed: list[str] = []
    for number in numbers:
        folder = directory / f"{mode}-{number}"
        world = LogWorld(folder, f"{mode}-{number}", config, class_of(mode))
        body: Callable[[], tuple[int, int]] = partial(play, world)
        try:
            killed, checked = result_of(body)
        except AssertionError as error:
            failed.append(f"seed {number}: {error}")
            continue
        deaths, images = deaths + killed, images + checked
        shutil.rmtree(folder)
    return deaths, images, failed


def main(directory: Path, mode: str, first: int, seeds: int) -> None:
    numbers = range(first, first + seeds)
    played = shares(lambda share, step: seeds_in_turn(directory, mode, numbers[share::step]))
    deaths, images = sum(each[0] for each in played), sum(each[1] for each in played)
    failed = [line for each in played for line in each[2]]
    print(f"seeds={seeds} from {first} deaths={deaths} images={images} failed={len(failed)}")
    assert not failed, "\n".join(failed)


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)  # recovery says what it does, thousands of times
    if len(sys.argv) == 4:
        scenario(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    else:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
