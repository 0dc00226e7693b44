"""TopicViews: a broker's metadata by topic, rebuilt for the topics that a controller's request changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kreplog.core.broker.client_requests import topic_names
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
    """A topic of the metadata. partitions: states by number, in order."""

    name: str
    topic_id: str
    partitions: Mapping[int, PartitionState]


class TopicViews:
    """Views of a ReplicaManager's metadata. `changed` is called with every control request that the broker applies."""

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager
        self._views: dict[str, TopicView] = {}
        self._views_of: Mapping[TopicPartition, PartitionState] | None = None
        self._changed: set[TopicPartition] = set()
        self._names: dict[str, str] = {}
        self._names_of: int | None = None
        self._waiting: list[asyncio.Event] = []

    def changed(self, request: ControlRequest) -> None:
        """A control request was applied."""
        self._changed.update([partition.partition for partition in request.partitions])
        if isinstance(request, UpdateMetadataRequest):
            self._changed.update(request.deleted)
        if self._may_change_ids(request):
            self._names_of = None
        for event in self._waiting:
            event.set()

    def replaced(self) -> None:
        """The metadata were read from the coordination store."""
        self._names_of = None
        for event in self._waiting:
            event.set()

    def _may_change_ids(self, request: ControlRequest) -> bool:
        """Whether a request can invalidate the cache of topic ids. Not if it only has new states of known partitions,
        as at a failover: every fetch looks up ids, and to rebuild the cache takes longer than the rest of a fetch."""
        match request:
            case StopReplicaRequest() | LeaderAndIsrRequest(is_init=True):
                return True
            case UpdateMetadataRequest() if request.deleted or request.controller_epoch != self._names_of:
                return True
            case _:
                return any(
                    self._names.get(partition.topic_id) != partition.partition.topic for partition in request.partitions
                )

    @property
    def all(self) -> Mapping[str, TopicView]:
        """Every topic by name, sorted; an immutable snapshot."""
        partitions = self._manager.metadata.partitions
        if partitions is not self._views_of:  # a new controller has sent all of them
            self._views, self._views_of, self._changed = {}, partitions, set(partitions)
        if self._changed:
            changed, self._changed = self._changed, set()
            self._views = _updated(self._views, changed, partitions)
        return self._views

    def get(self, name: str) -> TopicView | None:
        return self.all.get(name)

    def name_of(self, topic_id: str) -> str | None:
        """Name of a topic in the metadata, or with a replica here; None for others."""
        return self.names.get(topic_id)

    @property
    def names(self) -> Mapping[str, str]:
        """Names by topic id, of the topics of `name_of`; an immutable snapshot."""
        if self._names_of is None:
            listed = ((view.topic_id, name) for name, view in self.all.items())
            self._names = topic_names(listed, self._manager.partitions)
            self._names_of = self._manager.metadata.controller_epoch
        return self._names

    def id_of(self, name: str) -> str | None:
        """Id of a topic in the metadata, or with a replica here; None for others."""
        view = self.get(name)
        if view is not None:
            return view.topic_id
        return next(
            (partition.topic_id for key, partition in self._manager.partitions.items() if key.topic == name), None
        )

    async def until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `true()`, which is evaluated after every change; False after `timeout_s`."""
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


def _updated(
    views: Mapping[str, TopicView], changed: set[TopicPartition], partitions: Mapping[TopicPartition, PartitionState]
) -> dict[str, TopicView]:
    """`views` with the changed partitions as in `partitions`; the views of all other topics are shared."""
    topics = {partition.topic for partition in changed}
    updated = {name: dict(views[name].partitions) if name in views else {} for name in topics}
    for partition in changed:
        state = partitions.get(partition)
        if state is None:
            updated[partition.topic].pop(partition.partition, None)
        else:
            updated[partition.topic][partition.partition] = state
    after = dict(views)
    for name, states in updated.items():
        if states:
            states = _in_order(states)
            after[name] = TopicView(name, next(iter(states.values())).topic_id, states)
        else:
            after.pop(name, None)
    return _in_order(after)


def _in_order(found: dict[K, V]) -> dict[K, V]:
    """A dictionary sorted by key; itself if it is sorted already."""
    keys = sorted(found)
    return found if keys == list(found) else {key: found[key] for key in keys}
