"""Driver: power cuts of a real ext4 file system in an image file, during a script of operations.

Arguments: directory. Needs the right to mount, best in a mount namespace of its own. A copy of the image while the
file system is in use is what the disk would hold at that instant; mounting the copy replays its journal.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from kreplog import Log
from tests.faults import script
from tests.faults.power_loss import Moment, check


def mount(image: Path, at: Path) -> None:
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop,commit=300", image, at], check=True)


def after_cut(image: Path, directory: Path) -> dict[str, bytes]:
    """The files found after the power cut, by path in the file system."""
    copy, found = directory / "copy.img", directory / "found"
    shutil.copyfile(image, copy)
    mount(copy, found)
    files = [file for file in found.rglob("*") if file.is_file()]
    contents = {str(file.relative_to(found)): file.read_bytes() for file in files}
    subprocess.run(["umount", found], check=True)
    return contents


def main(directory: Path) -> None:
    image, live = directory / "disk.img", directory / "live"
    subprocess.run(["truncate", "-s", "24M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    mount(image, live)
    (live / "data").mkdir()
    subprocess.run(["sync", "-f", live], check=True)
    steps = list(script.steps())
    states = [steps[0].before, *(step.after for step in steps)]
    log = Log.open(live / "data" / "power-0", script.CONFIG)
    flushed_step, cuts, losses = -1, 0, 0
    for number, step in enumerate(steps):
        step.run(log)
        if step.name == "flush":
            flushed_step = number
        else:
            contents = after_cut(image, directory)
            files = {name.removeprefix("data/"): data for name, data in contents.items() if name.startswith("data/")}
            check(files, Moment(number, flushed_step, {}, {}), states, directory / "image")
            cached = sum(file.stat().st_size for file in live.rglob("*.log"))
            losses += sum(len(data) for name, data in files.items() if name.endswith(".log")) < cached
            cuts += 1
    log.close()
    subprocess.run(["umount", live], check=True)
    print(f"cuts={cuts} losses={losses}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
