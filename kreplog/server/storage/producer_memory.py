"""ProducerMemory: charges a broker's memory account for the idempotent producers that its logs remember."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from kreplog.core.memory import PRODUCERS, MemoryAccount
from kreplog.errors import LogClosedError, StorageError
from kreplog.server.clock import wall_clock_ms
from kreplog.server.storage.replica import Replica

PRODUCER_BYTES = 440
"""Bytes charged for each producer id of a log."""


class ProducerMemory:
    """Charges `account` for the producer ids of all logs."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account

    @property
    def has_room(self) -> bool:
        """Whether a client may begin to use a new producer id."""
        return self._account.has_room_for_producers

    def update(self, replica: Replica) -> None:
        """Charge for the producer ids that a replica's log has now."""
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
