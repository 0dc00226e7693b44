"""Moves of replicas between log directories while the broker runs, and what a start finds of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kreplog.config import TopicConfig
from kreplog.core import effects
from kreplog.core.events import CopyCaughtUp, Flushed
from kreplog.core.messages import TransactionMarker
from kreplog.errors import DiskFullError, ErrorCode, LogFailedError, OutOfOrderSequenceError, StorageError
from kreplog.managed_log import OffsetCheckpoint, build, write_topic_id
from kreplog.server.runtime.runners import InThread
from kreplog.server.storage import replica_moves
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.log_manager import LogManager
from kreplog.server.storage.replica import ReplicaMove
from kreplog.syncing import sync_directory
from kreplog.types import AppendInfo, TopicPartition
from tests.server.loop import run, until
from tests.server.storage.life import ID, OTHER_ID, TP, Life, opened


class Moving:
    """A broker's logs in three directories, with what the replication core does about moves. step: held by one step of
    the core at a time."""

    def __init__(self, life: Life, *names: str) -> None:
        self.life = life
        self.logs: LogManager = life.open(*(names or ("a", "b", "c")))
        self.step = asyncio.Lock()
        self.log_dirs = [str(directory.path) for directory in self.logs.hosted.directories]

    def path(self, name: str) -> str:
        return str(self.life.root / name)

    async def alter(self, name: str, partition: TopicPartition = TP) -> ErrorCode:
        return await self.logs.moves.alter(partition, self.path(name), self.log_dirs)

    async def core(self) -> None:
        """Take the events of moves, one at a time."""
        while True:
            events, self.life.events[:] = list(self.life.events), []
            for event in events:
                if isinstance(event, CopyCaughtUp):
                    async with self.step:
                        if await self.effect(effects.ReplaceLog(event.partition)) is not None:
                            await self.effect(effects.SyncReplacement(event.partition))
                else:
                    self.life.events.append(event)
            await asyncio.sleep(0.001)  # events come from threads, which signal nothing

    async def effect(self, effect: effects.Effect) -> object:
        answer = self.logs.execute(effect)
        if isinstance(answer, InThread):
            await asyncio.wait([asyncio.wrap_future(answer.future)])
            return answer.finish()
        return answer

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def with_core() -> None:
            tasks = asyncio.create_task(self.core()), asyncio.ensure_future(work())
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            tasks[0].cancel()
            await until(lambda: self.logs.hosted.background.idle)

        run(with_core)

    def place(self, partition: TopicPartition = TP) -> str:
        replica = self.logs.hosted.get(partition)
        assert replica is not None
        return replica.directory.path.name

    async def moved_to(self, name: str) -> None:
        """Until the replica is there, under its own name alone."""
        await until(lambda: self.place() == name and list(names(self.life.root)) == [f"{name}/topic-0"])


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob("*/topic-*"))


def append(logs: LogManager, count: int = 1, epoch: int = 0) -> None:
    for _ in range(count):
        end = logs.hosted.of(TP).log.log_end_offset
        keys: list[bytes | None] = [b"%d" % end, b"%d" % (end + 1)]
        logs.execute(effects.AppendAsLeader(TP, build([b"%d" % end, bytes(500)], keys=keys), epoch))
        logs.execute(effects.AdvanceHighWatermark(TP, end + 2))


def cleaner_checkpoint(directory: Path) -> dict[TopicPartition, int]:
    return dict(OffsetCheckpoint(str(directory / "cleaner-offset-checkpoint")).read())


def content(logs: LogManager) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in logs.hosted.of(TP).log.read()]


@pytest.fixture
def moving(life: Life) -> Moving:
    return Moving(life)


def test_a_replica_moves_with_all_that_belongs_to_it(moving: Moving) -> None:
    async def work() -> None:
        opened(moving.logs)
        append(moving.logs, 5)
        moving.logs.execute(effects.AssignLeaderEpoch(TP, 4))
        await moving.logs.write_checkpoints()
        before, records = moving.logs.hosted.of(TP).state, content(moving.logs)
        assert await moving.alter("b") == ErrorCode.NONE
        await moving.moved_to("b")
        assert "topic 0 10" in (moving.life.root / "b" / "replication-offset-checkpoint").read_text()
        replica = moving.logs.hosted.of(TP)
        assert (replica.state, content(moving.logs)) == (before, records)
        assert replica.log.path == moving.path("b/topic-0") and replica.log.recovery_point == before.leo
        append(moving.logs, 3, epoch=4)
        moving.logs.execute(effects.TruncateTo(TP, 14))
        await moving.logs.write_checkpoints()

    moving.run(work)
    checkpoints = {name: (moving.life.root / name / "replication-offset-checkpoint").read_text() for name in "ab"}
    assert "topic 0 14" in checkpoints["b"] and "topic 0" not in checkpoints["a"]
    records = content(moving.logs)
    assert moving.logs.close()
    again = Moving(moving.life)
    assert opened(again.logs).state == effects.LogState(14, 0, ((0, 0), (4, 10)))
    assert (again.place(), content(again.logs)) == ("b", records)
    moving.life.crash()


def test_transactions_and_sequence_numbers_go_on(moving: Moving) -> None:
    def produce(producer: int, sequence: int, transactional: bool) -> tuple[AppendInfo, effects.LogState]:
        records = build(
            [b"x"],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        answer: tuple[AppendInfo, effects.LogState] = moving.logs.execute(
            effects.AppendAsLeader(TP, records, 0, transactional=transactional, verified_by=0)
        )
        return answer

    def end(producer: int, committed: bool) -> None:
        marker = TransactionMarker(producer, 0, committed, 0)
        _, state = moving.logs.execute(effects.AppendMarker(TP, marker, 0))
        moving.logs.execute(effects.AdvanceHighWatermark(TP, state.leo))

    async def work() -> None:
        opened(moving.logs)
        produce(1, 0, False)
        produce(7, 0, True)
        end(7, False)
        produce(8, 0, True)  # goes on
        moving.logs.execute(effects.AdvanceHighWatermark(TP, 4))
        before = moving.logs.hosted.of(TP).state
        aborted = moving.logs.execute(effects.ReadStable(TP, 0, 3, 1 << 20))[1]
        producers = moving.logs.hosted.of(TP).log.active_producers()
        await moving.alter("b")
        await moving.moved_to("b")
        assert moving.logs.hosted.of(TP).state == before and before.first_unstable == 3
        assert moving.logs.execute(effects.ReadStable(TP, 0, 3, 1 << 20))[1] == aborted == ((7, 1),)
        assert moving.logs.hosted.of(TP).log.active_producers() == producers
        assert produce(1, 0, False)[0].duplicate
        with pytest.raises(OutOfOrderSequenceError):
            produce(1, 5, False)
        end(8, True)
        assert moving.logs.hosted.of(TP).state.first_unstable is None

    moving.run(work)
    assert moving.logs.close()


def test_each_rename_is_durable_before_what_depends_on_it(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit before anything is appended to the copy, its name before the old replica is deleted."""
    root, right = moving.life.root, sync_directory
    synced: list[tuple[str, list[str]]] = []

    def noted(path: Path) -> None:
        synced.append((path.name, [name.rpartition("-")[2] for name in names(root)]))
        right(path)

    monkeypatch.setattr(replica_moves, "sync_directory", noted)

    async def work() -> None:
        opened(moving.logs)
        append(moving.logs)
        await moving.alter("b")
        await moving.moved_to("b")

    moving.run(work)
    assert synced[-3:] == [("b", ["0", "future"]), ("a", ["delete", "future"]), ("b", ["delete", "0"])]


