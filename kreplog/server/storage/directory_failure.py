"""DirectoryFailureHandler: applies the rule of kreplog.core.broker.log_directory_state to the replicas of a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from kreplog.core.events import LogFailed
from kreplog.errors import LogFailedError, StorageError
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")


class DirectoryFailureHandler:
    """Takes failed log directories offline. put: takes a LogFailed event for each replica of a failed directory."""

    def __init__(self, hosted: HostedReplicas, put: Callable[[LogFailed], None]) -> None:
        self._hosted = hosted
        self._put = put

    def log_failed(self, partition: TopicPartition, error: LogFailedError) -> None:
        """Fail the directory of a log after the current step of the core."""
        replica = self._hosted.get(partition)
        if replica is not None:
            asyncio.get_running_loop().call_soon(self.fail, replica.directory, error)

    def fail(self, directory: DataDirectory, error: StorageError) -> None:
        """Take a directory offline now, and report its replicas."""
        failures = directory.fail(error, self._replicas_in(directory))
        if failures is None:
            return
        until = "there is disk space again" if directory.is_full else "the broker is restarted"
        _log.error(
            "the log directory %s has failed: %s; its replicas go offline until %s", directory.path, error, until
        )
        for failure in failures:
            self._put(failure)

    def _replicas_in(self, directory: DataDirectory) -> Iterator[TopicPartition]:
        """The replicas in a directory. Lazy: a failure comes for each of thousands of logs, and the first alone needs
        them."""
        for partition, replica in self._hosted.items():
            if replica.directory is directory:
                yield partition
