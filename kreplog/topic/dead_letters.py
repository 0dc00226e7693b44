"""DeadLetterTopic: the topic to which a work queue appends the records whose deliveries are used up.

A record keeps its key, value and headers as stored, and gets Kafka's headers of dead letters (KIP-1191). It is durable
before its original counts as done.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kreplog.config import LogConfig
from kreplog.errors import ArgumentTypeError, UsageError
from kreplog.topic.folder import TopicFolder
from kreplog.topic.merge import TopicRecord
from kreplog.types import check_topic

if TYPE_CHECKING:
    from kreplog.topic import Topic


class DeadLetterTopic:
    """The topic that takes the dead letters of a work queue. target: a topic that this process has open for writing, or
    the name of one in the folder of `source`, which is opened for each dead letter, since every worker may have one to
    append.

    Raises ArgumentTypeError, UsageError (the source itself, or a topic that is open read-only), InvalidTopicError."""

    def __init__(self, source: Topic, group: str, target: Topic | str) -> None:
        self._source = source.name
        self._group = group
        self._folder: TopicFolder | None = None
        if isinstance(target, str):
            self._path = os.path.join(os.path.dirname(source.path), check_topic(target))
        elif isinstance(target, type(source)):
            self._folder, self._path = target._folder, target.path
            if target.read_only:
                raise UsageError(f"{target.path} is open read-only: dead letters could not be appended to it")
        else:
            raise ArgumentTypeError(f"dead_letter is a Topic or the name of one, not {type(target).__name__}")
        if self._path == source.path:
            raise UsageError(f"{self._path} cannot be the topic of its own dead letters", path=self._path)

    def append(self, record: TopicRecord, delivery_count: int, error: str) -> None:
        """Append a dead letter durably. Raises LogLockedError at once where another process has the topic open for
        writing, such as for a dead letter of its own, or a broker runs on the folder; RecordTooLargeError,
        LogFailedError, StorageError."""
        folder = self._folder
        if folder is not None:
            self._append(folder, record, delivery_count, error)
            return
        folder = self._open()
        try:
            self._append(folder, record, delivery_count, error)
        finally:
            folder.close()

    def _open(self) -> TopicFolder:
        try:
            return TopicFolder(self._path, None, LogConfig(), False, 1)
        except UsageError:  # there is no such topic
            return TopicFolder(self._path, 1, LogConfig(), False, 1)

    def _append(self, folder: TopicFolder, record: TopicRecord, delivery_count: int, error: str) -> None:
        headers = (
            *record.headers,
            ("__dlq.errors.topic", self._source.encode()),
            ("__dlq.errors.partition", b"%d" % record.partition),
            ("__dlq.errors.offset", b"%d" % record.offset),
            ("__dlq.errors.group", self._group.encode()),
            ("__dlq.errors.delivery.count", b"%d" % delivery_count),
            ("__dlq.errors.message", error.encode("utf-8", "replace")),
        )
        log = folder.log_to_append(record.partition % folder.partitions)
        log.append(record.value, record.key, record.timestamp_ms, headers)
        log.flush()
