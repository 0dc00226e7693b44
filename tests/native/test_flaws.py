"""Known flaws of the base design that the log itself must not have: F11, F25 and F31, each by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native import batch
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog.errors import OutOfOrderSequenceError
from kreplog.types import TopicPartition
from tests.faults import shim as faults

ROOT = Path(__file__).parents[2]
CONFIG = LogConfig(replicated=True)
EPOCHS = "leader-epoch-checkpoint"

WRITER = """
import errno, sys
from kreplog import Log, LogConfig
from kreplog.errors import StorageError
from tests.faults import shim

path, nth = sys.argv[1], int(sys.argv[2])
log = Log.open(path, LogConfig(replicated=True))
log.assign_leader_epoch(1)
library = shim.Shim()
library.arm(shim.SYNC | shim.RENAME, path, nth, errno.EIO)
try:
    log.assign_leader_epoch(2)
    print("done", library.disarm()[0])
except StorageError:
    print("failed", library.disarm()[0])
"""


def sequenced(sequence: int, *values: bytes, producer_id: int = 7, offset: int = 0, epoch: int = 0) -> bytes:
    return batch.build(
        values,
        timestamps_ms=[1000] * len(values),
        base_offset=offset,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )


def abandon(log: Log, path: Path, to: Path) -> Path:
    """What a kill would have left of the log's data directory, while the log goes on."""
    to.mkdir()
    for source in sorted(path.parent.rglob("*")):
        target = to / source.relative_to(path.parent)
        if source.is_dir():
            target.mkdir()
        else:
            target.write_bytes(source.read_bytes())
    assert not log.closed
    return to / path.name


# --- F11: leader-epoch file corrupted on power loss (KAFKA-16541) ---------------------------------------------------


def test_f11_a_torn_epoch_file_is_rebuilt_from_the_batches(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with Log.open(path, CONFIG) as log:
        for epoch in (1, 4, 9):
            log.append_batches(sequenced(-1, b"v", producer_id=-1), epoch)
        want = log.leader_epochs
        log.flush()
        killed = abandon(log, path, tmp_path / "killed")
    assert want == [(1, 0), (4, 1), (9, 2)]
    whole = (killed / EPOCHS).read_bytes()
    damaged = [whole[:end] for end in range(len(whole))] + [b"\0" * len(whole), b"0\n1\n9 0\n"]
    for number, content in enumerate(damaged):
        (killed / EPOCHS).write_bytes(content)
        with Log.open(killed, CONFIG, read_only=False) as log:
            assert log.leader_epochs == want, f"case {number}: {content!r}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs LD_PRELOAD")
def test_f11_every_step_of_writing_the_epoch_file_is_made_durable(tmp_path: Path) -> None:
    """The file is fsynced, renamed, and its directory fsynced; a step that fails is not passed over, and whatever the
    step, the file is whole."""
    library = faults.build(tmp_path)
    environment = dict(os.environ, LD_PRELOAD=str(library), PYTHONPATH=str(ROOT))
    outputs = []
    for nth in range(1, 5):
        path = tmp_path / str(nth) / "t-0"
        path.parent.mkdir()
        command = [sys.executable, "-c", WRITER, str(path), str(nth)]
        outputs.append(
            subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
        )
        assert (path / EPOCHS).read_text() in ("0\n1\n1 0\n", "0\n1\n2 0\n", "0\n2\n1 0\n2 0\n")
    assert [outcome for outcome, _ in outputs] == ["failed", "failed", "failed", "done"], outputs
    assert outputs[-1] == ["done", "3"]


# --- F25: producer state --------------------------------------------------------------------------------------------


