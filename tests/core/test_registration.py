"""A broker's registration, over the store in memory: lost replies, races, other sessions' nodes, stopping."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kreplog.coord.memory import MemorySession, MemoryStore
from kreplog.core import nodes, registration
from kreplog.core.effects import Effect, GetNodes, Multi, StateChange
from kreplog.core.events import Event, Registered, SessionLost, SessionStarted, Stopping, Tick, WatchFired
from kreplog.core.registration import RETRY_MS, WAIT_MS, Registration, RegistrationState
from kreplog.errors import ConnectionLossError, CoordinationError, DuplicateBrokerIdError
from kreplog.types import BrokerRegistration, Delete, Node, NodeStat, WatchEvent

BROKER = BrokerRegistration(3, 0, "host", 9092, "rack", internal=("/run/broker.sock", 0), directories=("one", "two"))
STRANGER = replace(BROKER, directories=("three",))
OWN = nodes.broker(3)
EPOCH = nodes.broker_epoch(3)

Fault = Callable[[int, Effect], str]
"""What becomes of the n-th store effect: "" (it is done), "before" or "after" (the reply is lost, not done or done)."""


def no_fault(number: int, effect: Effect) -> str:
    return ""


class Shell:
    """One broker process: its session, its clock, and the steps of its registration, each run to the end."""

    def __init__(
        self,
        store: MemoryStore,
        fault: Fault = no_fault,
        broker: BrokerRegistration = BROKER,
        duplicate_ms: int | None = None,
    ) -> None:
        self.store = store
        self.core = Registration(broker, duplicate_ms)
        self.fault = fault
        self.now_ms = 1000
        self.effects: list[Effect] = []
        self.session: MemorySession | None = None
        self.fired: deque[WatchEvent] = deque()

    def connect(self) -> None:
        self.session = self.store.connect(1000, now_ms=self.now_ms)
        self.step(SessionStarted(self.session.id))

    def step(self, event: Event) -> None:
        steps = self.core.step(event, self.now_ms)
        answer: Any = None
        error: CoordinationError | None = None
        while True:
            try:
                effect = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                break
            answer = error = None
            try:
                answer = self.apply(effect)
            except CoordinationError as raised:
                error = raised

    def apply(self, effect: Effect) -> Any:
        if isinstance(effect, StateChange):
            self.effects.append(effect)
            return None
        assert self.session is not None
        fate = self.fault(sum(isinstance(effect, GetNodes | Multi) for effect in self.effects), effect)
        self.effects.append(effect)
        if fate == "before":
            raise ConnectionLossError("lost before")
        answer = self._do(self.session, effect)
        if fate == "after":
            raise ConnectionLossError("lost after")
        return answer

    def _do(self, session: MemorySession, effect: Effect) -> Any:
        if isinstance(effect, Multi):
            return session.multi(effect.operations)
        assert isinstance(effect, GetNodes)
        if effect.watch:
            for path in effect.paths:
                session.exists(path, self.fired.append)
        return session.get_many(effect.paths)

    def settle(self, rounds: int = 20) -> None:
        """Deliver the watches that fired, and ticks until none is due."""
        for _ in range(rounds):
            if self.fired:
                self.step(WatchFired(self.fired.popleft()))
            elif (due := self.core.next_wakeup(self.now_ms)) is not None:
                self.now_ms = max(self.now_ms + 1, due)
                self.step(Tick())
            else:
                return

    def state_is(self, state: RegistrationState) -> bool:
        return self.core.state is state

    @property
    def wrote(self) -> list[Multi]:
        return [effect for effect in self.effects if isinstance(effect, Multi)]


def node(store: MemoryStore, path: str) -> Node:
    found = store.peek(path)
    assert found is not None, path
    return found


def registered(shell: Shell, epoch: int) -> bool:
    assert shell.session is not None
    own, version = node(shell.store, OWN), node(shell.store, EPOCH).stat.version
    return (
        shell.core.registered == Registered(epoch, shell.session.id)
        and shell.core.broker_epoch == epoch == version
        and own.stat.ephemeral_owner == shell.session.id
        and own.data == nodes.encode_broker(shell.core.broker)
        and own.stat.version == 0
    )


def test_a_new_cluster() -> None:
    store = MemoryStore()
    shell = Shell(store)
    assert shell.state_is(RegistrationState.NO_SESSION)
    shell.connect()
    assert registered(shell, 1)
    assert len(shell.wrote) == 2  # the tree, then the registration
    for path in nodes.PERSISTENT:
        assert node(store, path) == replace(node(store, path), data=b"")
    assert node(store, nodes.CONTROLLER_EPOCH).data == b"0"
    assert nodes.decode_broker(OWN, node(store, OWN), 1) == replace(BROKER, epoch=1)
    assert shell.core.next_wakeup(shell.now_ms) is None


def test_every_registration_has_a_higher_epoch() -> None:
    store = MemoryStore()
    shell = Shell(store)
    for epoch in (1, 2, 3):
        shell.connect()
        assert registered(shell, epoch)
        assert shell.session is not None
        store.expire(shell.session.id)
        shell.step(SessionLost())
        assert shell.core.registered is None
        assert shell.state_is(RegistrationState.NO_SESSION)
        assert shell.core.broker_epoch == epoch
        shell.step(Tick())  # nothing can be done without a session
    assert len(shell.wrote) == 4


def test_the_unclean_mark_is_registered_until_a_controller_has_handled_it() -> None:
    store = MemoryStore()
    shell = Shell(store, broker=replace(BROKER, unclean=True))
    for epoch, unclean in ((1, True), (2, True), (3, False), (4, False)):
        if epoch == 3:
            shell.core.clear_unclean()
        shell.connect()
        assert registered(shell, epoch)
        assert nodes.decode_broker(OWN, node(store, OWN), epoch).unclean is unclean
        assert shell.core.registered is not None and shell.core.registered.is_first is (epoch == 1)
        assert shell.session is not None
        store.expire(shell.session.id)
        shell.step(SessionLost())


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.parametrize("lost", [{0}, {1}, {2}, {3}, {1, 3}, {2, 4}, {3, 5}, set(range(8))])
@pytest.mark.parametrize("old", [False, True])
def test_f28_a_lost_reply_is_followed_by_reading(lost: set[int], fate: str, old: bool) -> None:
    """Whatever is lost, and whether it was done: registered once, under the epoch that stands in the store."""
    store = MemoryStore()
    if old:  # a cluster that has been used before
        before = Shell(store)
        before.connect()
        assert before.session is not None
        before.session.close()
    shell = Shell(store, lambda number, effect: fate if number in lost else "")
    shell.connect()
    shell.settle(40)
    assert registered(shell, 2 if old else 1)


def test_two_new_brokers_race_for_the_tree() -> None:
    store = MemoryStore()
    other = Shell(store, broker=replace(BROKER, id=4))

    def meanwhile(number: int, effect: Effect) -> str:
        if number == 1:
            other.connect()
        return ""

    shell = Shell(store, meanwhile)
    shell.connect()
    assert registered(shell, 1)
    assert other.core.registered is not None


def test_f29_the_node_of_a_process_with_other_directories_is_waited_for() -> None:
    store = MemoryStore()
    former = Shell(store, broker=STRANGER)
    former.connect()
    shell = Shell(store)
    shell.connect()
    assert shell.core.registered is None
    assert shell.state_is(RegistrationState.WAITING)
    assert [effect.level for effect in shell.effects if isinstance(effect, StateChange)] == ["warning"]
    shell.settle(2)  # reading it again changes nothing, and is not logged again
    assert len([effect for effect in shell.effects if isinstance(effect, StateChange)]) == 1
    assert registered(former, 1)
    assert former.session is not None
    store.expire(former.session.id)
    assert shell.fired
    shell.step(WatchFired(shell.fired.popleft()))
    assert registered(shell, 2)
    assert not any(isinstance(operation, Delete) for multi in shell.wrote for operation in multi.operations)


def test_a_broker_whose_id_another_has_for_longer_than_a_dead_one_is_refused() -> None:
    """The time counts of one session, and while the store responds."""
    store = MemoryStore()
    former = Shell(store, broker=STRANGER)
    former.connect()
    shell = Shell(store, duplicate_ms=10_000)
    shell.connect()
    shell.now_ms += 9999
    shell.step(Tick())
    shell.fault = lambda number, effect: "before"
    shell.now_ms += WAIT_MS
    shell.step(Tick())
    shell.fault = no_fault
    shell.now_ms += RETRY_MS
    shell.step(Tick())
    assert former.session is not None
    store.expire(former.session.id)
    another = Shell(store, broker=STRANGER)
    another.connect()
    for _ in range(4):
        shell.now_ms += 2499
        shell.step(Tick())
        assert shell.state_is(RegistrationState.WAITING)
    shell.now_ms += 10_000
    with pytest.raises(DuplicateBrokerIdError, match=r"another running broker has had this id for 1\d s"):
        shell.step(Tick())
    assert registered(another, 2)


def test_f29_the_node_goes_between_looking_and_watching() -> None:
    store = MemoryStore()
    former = Shell(store, broker=STRANGER)
    former.connect()

    def meanwhile(number: int, effect: Effect) -> str:
        if isinstance(effect, GetNodes) and effect.watch:
            assert former.session is not None
            former.session.close()
        return ""

    shell = Shell(store, meanwhile)
    shell.connect()
    assert registered(shell, 2)


def test_f29_a_node_that_is_written_while_it_is_waited_for() -> None:
    """The watch is spent on "changed": another is left."""
    store = MemoryStore()
    former = Shell(store, broker=STRANGER)
    former.connect()
    shell = Shell(store)
    shell.connect()
    former.step(Stopping())
    shell.step(WatchFired(shell.fired.popleft()))
    assert former.session is not None
    former.session.close()
    assert shell.fired
    shell.step(WatchFired(shell.fired.popleft()))
    assert registered(shell, 2)


def test_f29_an_own_former_session_is_replaced_at_once() -> None:
    """Taken for lost by the broker's own clock, while the store still believes in it."""
    store = MemoryStore()
    shell = Shell(store)
    shell.connect()
    first = shell.session
    shell.step(SessionLost())
    shell.connect()
    assert first is not None
    assert not first.expired
    assert registered(shell, 2)
    store.expire(first.id)
    assert registered(shell, 2)


