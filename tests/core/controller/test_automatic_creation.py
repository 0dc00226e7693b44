"""AutomaticCreation: the error for a topic that does not exist, and the creations that requests for metadata cause."""

from __future__ import annotations

import pytest

from kreplog.core.controller.automatic_creation import INTERNAL, MAX_BATCH, MAX_QUEUED, RETRY_MS, AutomaticCreation
from kreplog.errors import ErrorCode

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def requested(creation: AutomaticCreation, name: str, now_ms: int = 0, *, allowed: bool = True) -> ErrorCode:
    return creation.requested(name, UNKNOWN, True, allowed, now_ms)


def test_without_metadata_a_topic_may_exist_and_is_not_created() -> None:
    creation = AutomaticCreation(True)
    error = creation.requested("a", ErrorCode.LEADER_NOT_AVAILABLE, False, True, 0)
    assert (error, creation.next_names()) == (ErrorCode.LEADER_NOT_AVAILABLE, [])
    assert requested(creation, "a") is UNKNOWN
    assert creation.next_names() == ["a"]


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT])
def test_clients_wait_for_a_topic_that_exists_or_is_tried_again_when_the_store_fails(outcome: ErrorCode) -> None:
    creation = AutomaticCreation(True)
    requested(creation, "a")
    creation.finished("a", outcome, 0)
    assert requested(creation, "a", RETRY_MS - 1) is UNKNOWN
    assert creation.next_names() == []


def test_an_unknown_topic_is_queued_once_and_its_clients_wait() -> None:
    creation = AutomaticCreation(True)
    assert [requested(creation, name) for name in ("b", "a", "b")] == [UNKNOWN] * 3
    assert creation.next_names() == ["b", "a"]
    creation.finished("b", ErrorCode.NONE, 0)
    assert creation.next_names() == ["a"]


@pytest.mark.parametrize(("enabled", "allowed"), [(False, True), (True, False), (False, False)])
def test_without_leave_of_the_broker_and_of_the_client_a_topic_stays_unknown(enabled: bool, allowed: bool) -> None:
    creation = AutomaticCreation(enabled)
    assert requested(creation, "a", allowed=allowed) is UNKNOWN
    assert requested(creation, "foo#bar", allowed=allowed) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert creation.next_names() == []


@pytest.mark.parametrize("name", ["", ".", "..", "foo#bar", "a/b", "../x", "a\0b", "é", "x" * 250])
def test_a_name_that_no_topic_can_have_is_invalid(name: str) -> None:
    creation = AutomaticCreation(True)
    assert requested(creation, name) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert creation.next_names() == []


@pytest.mark.parametrize("name", sorted(INTERNAL))
def test_a_topic_of_the_brokers_is_not_created_for_clients(name: str) -> None:
    creation = AutomaticCreation(True)
    assert requested(creation, name) is UNKNOWN
    assert creation.next_names() == []


def test_clients_of_a_refused_topic_get_the_error_until_it_is_tried_again() -> None:
    creation = AutomaticCreation(True)
    requested(creation, "a")
    creation.finished("a", ErrorCode.INVALID_PARTITIONS, 10)
    assert requested(creation, "a", RETRY_MS + 9) is ErrorCode.INVALID_PARTITIONS
    assert creation.next_names() == []
    assert requested(creation, "a", RETRY_MS + 10) is UNKNOWN
    assert creation.next_names() == ["a"]


def test_a_created_topic_is_not_tried_again_while_its_metadata_are_on_their_way() -> None:
    creation = AutomaticCreation(True)
    requested(creation, "a")
    creation.finished("a", ErrorCode.NONE, 0)
    assert requested(creation, "a", RETRY_MS - 1) is UNKNOWN
    assert creation.next_names() == []


def test_a_flood_of_names_is_bounded() -> None:
    creation = AutomaticCreation(True)
    names = [f"t{number}" for number in range(3 * MAX_QUEUED)]
    for name in names:
        requested(creation, name)
    assert creation.next_names() == names[:MAX_BATCH]
    assert requested(creation, names[0]) is UNKNOWN, "it waits already"
    attempts: list[str] = []
    while batch := creation.next_names():
        attempts += batch
        for name in batch:
            creation.finished(name, ErrorCode.INVALID_PARTITIONS, 0)
    assert attempts == names[:MAX_QUEUED]
    for name in names[MAX_QUEUED:]:
        creation.finished(name, ErrorCode.INVALID_PARTITIONS, 0)
    assert sum(requested(creation, name) is ErrorCode.INVALID_PARTITIONS for name in names) == MAX_QUEUED