def many_segments(path: Path) -> tuple[Log, list[bytes]]:
    """Two producers by turns, three batches a segment, so that snapshots stand at several offsets."""
    log = Log.open(path, CONFIG)
    written = []
    for number in range(20):
        encoded = sequenced(number // 2 * 2, b"a", b"b", producer_id=7 + number % 2)
        log.append_batches(encoded, 1)
        written.append(encoded)
        if number % 3 == 2:
            log.roll()
    return log, written


def spoil_nothing(_snapshots: list[Path]) -> None:
    pass


def remove_all(snapshots: list[Path]) -> None:
    for snapshot in snapshots:
        snapshot.unlink()


def cut_newest(snapshots: list[Path]) -> None:
    newest = snapshots[-1]
    newest.write_bytes(newest.read_bytes()[:-3])


def take_it_for_an_older_one(snapshots: list[Path]) -> None:
    """A snapshot that knows of records past its own offset (KAFKA-6683)."""
    snapshots[0].write_bytes(snapshots[-1].read_bytes())
    for snapshot in snapshots[1:]:
        snapshot.unlink()


@pytest.mark.parametrize("spoil", [spoil_nothing, remove_all, cut_newest, take_it_for_an_older_one])
def test_f25_the_state_is_that_of_the_log_whatever_the_snapshots_say(
    tmp_path: Path, spoil: Callable[[list[Path]], None]
) -> None:
    """KAFKA-5435, KAFKA-5747, KAFKA-6683, KAFKA-9892."""
    path = tmp_path / "t-0"
    log, written = many_segments(path)
    with log:
        killed = abandon(log, path, tmp_path / "killed")
    snapshots = sorted(killed.glob("*.snapshot"))
    assert len(snapshots) >= 5
    spoil(snapshots)
    with Log.open(killed, CONFIG) as log:
        for number in (18, 19):  # Kafka's snapshots have the last batch of each producer
            info = log.append_batches(written[number], 1)
            assert (info.duplicate, info.first_offset) == (True, number * 2)
        assert not log.append_batches(sequenced(20, b"c"), 1).duplicate
        with pytest.raises(OutOfOrderSequenceError):
            log.append_batches(sequenced(22, b"d", producer_id=8), 1)


def test_f25_truncation_rolls_it_back(tmp_path: Path) -> None:
    """KAFKA-12153: wherever it is cut, the log answers as if what was cut had never been there."""
    for end in (0, 2, 8, 14, 20, 32, 38, 40):
        log, written = many_segments(tmp_path / f"cut-{end}")
        with log:
            assert log.truncate_to(end) == end
            for number in range(end // 2, 20):
                assert not log.append_batches(written[number], 1).duplicate
            assert log.log_end_offset == 40
            assert log.append_batches(written[-1], 1).duplicate


def test_f25_a_follower_accepts_what_its_leader_accepted(tmp_path: Path) -> None:
    """KAFKA-6003: it begins in the middle, without any state, and knows retries from then on."""
    with Log.open(tmp_path / "t-0", CONFIG) as log:
        log.truncate_fully_and_start_at(100)
        log.append_as_follower(sequenced(40, b"a", b"b", offset=100, epoch=3))
        assert log.append_batches(sequenced(40, b"a", b"b"), 4).first_offset == 100
        assert log.append_batches(sequenced(42, b"c"), 4).first_offset == 102


def test_f25_a_follower_whose_append_rolls_remembers_all_of_it(tmp_path: Path) -> None:
    """The snapshot written half-way through an append knows the producers of the half that is written."""
    fetched = [sequenced(number, b"v" * 300, offset=number, producer_id=7) for number in range(8)]
    path = tmp_path / "t-0"
    with Log.open(path, LogConfig(segment_bytes=1024, producer_id_expiration_ms=1 << 50)) as log:
        log.append_as_follower(fetched[0])
        log.append_as_follower(b"".join(fetched[1:]))
        assert len(log.segments) > 2
        killed = abandon(log, path, tmp_path / "killed")
    with Log.open(killed, CONFIG) as log:
        for number in range(3, 8):
            info = log.append_batches(sequenced(number, b"v" * 300, producer_id=7), 1)
            assert (info.duplicate, info.first_offset) == (True, number)


def test_f25_retention_of_its_last_batch_does_not_put_a_producer_out_of_order(tmp_path: Path) -> None:
    """KAFKA-7298, KIP-360: also after a restart that finds only what was kept."""
    path = tmp_path / "t-0"
    with Log.open(path, CONFIG) as log:
        log.append_batches(sequenced(0, b"a", b"b"), 1)
        log.roll()
        log.append_batches(sequenced(0, b"x", producer_id=9), 1)
        log.advance_high_watermark(3)
        assert log.delete_records_before(3) == 3
        killed = abandon(log, path, tmp_path / "killed")
        assert log.append_batches(sequenced(2, b"c"), 1).first_offset == 3
    with Log.open(killed, CONFIG) as log:
        assert log.append_batches(sequenced(2, b"c"), 1).first_offset == 3


# --- F31: high watermark checkpoints lost on hard kills (KAFKA-1647, KAFKA-10664) -----------------------------------


def test_f31_a_checkpoint_never_drops_a_partition_that_is_on_disk(tmp_path: Path) -> None:
    """A process that opens only one of the partitions, as a broker whose leaders are down, keeps what is known of the
    others; a checkpoint that cannot be read is replaced, and the watermarks come from the logs' own pages."""
    paths = [tmp_path / name for name in ("t-0", "t-1")]
    for path in paths:
        with Log.open(path, CONFIG) as log:
            log.append_batches(sequenced(0, b"a", b"b", b"c"), 1)
            log.advance_high_watermark(2)
    checkpoint = OffsetCheckpoint(str(tmp_path / "replication-offset-checkpoint"))
    both = {TopicPartition("t", 0): 2, TopicPartition("t", 1): 2}
    assert checkpoint.read() == both
    with Log.open(paths[0], CONFIG) as log:
        log.advance_high_watermark(3)
    assert checkpoint.read() == {**both, TopicPartition("t", 0): 3}
    Path(checkpoint.path).write_bytes(b"0\n7\nt 1")
    for path, watermark in zip(paths, (3, 2), strict=True):
        with Log.open(path, CONFIG) as log:
            assert log.high_watermark == watermark
    assert checkpoint.read() == {**both, TopicPartition("t", 0): 3}
