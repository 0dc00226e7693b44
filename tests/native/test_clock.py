"""The clock of calls that are made for each record says what the real clock says, whatever happens to both."""

from __future__ import annotations

import ctypes
import subprocess
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kreplog import Log
from tests.faults.shim import c_compiler

NO_FAULT, CLOCK_SET, COUNTER_LEAPS, RATE_CHANGES, COUNTER_RUNS_AHEAD = range(5)
SEEDS = range(200)
MODEL = Path(__file__).with_name("clock_model.c")
NATIVE = Path(__file__).parents[2] / "kreplog" / "_native"


class Outcome(NamedTuple):
    wrong: int
    latest_ns: float
    real_reads: int


Model = Callable[..., Outcome]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    library = tmp_path_factory.mktemp("clock") / f"model{sysconfig.get_config_var('SHLIB_SUFFIX')}"
    flags = ["-O2", "-shared", "-fPIC", f"-I{NATIVE}"]
    subprocess.run([*c_compiler(), *flags, str(MODEL), "-o", str(library)], check=True)
    run = ctypes.CDLL(str(library)).run
    run.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.c_int64, *[ctypes.c_void_p] * 3]

    def outcome(seed: int, fault: int, calls: int = 200_000, steady: bool = True) -> Outcome:
        wrong, latest, reads = ctypes.c_int64(), ctypes.c_double(), ctypes.c_int64()
        run(seed, steady, fault, calls, ctypes.byref(wrong), ctypes.byref(latest), ctypes.byref(reads))
        return Outcome(wrong.value, latest.value, reads.value)

    return outcome


def test_it_is_the_real_clock(model: Model) -> None:
    for seed in SEEDS:
        outcome = model(seed, NO_FAULT)
        assert outcome.wrong == 0, f"seed {seed}"
        assert outcome.real_reads < 50_000, f"seed {seed}"


@pytest.mark.parametrize("fault", [CLOCK_SET, COUNTER_LEAPS, RATE_CHANGES])
def test_a_fault_is_over_when_a_reading_is(model: Model, fault: int) -> None:
    """After a millisecond, or three where the counter goes on at a third of its pace; a call is held up for three."""
    for seed in SEEDS:
        outcome = model(seed, fault)
        assert outcome.latest_ns <= {CLOCK_SET: 4.1e6, COUNTER_LEAPS: 0, RATE_CHANGES: 6.1e6}[fault], f"seed {seed}"
        assert outcome.real_reads < 50_000, f"seed {seed}"


def test_a_rate_that_no_counter_has_is_not_believed(model: Model) -> None:
    """However often the counter leaps: else the lower of two spoilt rates lets a reading hold for seconds."""
    for seed in SEEDS:
        outcome = model(seed, COUNTER_RUNS_AHEAD)
        assert outcome.wrong == 0, f"seed {seed}"
        assert outcome.real_reads < 100_000, f"seed {seed}"


def test_without_a_steady_counter_each_call_reads_the_real_clock(model: Model) -> None:
    for fault in (NO_FAULT, CLOCK_SET, COUNTER_LEAPS):
        outcome = model(1, fault, 10_000, steady=False)
        assert outcome.wrong == 0
        assert outcome.real_reads == 10_000


def test_records_have_the_time_of_their_call(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log, log.appender() as appender:
        for append in (log.append, appender.append):
            times = []
            for _ in range(20_000):
                before = time.time_ns() // 1_000_000
                offset = append(b"")
                times.append((offset, before, time.time_ns() // 1_000_000))
            appender.flush()
            stamps = {record.offset: record.timestamp_ms for record in log.read(times[0][0])}
            assert all(before <= stamps[offset] <= after for offset, before, after in times)
