"""Topics: what the broker's metadata say, by topic; a topic is looked at anew once the controller has told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kreplog.core.messages import (
    ControlRequest,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.core.replication.manager import ReplicaManager
from kreplog.types import TopicPartition

K = TypeVar("K", int, str)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TopicView:
    """partitions: by number, in order."""

    name: str
    topic_id: str
    partitions: Mapping[int, PartitionState]


class Topics:
    """A view of a ReplicaManager's metadata. `changed` is to be called with all that a controller tells the broker."""

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager
        self._views: dict[str, TopicView] = {}
        self._views_of: Mapping[TopicPartition, PartitionState] | None = None
        self._told: set[TopicPartition] = set()
        self._names: dict[str, str] = {}
        self._names_of: int | None = None
        self._waiting: list[asyncio.Event] = []

    def changed(self, told: ControlRequest) -> None:
        self._told.update([partition.partition for partition in told.partitions])
        if isinstance(told, UpdateMetadataRequest):
            self._told.update(told.deleted)
        if self._may_change_names(told):
            self._names_of = None
        for event in self._waiting:
            event.set()

    def replaced(self) -> None:
        """The metadata were replaced by those of the coordination store."""
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
                return any(
                    self._names.get(partition.topic_id) != partition.partition.topic for partition in told.partitions
                )

    @property
    def all(self) -> Mapping[str, TopicView]:
        """By name, in order of names. What is returned does not change."""
        partitions = self._manager.metadata.partitions
        if partitions is not self._views_of:  # a new controller has told everything
            self._views, self._views_of, self._told = {}, partitions, set(partitions)
        if self._told:
            told, self._told = self._told, set()
            self._views = _renewed(self._views, told, partitions)
        return self._views

    def get(self, name: str) -> TopicView | None:
        return self.all.get(name)

    def name_of(self, topic_id: str) -> str | None:
        """Of topics that this broker has replicas of, or has been told of; None for others."""
        return self.names.get(topic_id)

    @property
    def names(self) -> Mapping[str, str]:
        """Names of topics by their ids, as `name_of` knows them. What is returned does not change."""
        if self._names_of is None:
            self._names = {view.topic_id: name for name, view in self.all.items()}
            self._names_of = self._manager.metadata.controller_epoch
            self._names.update((one.topic_id, at.topic) for at, one in self._manager.partitions.items())
        return self._names

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


def _renewed(
    views: Mapping[str, TopicView], told: set[TopicPartition], partitions: Mapping[TopicPartition, PartitionState]
) -> dict[str, TopicView]:
    """`views`, but for those that were told of as `partitions` say now: ten thousand others stay as they are."""
    topics = {one.topic for one in told}
    changed = {name: dict(views[name].partitions) if name in views else {} for name in topics}
    for one in told:
        state = partitions.get(one)
        if state is None:
            changed[one.topic].pop(one.partition, None)
        else:
            changed[one.topic][one.partition] = state
    after = dict(views)
    for name, states in changed.items():
        if states:
            states = _in_order(states)
            after[name] = TopicView(name, next(iter(states.values())).topic_id, states)
        else:
            after.pop(name, None)
    return _in_order(after)


def _in_order(found: dict[K, V]) -> dict[K, V]:
    """By key; itself where it is so already."""
    keys = sorted(found)
    return found if keys == list(found) else {key: found[key] for key in keys}
