"""Pages that a writer makes ahead of its small appends: none of their zeros takes the place of a record."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kreplog import Log, LogConfig

STEPS = 40
SEGMENT_BYTES = 5 << 20
CHECKED = 3000
"""Records read after each step: more than a step appends."""


@pytest.mark.parametrize("seed", range(2))
def test_appends_of_all_sizes_between_cuts_and_syncs(folder: Path, seed: int) -> None:
    source = random.Random(seed)
    config = LogConfig(segment_bytes=SEGMENT_BYTES)
    expected: list[bytes | None] = []
    log = Log.open(folder / "t-0", config)
    with Log.open(folder / "t-0", read_only=True) as reader:
        for step in range(STEPS):
            kind = source.choices(["small", "large", "flush", "cut", "reopen"], [60, 20, 7, 8, 5])[0]
            if kind == "small":
                size = source.choice([10, 300, 1900])
                for number in range(source.choice([20, 1500])):
                    value = (b"%d," % number).ljust(size, b"%d" % (step % 10))
                    log.append(value)
                    expected.append(value)
            elif kind == "large":
                values = [source.randbytes(source.choice([5, 3000, 40_000])) for _ in range(20)]
                log.append_many(values)
                expected += values
            elif kind == "flush":
                log.flush()
            elif kind == "cut" and expected:
                del expected[log.truncate_to(source.randrange(len(expected))) :]
            elif kind == "reopen":
                log.close()
                log = Log.open(folder / "t-0", config)
            start = max(0, len(expected) - CHECKED)
            assert list(reader.values(start)) == expected[start:], f"after step {step}, {kind}"
        log.close()
        assert list(reader.values()) == expected
        assert not reader.verify().damages
