"""Compactions, and the completion of their swaps, broken off at every file call; and their files damaged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.compaction_calls import MODES
from tests.faults.shim import run_driver

QUICK = [("log", "full", 29), ("log", "disk", 41), ("managed", "handles", 19)]


@pytest.mark.parametrize(
    ("kind", "mode", "stride"),
    [
        *QUICK,
        *(pytest.param("log", mode, 1, marks=pytest.mark.long) for mode in MODES if mode != "kill"),
        *(pytest.param("opening", mode, 1, marks=pytest.mark.long) for mode in ("full", "kill")),
    ],
)
def test_broken_off_at_every_file_call(folder: Path, shim: Path, kind: str, mode: str, stride: int) -> None:
    """The newest record of each key is there, nothing that was deleted comes back, and the log goes on or says why it
    does not."""
    output = run_driver("compaction_calls", folder, kind, mode, stride, shim=shim)
    runs = [(int(calls), int(broken_off)) for calls, broken_off in re.findall(r"calls=(\d+) broken_off=(\d+)", output)]
    assert runs, output
    if mode not in ("short", "memory"):  # which nobody need notice
        assert sum(broken_off for _, broken_off in runs) * stride > 10, output


@pytest.mark.parametrize(
    ("mode", "stride"),
    [
        ("full", 83),
        ("kill", 149),
        *(pytest.param(mode, 7, marks=pytest.mark.long) for mode in MODES),
    ],
)
def test_removal_of_markers_broken_off_at_file_calls(folder: Path, shim: Path, mode: str, stride: int) -> None:
    """With the transaction indexes of the segments."""
    output = run_driver("removed_markers_calls", folder, mode, stride, shim=shim)
    match = re.search(r"calls=(\d+) broken_off=(\d+)", output)
    assert match, output
    if mode not in ("short", "memory"):  # which nobody need notice
        assert int(match[2]) * stride > 70, output


@pytest.mark.parametrize("stride", [101, pytest.param(1, marks=pytest.mark.long)])
def test_what_a_swap_leaves_is_damaged_before_recovery(
    folder: Path, shim: Path, stride: int, figure: Callable[[str], None]
) -> None:
    """F40: no record is lost, whichever byte it is; at worst the log is not opened, by a typed error."""
    output = run_driver("swap_damage", folder, stride, shim=shim)
    match = re.search(r"steps=\d+ damaged=(\d+) opened=(\d+) refused=(\d+)", output)
    assert match and min(int(match[2]), int(match[3])) * stride > 500, output
    figure(match[0])
