"""Which quota holds for a client, by the table of KIP-55 and KIP-257; and entities and values that are refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from kreplog.core.quotas.entities import DEFAULT, QuotaEntity, QuotaKey, QuotaLimits, check_entity, check_quota
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
        ([("ip", "127.0.0.1")], "Unhandled client quota entity type: ip"),
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
        ("PRODUCER_BYTE_RATE", 1.0),
        ("producer_byte_rate", 1.5),
        ("producer_byte_rate", 5e-7),  # which is 0 once it is rounded
        ("consumer_byte_rate", 1e308),
        *((key, value) for key in QuotaKey for value in (0.0, -1.0, math.nan, math.inf, -math.inf)),
    ],
)
def test_a_quota_that_is_no_limit_is_refused(key: str, value: float) -> None:
    with pytest.raises(UsageError, match=key):
        check_quota(key, value)


def test_bytes_are_integers_and_percent_are_not() -> None:
    assert check_quota("producer_byte_rate", 1024.0000001) == 1024
    assert check_quota("request_percentage", 0.5) == 0.5
