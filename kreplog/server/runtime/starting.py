"""What a broker does before it listens: its directories, how much of the host it may use, and how far recovery is."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path
from time import monotonic

from kreplog.coord.liveness import boot_id
from kreplog.errors import StorageError, is_disk_full
from kreplog.managed_log import keep_freed
from kreplog.server.network.serving import Limits
from kreplog.server.settings import BrokerSettings
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.open_files import OpenFiles

_log = logging.getLogger("kreplog.server")

TOLD_EVERY_S = 2.0
"""Between two lines about a recovery that takes its time."""

KEPT_BYTES = 8 << 20
"""Room for the frame that a follower appends and for the one that comes in meanwhile."""

COLLECT_AFTER = 10_000, 5, 100
"""Objects more than at the last collection of the youngest; of those, before all that are younger, and before all."""

SWITCH_S = 0.0005


def open_directories(settings: BrokerSettings) -> tuple[list[DataDirectory], list[Path]]:
    """Lock the log directories; return those that are usable, and the paths of those that are full.

    Raises UsageError, and StorageError if none is usable."""
    boot = boot_id()
    found: list[DataDirectory] = []
    full: list[Path] = []
    failure: StorageError | None = None
    for path in settings.log_dirs:
        try:
            found.append(DataDirectory(path, settings.broker_id, boot, settings.log.directory_group))
        except StorageError as error:
            _log.error("%s; its replicas are offline", error)
            failure = error
            if is_disk_full(error):
                full.append(Path(path).absolute())
    if not found and failure is not None:
        raise failure
    return found, full


def keep_freed_memory() -> None:
    """Do not hand back what frames took: the next ones take it again."""
    keep_freed(KEPT_BYTES)


def tune_interpreter() -> None:
    """Have the interpreter do as suits a process that holds thousands of replicas, and one busy thread beside others.

    Objects that hold each other in circles are looked for seldom: nearly all that is made stays or is freed at once,
    and to look through it takes tenths of a second, at a failover of all times. A thread that comes back from the disk
    or the store waits for the event loop no longer than SWITCH_S, for one transaction comes back hundreds of times.
    """
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_S)


def freeze_heap() -> None:
    """Exclude all present objects from garbage collection: modules and replicas stay alive anyway, and a collection
    pauses the event loop."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def limits_of(settings: BrokerSettings, files: OpenFiles) -> Limits:
    """Limits of client connections; max.connections is lowered to what the limit on open files allows."""
    return Limits(
        settings.socket_request_max_bytes,
        settings.max_in_flight,
        settings.max_queued_bytes,
        settings.max_memory,
        _clamped("max.connections", settings.max_connections, files.connections, files),
        settings.max_idle_ms,
    )


def max_replicas_of(settings: BrokerSettings, files: OpenFiles) -> int:
    """max.broker.partitions, lowered to what the limit on open files allows."""
    return _clamped("max.broker.partitions", settings.max_broker_partitions, files.replicas, files)


def _clamped(name: str, wanted: int, most: int, files: OpenFiles) -> int:
    if wanted > most:
        _log.info("%s = %d is lowered to %d by the limit on open files, %d", name, wanted, most, files.limit)
    return min(wanted, most)


class RecoveryProgress:
    """Tells how far the opening of all replicas is: the last of them, and meanwhile every few seconds."""

    def __init__(self) -> None:
        self._began = self._told = monotonic()

    def __call__(self, done: int, total: int, checked: int) -> None:
        """So many of so many replicas are open; `checked` bytes were read for it, none where they were closed."""
        now = monotonic()
        if done == total or now - self._told >= TOLD_EVERY_S:
            self._told = now
            _log.info("recovery: %d of %d replicas, %d bytes checked, %.1f s", done, total, checked, now - self._began)
