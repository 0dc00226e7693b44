"""A replica in a process of its own, until it is killed: it follows, falls behind, diverges, truncates, follows again.

    python restless_replica.py PARTITION_DIRECTORY SEED

The leader's log has `value_at(offset)` at each offset below END, in batches of BATCH records; LEADER_EPOCHS are its
epochs. What the replica has of other leaders, uncleanly elected, has other values and other epochs.
"""

from __future__ import annotations

import random
import sys
import time

import kreplog
from kreplog._native.batch import build
from tests.spark.restless_writer import value_at

CONFIG = kreplog.LogConfig(replicated=True, segment_bytes=16 << 10, index_interval_bytes=512)
BATCH = 10
END = 3000
LEADER_EPOCHS = ((0, 0), (2, 500), (5, 1200))


def batch_at(offset: int) -> bytes:
    epoch = next(epoch for epoch, start in reversed(LEADER_EPOCHS) if start <= offset)
    return build([value_at(number) for number in range(offset, offset + BATCH)], base_offset=offset, leader_epoch=epoch)


def follow(log: kreplog.Log, rng: random.Random) -> None:
    """From where the logs part, to the end or less far."""
    until = rng.choice([END, rng.randrange(0, END, BATCH)])
    while log.log_end_offset < until:
        for offset in range(log.log_end_offset, min(log.log_end_offset + BATCH * rng.randrange(1, 60), END), BATCH):
            log.append_as_follower(batch_at(offset))
        log.advance_high_watermark(log.log_end_offset)
        if rng.random() < 0.1:
            log.roll()


def diverge(log: kreplog.Log, rng: random.Random, epoch: int) -> None:
    log.assign_leader_epoch(epoch)
    until = rng.randrange(END, END + 500)
    while log.log_end_offset < until:
        log.append_many([b"of another leader" * 2] * BATCH)
    log.advance_high_watermark(log.log_end_offset)


def main(path: str, seed: int) -> None:
    rng = random.Random(seed)
    with kreplog.Log.open(path, CONFIG) as log:
        epoch = log.leader_epoch + 10
        log.truncate_to(0)
        while True:
            follow(log, rng)
            time.sleep(rng.random() / 20)  # a reader comes in between
            shared = min(log.log_end_offset, rng.choice([rng.randrange(0, END, BATCH), END - BATCH]))
            log.truncate_to(shared)
            if rng.random() < 0.5:
                epoch += 1
                diverge(log, rng, epoch)
                time.sleep(rng.random() / 20)
                log.truncate_to(shared)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
