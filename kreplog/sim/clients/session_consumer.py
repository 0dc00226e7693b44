"""A consumer of the simulator that fetches as clients do since KIP-227 and KIP-516: by topic ids, and in a session with
each leader.

What it has listed in a session it does not list again until that changes, and a deleted topic it forgets; so a session
that the leader has otherwise than the consumer shows: as a partition that it gets and has forgotten, or as one that it
waits for until the end of the run. It names no leader epochs, which would have it list all partitions of a new leader
again. Sometimes it fetches without a session, and lists a partition twice.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest, FetchResponse, PartitionState
from kreplog.core.replication.sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch
from kreplog.errors import ErrorCode
from kreplog.sim.clients.workload import (
    Call,
    Client,
    ClientContext,
    ClientEffect,
    ClientMetadata,
    PartitionReader,
    Sleep,
)
from kreplog.sim.history import UnrequestedPartition
from kreplog.types import NO_EPOCH, NO_LEADER

Key = tuple[str, int]
"""Topic id and partition number."""

Steps = Generator[ClientEffect, Any, bool]


@dataclass(frozen=True, slots=True)
class FetchByIds:
    """A fetch that has topic ids in place of names (KIP-516): those of the request's partitions mean nothing, and it
    forgets nothing. forgotten: what it forgets. The response is a FetchResponse, whose partitions are known by their
    topic ids."""

    request: FetchRequest
    forgotten: tuple[Key, ...] = ()


@dataclass(slots=True)
class _ClientSession:
    """A session as its consumer has it. held: each partition in it as it was last listed."""

    id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH
    held: Mapping[Key, FetchPartition] = field(default_factory=dict)

    def ends(self, session_id: int) -> None:
        """The next fetch is full, and begins another. session_id: of this one, if its leader may still have it."""
        self.id, self.epoch, self.held = session_id, INITIAL_EPOCH, {}


def session_consumer(context: ClientContext) -> Client:
    """Read all partitions, those of each leader at once, until the switch is off and all records committed by then have
    been read."""
    yield from _SessionConsumer(context).run()


class _SessionConsumer:
    def __init__(self, context: ClientContext) -> None:
        self._view = ClientMetadata(context)
        self._codec = context.codec
        self._switch = context.switch
        self._readers: dict[Key, PartitionReader] = {}
        self._caught_up: set[Key] = set()
        self._sessions: dict[int, _ClientSession] = {}

    def run(self) -> Client:
        random, settings = self._view.random, self._view.settings
        finished = False
        while True:
            last = self._switch.off
            if last or not finished or random.random() < 0.2:
                yield from self._view.refresh()
            led: dict[int, list[PartitionState]] = {broker: [] for broker in self._sessions}
            for _, state in sorted(self._view.partitions.items()):
                led.setdefault(state.state.leader, []).append(state)
            finished = not led.pop(NO_LEADER, [])
            for broker, states in led.items():
                finished = (yield from self._poll(broker, states)) and finished
            if last and finished:
                return
            yield Sleep(random.randint(1, settings.pause_ms) if finished else settings.backoff_ms)

    def _poll(self, broker: int, states: Sequence[PartitionState]) -> Steps:
        """Fetch what a broker leads once; whether all records of that are read."""
        wanted: dict[Key, PartitionState] = {}
        for state in states:
            key = state.topic_id, state.partition.partition
            if key not in self._readers:
                self._readers[key] = PartitionReader(self._view, self._codec, state.partition, state.topic_id)
            if self._readers[key].position < 0:
                yield from self._readers[key].list_reset(state)
            else:
                wanted[key] = state
        session = self._sessions.setdefault(broker, _ClientSession())
        if wanted or session.held:
            yield from self._fetch(broker, session, wanted)
        return len(wanted) == len(states) and self._caught_up.issuperset(wanted)

    def _fetch(self, broker: int, session: _ClientSession, wanted: Mapping[Key, PartitionState]) -> Steps:
        random, settings = self._view.random, self._view.settings
        entries = {
            key: replace(self._readers[key].fetch_of(state, False), current_leader_epoch=NO_EPOCH)
            for key, state in wanted.items()
        }
        listed = [entry for key, entry in entries.items() if session.held.get(key) != entry]
        forgotten = tuple(key for key in session.held if key not in entries)
        epoch = session.epoch
        if random.random() < 0.1 and not self._switch.off:
            epoch, forgotten = FINAL_EPOCH, ()
            listed = list(entries.values())
            listed += [replace(entry, fetch_offset=0) for entry in random.sample(listed, min(1, len(listed)))]
            listed.reverse()
        # What the session holds already is in the response only if there is something new.
        self._caught_up.difference_update(key for key in entries if epoch <= INITIAL_EPOCH or key not in session.held)
        wait_ms = random.choice((0, settings.request_ms // 4))
        request = FetchRequest(CONSUMER, -1, wait_ms, 1, 1 << 20, tuple(listed), (), session.id, epoch)
        (response,) = yield Call(broker, (FetchByIds(request, forgotten),), settings.request_ms)
        if response is None or response.error is not ErrorCode.NONE:
            self._caught_up.difference_update(wanted)
            session.ends(session.id if response is None else NO_SESSION)
            return False
        session.ends(NO_SESSION)
        if response.session_id != NO_SESSION:
            session.id, session.epoch, session.held = response.session_id, next_epoch(epoch), entries
        self._take(response, wanted)
        return True

    def _take(self, response: FetchResponse, wanted: Mapping[Key, PartitionState]) -> None:
        history, answered = self._view.history, set[Key]()
        for found in response.partitions:
            key = found.topic_id, found.partition.partition
            if key not in wanted or key in answered:
                reason = "twice in a response" if key in answered else "not in the session, as its consumer has it"
                unrequested = UnrequestedPartition(history.now_ms(), found.partition, key[0], self._view.name, reason)
                history.add(unrequested)
                continue
            if found.error is not ErrorCode.UNKNOWN_TOPIC_ID:  # which each entry of an unknown topic gets
                answered.add(key)
            reader = self._readers[key]
            reader.fetched(found, wanted[key].state.leader)
            if found.error is ErrorCode.NONE and reader.position >= found.high_watermark >= 0:
                self._caught_up.add(key)
            else:
                self._caught_up.discard(key)
