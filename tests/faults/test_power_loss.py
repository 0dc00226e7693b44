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
TABLES = ["snapshot", "file"]
KILLS, CUTS = 500, 300
"""What a long test reaches: processes that are killed, and images of what a power cut leaves."""


def play(driver: str, folder: Path, *arguments: object, shim: Path, deaths: int, images: int) -> str:
    """Play the seeds of a driver, whose first and number are the last arguments; return its line. deaths, images: there
    have to be so many."""
    seeds = int(str(arguments[-1]))
    output = run_driver(driver, folder, *arguments, shim=shim, timeout_s=300 + 30 * seeds)
    match = re.search(r"seeds=(\d+) from \d+ deaths=(\d+) images=(\d+)", output)
    assert match and int(match[2]) >= deaths and int(match[3]) >= images, output
    return match[0]


@pytest.mark.parametrize("mode", ["flush", "every-append", "managed"])
def test_power_loss(folder: Path, shim: Path, mode: str) -> None:
    """F36: what was fsynced is there, names in directories included."""
    output = run_driver("power_loss", folder, mode, 1, shim=shim)
    match = re.search(r"moments=(\d+) images=(\d+)", output)
    assert match and int(match[1]) > 60, output


@pytest.mark.parametrize("mode", LIVES)
def test_power_loss_after_deaths(folder: Path, shim: Path, mode: str, figure: Callable[[str], None]) -> None:
    """Killed in appends, truncations, rolls, closes, retention and recovery, then again; then the power is cut."""
    figure(play("kills_and_cut", folder, mode, 0, 10, shim=shim, deaths=6, images=51))


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
    figure(play("kills_and_cut", folder, mode, 1000, 500, shim=shim, deaths=KILLS, images=CUTS))


@pytest.mark.parametrize("kind", ["log", "managed"])
def test_power_loss_beside_compaction(folder: Path, shim: Path, kind: str, figure: Callable[[str], None]) -> None:
    """F40: of each key the newest flushed record outlives kills and power cuts at each step of a compaction."""
    figure(play("compactions", folder, kind, 10, 5, shim=shim, deaths=3, images=26))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["log", "managed"])
def test_power_loss_beside_hundreds_of_compactions(
    folder: Path, shim: Path, kind: str, figure: Callable[[str], None]
) -> None:
    figure(play("compactions", folder, kind, 1000, 560, shim=shim, deaths=KILLS, images=CUTS))


def test_power_loss_of_the_index_of_aborted_transactions(
    folder: Path, shim: Path, figure: Callable[[str], None]
) -> None:
    """Killed while compaction merges segments: what was aborted stays unseen, whichever names of files are lost."""
    figure(play("swapped_transactions", folder, 7, 6, shim=shim, deaths=6, images=48))


@pytest.mark.long
def test_power_loss_of_hundreds_of_indexes_of_aborted_transactions(
    folder: Path, shim: Path, figure: Callable[[str], None]
) -> None:
    figure(play("swapped_transactions", folder, 1000, 340, shim=shim, deaths=KILLS, images=CUTS))


def test_power_loss_where_compaction_removes_markers(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    """Neither are committed records skipped, nor is a transaction open again whose marker has gone."""
    figure(play("removed_markers", folder, 7, 6, shim=shim, deaths=6, images=48))


@pytest.mark.long
def test_power_loss_where_compaction_removes_hundreds_of_markers(
    folder: Path, shim: Path, figure: Callable[[str], None]
) -> None:
    figure(play("removed_markers", folder, 1000, 340, shim=shim, deaths=KILLS, images=CUTS))


def test_power_loss_of_brokers(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    """Topics and flushed records, with checkpoints and the store: killed as it starts, creates, appends and stops."""
    figure(play("broker_power_loss", folder, 0, 5, shim=shim, deaths=3, images=10))


@pytest.mark.long
def test_power_loss_of_hundreds_of_brokers(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    figure(play("broker_power_loss", folder, 1000, 200, shim=shim, deaths=101, images=400))


@pytest.mark.long
def test_power_loss_of_hundreds_of_moves_between_log_directories(
    folder: Path, shim: Path, figure: Callable[[str], None]
) -> None:
    """Killed and cut off while replicas move under load: one directory has each, with all that was flushed."""
    figure(play("move_power_loss", folder, 1000, 200, shim=shim, deaths=101, images=400))


def test_power_loss_of_work_queues(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    """Of a queue whose processes are killed: what was acknowledged durably stays done, what was not is delivered."""
    figure(play("queue_power_loss", folder, 0, 3, shim=shim, deaths=2, images=6))


@pytest.mark.long
def test_power_loss_of_hundreds_of_work_queues(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    figure(play("queue_power_loss", folder, 1000, 350, shim=shim, deaths=KILLS, images=CUTS))


@pytest.mark.parametrize("kind", ["cursor", "group"])
def test_power_loss_of_cursors(folder: Path, shim: Path, kind: str, figure: Callable[[str], None]) -> None:
    """A committed offset is neither before a durable commit nor one that nobody committed, and what is read on from it
    is what was not read."""
    figure(play("cursor_power_loss", folder, kind, 0, 4, shim=shim, deaths=5, images=8))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cursor", "group"])
def test_power_loss_of_hundreds_of_cursors(folder: Path, shim: Path, kind: str, figure: Callable[[str], None]) -> None:
    figure(play("cursor_power_loss", folder, kind, 1000, 350, shim=shim, deaths=KILLS, images=CUTS))


def test_power_loss_of_schema_files(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    """A schema that was registered keeps its number, which no other gets, whatever call of its writer was the last."""
    figure(play("schema_power_loss", folder, 30, 16, shim=shim, deaths=9, images=96))


@pytest.mark.long
def test_power_loss_of_hundreds_of_schema_files(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    figure(play("schema_power_loss", folder, 1000, 400, shim=shim, deaths=KILLS, images=CUTS))


@pytest.mark.parametrize("kind", TABLES)
def test_power_loss_of_tables(folder: Path, shim: Path, kind: str, figure: Callable[[str], None]) -> None:
    """A table has what the log has, which may have lost what the table's file or snapshot has applied, and have others
    in their place; of a file the last transaction alone may be lost, of a snapshot nothing that was saved."""
    pytest.importorskip("lmdb", reason="needs lmdb, the extra `tables`")
    figure(play("table_power_loss", folder, kind, 0, 6, shim=shim, deaths=6, images=24))


@pytest.mark.long
@pytest.mark.parametrize("kind", TABLES)
def test_power_loss_of_hundreds_of_tables(folder: Path, shim: Path, kind: str, figure: Callable[[str], None]) -> None:
    pytest.importorskip("lmdb", reason="needs lmdb, the extra `tables`")
    figure(play("table_power_loss", folder, kind, 1000, 350, shim=shim, deaths=KILLS, images=CUTS))


@pytest.mark.long
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
