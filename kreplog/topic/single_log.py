"""SingleLog: a log by itself in the place of a topic, for a table of it."""

from __future__ import annotations

from kreplog._native.partition_metadata import read_topic_id
from kreplog.errors import UsageError
from kreplog.log import Log


class SingleLog:
    """The parts of a Topic and its folder that a table uses, with the one partition."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._folder = self
        self.path = log.path
        self.name, self.number = log.topic_partition
        self.numbers = (self.number,)

    @property
    def closed(self) -> bool:
        return self._log.closed

    @property
    def topic_id(self) -> str | None:
        """Where the log has none, its incarnation id, as long as one."""
        incarnation = self._log.incarnation_id
        return read_topic_id(self.path) or (incarnation and f"log-{incarnation}--")

    def log(self, number: int) -> Log:
        """Raises UsageError."""
        if number != self.number:
            raise UsageError(f"{self.path} is partition {self.number}, not {number}", path=self.path)
        return self._log

    def offsets(self) -> dict[int, range]:
        return {self.number: range(self._log.log_start_offset, self._log.high_watermark)}

    def refresh(self) -> None:
        """There are no partitions to be found."""
