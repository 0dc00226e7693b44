"""A broker's logs from one start to the next stop or crash, for the tests of this folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kreplog.config import LogConfig, TopicConfig
from kreplog.core import effects, events
from kreplog.core.memory import MemoryAccount
from kreplog.server.storage import log_loader
from kreplog.server.storage.background import BackgroundTasks
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.log_cleaner import CleanerSettings
from kreplog.server.storage.log_loader import Progress
from kreplog.server.storage.log_manager import LogManager
from kreplog.server.storage.open_files import OpenFiles
from kreplog.types import TopicPartition
from tests.server.loop import run, until

TP = TopicPartition("topic", 0)
ID, OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBA"


class Life:
    """LogManager over directories in `root`, from open() to logs.close() or crash()."""

    def __init__(self, root: Path, pool: ThreadPoolExecutor) -> None:
        self.root = root
        self.pool = pool
        self.events: list[events.Event] = []

    def open(
        self,
        *names: str,
        boot: str = "boot",
        complete: bool = True,
        progress: Progress | None = None,
        stray_retention_ms: int = -1,
        files: OpenFiles | None = None,
        memory: MemoryAccount | None = None,
        cleaning: CleanerSettings | None = None,
    ) -> LogManager:
        hosted = HostedReplicas(
            [DataDirectory(str(self.root / name), 1, boot) for name in names or ("data",)],
            LogConfig(replicated=True),
            BackgroundTasks(self.pool, self._failed),
            complete=complete,
            stray_retention_ms=stray_retention_ms,
            files=files,
            memory=memory,
        )
        log_loader.load(hosted, 2, progress)
        self.logs = LogManager(hosted, self.events.append, self.pool, cleaning)
        return self.logs

    def _failed(self, name: str, error: BaseException) -> None:
        raise AssertionError(f"{name} has failed") from error

    def crash(self) -> None:
        for directory in self.logs.hosted.directories:
            for _, log in self.logs.hosted.in_directory(directory):
                log.abandon()
            directory.close(clean=False)


def opened(logs: LogManager, topic_id: str = ID, partition: TopicPartition = TP) -> effects.OpenedLog:
    answer: effects.OpenedLog = logs.execute(effects.OpenLog(partition, topic_id, TopicConfig()))
    return answer


def appended(logs: LogManager, batch: bytes, epoch: int = 0, partition: TopicPartition = TP) -> Any:
    """The answer of an append as a leader, on an event loop, after the background work that it started."""
    answers = []

    async def work() -> None:
        answers.append(logs.execute(effects.AppendAsLeader(partition, batch, epoch)))
        await until(lambda: logs.hosted.background.idle)
        assert not any(
            log.has_unflushed_segments
            for directory in logs.hosted.directories
            for _, log in logs.hosted.in_directory(directory)
        )

    run(work)
    return answers[0]
