"""Automatic creation of topics in the simulator: the brokers' part, the clients whose requests cause it, its checker.

Each client requests the metadata of one topic until it has a leader, from any broker. In between it requests what must
not be created: a topic that it does not let be created, one of a coordinator's, and an illegal name. That a topic which
is wanted is created once faults have ended is checked by the clients, which cannot finish before.

created unasked     a broker creates a topic that no client lets be created                            as it begins
created too often   a broker creates a topic less than RETRY_MS after its last attempt has ended       as it begins
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from kreplog.core.controller.admin_requests import admin_error, create_topic
from kreplog.core.controller.automatic_creation import RETRY_MS, AutomaticCreation
from kreplog.core.controller.new_partitions import assignable, topic_replicas
from kreplog.errors import ErrorCode, KreplogError
from kreplog.sim.brokers.request_steps import carry_out
from kreplog.sim.clients.workload import Call, Client, ClientContext, Sleep
from kreplog.types import NO_LEADER, topic_id_text

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

WANTED = ("wanted-1", "wanted-2")
"""Topics that clients let be created."""

NOT_WANTED = (("looked-up", False), ("__share_group_state", True), ("not a topic", True))
"""Names that must not become topics, and whether clients let them be created."""

MIN_REPLICAS = 2
"""A broker that knows fewer brokers which stay does not create a topic yet: it has to survive what the others do."""


@dataclass(frozen=True, slots=True)
class TopicMetadataRequest:
    """A client's request for the metadata of one topic; the response is its error."""

    topic: str
    allow_creation: bool


class AutomaticCreationChecker:
    """Judges each attempt to create a topic. violate: called with the kind of a violation and its text."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._ended_ms: dict[tuple[object, str], int] = {}

    def begins(self, process: object, topic: str, now_ms: int) -> None:
        """Check that a topic may be created now. now_ms: by the clock of the process."""
        if topic not in WANTED:
            self._violate("created unasked", f"topic {topic} is created, which no client lets be created")
        before_ms = self._ended_ms.get((process, topic), now_ms - RETRY_MS)
        if now_ms < before_ms + RETRY_MS:
            text = f"topic {topic} is created again {now_ms - before_ms} ms after the last attempt"
            self._violate("created too often", text)

    def ended(self, process: object, topic: str, now_ms: int) -> None:
        self._ended_ms[process, topic] = now_ms


class VirtualAutomaticTopics:
    """Creates the topics that core.controller.automatic_creation queues, one batch at a time."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._creation = AutomaticCreation(True)
        self._attempted: dict[str, ErrorCode | None] = {}

    def receive(self, request: TopicMetadataRequest) -> ErrorCode:
        """The error of the topic in the response."""
        metadata = self._process.manager.metadata
        states = [state for partition, state in metadata.partitions.items() if partition.topic == request.topic]
        if states:
            led = all(state.state.leader != NO_LEADER for state in states)
            return ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE
        now_ms = self._process.now_ms
        error = self._creation.requested(request.topic, metadata.topic_error(), True, request.allow_creation, now_ms)
        if not self._attempted:
            self._create_next()
        return error

    def _create_next(self) -> None:
        self._attempted = dict.fromkeys(self._creation.next_names())
        for name in self._attempted:
            self._create(name)

    def _create(self, name: str) -> None:
        process, cluster = self._process, self._process.cluster
        cluster.created_automatically.begins(process, name, process.now_ms)
        brokers = assignable(process.manager.metadata.brokers)
        plan = cluster.automatic_topic(name)
        replication_factor = min(plan.replication_factor, len(brokers))
        topic_id = topic_id_text(UUID(bytes=cluster.scheduler.random.randbytes(16)))
        if replication_factor < MIN_REPLICAS:
            cluster.scheduler.after(0, self._attempt_ended, name, ErrorCode.LEADER_NOT_AVAILABLE)
            return
        try:
            replicas = topic_replicas({}, plan.partitions, replication_factor, brokers)
            steps = create_topic(name, topic_id, replicas, plan.config, brokers)
        except KreplogError as error:
            cluster.scheduler.after(0, self._written, name, None, error)
            return
        cluster.topic_created(name, topic_id, plan.config, plan.partitions)
        carry_out(process, steps, partial(self._written, name))

    def _written(self, name: str, _result: None, error: KreplogError | None) -> None:
        self._attempt_ended(name, ErrorCode.NONE if error is None else admin_error(error))

    def _attempt_ended(self, name: str, error: ErrorCode) -> None:
        if not self._process.alive:
            return
        self._attempted[name] = error
        if None in self._attempted.values():
            return
        now_ms = self._process.now_ms
        for each, outcome in self._attempted.items():
            self._creation.finished(each, outcome or ErrorCode.NONE, now_ms)
            self._process.cluster.created_automatically.ended(self._process, each, now_ms)
        self._create_next()


def topic_user(context: ClientContext) -> Client:
    """Request the metadata of the topic of the client's name until it has a leader, also once the switch is off."""
    settings, random = context.settings, context.random
    error = ErrorCode.LEADER_NOT_AVAILABLE
    while error is not ErrorCode.NONE or not context.switch.off:
        for name, allowed in (*random.sample(NOT_WANTED, 1), (context.name, True)):
            request = TopicMetadataRequest(name, allowed)
            (response,) = yield Call(random.choice(context.brokers), (request,), settings.request_ms)
            error = ErrorCode.REQUEST_TIMED_OUT if response is None else response
        yield Sleep(settings.backoff_ms)
