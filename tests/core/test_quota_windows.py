"""Rates and buckets as Kafka measures them; figures are of KIP-13 and KIP-599, or worked out by their formulas."""

from __future__ import annotations

from kreplog.core.quota_windows import QuotaWindow, SampledRate, TokenBucket

WINDOW = QuotaWindow(samples=11, size_ms=1000)


def recorded(*uses: tuple[int, float]) -> SampledRate:
    rate = SampledRate()
    for now_ms, value in uses:
        rate.record(value, WINDOW, now_ms)
    return rate


def test_a_rate_is_over_all_windows_but_one_at_least() -> None:
    assert recorded((5000, 300)).rate(WINDOW, 5000) == 30  # by the second, over 10 s
    assert recorded((0, 300), (10_500, 300)).rate(WINDOW, 10_500) == 600 / 10.5


def test_a_sample_counts_until_it_is_as_old_as_all_windows() -> None:
    rate = recorded((0, 1000), (6000, 100))
    assert rate.rate(WINDOW, 10_999) == 1100 / 10.999
    assert rate.rate(WINDOW, 11_000) == 100 / 10
    assert rate.rate(WINDOW, 17_000) == 0


def test_there_are_never_more_samples_than_windows() -> None:
    rate = SampledRate()
    for second in range(1000):
        rate.record(1, WINDOW, second * 1000)
        assert rate.value == min(second + 1, 11)


def test_the_throttle_time_brings_the_rate_down_to_the_bound() -> None:
    rate = recorded((0, 500))  # 50 by the second
    assert rate.throttle_ms(50, WINDOW, 0) == 0
    assert rate.throttle_ms(10, WINDOW, 0) == 40_000  # (50 - 10) / 10 x 10 s
    assert recorded((0, 20), (5000, 100)).throttle_ms(10, WINDOW, 5500) == 1500  # 120 in 10.5 s


def test_a_use_can_be_taken_back() -> None:
    rate = recorded((0, 10.0), (0, 1e12), (0, -1e12))
    assert rate.rate(WINDOW, 0) == 1


def test_windows_of_one_sample() -> None:
    window, rate = QuotaWindow(1, 2000), SampledRate()
    rate.record(100, window, 0)
    assert rate.throttle_ms(50, window, 0) == 0
    assert rate.throttle_ms(25, window, 0) == 2000
    assert rate.rate(window, 2000) == 0


def test_a_bucket_has_the_tokens_of_all_windows_and_fills_at_the_rate() -> None:
    bucket = TokenBucket(5, WINDOW, 0)
    assert bucket.tokens == 55
    bucket.tokens -= 75
    assert bucket.throttle_ms(5) == 4000
    bucket.fill(5, WINDOW, 3000)
    assert bucket.throttle_ms(5) == 1000
    bucket.fill(5, WINDOW, 4000)
    assert bucket.throttle_ms(5) == 0
    bucket.fill(5, WINDOW, 1_000_000)
    assert bucket.tokens == 55
