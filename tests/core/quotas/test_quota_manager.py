"""ClientQuotaManager with a clock of the test's: who shares a quota, who is throttled, and what it remembers."""

from __future__ import annotations

import pytest

from kreplog.core.quota_windows import MAX_THROTTLE_MS, QuotaWindow
from kreplog.core.quotas import entities, quota_manager
from kreplog.core.quotas.entities import DEFAULT, QuotaEntity, QuotaKey, QuotaLimits
from kreplog.core.quotas.quota_manager import ClientQuotaManager

WINDOW = QuotaWindow(11, 1000)
PRODUCE, REQUESTS, MUTATIONS = (
    QuotaKey.PRODUCER_BYTE_RATE,
    QuotaKey.REQUEST_PERCENTAGE,
    QuotaKey.CONTROLLER_MUTATION_RATE,
)


def managing(*quotas: tuple[QuotaEntity, QuotaKey, float]) -> ClientQuotaManager:
    manager = ClientQuotaManager(WINDOW, WINDOW)
    found: dict[QuotaEntity, dict[str, float]] = {}
    for entity, key, limit in quotas:
        found.setdefault(entity, {})[key] = limit
    manager.replace(QuotaLimits(found))
    return manager


ALICE = QuotaEntity("alice")
EACH_ID = QuotaEntity(None, DEFAULT)


def test_without_a_quota_nothing_is_counted() -> None:
    manager = managing()
    assert not manager.is_active
    assert manager.record(PRODUCE, "alice", "app", 1e12, 0) == 0
    assert len(manager) == 0


def test_all_client_ids_of_a_user_share_its_quota() -> None:
    manager = managing((ALICE, PRODUCE, 100))
    assert [manager.record(PRODUCE, "alice", f"app-{number}", 500, 0) for number in range(3)] == [0, 0, 5000]
    assert manager.remaining_ms(PRODUCE, "alice", "another", 4000) == 1000
    assert manager.remaining_ms(PRODUCE, "bob", "app-0", 0) == 0


def test_each_client_id_has_the_default_by_itself_whoever_its_user_is() -> None:
    manager = managing((EACH_ID, PRODUCE, 100))
    assert manager.record(PRODUCE, "alice", "app", 1000, 0) == 0
    assert manager.record(PRODUCE, "alice", "other", 1000, 0) == 0
    assert manager.record(PRODUCE, "bob", "app", 1000, 0) == 10_000


def test_each_user_and_client_id_of_two_defaults_is_by_itself() -> None:
    manager = managing((QuotaEntity(DEFAULT, DEFAULT), PRODUCE, 100))
    for user in ("alice", "bob"):
        for client_id in ("app", "other"):
            assert manager.record(PRODUCE, user, client_id, 1000, 0) == 0
    assert len(manager) == 4


def test_a_quota_of_requests_throttles_for_a_window_at_most() -> None:
    manager = managing((ALICE, REQUESTS, 1))
    assert manager.record(REQUESTS, "alice", "", 1e6, 0) == WINDOW.size_ms


def test_over_a_long_time_a_client_gets_its_quota_however_many_connections_it_has() -> None:
    """Each connection sends as soon as the client is not throttled, 100 of them."""
    manager, size, limit = managing((ALICE, PRODUCE, 1000)), 700, 1000
    sent = now_ms = 0
    while now_ms < 600_000:
        for connection in range(100):
            if not manager.remaining_ms(PRODUCE, "alice", f"id-{connection}", now_ms):
                manager.record(PRODUCE, "alice", f"id-{connection}", size, now_ms)
                sent += size
        now_ms += 100
    assert sent <= limit * (600 + 11)
    assert sent >= limit * 600 * 0.9


def test_other_quotas_let_everybody_go_on_and_forget_nothing() -> None:
    manager = managing((ALICE, PRODUCE, 100))
    assert manager.record(PRODUCE, "alice", "", 10_000, 0)
    manager.replace(QuotaLimits({ALICE: {PRODUCE: 1000.0}}))
    assert manager.remaining_ms(PRODUCE, "alice", "", 0) == 0
    assert manager.record(PRODUCE, "alice", "", 1000, 0) == 1000


