"""Start of a broker: opens log directories, applies limits of the host, tunes the interpreter, logs recovery, makes its
authorizer."""

from __future__ import annotations

import gc
import logging
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic

from kreplog.boot import boot_id
from kreplog.config import RANGES, LogConfig
from kreplog.core.quota_windows import QuotaWindow
from kreplog.core.quotas.quota_manager import ClientQuotaManager
from kreplog.core.security.acls import super_users
from kreplog.core.security.authorizer import Authorizer
from kreplog.errors import StorageError, is_disk_full
from kreplog.managed_log import keep_freed
from kreplog.server.network.serving import Limits
from kreplog.server.settings import BrokerSettings
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.log_cleaner import CleanerSettings
from kreplog.server.storage.open_files import OpenFiles

_log = logging.getLogger("kreplog.server")

PROGRESS_INTERVAL_S = 2.0
"""Interval of log lines during a recovery."""

FREED_BYTES = 16 << 20
"""Freed memory that malloc keeps: enough for the frames that a follower appends, has received and receives, of 4 MiB
each. What it does not keep, the kernel clears for the next frame, which takes a third of the CPU of catching up."""

GC_THRESHOLDS = 5000, 2, 500
"""Arguments of gc.set_threshold: allocations before a collection of generation 0, and collections before those of 1
and 2. A collection holds the GIL, so those of generation 1 are small: 3 ms in place of 7 with (10_000, 5, 100), in the
same total time, where a thousand clients send large requests."""

SWITCH_INTERVAL_S = 0.0005


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
    """Have malloc keep freed memory for the next frames, instead of returning it to the system."""
    keep_freed(FREED_BYTES)


def tune_interpreter() -> None:
    """Tune the interpreter for thousands of replicas, and for one busy thread beside others.

    Cyclic garbage is rare, and a collection takes tenths of a second, mostly during failovers: collect seldom. A thread
    that returns from the disk or the store waits for the GIL for at most SWITCH_INTERVAL_S, since a transaction of the
    store returns hundreds of times.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


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
        settings.handshake_timeout_ms,
        settings.max_per_ip,
        settings.per_ip_overrides,
        settings.max_creation_rate,
        settings.sasl.sasl_server_max_receive_size,
        settings.sasl.connection_failed_authentication_delay_ms,
    )


def max_replicas_of(settings: BrokerSettings, files: OpenFiles) -> int:
    """max.broker.partitions, lowered to what the limit on open files allows."""
    return _clamped("max.broker.partitions", settings.max_broker_partitions, files.replicas, files)


def log_config_of(settings: BrokerSettings) -> LogConfig:
    """The settings of every log. log.cleaner.dedupe.buffer.size is shared by the cleaner threads."""
    config = settings.log
    share = max(RANGES["dedupe_buffer_size"][0], config.dedupe_buffer_size // settings.cleaner_threads)
    return replace(config, dedupe_buffer_size=share)


def cleaner_settings_of(settings: BrokerSettings) -> CleanerSettings:
    return CleanerSettings(settings.cleaner_threads, settings.cleaner_backoff_ms, settings.cleaner_max_bytes_per_second)


def quota_manager_of(settings: BrokerSettings) -> ClientQuotaManager:
    """The use of client quotas, none at first."""
    config = settings.quotas
    return ClientQuotaManager(
        QuotaWindow(config.quota_window_num, config.quota_window_size_seconds * 1000),
        QuotaWindow(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000),
    )


def authorizer_of(settings: BrokerSettings) -> Authorizer | None:
    """The authorizer that is configured; None: everybody may do everything."""
    if not settings.authorizer:
        return None
    return Authorizer(super_users(settings.super_users), allows_without_acl=settings.allow_everyone)


def _clamped(name: str, value: int, maximum: int, files: OpenFiles) -> int:
    if value > maximum:
        _log.info("%s = %d is lowered to %d by the limit on open files, %d", name, value, maximum, files.limit)
    return min(value, maximum)


class RecoveryProgress:
    """Logs the progress of recovery, at most every PROGRESS_INTERVAL_S, and its end."""

    def __init__(self) -> None:
        self._began = self._logged_at = monotonic()

    def __call__(self, done: int, total: int, checked: int) -> None:
        """Log the progress, now and then.

        done: replicas opened, of `total`. checked: bytes read; replicas that were closed cleanly need none."""
        now = monotonic()
        if done == total or now - self._logged_at >= PROGRESS_INTERVAL_S:
            self._logged_at = now
            _log.info("recovery: %d of %d replicas, %d bytes checked, %.1f s", done, total, checked, now - self._began)
