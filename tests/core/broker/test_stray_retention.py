"""When a broker may delete a stray."""

from __future__ import annotations

from kreplog.core.broker.stray_retention import FOR_EVER, is_expired


def test_a_stray_expires_after_the_retention_time() -> None:
    assert [is_expired(1000, now_ms, 500) for now_ms in (1499, 1500)] == [False, True]
    assert is_expired(1000, 1000, 0)


def test_strays_are_kept_for_ever_by_minus_one() -> None:
    assert not is_expired(0, 2**62, FOR_EVER)


def test_a_stray_of_a_later_time_is_kept() -> None:
    assert not is_expired(1000, 400, 0)