def test_what_is_appended_and_truncated_meanwhile_is_in_the_copy(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_moves, "PIECE_BYTES", 1)

    async def work() -> None:
        opened(moving.logs)
        append(moving.logs, 50)
        assert await moving.alter("b") == ErrorCode.NONE
        for epoch in range(1, 6):
            move = moving.logs.hosted.moves[TP]
            reached = move.log.log_end_offset + 4
            await until(lambda reached=reached, move=move: move.log.log_end_offset >= reached)  # type: ignore[misc]
            moving.logs.execute(effects.TruncateTo(TP, move.log.log_end_offset - 2))
            append(moving.logs, 20, epoch)
        expected = content(moving.logs), moving.logs.hosted.of(TP).state
        await moving.moved_to("b")
        assert (content(moving.logs), moving.logs.hosted.of(TP).state) == expected

    moving.run(work)
    assert moving.logs.close()


def test_a_log_that_starts_within_a_batch_is_copied_from_there(moving: Moving) -> None:
    async def work() -> None:
        opened(moving.logs)
        append(moving.logs, 5)
        moving.logs.execute(effects.DeleteRecordsBefore(TP, 5))
        assert await moving.alter("b") == ErrorCode.NONE
        await moving.moved_to("b")
        assert [offset for offset, _ in content(moving.logs)] == [5, 6, 7, 8, 9]

    moving.run(work)
    moving.life.crash()
    again = Moving(moving.life)
    assert opened(again.logs).state.log_start == 5
    moving.life.crash()


