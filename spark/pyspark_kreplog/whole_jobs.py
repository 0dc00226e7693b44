"""Plans that see all of a sink's job or nothing of it, over all the partitions that it writes.

A job becomes visible in one partition after the other, while its commit record stands; a driver that is killed in that
time leaves it so until the next write. A plan that finds such a record, and a partition that does not show the job yet,
ends before the job in every partition. It begins again if the record, or the name of the job completed last, is
another at its end: in between, a job may have become visible behind its back. Nothing here knows of Spark.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import kreplog
from kreplog.bulk_append import latest_append
from kreplog.errors import KreplogError, StorageError
from kreplog.types import TopicPartition
from pyspark_kreplog.commit_record import COMMIT_NAME, COMPLETED_NAME, CommitRecord, decode, read_file
from pyspark_kreplog.staging import FOLDER

RETRIES = 100

_log = logging.getLogger("pyspark_kreplog")

T = TypeVar("T")
Ends = Mapping[TopicPartition, int]


def read_whole_jobs(path: str, look: Callable[[Ends], T]) -> T:
    """The result of `look(ends)`, which looks at the logs in `path` and goes no further than `ends` in the partitions
    that these name. Raises StorageError where one job after the other is completed meanwhile."""
    folder = Path(path, FOLDER)
    before = _marks(folder)
    for _ in range(RETRIES):
        result = look(_ends_before(path, folder, before[0]))
        after = _marks(folder)
        if after == before:
            return result
        before = after
    raise StorageError(
        f"jobs are completed in {path} faster than its logs can be looked at: no end was found before which each is "
        "whole; read again later",
        path=path,
    )


def _marks(folder: Path) -> tuple[bytes | None, bytes | None]:
    """The commit record, and the job completed last. None also where they are another user's alone."""
    try:
        return read_file(folder / COMMIT_NAME), read_file(folder / COMPLETED_NAME)
    except PermissionError:
        return None, None


def _ends_before(path: str, folder: Path, data: bytes | None) -> dict[TopicPartition, int]:
    """Where reads end for the job of this record, by partition; empty where all of them show it."""
    if data is None:
        return {}
    record = CommitRecord.from_json(decode(folder / COMMIT_NAME, data))
    ends, shown = {}, True
    for append in record.appends if len(record.appends) > 1 else ():
        directory = os.path.join(path, append.name)
        with suppress(KreplogError, FileNotFoundError):  # deleted, or damaged, as whoever reads it will find
            with kreplog.Log.open(directory, read_only=True) as log:
                end = log.high_watermark
                latest = latest_append(directory, append.writer)
                if latest is not None and latest[0] == append.sequence:
                    end = latest[1]
                    shown = shown and log.high_watermark >= latest[2]
                else:  # below its high watermark of before nothing is the job's
                    shown = False
            ends[TopicPartition(append.topic, append.partition)] = end
    if shown:
        return {}
    _log.info("job %s is committed in %s, and not visible in all partitions yet: reads end before it", record.job, path)
    return ends