@pytest.mark.parametrize("controls", [False, True])
def test_f29_a_restarted_broker_replaces_the_node_of_its_dead_process(controls: bool) -> None:
    """Its registration shares a locked directory, so that process is dead, though its session stands: so does its
    /controller, which goes as well."""
    store = MemoryStore()
    former = Shell(store, broker=replace(BROKER, directories=("two", "gone")))
    former.connect()
    assert former.session is not None
    holder = former.session if controls else store.connect(1000)
    holder.create(nodes.CONTROLLER, b"", ephemeral=True)
    shell = Shell(store)
    shell.connect()
    assert registered(shell, 2)
    assert not former.session.expired
    assert (store.peek(nodes.CONTROLLER) is None) is controls
    former.session.close()
    assert registered(shell, 2)


def test_a_controller_elected_meanwhile_keeps_its_node() -> None:
    store = MemoryStore()
    former, other = Shell(store), store.connect(1000)
    former.connect()
    assert former.session is not None
    former.session.create(nodes.CONTROLLER, b"", ephemeral=True)

    def meanwhile(number: int, effect: Effect) -> str:
        ends = isinstance(effect, Multi) and any(operation.path == nodes.CONTROLLER for operation in effect.operations)
        if ends and node(store, nodes.CONTROLLER).stat.ephemeral_owner != other.id:
            other.delete(nodes.CONTROLLER)
            other.create(nodes.CONTROLLER, b"", ephemeral=True)
            other.set_data(nodes.CONTROLLER_EPOCH, b"1")
        return ""

    shell = Shell(store, meanwhile)
    shell.connect()
    assert registered(shell, 2)
    assert node(store, nodes.CONTROLLER).stat.ephemeral_owner == other.id