def test_retention_of_the_replica_reaches_the_copy(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "PIECE_BYTES", 1)

    async def work() -> None:
        opened(moving.logs)
        append(moving.logs, 20)
        await moving.alter("b")
        await until(lambda: moving.logs.hosted.moves[TP].log.log_end_offset >= 8)
        moving.logs.execute(effects.DeleteRecordsBefore(TP, 30))
        await moving.moved_to("b")
        assert moving.logs.hosted.of(TP).log.log_start_offset == 30

    moving.run(work)
    assert moving.logs.close()


def test_a_request_for_the_present_directory_cancels_and_another_redirects(moving: Moving) -> None:
    async def work() -> None:
        opened(moving.logs)
        append(moving.logs, 20)
        moving.logs.moves.rate = 1  # the copy of a batch takes minutes
        assert await moving.alter("b") == ErrorCode.NONE
        await until(lambda: moving.logs.hosted.moves[TP].log.log_end_offset > 0)
        assert [name.partition(".")[0] for name in names(moving.life.root)] == ["a/topic-0", "b/topic-0"]
        moving.logs.moves.rate = replica_moves.NO_RATE
        assert await moving.alter("a") == ErrorCode.NONE
        await until(lambda: names(moving.life.root) == ["a/topic-0"])
        moving.logs.moves.rate = 1
        assert await moving.alter("b") == ErrorCode.NONE
        assert await moving.alter("b") == ErrorCode.NONE
        assert len(names(moving.life.root)) == 2, "it goes on"
        moving.logs.moves.rate = replica_moves.NO_RATE
        assert await moving.alter("c") == ErrorCode.NONE
        await moving.moved_to("c")

    moving.run(work)
    assert moving.logs.close()


@pytest.mark.parametrize("changed", [False, True])
def test_a_copy_is_compacted_as_far_as_the_replica(moving: Moving, changed: bool) -> None:
    """Whether the compaction has removed records, or found that there were none to remove."""

    async def work() -> None:
        moving.logs.execute(effects.OpenLog(TP, ID, TopicConfig(cleanup_policy="compact", segment_bytes=1000)))
        append(moving.logs, 10)
        if changed:
            moving.logs.execute(effects.AppendAsLeader(TP, build([b"newer"], keys=[b"3"]), 0))
            moving.logs.execute(effects.AdvanceHighWatermark(TP, 21))
        log = moving.logs.hosted.of(TP).log
        log.roll()
        report = log.compact()
        assert report is not None and (report.bytes_after < report.bytes_before) == changed
        records = content(moving.logs)
        await moving.alter("b")
        await moving.moved_to("b")
        copy = moving.logs.hosted.of(TP).log
        copy.roll()
        backlog = copy.compaction_backlog(0)
        assert (backlog.clean_bytes, backlog.dirty_bytes) == (copy.size, 0)
        append(moving.logs)
        copy.roll()
        assert 0 < copy.compaction_backlog(0).dirty_bytes < copy.size / 3
        assert content(moving.logs)[:-2] == records
        await moving.logs.write_checkpoints()
        entries = {name: cleaner_checkpoint(moving.life.root / name) for name in "ab"}
        assert entries == {"a": {}, "b": {TP: 21 if changed else 20}}

    moving.run(work)
    assert moving.logs.close()


