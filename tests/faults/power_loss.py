"""Driver: what a power loss leaves, at every fsync of a script of operations, must hold all that was flushed.

Arguments: directory, "flush", "every-append" (flush_messages=1) or "managed" (sealed segments are made durable now and
then, as a broker does), seed. Needs the shim, which reports each fsync.
A Shadow keeps what POSIX promises to be on the disk: a file's bytes as of its last fsync, a directory's names as of its
own. The rest may be there or not: images are made with none of it, and with random parts of it, torn.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kreplog import Log
from kreplog.managed_log import ManagedLog
from tests.faults import script
from tests.faults.forked import shares
from tests.faults.shim import Shim

IMAGES_PER_POINT = 3
SECTOR = 512


@dataclass(frozen=True)
class Moment:
    """One instant: what is durable, what is in the page cache, how far the script had come and the log's own word."""

    step: int
    flushed_step: int
    durable: dict[str, bytes]
    cached: dict[str, bytes]
    recovery_point: int = 0


class Shadow:
    """Follows the fsyncs below `root`. Inodes are held open, so that none is reused under another name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._content: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {root: {}}
        self._held: dict[int, int] = {}
        self.step = 0
        self.flushed_step = -1
        self.log: Log | None = None
        self.moments: list[Moment] = []

    def synced(self, fd: int) -> None:
        """Called after a successful fsync of `fd`."""
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        facts = os.fstat(fd)
        if not path.is_relative_to(self._root):
            return
        self._hold(f"/proc/self/fd/{fd}", facts.st_ino)
        if stat.S_ISDIR(facts.st_mode):
            names = {entry.name: entry.inode() for entry in os.scandir(path)}
            for name, inode in names.items():
                self._hold(str(path / name), inode)
            self._names[path] = names
        else:
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                self._content[facts.st_ino] = file.read()
        self.take()

    def take(self) -> None:
        """Keep this instant."""
        cached = {str(file.relative_to(self._root)): file.read_bytes() for file in _files(self._root)}
        durable = dict(self._durable(self._root))
        recovery_point = 0 if self.log is None else self.log.recovery_point
        self.moments.append(Moment(self.step, self.flushed_step, durable, cached, recovery_point))

    def _hold(self, path: str, inode: int) -> None:
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)

    def _durable(self, folder: Path) -> Iterator[tuple[str, bytes]]:
        for name, inode in self._names.get(folder, {}).items():
            path = folder / name
            if stat.S_ISDIR(os.fstat(self._held[inode]).st_mode):
                yield from self._durable(path)
            else:
                yield str(path.relative_to(self._root)), self._content.get(inode, b"")


def _files(root: Path) -> list[Path]:
    return [file for file in root.rglob("*") if file.is_file()]


def torn(durable: bytes, cached: bytes, rng: random.Random) -> bytes:
    """Some of what was not yet synced reached the disk: a file of either length, sectors old, new or zero."""
    if rng.random() < 0.3:
        return durable
    shortest = min(len(durable), len(cached))
    out = bytearray(cached[: rng.randint(shortest, len(cached))] if rng.random() < 0.5 else cached)
    for at in range(0, len(out), SECTOR):
        sector = slice(at, min(at + SECTOR, len(out)))
        was = durable[sector]
        if out[sector] != was and rng.random() < 0.2:
            out[sector] = was + bytes(sector.stop - sector.start - len(was))
    return bytes(out)


def image(moment: Moment, rng: random.Random | None) -> dict[str, bytes]:
    """Files after a loss of power: the least that can be left, or with `rng` some of the rest too."""
    if rng is None:
        return moment.durable
    out = {}
    for name in sorted({*moment.durable, *moment.cached}):
        if name not in moment.durable and rng.random() < 0.5:
            continue
        if name not in moment.cached and rng.random() < 0.5:
            continue
        durable = moment.durable.get(name, b"")
        out[name] = torn(durable, moment.cached.get(name, durable), rng)
    return out


def check(files: dict[str, bytes], moment: Moment, states: list[script.State], folder: Path) -> None:
    """The image opens; it holds what was flushed and not since cut or deleted, nothing that never was, and knows the
    epoch of each record, which is its generation."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    possible = states[moment.flushed_step + 1 : moment.step + 2]
    with Log.open(folder / "power-0", script.CONFIG) as log:
        found = script.survey(log)
        epochs = log.leader_epochs
        assert log.append(b"one more") == found.end
    start, end = max(state.start for state in possible), min(state.end for state in possible)
    flushed = possible[0]
    if possible[-1].generations:  # else the step drops every record, those below the recovery point too
        assert found.end >= moment.recovery_point, f"found records to {found.end}, not to {moment.recovery_point}"
    for offset in range(start, end):
        assert found.start <= offset < found.end, f"{offset} was flushed; found only {found.start} to {found.end}"
        assert found.generations[offset - found.start] == flushed.generations[offset - flushed.start]
    for offset, generation in enumerate(found.generations, found.start):
        epoch = max((epoch for epoch, first in epochs if first <= offset), default=-1)
        assert epoch == generation, f"{offset} was written in epoch {generation}, not {epoch}: {epochs}"
        known = {s.generations[offset - s.start] for s in possible if s.start <= offset < s.end}
        assert offset < flushed.start or generation in known, f"{offset} holds a record of {generation}, not of {known}"


def run(root: Path, mode: str) -> tuple[list[Moment], list[script.State]]:
    """The script under a Shadow. states[k] is the log before step k."""
    every_append = mode == "every-append"
    config = replace(script.CONFIG, flush_messages=1) if every_append else script.CONFIG
    steps = list(script.steps())
    root.mkdir()
    shadow, shim = Shadow(root), Shim()
    shim.on_sync(shadow.synced)
    shadow.log = log = (ManagedLog if mode == "managed" else Log).open(root / "power-0", config)
    for shadow.step, step in enumerate(steps):
        step.run(log)
        if isinstance(log, ManagedLog) and log.has_unflushed_segments and shadow.step % 3 == 0:
            log.flush_sealed()
        durable = ("flush",) if isinstance(log, ManagedLog) else ("flush", "once")
        if step.name in durable or (every_append and step.name in script.APPENDS):
            shadow.flushed_step = shadow.step
        shadow.take()
    log.close()
    shadow.log = None
    shadow.flushed_step = len(steps) - 1
    shadow.take()
    shim.on_sync(None)
    return shadow.moments, [steps[0].before, *(step.after for step in steps)]


def main(directory: Path, mode: str, seed: int) -> None:
    print(f"seed {seed}")
    moments, states = run(directory / "live", mode)

    def check_images(share: int, step: int) -> int:
        """Of every step-th moment, from the share-th on; returns how many."""
        checked = 0
        for number in range(share, len(moments), step):
            moment = moments[number]
            for attempt in range(IMAGES_PER_POINT):
                files = image(moment, random.Random(f"{seed}-{number}-{attempt}") if attempt else None)
                try:
                    check(files, moment, states, directory / f"image-{share}")
                except Exception as error:
                    sizes = {name: len(data) for name, data in files.items()}
                    raise AssertionError(
                        f"moment {number}, attempt {attempt}, step {moment.step}: {error}; {sizes}"
                    ) from error
                checked += 1
        return checked

    print(f"moments={len(moments)} images={sum(shares(check_images))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
