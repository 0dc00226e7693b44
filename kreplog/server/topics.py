"""Topics: what the broker's metadata say, by topic; made anew whenever the controller has said something new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kreplog.core.messages import (
    ControlRequest,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.core.replication.manager import ReplicaManager


@dataclass(frozen=True, slots=True)
class TopicView:
    """partitions: by number, in order."""

    name: str
    topic_id: str
    partitions: Mapping[int, PartitionState]


class Topics:
    """A view of a ReplicaManager's metadata. `changed()` is to be called after whatever may have changed them."""

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager
        self._views: dict[str, TopicView] | None = None
        self._names: dict[str, str] = {}
        self._names_of: int | None = None
        self._waiting: list[asyncio.Event] = []

    def changed(self, told: ControlRequest | None = None) -> None:
        """told: by a controller; None where anything may have changed."""
        self._views = None
        if told is None or self._may_change_names(told):
            self._names_of = None
        for event in self._waiting:
            event.set()

    def _may_change_names(self, told: ControlRequest) -> bool:
        """Not where it only tells more of what is known, as at a failover: those who fetch ask for names all the time,
        and to look through thousands of partitions for each of them would take longer than all the rest."""
        match told:
            case StopReplicaRequest() | LeaderAndIsrRequest(is_init=True):
                return True
            case UpdateMetadataRequest() if told.deleted or told.controller_epoch != self._names_of:
                return True
            case _:
                return any(self._names.get(one.topic_id) != one.partition.topic for one in told.partitions)

    @property
    def all(self) -> Mapping[str, TopicView]:
        """By name, in order of names."""
        if self._views is None:
            found: dict[str, list[PartitionState]] = {}
            for partition, state in self._manager.metadata.partitions.items():
                found.setdefault(partition.topic, []).append(state)
            self._views = {
                name: TopicView(
                    name,
                    states[0].topic_id,
                    {one.partition.partition: one for one in sorted(states, key=lambda one: one.partition.partition)},
                )
                for name, states in sorted(found.items())
            }
        return self._views

    def get(self, name: str) -> TopicView | None:
        return self.all.get(name)

    def name_of(self, topic_id: str) -> str | None:
        """Of topics that this broker has replicas of, or has been told of; None for others."""
        if self._names_of is None:
            self._names = {view.topic_id: name for name, view in self.all.items()}
            self._names_of = self._manager.metadata.controller_epoch
            self._names.update((one.topic_id, at.topic) for at, one in self._manager.partitions.items())
        return self._names.get(topic_id)

    def id_of(self, name: str) -> str | None:
        """The id of a topic that this broker has replicas of or has been told of."""
        view = self.get(name)
        if view is not None:
            return view.topic_id
        return next((one.topic_id for at, one in self._manager.partitions.items() if at.topic == name), None)

    async def until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `true()`, looking after every change; False when it was not in time."""
        event = asyncio.Event()
        self._waiting.append(event)
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    event.clear()
                    await event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(event)