def test_a_broker_that_is_presumed_dead_registers_again() -> None:
    store = MemoryStore()
    shell = Shell(store)
    shell.connect()
    store.connect(1000).delete(OWN)
    shell.step(WatchFired(shell.fired.popleft()))
    assert registered(shell, 2)
    assert not shell.fired


def test_one_registration_ends_before_another_begins() -> None:
    """Else a broker that was presumed dead goes on leading under an epoch that others have been elected over."""
    first, second = Registered(1, 7), Registered(2, 7)
    assert registration.transition(None, first) == [first]
    assert registration.transition(first, second) == [SessionLost(), second]
    assert registration.transition(second, None) == [SessionLost()]


def test_a_broker_whose_place_was_taken_is_not_registered() -> None:
    store = MemoryStore()
    shell, stranger = Shell(store), Shell(store, broker=STRANGER)
    shell.connect()
    store.connect(1000).delete(OWN)
    stranger.connect()
    shell.step(WatchFired(shell.fired.popleft()))
    assert shell.state_is(RegistrationState.WAITING)
    assert shell.core.registered is None


def test_the_node_goes_before_it_is_watched() -> None:
    store = MemoryStore()
    other = store.connect(1000)

    def meanwhile(number: int, effect: Effect) -> str:
        if isinstance(effect, GetNodes) and effect.watch and node(store, EPOCH).stat.version == 1:
            other.delete(OWN)
        return ""

    shell = Shell(store, meanwhile)
    shell.connect()
    assert registered(shell, 2)