def test_a_fetch_over_the_quota_is_not_counted_and_the_first_always_sent() -> None:
    manager = managing((ALICE, QuotaKey.CONSUMER_BYTE_RATE, 100))
    assert manager.most_fetched("alice", "") == 1000
    assert manager.record_fetch("alice", "", 3000, 0) == (True, 20_000)  # a batch larger than all windows allow
    assert manager.record_fetch("alice", "", 3000, 5000) == (False, 50_000)
    assert manager.record_fetch("alice", "", 3000, 11_000) == (True, 20_000)
    assert manager.record_fetch("bob", "", 3000, 0) == (True, 0)
    assert manager.most_fetched("bob", "") is None


def test_a_strict_mutation_is_refused_while_tokens_are_missing() -> None:
    """KIP-599: the one that takes more than there are is allowed."""
    manager = managing((ALICE, MUTATIONS, 1))
    taken = [manager.take_tokens("alice", "", 10, now_ms, strict=True) for now_ms in (0, 0, 0, 8999, 9000)]
    assert taken == [0, 0, 9000, 1, 0]


def test_a_mutation_of_an_old_client_is_allowed_and_throttled() -> None:
    manager = managing((ALICE, MUTATIONS, 1))
    assert [manager.take_tokens("alice", "", 10, 0, strict=False) for _ in range(3)] == [0, 9000, 19_000]
    assert manager.remaining_ms(MUTATIONS, "alice", "", 0) == 19_000


def test_idle_sensors_are_dropped() -> None:
    manager = managing((EACH_ID, PRODUCE, 1000), (EACH_ID, MUTATIONS, 1))
    for number in range(100):
        manager.record(PRODUCE, "u", f"id-{number}", 1, 0)
        manager.take_tokens("u", f"id-{number}", 30, 0, strict=False)
    manager.record(PRODUCE, "u", "next", 1, WINDOW.span_ms)
    assert len(manager) == 201
    manager.record(PRODUCE, "u", "last", 1, WINDOW.span_ms + 1)
    assert len(manager) == 102
    manager.take_tokens("u", "last", 1, WINDOW.span_ms + 1, strict=False)
    assert len(manager) == 103  # those of mutations still miss tokens
    manager.take_tokens("u", "later", 1, 60_000, strict=False)
    assert len(manager) == 3


def test_idle_sensors_are_dropped_behind_one_that_is_throttled_for_long() -> None:
    manager = managing((EACH_ID, PRODUCE, 1))
    manager.record(PRODUCE, "u", "noisy", 1_000_000, 0)
    for number in range(100):
        manager.record(PRODUCE, "u", f"id-{number}", 1, 0)
    manager.record(PRODUCE, "u", "next", 1, WINDOW.span_ms + 1)
    assert len(manager) == 2
    assert manager.remaining_ms(PRODUCE, "u", "noisy", WINDOW.span_ms + 1)


@pytest.mark.parametrize("key", [PRODUCE, MUTATIONS])
def test_no_quota_is_too_small_to_be_computed_with(key: QuotaKey) -> None:
    manager = managing((EACH_ID, key, 1e-310))
    if key is PRODUCE:
        assert manager.record(key, "u", "id", 1000, 0) == MAX_THROTTLE_MS
    else:
        assert manager.take_tokens("u", "id", 1000, 0, strict=False) == MAX_THROTTLE_MS


def test_a_throttled_sensor_is_not_dropped() -> None:
    manager = managing((EACH_ID, PRODUCE, 1))
    throttle_ms = manager.record(PRODUCE, "u", "noisy", 1_000_000, 0)
    manager.record(PRODUCE, "u", "quiet", 1, throttle_ms - 1)
    assert manager.remaining_ms(PRODUCE, "u", "noisy", throttle_ms - 1) == 1


