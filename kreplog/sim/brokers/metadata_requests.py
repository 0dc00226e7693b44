"""VirtualMetadataRequests: answers Metadata requests as brokers do, by core.broker.metadata_waits, and their checker.

Only in some seeds: in the others a broker answers at once, with whatever it has.

without source      a response lists all topics of a broker that has none, of a controller or the store
unlisted            a response leaves out a broker that was live less than LISTED_MS ago, or the starting broker itself
ended leader        a response names a leader that is not registered
suspected leader    a response names a leader that has just closed its connection, before the wait for another is over
own leadership      a broker names itself as a leader before a controller has sent it the LeaderAndIsr
store not read      a request is refused for want of metadata, although the store has not been read
store read early    the store is read again while what was read is fresh
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplog.core import effects
from kreplog.core.broker.metadata_waits import FRESH_MS, MetadataNeed, MetadataWaits, Until, Waits
from kreplog.core.broker.recently_failed import LISTED_MS, SUSPECTED_MS
from kreplog.core.controller import store_reader
from kreplog.core.messages import LeaderAndIsrRequest, PartitionState
from kreplog.core.replication.metadata import leader_for_clients
from kreplog.errors import CoordinationError
from kreplog.sim.machines.scheduler import MS
from kreplog.types import NO_EPOCH, NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

PAUSED_MS = 200
"""Delay before a paused process looks at a request, or at the end of a wait, again."""


class VirtualMetadataRequests:
    """The Metadata requests to one process."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._scheduler = process.cluster.scheduler
        self._metadata = process.manager.metadata
        self._waits = MetadataWaits(process.id, self._metadata)
        self._need = MetadataNeed(leaders=self._leaders, lists_all=True)
        self._waiting: dict[_Request, Until] = {}
        self._reading: list[_Request] = []
        self._checker = _Checker(process)

    def receive(self, reply_to: int) -> None:
        """A request has arrived."""
        self._running(lambda: self._continue(_Request(reply_to, self._waits.begin(self._need), self._scheduler.now_ms)))

    def leader_and_isr(self, request: LeaderAndIsrRequest) -> None:
        """A controller has sent this process a LeaderAndIsr, which it may not have applied yet."""
        self._checker.leader_and_isr(request)

    def connection_closed(self, broker: int) -> None:
        """Another broker has closed its connection with this one."""
        self._waits.recently_failed.connection_closed(broker, self._process.now_ms)
        self._checker.connection_closed(broker)

    def changed(self) -> None:
        """The metadata may have changed."""
        self._waits.recently_failed.metadata_changed(self._process.now_ms)
        self._checker.changed()
        for request, wait in list(self._waiting.items()):
            if self._waiting.get(request) is wait and wait.condition(self._process.now_ms):
                self._end_wait(request, wait, True)

    def _leaders(self) -> set[int]:
        return {state.state.leader for state in self._metadata.partitions.values()}

    def _running(self, action: Callable[[], None]) -> None:
        """Now, or once the process is no longer paused; never after its end."""
        if self._process.paused:
            self._scheduler.after(PAUSED_MS * MS, self._running, action)
        elif self._process.alive:
            action()

    def _continue(self, request: _Request, holds: bool | None = None) -> None:
        try:
            wait = request.waits.send(holds)
        except StopIteration as end:
            self._answer(request, end.value)
            return
        if not isinstance(wait, Until):
            self._read_stored(request)
        elif wait.condition(self._process.now_ms):
            self._continue(request, True)
        else:
            self._waiting[request] = wait
            self._scheduler.after(wait.max_ms * MS, self._running, partial(self._end_wait, request, wait, False))

    def _end_wait(self, request: _Request, wait: Until, holds: bool) -> None:
        if self._waiting.get(request) is wait:
            del self._waiting[request]
            self._continue(request, holds)

    def _answer(self, request: _Request, is_answered: bool) -> None:
        network = self._process.cluster.network
        if not is_answered:
            self._checker.refused(request)
            network.refuse_reply(request.reply_to)
            return
        listed = self._waits.recently_failed.listed(self._process.now_ms)
        live = self._metadata.listed_brokers(lambda: self._process.registration.broker)
        brokers = {**{broker.id: broker for broker in listed}, **live}
        states = [
            state._replace(state=state.state._replace(leader=leader_for_clients(state, live)))
            for state in self._metadata.partitions.values()
        ]
        self._checker.answered(request, brokers, states)
        network.reply(request.reply_to, (brokers, {state.partition: state for state in states}))

    # The store

    def _read_stored(self, request: _Request) -> None:
        """Requests share a read that is under way."""
        if not self._reading and self._waits.is_fresh(self._process.now_ms):
            self._continue(request)
            return
        self._reading.append(request)
        if len(self._reading) == 1:
            self._checker.reads()
            self._read(store_reader.metadata(), None, None)

    def _read(self, steps: effects.Steps[Any], answer: Any, error: CoordinationError | None) -> None:
        if not self._process.alive:
            return
        link = self._process.link
        try:
            effect = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            self._checker.has_read()
            brokers, states = end.value
            self._waits.take(brokers, states, self._process.now_ms)
            self._stored_read()
        except CoordinationError:
            self._stored_read()
        else:
            if isinstance(effect, effects.GetNodes):
                link.get_nodes(effect.paths, None, partial(self._read, steps))
            elif isinstance(effect, effects.GetChildren):
                link.get_children(effect.path, None, partial(self._read, steps))
            else:
                self._read(steps, None, None)

    def _stored_read(self) -> None:
        requests, self._reading = self._reading, []
        self.changed()
        for request in requests:
            self._continue(request)