def test_f29_another_process_that_replaced_a_former_session_is_left_alone() -> None:
    store = MemoryStore()
    shell = Shell(store)
    shell.connect()
    first = shell.session
    assert first is not None
    stranger = Shell(store, broker=STRANGER)

    def meanwhile(number: int, effect: Effect) -> str:
        if isinstance(effect, Multi) and not first.expired:
            store.expire(first.id)
            stranger.connect()
        return ""

    shell.step(SessionLost())
    shell.fault = meanwhile
    shell.connect()
    assert shell.state_is(RegistrationState.WAITING)
    assert registered(stranger, 2)


def test_a_registration_between_two_reads_is_seen() -> None:
    """Reads are not of one moment in every store: an epoch from before another's node is not believed."""
    store = MemoryStore()
    shell = Shell(store)
    real = shell._do
    slipped: list[bool] = []

    def do(session: MemorySession, effect: Effect) -> Any:
        if isinstance(effect, GetNodes) and len(effect.paths) == 4 and not slipped:
            slipped.append(True)
            before = session.get_many(effect.paths[:1])
            other = Shell(store)
            other.connect()
            assert other.session is not None
            other.session.close()
            return before + session.get_many(effect.paths[1:])
        return real(session, effect)

    shell._do = do  # type: ignore[method-assign]
    shell.connect()
    assert slipped
    assert registered(shell, 2)
    assert len(shell.wrote) == 2  # nothing was tried on what could not be believed


def test_session_expired_under_a_step() -> None:
    store = MemoryStore()
    shell = Shell(store)

    def expire(number: int, effect: Effect) -> str:
        assert shell.session is not None
        store.expire(shell.session.id)
        return ""

    shell.fault = expire
    shell.connect()
    assert shell.state_is(RegistrationState.NO_SESSION)
    assert shell.core.next_wakeup(shell.now_ms) is None
    shell.fault = no_fault
    shell.connect()
    assert registered(shell, 1)


