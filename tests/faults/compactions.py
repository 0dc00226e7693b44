"""Driver: a log that is compacted lives through several processes, most of them killed inside an operation, then the
power is cut.

Arguments: directory, "log" or "managed", first seed, seeds. Needs the shim. A seed decides all, as in kills_and_cut.
What must hold after each death and of each image: the log opens; a key's newest flushed record is there, or a newer one
of the key, or nothing of it where that record or a later one was a tombstone; every record is one that was written at
that offset, and none that was cut comes back; and the log goes on.
"""

from __future__ import annotations

import json
import logging
import pickle
import random
import shutil
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig
from kreplog.managed_log import ManagedLog
from tests.faults.forked import ends_by, result_of, shares
from tests.faults.kills_and_cut import CUT_SLACK
from tests.faults.worlds import World, shim_of_life

CONFIG = LogConfig(
    cleanup_policy="compact,delete", segment_bytes=900, index_interval_bytes=100, batch_bytes=300,
    min_cleanable_dirty_ratio=0,
)  # fmt: skip
KEYS = 12
LATER = 1 << 50
"""Milliseconds: when every tombstone has expired."""

Found = list[tuple[int, str, bool, str]]
"""Of each record: offset, key, whether it is a tombstone, and which write it is of."""


def survey(log: Log) -> Found:
    assert not log.verify().damages
    return [
        (record.offset, (record.key or b"").decode(), record.value is None, dict(record.headers)["of"].decode())  # type: ignore[union-attr]
        for record in log.read()
    ]


@dataclass
class History:
    """What the lives have promised, in a file that survives them."""

    path: Path
    required: dict[str, tuple[int, bool]] = field(default_factory=dict)
    written: dict[int, set[tuple[str, bool, str]]] = field(default_factory=dict)

    def note(self, kind: str, *facts: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([kind, *facts]) + "\n")

    def note_flushed(self, log: Log) -> None:
        self.note("flushed", {key: (offset, tombstone) for offset, key, tombstone, _ in survey(log)})

    @classmethod
    def read(cls, path: Path) -> History:
        history = cls(path)
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, *facts = json.loads(line)
            if kind == "write":
                offset, key, tombstone, write = facts
                history.written.setdefault(offset, set()).add((key, tombstone, write))
            elif kind == "flushed":
                history.required = facts[0]
            elif kind == "cut":  # what a key had below may be compacted away
                for offset, records in history.written.items():
                    for key, _, _ in records if offset >= facts[0] - CUT_SLACK else ():
                        history.required.pop(key, None)
            elif kind == "was cut":
                history.written = {at: records for at, records in history.written.items() if at < facts[0]}
            elif kind == "delete":
                history.required = {key: at for key, at in history.required.items() if at[0] >= facts[0]}
        return history

    def check(self, found: Found) -> None:
        newest = {key: offset for offset, key, _, _ in found}
        for offset, key, tombstone, write in found:
            written = self.written.get(offset, set())
            assert (key, tombstone, write) in written, f"{offset} holds {key} of {write}, not one of {written}"
        for key, (offset, tombstone) in self.required.items():
            here = newest.get(key)
            deleted = tombstone or self._has_tombstone_above(key, offset)
            assert here is not None or deleted, f"{key} at {offset} was flushed; nothing of it is there"
            assert here is None or here >= offset, f"{key} at {offset} was flushed; its newest is that at {here}"

    def _has_tombstone_above(self, key: str, offset: int) -> bool:
        """Compaction may drop a record for a tombstone that nobody flushed, and the tombstone when it has expired."""
        return any(
            (key, True) in {(name, tombstone) for name, tombstone, _ in records}
            for at, records in self.written.items()
            if at > offset
        )


@dataclass(frozen=True)
class LogWorld(World):
    """... and the class of its log."""

    log_class: type[Log]

    @property
    def path(self) -> Path:
        return self.live / "compact-0"

    @property
    def history(self) -> History:
        return History(self.events)


def life(world: LogWorld, number: int, deadly: int) -> None:
    """Open, do a dozen operations, perhaps close. The `deadly`-th system call kills; 0: none does."""
    rng = random.Random(f"{world.seed}-life-{number}")
    history = world.history
    shim = shim_of_life(world, rng, deadly)
    log = world.log_class.open(world.path, CONFIG)
    for step in range(rng.randint(6, 20)):
        operate(log, f"{number}.{step}", rng, history)
        if rng.random() < 0.1:
            save_images(world, rng, f"life {number}, step {step}")
    if rng.random() < 0.5:
        log.close()
    shim.on_sync(None)


