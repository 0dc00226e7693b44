"""The benchmark of the codecs cannot rot: it runs tiny, and both sides read and write the same."""

from __future__ import annotations

import pytest

from benchmarks import bench_wire


def test_it_runs_and_compares_every_message(capsys: pytest.CaptureFixture[str]) -> None:
    bench_wire.main(quick=True, repetitions=1, seed=2)
    shown = capsys.readouterr().out
    assert shown.count("Produce") == 2
    assert shown.count("Fetch") == 6


def test_ratios_are_of_the_same_repetition() -> None:
    row = next(bench_wire.rows(1, 100))
    ours, theirs, ratios = bench_wire.compare(row, 3, 0.0005)
    assert len(ratios) == 3
    assert ours > 0 < theirs
