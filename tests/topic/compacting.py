"""Compaction until a tombstone is gone."""

from __future__ import annotations

from kreplog import Topic


def remove_tombstones(topic: Topic) -> None:
    """Compact partition 0 twice, the key `other` appended before each: the first pass starts the time for which a
    tombstone stays, and the second removes it where delete_retention_ms is 0."""
    log = topic.log(0)
    for number in range(2):
        log.roll()
        topic.append(b"%d" % number, b"other", partition=0)
        log.roll()
        log.compact(force=True)
