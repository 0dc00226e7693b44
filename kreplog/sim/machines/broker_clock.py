"""BrokerClock: a clock that may run fast or slow, and jump."""

from __future__ import annotations

from kreplog.sim.machines.scheduler import MS, Scheduler


class BrokerClock:
    """A broker's monotonic clock. ahead_us: how far it is ahead of virtual time at first."""

    def __init__(self, scheduler: Scheduler, ahead_us: int) -> None:
        self._scheduler = scheduler
        self._rate = 1000
        self._base_us = scheduler.now_us
        self._base_local_us = ahead_us + scheduler.now_us

    @property
    def now_ms(self) -> int:
        """The clock's time."""
        return (self._base_local_us + (self._scheduler.now_us - self._base_us) * self._rate // 1000) // MS

    def instant_of(self, local_ms: int) -> int:
        """The virtual time (us) at which it shows `local_ms`."""
        ahead_us = local_ms * MS - self._base_local_us
        return self._base_us + -(-ahead_us * 1000 // self._rate)

    def set(self, jump_ms: int, rate: int) -> None:
        """Jump forward, and continue at `rate` thousandths of the true speed."""
        now_us = self._scheduler.now_us
        self._base_local_us += (now_us - self._base_us) * self._rate // 1000 + jump_ms * MS
        self._base_us = now_us
        self._rate = rate