def test_a_flood_of_client_ids_takes_no_more_memory_and_shares_one_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_manager, "MAX_SENSORS", 50)
    manager = managing((EACH_ID, PRODUCE, 1000))
    for number in range(50):
        assert manager.record(PRODUCE, "u", f"id-{number}", 1000, 0) == 0
    throttled = [manager.record(PRODUCE, "u", f"flood-{number}", 1000, 0) for number in range(5000)]
    assert len(manager) == 51
    assert not any(throttled[:10]) and all(throttled[10:])
    assert manager.remaining_ms(PRODUCE, "u", "yet-another", 0)
    assert manager.record(PRODUCE, "u", "id-7", 1000, 0) == 0  # of a client that was there before
    manager.replace(QuotaLimits({ALICE: {PRODUCE: 1.0}}))
    assert len(manager) == 50


def test_clients_with_long_ids_share_one_quota() -> None:
    """Their names would take more memory than their sensors."""
    manager = managing((EACH_ID, PRODUCE, 1000))
    throttled = [manager.record(PRODUCE, "u", f"{number}{'x' * 32_000}", 1000, 0) for number in range(100)]
    assert len(manager) == 1 and not any(throttled[:10]) and all(throttled[10:])
    assert manager.remaining_ms(PRODUCE, "u", "y" * 301, 0) and not manager.remaining_ms(PRODUCE, "u", "y" * 300, 0)
    assert len(manager.limits._by_client) == 1


def test_the_quotas_of_so_many_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities, "MAX_CLIENTS", 10)
    limits = QuotaLimits({ALICE: {PRODUCE: 1.0}})
    for number in range(100):
        assert limits.find(PRODUCE, "alice", f"id-{number}") == (ALICE, 1.0)
        assert len(limits._by_client) <= 10


def test_sensors_in_use_are_shown() -> None:
    manager = managing((ALICE, PRODUCE, 100), (ALICE, MUTATIONS, 1))
    manager.record(PRODUCE, "alice", "app", 2000, 0)
    manager.take_tokens("alice", "app", 1, 0, strict=True)
    assert sorted(manager.states(0)) == [(MUTATIONS, ALICE, 10.0, 0), (PRODUCE, ALICE, 200.0, 10_000)]
    assert {state.throttle_ms for state in manager.states(10_000)} == {0}
    assert not list(manager.states(30_000))


CONNECTIONS = QuotaKey.CONNECTION_CREATION_RATE
EACH_ADDRESS = QuotaEntity(ip=DEFAULT)


def test_connections_beyond_the_rate_of_their_address_are_throttled_for_a_sample_at_most() -> None:
    """KIP-612: what was not accepted does not count."""
    manager = managing((EACH_ADDRESS, CONNECTIONS, 2), (QuotaEntity(ip="192.0.2.9"), CONNECTIONS, 1))
    assert [manager.record_connection("192.0.2.1", 0) for _ in range(20)] == [0] * 20
    assert [manager.record_connection("192.0.2.1", 0) for _ in range(50)] == [500] * 50
    assert manager.record_connection("192.0.2.2", 0) == 0
    assert [manager.record_connection("192.0.2.9", 0) for _ in range(12)] == [0] * 10 + [1000] * 2
    assert manager.record_connection("192.0.2.1", WINDOW.span_ms) == 0
    assert managing((ALICE, PRODUCE, 1)).record_connection("192.0.2.1", 0) == 0
    assert (CONNECTIONS, QuotaEntity(ip="192.0.2.2"), 0.1, 0) in list(manager.states(0))


def test_a_flood_of_addresses_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_manager, "MAX_SENSORS", 50)
    manager = managing((EACH_ADDRESS, CONNECTIONS, 1))
    throttled = [manager.record_connection(f"2001:db8::{number:x}", 0) for number in range(500)]
    assert len(manager) == 51 and not any(throttled[:60]) and all(throttled[60:])
