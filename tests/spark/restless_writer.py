"""The writer of a log in a process of its own, until it is killed: appends, rolls, truncates, deletes old records.

    python restless_writer.py PARTITION_DIRECTORY SEED

Each committed record has `value_at(offset)` as its value, those above the high watermark have others, which a later
truncation removes, at the latest the one after a recovery.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time

import kreplog

CONFIG = kreplog.LogConfig(replicated=True, segment_bytes=16 << 10, batch_bytes=1024, index_interval_bytes=512)
RETAINED = 1500


def value_at(offset: int) -> bytes:
    return hashlib.blake2b(b"%d" % offset, digest_size=24).digest()


def main(path: str, seed: int) -> None:
    rng = random.Random(seed)
    with kreplog.Log.open(path, CONFIG) as log:
        while True:
            log.truncate_to(log.high_watermark)
            end = log.log_end_offset
            log.append_many([value_at(offset) for offset in range(end, end + rng.randrange(1, 60))])
            log.advance_high_watermark(log.log_end_offset)
            log.append_many([b"never committed" * 3] * rng.randrange(1, 60))
            if rng.random() < 0.1:
                log.roll()
            if rng.random() < 0.2:
                log.delete_records_before(max(0, log.high_watermark - rng.randrange(100, RETAINED)))
            time.sleep(rng.random() / 10)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
