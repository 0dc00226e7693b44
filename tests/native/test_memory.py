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
from kreplog._native.memory import keep_freed, unfilled
keep_freed({kept})
for _ in range(100):
    frame = unfilled(1 << 20)
    frame[:] = b"x" * len(frame)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def mapped_bytes() -> int:
    (line,) = [line for line in RESIDENT.read_text().splitlines() if line.startswith("RssFile:")]
    return int(line.split()[1]) * 1024


# Linux alone counts the resident pages of files apart; elsewhere there is nothing to measure this by.
@pytest.mark.skipif(not RESIDENT.exists(), reason="the system does not tell in /proc what is resident")
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
        contents = [bytes(one) for one in held]
        assert mapped_bytes() - before > 24 * MIB  # else the last assertion of this test says nothing
        assert [bytes(one) for one in fetch_all()] == contents
        assert [bytes(one) for one in held] == contents, "another's pages were left, and are there when touched"
        held.clear()
        assert mapped_bytes() - before < 4 * MIB
        assert [bytes(one) for one in fetch_all()] == contents


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are not told")
def test_memory_of_a_frame_serves_the_next() -> None:
    def faults(kept: int) -> int:
        told = subprocess.run([sys.executable, "-c", FRAMES.format(kept=kept)], check=True, capture_output=True)
        return int(told.stdout)

    assert faults(kept=8 * MIB) < faults(kept=64 << 10) - 100 * MIB // 4096 // 2
