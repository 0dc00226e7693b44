"""What is read and received does not stay this process's memory, nor is it faulted in again for each frame."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kreplog import Log

MIB = 1 << 20
RESIDENT = Path("/proc/self/status")

FRAMES = """
import resource
from kreplog._native.heap import keep_freed, unfilled
keep_freed({limit})
for _ in range(100):
    frame = unfilled(1 << 20)
    frame[:] = b"x" * len(frame)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def mapped_bytes() -> int:
    (line,) = [line for line in RESIDENT.read_text().splitlines() if line.startswith("RssFile:")]
    return int(line.split()[1]) * 1024


# Linux alone counts the resident pages of files apart; elsewhere there is nothing to measure this by.
@pytest.mark.skipif(not RESIDENT.exists(), reason="the system does not show in /proc what is resident")
def test_pages_that_were_fetched_are_left_when_nobody_holds_them(tmp_path: Path) -> None:
    with Log.open(tmp_path / "flights-0") as log:
        for number in range(32):
            log.append_many([bytes([number]) * 1024] * 1024)

        def fetch_all() -> list[memoryview]:
            at, found = 0, []
            while at < log.log_end_offset:
                fetched = log.fetch(at, MIB)
                found.append(fetched.data)
                at = fetched.next_offset
            return found

        before = mapped_bytes()
        held = fetch_all()
        contents = [bytes(held_frame) for held_frame in held]
        assert mapped_bytes() - before > 24 * MIB  # else the last assertion of this test says nothing
        assert [bytes(held_frame) for held_frame in fetch_all()] == contents
        assert [bytes(held_frame) for held_frame in held] == contents, (
            "another's pages were left, and are there when touched"
        )
        held.clear()
        assert mapped_bytes() - before < 4 * MIB
        assert [bytes(held_frame) for held_frame in fetch_all()] == contents


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no such setting")
def test_memory_of_a_frame_serves_the_next() -> None:
    def faults(limit: int) -> int:
        printed = subprocess.run([sys.executable, "-c", FRAMES.format(limit=limit)], check=True, capture_output=True)
        return int(printed.stdout)

    assert faults(limit=8 * MIB) < faults(limit=64 << 10) - 100 * MIB // 4096 // 2
