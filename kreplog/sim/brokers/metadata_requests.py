"""VirtualMetadataRequests: answers Metadata requests as brokers do, by core.broker.metadata_waits.

Only in some seeds: in the others a broker answers at once, with whatever it has. In these seeds each process also has a
request that changes the cluster from its start on, which waits for metadata and does nothing after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplog.core.broker.advertised_brokers import advertised_brokers
from kreplog.core.broker.metadata_waits import MetadataNeed, MetadataWaits, Until, Waits
from kreplog.core.controller import store_reader
from kreplog.core.messages import LeaderAndIsrRequest
from kreplog.errors import KreplogError
from kreplog.sim.brokers.request_steps import carry_out
from kreplog.sim.checks.metadata_checker import Clock, MetadataChecker
from kreplog.sim.machines.scheduler import MS

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

PAUSED_MS = 200
"""Delay before a paused process looks at a request, or at the end of a wait, again."""

_CHANGE = MetadataNeed(changes=True)


class VirtualMetadataRequests:
    """The Metadata requests to one process."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._scheduler = process.cluster.scheduler
        self._metadata = process.manager.metadata
        self._waits = MetadataWaits(process.id, self._metadata)
        self._need = MetadataNeed(leaders=self._leaders, lists_all=True)
        self._waiting: dict[_Request, Until] = {}
        clock = Clock(lambda: self._scheduler.now_ms, lambda: process.now_ms)
        self._checker = MetadataChecker(process.id, self._metadata, clock, self._violate)

    def started(self) -> None:
        """The process has started: a client requests a change, whose response does not matter."""
        if self._process.cluster.plan.awaits_metadata:
            self._continue(_Request(None, self._waits.begin(_CHANGE), self._scheduler.now_ms))

    def receive(self, reply_to: int) -> None:
        """A Metadata request has arrived."""
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

    def _violate(self, kind: str, text: str) -> None:
        self._process.cluster.checkers.violate(kind, text, None)

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
        if request.reply_to is None:
            self._checker.changes(request.arrived_ms)
            return
        if not is_answered:
            self._checker.refused(request.arrived_ms)
            network.refuse_reply(request.reply_to)
            return
        process = self._process
        clients = advertised_brokers(
            self._metadata, self._waits.recently_failed, lambda: process.registration.broker, process.now_ms
        )
        brokers = {broker.id: broker for broker in clients.listed}
        states = [
            state._replace(state=state.state._replace(leader=clients.leader_of(state)))
            for state in self._metadata.partitions.values()
        ]
        self._checker.answered(request.arrived_ms, brokers, states)
        network.reply(request.reply_to, (brokers, {state.partition: state for state in states}))

    # The store

    def _read_stored(self, request: _Request) -> None:
        if self._waits.read_stored(partial(self._continue, request), self._process.now_ms):
            self._checker.reads()
            carry_out(self._process, store_reader.metadata(), self._stored_read)

    def _stored_read(self, stored: Any, error: KreplogError | None) -> None:
        self._checker.has_read(succeeded=error is None)
        if error is None:
            brokers, states = stored
            self._waits.take(brokers, states, self._process.now_ms)
        self.changed()
        self._waits.read_ended()


@dataclass(eq=False, slots=True)
class _Request:
    """A request that waits. reply_to: None of one that changes the cluster. arrived_ms: virtual time."""

    reply_to: int | None
    waits: Waits
    arrived_ms: int
