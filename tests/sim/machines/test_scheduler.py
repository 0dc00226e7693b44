"""Virtual time: order, cancelling, and the same course for the same seed."""

from __future__ import annotations

from kreplog.sim.machines.scheduler import Scheduler


def test_events_run_in_the_order_of_time_then_of_scheduling() -> None:
    scheduler = Scheduler(1)
    seen: list[str] = []
    scheduler.after(20, seen.append, "late")
    scheduler.after(10, seen.append, "first")
    scheduler.after(10, seen.append, "second")
    scheduler.run_until(15)
    assert (seen, scheduler.now_us) == (["first", "second"], 15)
    scheduler.run_until(20)
    assert seen == ["first", "second", "late"]


def test_a_cancelled_timer_does_not_run_and_leaves_no_mark() -> None:
    with_timer, without = Scheduler(1), Scheduler(1)
    for scheduler in (with_timer, without):
        scheduler.after(5, lambda: None)
    timer = with_timer.after(3, lambda: None)
    waited = timer.pending
    timer.cancel()
    assert (waited, timer.pending) == (True, False)
    for scheduler in (with_timer, without):
        scheduler.run_until(10)
    assert with_timer.events == without.events == 1


def test_an_event_due_in_the_past_runs_now() -> None:
    scheduler = Scheduler(1)
    scheduler.run_until(100)
    seen: list[int] = []
    scheduler.at(50, lambda: seen.append(scheduler.now_us))
    scheduler.run_until(100)
    assert seen == [100]


def test_events_may_schedule_events() -> None:
    scheduler = Scheduler(1)
    seen: list[int] = []

    def again() -> None:
        seen.append(scheduler.now_us)
        if len(seen) < 3:
            scheduler.after(7, again)

    scheduler.after(7, again)
    while scheduler.run_next():
        pass
    assert seen == [7, 14, 21]


def test_the_fingerprint_distinguishes_courses() -> None:
    def course(seed: int, extra: bool) -> int:
        scheduler = Scheduler(seed)
        for _ in range(10):
            scheduler.after(scheduler.random.randrange(100), lambda: None)
        if extra:
            scheduler.after(1000, lambda: None)
        scheduler.run_until(2000)
        return scheduler.fingerprint

    assert course(1, False) == course(1, False)
    assert len({course(1, False), course(2, False), course(1, True)}) == 3
