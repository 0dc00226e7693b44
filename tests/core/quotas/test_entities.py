"""Which quota holds for a client, by the table of KIP-55 and KIP-257; and entities and values that are refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from kreplog.core.quotas.entities import (
    DEFAULT,
    OF_CLIENTS,
    QuotaEntity,
    QuotaKey,
    QuotaLimits,
    check_entity,
    check_quota,
)
from kreplog.errors import UsageError

LEVELS = [
    QuotaEntity("alice", "app"),
    QuotaEntity("alice", DEFAULT),
    QuotaEntity("alice"),
    QuotaEntity(DEFAULT, "app"),
    QuotaEntity(DEFAULT, DEFAULT),
    QuotaEntity(DEFAULT),
    QuotaEntity(None, "app"),
    QuotaEntity(None, DEFAULT),
]
"""The levels of precedence, the highest first."""

KEY = QuotaKey.PRODUCER_BYTE_RATE


@pytest.mark.parametrize("present", list(itertools.product((False, True), repeat=len(LEVELS))))
def test_the_highest_level_that_there_is_counts(present: tuple[bool, ...]) -> None:
    quotas: dict[QuotaEntity, dict[str, float]] = {
        entity: {KEY: rank + 1.0} for rank, entity in enumerate(LEVELS) if present[rank]
    }
    expected = next(((entity, values[KEY]) for entity, values in quotas.items()), None)
    assert QuotaLimits(quotas).find(KEY, "alice", "app") == expected


@pytest.mark.parametrize("other", [QuotaEntity("bob", "app"), QuotaEntity("bob"), QuotaEntity(None, "APP")])
def test_quotas_of_others_do_not_count(other: QuotaEntity) -> None:
    assert QuotaLimits({other: {KEY: 1.0}}).find(KEY, "alice", "app") is None


def test_a_level_without_a_quota_of_that_kind_is_passed_over() -> None:
    limits = QuotaLimits({LEVELS[0]: {QuotaKey.REQUEST_PERCENTAGE: 1.0}, LEVELS[7]: {KEY: 2.0}})
    assert limits.find(KEY, "alice", "app") == (LEVELS[7], 2.0)
    assert limits.find(QuotaKey.CONSUMER_BYTE_RATE, "alice", "app") is None


def test_a_client_without_an_id_has_the_default() -> None:
    assert QuotaLimits({LEVELS[7]: {KEY: 2.0}}).find(KEY, "alice", "") == (LEVELS[7], 2.0)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("user", "")], "Empty user not supported"),
        ([("ip", "127.0.0.1"), ("user", "a")], "IP entity should not be combined with User or ClientId"),
        ([("ip", None), ("client-id", None)], "IP entity should not be combined with User or ClientId"),
        ([("ip", "localhost")], "localhost is not a valid IP address"),
        ([("ip", "127.0.0.256")], "is not a valid IP address"),
        ([("ip", "")], "Empty ip not supported"),
        ([("User", "a")], "Unhandled client quota entity type: User"),
    ],
)
def test_an_entity_that_is_none_is_refused(types: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_entity(types)


def test_the_default_of_a_type_has_no_name() -> None:
    assert check_entity([("client-id", None), ("user", "alice")]) == QuotaEntity("alice", DEFAULT)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer_byte_rates", 1.0),
        ("SCRAM-SHA-256", 1.0),
        ("connection_creation_rate", 1.0),
        ("PRODUCER_BYTE_RATE", 1.0),
        ("producer_byte_rate", 1.5),
        ("producer_byte_rate", 5e-7),  # which is 0 once it is rounded
        ("consumer_byte_rate", 1e308),
        *((key, value) for key in OF_CLIENTS for value in (0.0, -1.0, math.nan, math.inf, -math.inf)),
    ],
)
def test_a_quota_that_is_no_limit_is_refused(key: str, value: float) -> None:
    with pytest.raises(UsageError, match=key):
        check_quota(QuotaEntity("a"), key, value)


def test_bytes_are_integers_and_percent_are_not() -> None:
    assert check_quota(QuotaEntity("a"), "producer_byte_rate", 1024.0000001) == 1024
    assert check_quota(QuotaEntity("a"), "request_percentage", 0.5) == 0.5


@pytest.mark.parametrize(
    ("key", "value"),
    [("producer_byte_rate", 1.0), *(("connection_creation_rate", value) for value in (0.0, 0.5, 2.0**31, math.nan))],
)
def test_an_address_has_a_quota_of_connections_alone(key: str, value: float) -> None:
    with pytest.raises(UsageError):
        check_quota(QuotaEntity(ip="192.0.2.1"), key, value)
    assert check_quota(QuotaEntity(ip="192.0.2.1"), "connection_creation_rate", 5.0) == 5


@pytest.mark.parametrize(
    ("given", "expected"),
    [("192.0.2.1", "192.0.2.1"), ("2001:DB8:0::1", "2001:db8::1"), ("::ffff:192.0.2.1", "192.0.2.1"), (None, DEFAULT)],
)
def test_an_address_is_as_connections_have_it(given: str | None, expected: str) -> None:
    assert check_entity([("ip", given)]) == QuotaEntity(ip=expected)


def test_the_quota_of_an_address_counts_before_that_of_the_default() -> None:
    key = QuotaKey.CONNECTION_CREATION_RATE
    own, default = QuotaEntity(ip="192.0.2.1"), QuotaEntity(ip=DEFAULT)
    limits = QuotaLimits({own: {key: 2}, default: {key: 5}, QuotaEntity(DEFAULT): {KEY: 1.0}})
    assert limits.of_address("192.0.2.1") == (own, 2)
    assert limits.of_address("192.0.2.2") == (default, 5)
    assert QuotaLimits({own: {key: 2}}).of_address("192.0.2.2") is None
    assert key not in limits.of_client("", "")
