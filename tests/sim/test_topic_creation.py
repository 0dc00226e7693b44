"""Automatic creation in the simulator: its checker finds each violation, its clients request what they must not get."""

from __future__ import annotations

from random import Random

import pytest

from kreplog.core.controller.automatic_creation import RETRY_MS
from kreplog.errors import ErrorCode
from kreplog.sim import simulate
from kreplog.sim.clients.workload import Call, ClientContext, Settings, Sleep, Switch
from kreplog.sim.history import History
from kreplog.sim.machines.records import ModelCodec
from kreplog.sim.simulate import Options
from kreplog.sim.topic_creation import NOT_WANTED, WANTED, AutomaticCreationChecker, TopicMetadataRequest, topic_user

WANTED_TOPIC, OTHER = WANTED
SEED = 19
"""A seed in which clients request topics that do not exist."""


def kinds(*attempts: tuple[str, str, int]) -> list[str]:
    """The violations of attempts: process, topic, when they begin; each ends 10 ms later."""
    found: list[str] = []
    checker = AutomaticCreationChecker(lambda kind, text: found.append(kind))
    for process, topic, now_ms in attempts:
        checker.begins(process, topic, now_ms)
        checker.ended(process, topic, now_ms + 10)
    return found


def test_attempts_that_are_wanted_and_apart_are_right() -> None:
    again_ms = 10 + RETRY_MS
    assert kinds(("a", WANTED_TOPIC, 0), ("a", OTHER, 5), ("b", WANTED_TOPIC, 5), ("a", WANTED_TOPIC, again_ms)) == []


def test_an_early_attempt_is_found() -> None:
    assert kinds(("a", WANTED_TOPIC, 0), ("a", WANTED_TOPIC, 9 + RETRY_MS)) == ["created too often"]


@pytest.mark.parametrize("name", [name for name, _ in NOT_WANTED])
def test_a_topic_that_nobody_wants_is_found(name: str) -> None:
    assert kinds(("a", name, 0)) == ["created unasked"]


def test_a_client_goes_on_until_its_topic_has_a_leader() -> None:
    switch = Switch()
    switch.off = True
    history = History(lambda: 0)
    client = topic_user(ClientContext(WANTED_TOPIC, Settings(), history, ModelCodec(), Random(1), (1, 2), switch))
    requests: list[TopicMetadataRequest] = []
    answers = iter((ErrorCode.LEADER_NOT_AVAILABLE, None, ErrorCode.NONE))
    effect = next(client)
    with pytest.raises(StopIteration):
        while True:
            if isinstance(effect, Sleep):
                effect = client.send(None)
                continue
            assert isinstance(effect, Call)
            (request,) = effect.requests
            requests.append(request)
            wanted = request.topic == WANTED_TOPIC
            effect = client.send((next(answers) if wanted else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
    wanted_requests = [request for request in requests if request.topic == WANTED_TOPIC]
    assert wanted_requests == 3 * [TopicMetadataRequest(WANTED_TOPIC, True)]
    assert {(request.topic, request.allow_creation) for request in requests if request.topic != WANTED_TOPIC} <= set(
        NOT_WANTED
    )


def test_brokers_create_what_clients_request() -> None:
    result = simulate.run_seed(SEED, Options(), traced=True)
    created = [name for name in WANTED if any(f"topic {name} is created" in line.text for line in result.lines)]
    assert created == list(WANTED) and not result.violations
