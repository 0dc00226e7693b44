"""Power loss at any fsync and between: what was flushed is there, whatever became of the rest."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import kills_and_cut
from tests.faults.shim import run_driver

LIVES = ["flush", "every-append", "managed", "managed-every-append"]


@pytest.mark.parametrize("mode", ["flush", "every-append", "managed"])
def test_power_loss(folder: Path, shim: Path, mode: str) -> None:
    """F36: what was fsynced is there, names in directories included."""
    output = run_driver("power_loss", folder, mode, 1, shim=shim)
    match = re.search(r"moments=(\d+) images=(\d+)", output)
    assert match and int(match[1]) > 60, output


def lives(folder: Path, shim: Path, mode: str, first: int, seeds: int, figure: Callable[[str], None]) -> None:
    """Play that many seeds of kills_and_cut, and see that they did what they are for."""
    output = run_driver("kills_and_cut", folder, mode, first, seeds, shim=shim, timeout_s=300 + 5 * seeds)
    match = re.search(r"seeds=(\d+) from \d+ deaths=(\d+) images=(\d+)", output)
    assert match and int(match[2]) > seeds // 2 and int(match[3]) > 5 * seeds, output
    figure(match[0])


@pytest.mark.parametrize("mode", LIVES)
def test_power_loss_after_deaths(folder: Path, shim: Path, mode: str, figure: Callable[[str], None]) -> None:
    """Killed in appends, truncations, rolls, closes, retention and recovery, then again; then the power is cut."""
    lives(folder, shim, mode, 0, 10, figure)


@pytest.mark.parametrize("mode", LIVES)
@pytest.mark.parametrize("name", [scenario.__name__ for scenario in kills_and_cut.SCENARIOS])
def test_power_loss_as_it_was_found(folder: Path, shim: Path, name: str, mode: str) -> None:
    """The ways in which flushed records were lost."""
    assert "images=2" in run_driver("kills_and_cut", folder, mode, name, shim=shim)


@pytest.mark.long
@pytest.mark.parametrize("mode", LIVES)
def test_power_loss_after_hundreds_of_deaths(
    folder: Path, shim: Path, mode: str, figure: Callable[[str], None]
) -> None:
    lives(folder, shim, mode, 1000, 500, figure)


def compactions(folder: Path, shim: Path, kind: str, first: int, seeds: int, figure: Callable[[str], None]) -> None:
    output = run_driver("compactions", folder, kind, first, seeds, shim=shim, timeout_s=300 + 10 * seeds)
    match = re.search(r"seeds=(\d+) from \d+ deaths=(\d+) images=(\d+)", output)
    assert match and int(match[2]) > seeds // 2 and int(match[3]) > 5 * seeds, output
    figure(match[0])


@pytest.mark.parametrize("kind", ["log", "managed"])
def test_power_loss_beside_compaction(folder: Path, shim: Path, kind: str, figure: Callable[[str], None]) -> None:
    """F40: of each key the newest flushed record outlives kills and power cuts at each step of a compaction."""
    compactions(folder, shim, kind, 10, 5, figure)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["log", "managed"])
def test_power_loss_beside_hundreds_of_compactions(
    folder: Path, shim: Path, kind: str, figure: Callable[[str], None]
) -> None:
    compactions(folder, shim, kind, 1000, 450, figure)


def brokers(folder: Path, shim: Path, first: int, seeds: int, figure: Callable[[str], None]) -> None:
    output = run_driver("broker_power_loss", folder, first, seeds, shim=shim, timeout_s=300 + 30 * seeds)
    match = re.search(r"seeds=(\d+) from \d+ deaths=(\d+) images=(\d+)", output)
    assert match and int(match[2]) > seeds // 2 and int(match[3]) >= 2 * seeds, output
    figure(match[0])


def test_power_loss_of_brokers(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    """Topics and flushed records, with checkpoints and the store: killed as it starts, creates, appends and stops."""
    brokers(folder, shim, 0, 5, figure)


@pytest.mark.long
def test_power_loss_of_hundreds_of_brokers(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    brokers(folder, shim, 1000, 200, figure)


def work_queues(folder: Path, shim: Path, first: int, seeds: int, figure: Callable[[str], None]) -> None:
    output = run_driver("queue_power_loss", folder, first, seeds, shim=shim, timeout_s=300 + 10 * seeds)
    match = re.search(r"seeds=(\d+) from \d+ deaths=(\d+) images=(\d+)", output)
    assert match and int(match[2]) > seeds // 2 and int(match[3]) >= 2 * seeds, output
    figure(match[0])


def test_power_loss_of_work_queues(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    """Of a queue whose processes are killed: what was acknowledged durably stays done, what was not is delivered."""
    work_queues(folder, shim, 0, 3, figure)


@pytest.mark.long
def test_power_loss_of_hundreds_of_work_queues(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    work_queues(folder, shim, 1000, 250, figure)


def cursors(folder: Path, shim: Path, kind: str, first: int, seeds: int, figure: Callable[[str], None]) -> None:
    output = run_driver("cursor_power_loss", folder, kind, first, seeds, shim=shim, timeout_s=300 + 10 * seeds)
    match = re.search(r"seeds=(\d+) from \d+ deaths=(\d+) images=(\d+)", output)
    assert match and int(match[2]) > seeds and int(match[3]) >= 2 * seeds, output
    figure(match[0])


@pytest.mark.parametrize("kind", ["cursor", "group"])
def test_power_loss_of_cursors(folder: Path, shim: Path, kind: str, figure: Callable[[str], None]) -> None:
    """A committed offset is neither before a durable commit nor one that nobody committed, and what is read on from it
    is what was not read."""
    cursors(folder, shim, kind, 0, 4, figure)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cursor", "group"])
def test_power_loss_of_hundreds_of_cursors(folder: Path, shim: Path, kind: str, figure: Callable[[str], None]) -> None:
    cursors(folder, shim, kind, 1000, 300, figure)


def schemas(folder: Path, shim: Path, first: int, seeds: int, figure: Callable[[str], None]) -> None:
    output = run_driver("schema_power_loss", folder, first, seeds, shim=shim, timeout_s=300 + 10 * seeds)
    match = re.search(r"seeds=(\d+) from \d+ deaths=(\d+) images=(\d+)", output)
    assert match and int(match[2]) > seeds // 2 and int(match[3]) >= 6 * seeds, output
    figure(match[0])


def test_power_loss_of_schema_files(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    """A schema that was registered keeps its number, which no other gets, whatever call of its writer was the last."""
    schemas(folder, shim, 30, 16, figure)


@pytest.mark.long
def test_power_loss_of_hundreds_of_schema_files(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    schemas(folder, shim, 1000, 400, figure)


def tables(folder: Path, shim: Path, first: int, seeds: int, figure: Callable[[str], None]) -> None:
    pytest.importorskip("lmdb", reason="needs lmdb, the extra `tables`")
    output = run_driver("table_power_loss", folder, first, seeds, shim=shim, timeout_s=300 + 10 * seeds)
    match = re.search(r"seeds=(\d+) from \d+ deaths=(\d+) images=(\d+)", output)
    assert match and int(match[2]) >= seeds and int(match[3]) >= 4 * seeds, output
    figure(match[0])


def test_power_loss_of_tables(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    """A table in a file has what the log has, which may have lost what the file has applied; its last transaction alone
    may be lost."""
    tables(folder, shim, 0, 6, figure)


@pytest.mark.long
def test_power_loss_of_hundreds_of_tables(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    tables(folder, shim, 1000, 300, figure)


def test_power_cut_of_a_real_file_system(tmp_path: Path) -> None:
    """An ext4 image copied at one instant, then mounted as after a power cut: no model of what fsync means."""
    namespace = ["unshare", "--mount", "--propagation", "private"]
    if not all(shutil.which(tool) for tool in ("unshare", "mount", "umount", "mkfs.ext4")):
        pytest.skip("needs unshare, mount and mkfs.ext4")
    probe = "truncate -s 8M p.img && mkfs.ext4 -q p.img && mkdir -p p && mount -o loop p.img p && umount p"
    if subprocess.run([*namespace, "sh", "-c", probe], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system image is not permitted here")
    output = run_driver("power_cut", tmp_path, under=namespace)
    match = re.search(r"cuts=(\d+) losses=(\d+)", output)
    assert match and int(match[1]) > 10, output
    assert int(match[2]) > 0, "no cut lost anything: the simulation is not one"
