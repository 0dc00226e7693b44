"""Replica: one that this broker has on disk, and which threads have its log in hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kreplog.core import effects
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directories import DataDirectory


@dataclass(slots=True, eq=False)
class Replica:
    """flushing: an fsync is under way, in a thread. syncing: so many threads have its files to sync or to look into, or
    will. gone: deleted or set aside; `when_still` is then called once no thread has its log in hand. producers: as many
    idempotent producers of it are charged."""

    directory: DataDirectory
    topic_id: str
    log: ManagedLog
    flushing: bool = False
    syncing: int = 0
    gone: bool = False
    producers: int = 0
    when_still: Callable[[], None] | None = field(default=None)

    @property
    def state(self) -> effects.LogState:
        log = self.log
        return effects.LogState(log.log_end_offset, log.log_start_offset, tuple(log.leader_epochs))

    def settle(self) -> None:
        """If it is gone: drop its log, and go on with its files, unless a thread still has it in hand."""
        if self.gone and not self.flushing and not self.syncing:
            if not self.log.closed:
                self.log.abandon()
            then, self.when_still = self.when_still, None
            if then is not None:
                then()