@dataclass(eq=False, slots=True)
class _Request:
    """A request that waits. arrived_ms: virtual time."""

    reply_to: int
    waits: Waits
    arrived_ms: int


class _Checker:
    """Judges the responses of one process."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._scheduler = process.cluster.scheduler
        self._metadata = process.manager.metadata
        self._received: dict[TopicPartition, int] = {}
        self._live_ms: dict[int, int] = {}
        self._closed_ms: dict[int, int] = {}
        self._read_ms = -FRESH_MS
        self._began_ms = -FRESH_MS

    def leader_and_isr(self, request: LeaderAndIsrRequest) -> None:
        for partition, _, state, *_ in request.partitions:
            self._received[partition] = max(state.leader_epoch, self._received.get(partition, NO_EPOCH))

    def changed(self) -> None:
        self._live_ms |= dict.fromkeys(self._metadata.brokers, self._process.now_ms)

    def connection_closed(self, broker: int) -> None:
        self._closed_ms[broker] = self._process.now_ms

    def reads(self) -> None:
        """A read of the store begins."""
        now_ms = self._process.now_ms
        if now_ms < self._read_ms + FRESH_MS:
            self._violate("store read early", f"reads the store {now_ms - self._read_ms} ms after the last read")
        self._began_ms = self._scheduler.now_ms

    def has_read(self) -> None:
        self._read_ms = self._process.now_ms

    def refused(self, request: _Request) -> None:
        if self._began_ms < request.arrived_ms - FRESH_MS:
            self._violate("store not read", "refuses a Metadata request without a read of the store")

    def answered(self, request: _Request, brokers: dict[int, Any], states: Sequence[PartitionState]) -> None:
        metadata, now_ms = self._metadata, self._process.now_ms
        if not (metadata.from_controller or metadata.from_store):
            self._violate("without source", "lists all topics, although it knows none")
        if not metadata.from_controller:
            self._check_own(states)
            if self._process.id not in brokers:
                self._violate("unlisted", "leaves out itself")
        leaders = {state.state.leader for state in states} - {NO_LEADER}
        if ended := leaders - metadata.brokers.keys() - {self._process.id}:
            self._violate("ended leader", f"names the leaders {sorted(ended)}, which are not registered")
        for broker, at_ms in self._live_ms.items():
            if now_ms < at_ms + LISTED_MS and broker not in brokers:
                self._violate("unlisted", f"leaves out broker {broker}, which was live {now_ms - at_ms} ms ago")
        if self._scheduler.now_ms < request.arrived_ms + SUSPECTED_MS:
            for broker, at_ms in self._closed_ms.items():
                if now_ms < at_ms + SUSPECTED_MS and broker in leaders and broker in metadata.brokers:
                    text = f"names leader {broker}, which closed its connection {now_ms - at_ms} ms ago"
                    self._violate("suspected leader", text)

    def _check_own(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            received = self._received.get(state.partition, NO_EPOCH)
            if state.state.leader == self._process.id and received < state.state.leader_epoch:
                text = f"names itself as leader of {state.partition} in epoch {state.state.leader_epoch}"
                self._violate("own leadership", f"{text}, which no controller has made it")

    def _violate(self, kind: str, text: str) -> None:
        self._process.cluster.checkers.violate(kind, f"broker {self._process.id} {text}", None)
