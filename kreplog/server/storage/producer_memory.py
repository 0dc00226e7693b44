"""ProducerMemory: charges a broker's memory account for the idempotent producers that its logs remember."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from kreplog.core.memory import MemoryAccount
from kreplog.errors import LogClosedError, StorageError
from kreplog.server.clock import wall_clock_ms
from kreplog.server.storage.replica import Replica

PRODUCERS = "producer_ids"
"""The holder in the account."""

PRODUCER_BYTES = 440
"""Bytes charged for each producer id of a log."""


class ProducerMemory:
    """Charges `account` for the producer ids of all logs. They may hold a quarter of its limit."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account

    @property
    def has_room(self) -> bool:
        """Whether a client may begin to use a new producer id."""
        return self._account.held[PRODUCERS] < self._account.limit // 4

    def update(self, replica: Replica) -> None:
        """Charge for the producer ids that a replica's log has now. Those in the log are charged in any case, since
        their state is needed to detect duplicates; `has_room` bounds the new ones."""
        before, replica.producers = replica.producers, 0 if replica.removed else replica.log.producer_count
        self._account.held[PRODUCERS] += (replica.producers - before) * PRODUCER_BYTES

    async def expire(self, replicas: Iterable[Replica]) -> None:
        """Remove the producer ids that are idle for producer.id.expiration.ms, one log in each event loop iteration."""
        for replica in replicas:
            if not replica.removed and not replica.directory.failed and replica.producers:
                with suppress(StorageError, LogClosedError):  # the next append reports it
                    replica.log.expire_producers(wall_clock_ms())
                self.update(replica)
                await asyncio.sleep(0)  # the event loop serves others