@pytest.mark.parametrize("fate", ["", "before", "after"])
def test_f15_a_stopping_broker_announces_it(fate: str) -> None:
    store = MemoryStore()
    shell = Shell(store)
    shell.connect()
    first = len(shell.effects)
    shell.fault = lambda number, effect: fate if number == first + 1 else ""
    shell.step(Stopping())
    shell.settle()
    own = node(store, OWN)
    assert shell.state_is(RegistrationState.STOPPED)
    assert own.stat.version == 1  # a leader that checks for version 0 takes it into no ISR
    assert nodes.decode_broker(OWN, own, 1).stopping
    assert shell.core.registered == Registered(1, own.stat.ephemeral_owner)
    shell.step(Stopping())
    assert node(store, OWN).stat.version == 1
    shell.step(SessionLost())
    shell.connect()  # and it does not come back
    assert shell.state_is(RegistrationState.STOPPED)
    assert shell.core.next_wakeup(shell.now_ms) is None


def test_f15_stopping_while_the_registration_is_in_doubt() -> None:
    store = MemoryStore()
    shell = Shell(store, lambda number, effect: "after" if number == 3 else "")
    shell.connect()
    assert shell.state_is(RegistrationState.REGISTERING)
    assert node(store, OWN).stat.version == 0
    shell.step(Stopping())
    assert shell.state_is(RegistrationState.STOPPED)
    assert node(store, OWN).stat.version == 1
    assert shell.core.registered is None


def test_f15_stopping_while_waiting_for_another_session() -> None:
    store = MemoryStore()
    former = Shell(store, broker=STRANGER)
    former.connect()
    shell = Shell(store)
    shell.connect()
    shell.step(Stopping())
    assert shell.state_is(RegistrationState.STOPPED)
    assert registered(former, 1)


def test_other_watches_and_events_are_ignored() -> None:
    store = MemoryStore()
    shell = Shell(store)
    shell.connect()
    before = len(shell.effects)
    for event in (WatchFired(WatchEvent(nodes.CONTROLLER, "deleted")), Registered(1, 1), Tick()):
        shell.step(event)
    assert len(shell.effects) == before


def test_a_node_that_keeps_changing_is_retried_later() -> None:
    """After some attempts it pauses, so that no step goes on for ever."""
    store = MemoryStore()
    shell = Shell(store)
    real = shell._do

    def do(session: MemorySession, effect: Effect) -> Any:
        answer = real(session, effect)
        if isinstance(effect, GetNodes) and EPOCH in effect.paths and store.peek(EPOCH) is not None:
            session.set_data(EPOCH, b"")
        return answer

    shell._do = do  # type: ignore[method-assign]
    shell.connect()
    assert shell.state_is(RegistrationState.REGISTERING)
    assert shell.core.next_wakeup(shell.now_ms) == shell.now_ms + registration.RETRY_MS
    shell._do = real  # type: ignore[method-assign]
    shell.settle()
    assert shell.core.registered is not None


def test_a_node_of_a_version_without_internal_endpoints_and_one_that_is_damaged() -> None:
    content = nodes.encode_broker(BROKER)
    before = content.replace(b',"internal":["/run/broker.sock",0]', b"")
    assert before != content
    assert nodes.decode_broker(OWN, Node(before, NodeStat(0, 1, 1)), 0) == replace(BROKER, internal=None)
    for damaged in (b"[]", b'["/run/broker.sock"]', b'["host","port"]', b"7"):
        data = content.replace(b'["/run/broker.sock",0]', damaged)
        with pytest.raises(CoordinationError, match=OWN):
            nodes.decode_broker(OWN, Node(data, NodeStat(0, 1, 1)), 0)
