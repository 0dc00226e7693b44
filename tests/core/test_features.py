"""The finalized level of kreplog.version (KIP-584): what registers, what is raised, and both at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kreplog.coord.memory import MemorySession, MemoryStore
from kreplog.core import nodes
from kreplog.core.effects import Effect, GetChildren, GetNodes, Multi, Pause
from kreplog.core.features import FinalizedVersion, decode, encode, raise_version
from kreplog.errors import (
    BadVersionError,
    CoordinationError,
    InvalidUpdateVersionError,
    NoNodeError,
    UnsupportedFeatureError,
)
from kreplog.types import Create, Node, NodeStat, SetData
from tests.core.test_registration import BROKER, Shell

OLD = replace(BROKER, id=1, directories=("old",))
NEW = replace(BROKER, id=2, directories=("new",), supported_versions=(1, 2))
NEWEST = replace(BROKER, id=3, directories=("newest",), supported_versions=(2, 3))


def stored(store: MemoryStore) -> FinalizedVersion:
    return decode(store.peek(nodes.FEATURE))


def register(store: MemoryStore, broker: Any) -> Shell:
    shell = Shell(store, broker=broker)
    shell.connect()
    return shell


def older(level: int = 1) -> MemoryStore:
    """Of a cluster at that level, whose new brokers would start with another."""
    store = MemoryStore()
    session = store.connect(1000)
    session.multi(
        [Create("/brokers"), Create(nodes.BROKER_IDS), Create(nodes.FEATURE, encode(FinalizedVersion(level)))]
    )
    return store


def is_registered(store: MemoryStore, broker: Any) -> bool:
    return store.peek(nodes.broker(broker.id)) is not None


def carry_out(
    session: MemorySession,
    level: int,
    before: Callable[[int], None] = lambda number: None,
    *,
    validate_only: bool = False,
) -> None:
    """before: called before each effect, with its number."""
    steps = raise_version(level, validate_only=validate_only)
    answer: Any = None
    error: CoordinationError | None = None
    number = 0
    while True:
        try:
            effect = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        answer = error = None
        before(number)
        number += 1
        try:
            answer = _do(session, effect)
        except CoordinationError as failed:
            error = failed


def _do(session: MemorySession, effect: Effect) -> Any:
    if isinstance(effect, Multi):
        return session.multi(effect.operations)
    if isinstance(effect, GetNodes):
        return session.get_many(effect.paths)
    if isinstance(effect, GetChildren):
        return session.children(effect.path)
    assert isinstance(effect, Pause)
    return None


def test_the_first_broker_of_a_cluster_finalizes_its_greatest_level() -> None:
    store = MemoryStore()
    register(store, NEW)
    assert stored(store) == FinalizedVersion(2)
    with pytest.raises(
        UnsupportedFeatureError, match=r"broker 1 supports kreplog\.version 1 to 1, and its cluster is at 2"
    ):
        register(store, OLD)
    assert not is_registered(store, OLD)


def test_a_cluster_from_before_is_at_the_first_level() -> None:
    store = MemoryStore()
    store.connect(1000).multi([Create("/brokers"), Create(nodes.BROKER_IDS)])
    register(store, NEW)
    register(store, OLD)
    assert stored(store) == FinalizedVersion(1)
    with pytest.raises(
        UnsupportedFeatureError, match=r"broker 3 supports kreplog\.version 2 to 3, and its cluster is at 1"
    ):
        register(store, NEWEST)
    assert not is_registered(store, NEWEST)


def test_a_level_is_finalized_once_all_registered_brokers_support_it() -> None:
    store = older()
    session = store.connect(1000)
    old = register(store, OLD)
    register(store, NEW)
    for validate_only in (True, False):
        with pytest.raises(InvalidUpdateVersionError, match="raised to 2: broker 1 supports 1 to 1; install"):
            carry_out(session, 2, validate_only=validate_only)
    assert stored(store) == FinalizedVersion(1, epoch=2)  # not by the first, which changes nothing
    assert old.session is not None
    old.session.close()
    carry_out(session, 2, validate_only=True)
    assert stored(store).level == 1
    carry_out(session, 2)
    assert stored(store) == FinalizedVersion(2, epoch=4)
    carry_out(session, 2)
    assert stored(store).epoch == 4
    with pytest.raises(InvalidUpdateVersionError, match="is at 2, and cannot be lowered to 1"):
        carry_out(session, 1)
    with pytest.raises(UnsupportedFeatureError):
        register(store, OLD)
    register(store, NEWEST)
    assert is_registered(store, NEWEST)


@pytest.mark.parametrize("number", range(6))
def test_a_broker_that_starts_during_an_update_prevents_it_or_is_refused(number: int) -> None:
    store = older()
    session = store.connect(1000)
    register(store, NEW)
    refused: list[str] = []

    def start(current: int) -> None:
        if current == number:
            try:
                register(store, OLD)
            except UnsupportedFeatureError as error:
                refused.append(str(error))

    try:
        carry_out(session, 2, start)
    except InvalidUpdateVersionError:
        assert is_registered(store, OLD) and stored(store) == FinalizedVersion(1, epoch=2)
    else:
        assert not is_registered(store, OLD) and stored(store).level == 2
        assert len(refused) == (number < 5)  # the update has five effects
        assert all("is being raised from 1 to 2" in text for text in refused)


@pytest.mark.parametrize("number", range(5))
def test_an_update_during_the_start_of_a_broker_is_prevented_or_refuses_it(number: int) -> None:
    store = older()
    session = store.connect(1000)
    register(store, NEW)
    outcomes: list[bool] = []

    def update(current: int, effect: Effect) -> str:
        if current == number and not outcomes:
            outcomes.append(False)
            try:
                carry_out(session, 2)
                outcomes[0] = True
            except InvalidUpdateVersionError:
                pass
        return ""

    starting = Shell(store, update, OLD)
    try:
        starting.connect()
        starting.settle()
    except UnsupportedFeatureError:
        assert outcomes == [True] and stored(store).level == 2 and not is_registered(store, OLD)
    else:
        assert is_registered(store, OLD) and stored(store).level == 1
        assert outcomes == ([False] if number < 5 else [])


@pytest.mark.parametrize("level", [1, 2])
def test_an_update_that_was_interrupted_is_repeated_or_given_up(level: int) -> None:
    store = older()
    session = store.connect(1000)
    register(store, NEW)

    def fail(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(session, 2, fail)
    assert stored(store) == FinalizedVersion(1, raising=2, epoch=1)
    with pytest.raises(UnsupportedFeatureError, match=r"being raised from 1 to 2.*--feature kreplog.version=1"):
        register(store, OLD)
    carry_out(session, level)
    assert stored(store) == FinalizedVersion(level, epoch={1: 2, 2: 3}[level])


def test_two_updates_at_once_and_one_too_many() -> None:
    store = older()
    session = store.connect(1000)
    register(store, NEW)
    carry_out(session, 2, lambda number: carry_out(store.connect(1000), 2) if number == 1 else None)
    assert stored(store).level == 2

    def disturb(number: int) -> None:
        node = store.peek(nodes.FEATURE)
        assert node is not None
        session.multi([SetData(nodes.FEATURE, node.data, node.stat.version)])

    with pytest.raises(CoordinationError, match="too many concurrent changes") as raised:
        carry_out(session, 3, disturb)
    assert not isinstance(raised.value, BadVersionError)


def test_there_is_nothing_to_raise_before_the_first_broker() -> None:
    with pytest.raises(NoNodeError, match="no broker that knows"):
        carry_out(MemoryStore().connect(1000), 2)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"features":{"kreplog.version":"x"}}', b"\xff"])
def test_what_kreplog_does_not_write_is_an_error_that_names_the_node(data: bytes) -> None:
    with pytest.raises(CoordinationError, match="the node /feature has the content"):
        decode(Node(data, NodeStat(0, 0, 0)))


def test_a_registration_from_before_supports_the_first_level() -> None:
    data = b'{"host":"h","port":1,"rack":null,"stopping":false,"unclean":false}'
    assert nodes.decode_broker(nodes.broker(1), Node(data, NodeStat(0, 0, 0)), 0).supported_versions == (1, 1)
    again = nodes.decode_broker(nodes.broker(2), Node(nodes.encode_broker(NEW), NodeStat(0, 0, 0)), 0)
    assert again.supported_versions == (1, 2)
