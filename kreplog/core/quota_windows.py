"""SampledRate, SimpleRate and TokenBucket: the use of a quota lately, as Kafka's metrics of these names measure it.

A rate is the sum of the samples of the last windows over the time that they span, at least all windows but one; a
simple one, at least one window. A
bucket fills at the quota's rate up to the quota of all windows, and a request takes its tokens even if it has fewer.
Times are monotonic milliseconds. Source: Kafka, SampledStat, Rate, SimpleRate, TokenBucket; KIP-13, KIP-73, KIP-599.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MAX_THROTTLE_MS = 2**31 - 1
"""The longest throttle_time_ms that the protocol has."""


class QuotaWindow(NamedTuple):
    """The time over which a quota holds. samples: quota.window.num. size_ms: of each, quota.window.size.seconds."""

    samples: int = 11
    size_ms: int = 1000

    @property
    def span_ms(self) -> int:
        """The age at which what was used counts no more."""
        return self.samples * self.size_ms


class SampledRate:
    """The use of a quota by the second. value: of all samples."""

    __slots__ = ("_samples", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._samples: deque[list[float]] = deque()  # start, value

    def record(self, value: float, window: QuotaWindow, now_ms: int) -> None:
        """Add to the sample of the present; a negative value takes back what was recorded before."""
        self._purge(window, now_ms)
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= window.size_ms:
            if len(samples) == window.samples:
                self.value -= samples.popleft()[1]
            samples.append([now_ms, 0.0])
        samples[-1][1] += value
        self.value += value

    def throttle_ms(self, bound: float, window: QuotaWindow, now_ms: int) -> int:
        """For how long a client must use nothing until its rate is `bound` (KIP-13); 0 if it is not above."""
        self._purge(window, now_ms)
        elapsed_ms = self._elapsed_ms(window, now_ms)
        rate = self.value * 1000 / elapsed_ms
        return round(min((rate - bound) / bound * elapsed_ms, MAX_THROTTLE_MS)) if rate > bound else 0

    def rate(self, window: QuotaWindow, now_ms: int) -> float:
        self._purge(window, now_ms)
        return self.value * 1000 / self._elapsed_ms(window, now_ms)

    def _purge(self, window: QuotaWindow, now_ms: int) -> None:
        samples = self._samples
        while samples and now_ms - samples[0][0] >= window.span_ms:
            self.value -= samples.popleft()[1]
        if not samples:
            self.value = 0.0  # without the rounding errors of what was taken back

    def _elapsed_ms(self, window: QuotaWindow, now_ms: int) -> float:
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0.0
        missing = window.samples - 1 - elapsed_ms // window.size_ms
        return max(elapsed_ms + max(0, missing) * window.size_ms, window.size_ms)


class SimpleRate(SampledRate):
    """A rate that is measured from its first second on: a replica that begins to catch up has saved up nothing."""

    __slots__ = ()

    def _elapsed_ms(self, window: QuotaWindow, now_ms: int) -> float:
        return max(now_ms - self._samples[0][0], window.size_ms) if self._samples else window.size_ms


class TokenBucket:
    """The use of a quota by tokens. tokens: those left, below 0 after a request that took more."""

    __slots__ = ("_filled_ms", "tokens")

    def __init__(self, bound: float, window: QuotaWindow, now_ms: int) -> None:
        self.tokens = _burst(bound, window)
        self._filled_ms = now_ms

    def fill(self, bound: float, window: QuotaWindow, now_ms: int) -> None:
        """Add the tokens of the time since the last call."""
        more = bound * (now_ms - self._filled_ms) / 1000
        self.tokens = min(_burst(bound, window), self.tokens + more)
        self._filled_ms = now_ms

    def is_full(self, bound: float, window: QuotaWindow, now_ms: int) -> bool:
        return self.tokens + bound * (now_ms - self._filled_ms) / 1000 >= _burst(bound, window)

    def throttle_ms(self, bound: float) -> int:
        """Until no token is missing."""
        return round(min(-self.tokens / bound * 1000, MAX_THROTTLE_MS)) if self.tokens < 0 else 0


def _burst(bound: float, window: QuotaWindow) -> float:
    return bound * window.span_ms / 1000