def operate(log: Log, write: str, rng: random.Random, history: History) -> None:
    """One operation, with what it promises noted before or after it."""
    kind = rng.choices(["append", "flush", "roll", "compact", "cut", "delete"], [10, 3, 3, 6, 1.5, 0.5])[0]
    end = log.log_end_offset
    if kind == "append":
        for offset in range(end, end + rng.randint(1, 12)):
            key, tombstone = f"key {rng.randrange(KEYS)}", rng.random() < 0.15
            history.note("write", offset, key, tombstone, write)
            value = None if tombstone else rng.randbytes(rng.randrange(60))
            log.append(value, key.encode(), headers=[("of", write.encode())])
    elif kind == "flush":
        log.flush()
        history.note_flushed(log)
    elif kind == "roll":
        log.roll()
    elif kind == "compact":
        log.compact(rng.choice([1, LATER]), force=True)
    elif kind == "cut":
        offset = max(end - rng.randint(0, 25), log.log_start_offset)
        history.note("cut", offset)
        history.note("was cut", log.truncate_to(offset))
    elif kind == "delete":
        offset = rng.randint(log.log_start_offset, end)
        history.note("delete", offset)
        log.delete_records_before(offset)


def save_images(world: LogWorld, rng: random.Random, moment: str) -> None:
    """Keep what power cuts at this moment may leave, and what is promised of them."""
    images = world.folder / "images"
    images.mkdir(exist_ok=True)
    for ordered in (True, False):
        content = pickle.dumps((world.shadow.image(rng, ordered), History.read(world.history.path)))
        (images / f"{moment}-{'ordered' if ordered else 'unordered'}").write_bytes(content)


def look(path: Path, log_class: type[Log], history: History) -> None:
    """Open, check, and go on: compaction and an append work."""
    with log_class.open(path, CONFIG) as log:
        end = log.log_end_offset
        history.check(survey(log))
        log.compact(1, force=True)
        history.check(survey(log))
        assert log.append(b"one more", b"key") == end
    left = [file.name for file in path.iterdir() if file.suffix in (".cleaned", ".swap")]
    assert not left, left


def check_image(image: Path, folder: Path, world: LogWorld) -> None:
    files, history = pickle.loads(image.read_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    try:
        look(folder / "compact-0", world.log_class, history)
    except Exception as error:
        sizes = {name: len(data) for name, data in files.items()}
        raise AssertionError(f"image of {image.name}: {type(error).__name__}: {error}; {sizes}") from error


def play(world: LogWorld) -> tuple[int, int]:
    """All lives of one seed, then a check of its images; returns deaths and images."""
    rng = random.Random(f"{world.seed}-world")
    world.live.mkdir(parents=True)
    lives = rng.randint(2, 4)
    deaths = 0
    for number in range(lives):
        deadly = 0 if number == lives - 1 and rng.random() < 0.5 else rng.randint(1, 200)
        code, _ = ends_by(partial(life, world, number, deadly))
        assert code in (0, -9), f"life {number} ended with {code}"
        deaths += code == -9
        save_images(world, rng, f"the end of life {number}")
        spare = world.folder / "spare"
        shutil.copytree(world.live, spare)
        result_of(partial(look, spare / "compact-0", world.log_class, History.read(world.history.path)))
        shutil.rmtree(spare)
    images = sorted((world.folder / "images").glob("*"))
    for image in images:
        check_image(image, world.folder / "image", world)
    return deaths, len(images)


def seeds_in_turn(directory: Path, kind: str, seeds: range) -> tuple[int, int]:
    """Play these seeds; returns deaths and images."""
    log_class = ManagedLog if kind == "managed" else Log
    deaths = images = 0
    for seed in seeds:
        world = LogWorld(directory / f"seed-{seed}", f"{kind}-{seed}", log_class)
        world.folder.mkdir()
        try:
            counts = play(world)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {kind}: {error}") from error
        deaths, images = deaths + counts[0], images + counts[1]
        shutil.rmtree(world.folder)
    return deaths, images


def main(directory: Path, kind: str, first: int, seeds: int) -> None:
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    numbers = range(first, first + seeds)
    deaths, images = map(
        sum, zip(*shares(lambda share, step: seeds_in_turn(directory, kind, numbers[share::step])), strict=True)
    )
    print(f"seeds={seeds} from {first} deaths={deaths} images={images}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
