"""MemoryAccount: which shares of its limit state that remains between requests may use."""

from __future__ import annotations

from kreplog.core.memory import NO_LIMIT, PRODUCERS, MemoryAccount


def test_producers_that_logs_remember_may_use_a_quarter() -> None:
    account = MemoryAccount(4000)
    account.held["connections"] = 3999
    for held, has_room in ((0, True), (999, True), (1000, False), (1001, False)):
        account.held[PRODUCERS] = held
        assert account.has_room_for_producers == has_room


def test_an_account_without_limit_always_has_room() -> None:
    account = MemoryAccount()
    account.held[PRODUCERS] = 1 << 50
    assert account.limit == NO_LIMIT and account.has_room_for_producers