def test_a_copy_that_never_takes_over_leaves_no_cleaner_checkpoint(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the entry of an earlier partition of the name count for a copy."""
    monkeypatch.setattr(replica_moves, "PIECE_BYTES", 1)
    root, other = moving.life.root, TopicPartition("other", 0)

    async def work() -> None:
        (root / "b" / "cleaner-offset-checkpoint").write_text("0\n2\nother 0 5\ntopic 0 1000\n")
        (root / "b" / "other-0").mkdir()
        moving.logs.execute(effects.OpenLog(TP, ID, TopicConfig(cleanup_policy="compact", segment_bytes=1000)))
        append(moving.logs, 20)
        log = moving.logs.hosted.of(TP).log
        log.roll()
        log.compact()
        moving.logs.moves.rate = 1  # the copy of the second batch takes minutes
        await moving.alter("b")
        copy = moving.logs.hosted.moves[TP].log
        await until(lambda: copy.log_end_offset > 0)
        assert cleaner_checkpoint(root / "b") == {other: 5}
        copy.copy_cleaner_checkpoint(log)
        assert cleaner_checkpoint(root / "b") == {other: 5}, "beyond its end"
        log.truncate_to(copy.log_end_offset)
        copy.copy_cleaner_checkpoint(log)
        await moving.logs.write_checkpoints()
        assert cleaner_checkpoint(root / "b") == {other: 5, TP: copy.log_end_offset} and copy.log_end_offset < 40
        await moving.alter("a")
        moving.logs.moves.rate = replica_moves.NO_RATE
        await until(lambda: names(root) == ["a/topic-0"])
        await moving.logs.write_checkpoints()
        assert cleaner_checkpoint(root / "b") == {other: 5}

    moving.run(work)
    assert moving.logs.close()


def test_requests_that_are_refused(moving: Moving) -> None:
    async def work() -> None:
        opened(moving.logs)
        assert await moving.alter("elsewhere") == ErrorCode.LOG_DIR_NOT_FOUND
        long = TopicPartition("t" * 220, 0)
        assert await moving.alter("b", long) == ErrorCode.INVALID_TOPIC_EXCEPTION
        moving.logs.hosted.directories[1].failed = True
        assert await moving.alter("b") == ErrorCode.KAFKA_STORAGE_ERROR
        moving.log_dirs.append(moving.path("missing"))
        assert await moving.alter("missing") == ErrorCode.KAFKA_STORAGE_ERROR
        (moving.life.root / "c" / "topic-0").mkdir()
        assert await moving.alter("c") == ErrorCode.KAFKA_STORAGE_ERROR

    moving.run(work)
    moving.life.crash()


def test_a_replica_that_is_not_there_yet_is_created_where_it_was_to_move(moving: Moving) -> None:
    async def work() -> None:
        assert await moving.alter("c") == ErrorCode.REPLICA_NOT_AVAILABLE
        opened(moving.logs)
        assert moving.place() == "c"

    moving.run(work)
    moving.life.crash()


@pytest.mark.parametrize("effect", [effects.DeleteLog(TP), effects.SetAsideStray(TP)])
def test_a_replica_that_goes_takes_its_copy_along(moving: Moving, effect: effects.Effect) -> None:
    async def work() -> None:
        opened(moving.logs)
        append(moving.logs, 20)
        moving.logs.moves.rate = 1
        await moving.alter("b")
        await until(lambda: moving.logs.hosted.moves[TP].log.log_end_offset > 0)
        moving.logs.execute(effect)
        moving.logs.moves.rate = replica_moves.NO_RATE
        await until(lambda: not list(moving.life.root.glob("b/topic-*")))
        assert not moving.logs.hosted.moves
        opened(moving.logs, OTHER_ID)

    moving.run(work)
    moving.life.crash()


def test_a_full_target_ends_the_move_alone(
    moving: Moving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: ReplicaMove) -> replica_moves.CopiedPiece:
        raise LogFailedError("topic-0: no space left") from DiskFullError("No space left on device")

    monkeypatch.setattr(replica_moves, "_copy_piece", full)

    async def work() -> None:
        opened(moving.logs)
        append(moving.logs)
        with caplog.at_level(logging.ERROR, "kreplog.server"):
            await moving.alter("b")
            await until(lambda: names(moving.life.root) == ["a/topic-0"])
        append(moving.logs)
        assert not any(directory.failed for directory in moving.logs.hosted.directories)

    moving.run(work)
    (line,) = [record.message for record in caplog.records if record.name == "kreplog.server"]
    assert line == (
        f"topic-0: its move to {moving.path('b')} is given up, and the replica stays in {moving.path('a')}: "
        "topic-0: no space left"
    )
    assert moving.logs.close()


def test_a_log_directory_that_fails_ends_the_moves_into_it(moving: Moving) -> None:
    async def work() -> None:
        opened(moving.logs)
        append(moving.logs, 20)
        moving.logs.moves.rate = 1
        await moving.alter("b")
        await until(lambda: moving.logs.hosted.moves[TP].log.log_end_offset > 0)
        moving.logs.hosted.directories[1].fail(StorageError("broken"), [])
        moving.logs.moves.rate = replica_moves.NO_RATE
        await until(lambda: not moving.logs.hosted.moves)
        append(moving.logs)
        assert moving.place() == "a"

    moving.run(work)
    moving.life.crash()


def test_a_flush_that_is_requested_before_the_end_of_a_move_is_answered(moving: Moving) -> None:
    async def work() -> None:
        opened(moving.logs)
        append(moving.logs, 20)
        await moving.alter("b")
        ends = []
        while moving.place() == "a":
            async with moving.step:
                append(moving.logs)
                moving.logs.execute(effects.Flush(TP))
            ends.append(moving.logs.hosted.of(TP).log.log_end_offset)
            await until(lambda: any(e.recovery_point >= ends[-1] for e in moving.life.events if isinstance(e, Flushed)))

    moving.run(work)
    assert moving.logs.close()


def test_a_replica_is_not_compacted_while_it_is_copied(moving: Moving) -> None:
    """The copy would keep a record whose tombstone is gone before it is copied."""

    async def work() -> None:
        moving.logs.execute(effects.OpenLog(TP, ID, TopicConfig(cleanup_policy="compact")))
        assert [replica.directory.path.name for replica in moving.logs.cleaner._compacting()] == ["a"]
        moving.logs.moves.rate = 1
        await moving.alter("b")
        assert moving.logs.cleaner._compacting() == []
        moving.logs.moves.rate = replica_moves.NO_RATE
        await moving.moved_to("b")
        assert [replica.directory.path.name for replica in moving.logs.cleaner._compacting()] == ["b"]

    moving.run(work)
    assert moving.logs.close()


# Starts


def make_copy(root: Path, copy_id: str = "0" * 32) -> Path:
    path = root / "b" / f"topic-0.{copy_id}-future"
    path.mkdir(parents=True)
    write_topic_id(str(path), ID)
    return path


def test_a_start_drops_a_copy_that_was_not_committed(life: Life, batch: bytes) -> None:
    logs = life.open("a", "b")
    opened(logs)
    life.crash()
    make_copy(life.root)
    (life.root / "a" / f"topic-0.{'1' * 32}-delete").mkdir()
    logs = life.open("a", "b")
    assert names(life.root) == ["a/topic-0"] and logs.hosted.topic_ids() == {TP: ID}
    life.crash()


def test_a_start_finishes_a_move_that_was_committed(life: Life, batch: bytes) -> None:
    make_copy(life.root)
    (life.root / "a" / f"topic-0.{'0' * 32}-delete").mkdir(parents=True)
    logs = life.open("a", "b")
    assert names(life.root) == ["b/topic-0"] and logs.hosted.topic_ids() == {TP: ID}
    assert opened(logs).state.leo == 0
    life.crash()


def test_a_start_without_one_of_the_directories_neither_finishes_nor_deletes(life: Life) -> None:
    """The commit, or the copy, may be in the one that is missing."""
    make_copy(life.root)
    (life.root / "a" / f"topic-0.{'0' * 32}-delete").mkdir(parents=True)
    before = names(life.root)
    for present in ("a", "b"):
        logs = life.open(present, complete=False)
        assert names(life.root) == before and not logs.hosted.topic_ids()
        with pytest.raises(StorageError, match="could not"):
            opened(logs)
        life.crash()
    assert life.open("a", "b").hosted.topic_ids() == {TP: ID}
    life.crash()


def test_a_move_that_cannot_be_finished_at_the_start_leaves_both(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    make_copy(life.root)
    replaced = life.root / "a" / f"topic-0.{'0' * 32}-delete"
    replaced.mkdir(parents=True)
    write_topic_id(str(replaced), ID)

    def broken(*_: object) -> Path:
        raise StorageError("cannot be renamed")

    with monkeypatch.context() as patched:
        patched.setattr(DataDirectory, "adopt", broken)
        logs = life.open("a", "b")
        with pytest.raises(StorageError, match="cannot be renamed"):
            opened(logs)
        life.crash()
    assert life.open("a", "b").hosted.topic_ids() == {TP: ID}
    assert names(life.root) == ["b/topic-0"]
    life.crash()


def test_a_symbolic_link_is_no_copy(life: Life, tmp_path: Path) -> None:
    (life.root / "b").mkdir()
    (tmp_path / "outside").mkdir()
    (life.root / "b" / f"topic-0.{'0' * 32}-future").symlink_to(tmp_path / "outside")
    (life.root / "a" / f"topic-0.{'0' * 32}-delete").mkdir(parents=True)
    assert not life.open("a", "b").hosted.topic_ids()
    life.crash()
