"""Where micro-batches end and what they read: the rules of a stream over real logs, without Spark."""

from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import kreplog
from kreplog.errors import KreplogError, OffsetOutOfRangeError, StorageError, UsageError
from pyspark_kreplog.leader_epochs import end_of_shared_log, epoch_before
from pyspark_kreplog.options import parse_stream
from pyspark_kreplog.stream_planner import StreamPlanner

DAY = 1_700_000_000_000
IDS = ("AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg")
UUIDS = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002")


def fill(path: Path, count: int, topic_id: str = IDS[0]) -> None:
    """`count` more records, a millisecond apart, in batches of ten."""
    with kreplog.Log.open(path, kreplog.LogConfig(segment_bytes=4000, index_interval_bytes=1)) as log:
        for _ in range(0, count, 10):
            end = log.log_end_offset
            many = range(end, end + min(10, count))
            log.append_many([b"x" * 40 for _ in many], timestamps_ms=[DAY + offset for offset in many])
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


class Stream:
    """A query without Spark: offsets go through JSON text, as they do there."""

    def __init__(self, path: Path, **options: str) -> None:
        self.now_s = 0.0
        self.path = path
        self.options = {"path": str(path)} | options
        if not {"subscribe", "subscribePattern", "assign"} & options.keys():
            self.options |= {"subscribe": "t"}
        self.restart()

    def restart(self, **options: str) -> None:
        self.options |= options
        self.planner = StreamPlanner(parse_stream(self.options), lambda: self.now_s)

    def initial(self) -> str:
        return json.dumps(self.planner.initial_offset())

    def end(self, start: str, *, unlimited: bool = False) -> str:
        end = self.planner.end_of_batch(json.loads(start), unlimited=unlimited)
        return json.dumps(end)

    def ranges(self, start: str, end: str) -> list[tuple[str, int, int]]:
        tasks = self.planner.tasks(json.loads(start), json.loads(end), 2)
        return [(f"{task.topic}-{task.partition}", task.start, task.stop) for task in tasks]

    def first(self) -> tuple[str, list[tuple[str, int, int]]]:
        """The end of batch 0, and what the batch reads."""
        end = self.end(self.initial())
        return end, self.ranges(self.initial(), end)

    def following(self, start: str) -> tuple[str, list[tuple[str, int, int]]]:
        end = self.end(start)
        return end, self.ranges(start, end)


def offsets(text: str) -> dict[str, dict[str, int]]:
    return {topic: found for topic, found in json.loads(text).items() if topic != "@kreplog"}


def added_to(text: str) -> dict[str, Any]:
    """What stands below kreplog's own key, but for the incarnation ids, which are random."""
    added: dict[str, Any] = json.loads(text)["@kreplog"]
    return {name: value for name, value in added.items() if name != "incarnationIds"}


# Where a query starts


def test_offsets_are_those_of_kafka_and_topic_ids(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 20)
    fill(tmp_path / "t-1", 10)
    end, ranges = Stream(tmp_path, startingOffsets="earliest").first()
    added = {"topicIds": {"t": UUIDS[0]}, "leaderEpochs": {"t": 0}, "startedAt": {"t": {"0": 0, "1": 0}}}
    assert offsets(end) == {"t": {"0": 20, "1": 10}} and added_to(end) == added
    assert ranges == [("t-0", 0, 20), ("t-1", 0, 10)]


def test_partitions_of_embedded_logs_have_ids_of_their_own(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 10)
    fill(tmp_path / "t-1", 10, IDS[1])
    stream = Stream(tmp_path)
    end, _ = stream.first()
    assert json.loads(end)["@kreplog"]["topicIds"] == {"t": {"0": UUIDS[0], "1": UUIDS[1]}}
    fill(tmp_path / "t-1", 10, IDS[1])
    end, ranges = stream.following(end)
    assert ranges == [("t-1", 10, 20)]
    fill(tmp_path / "t-2", 10)
    (tmp_path / "t-2" / "partition.metadata").unlink()
    end, _ = stream.following(end)
    assert json.loads(end)["@kreplog"]["topicIds"] == {"t": {"0": UUIDS[0], "1": UUIDS[1]}}


def test_a_partition_without_a_topic_id(tmp_path: Path) -> None:
    """As Kafka wrote them before topic ids; a partition that gets one later was created again."""
    fill(tmp_path / "t-0", 10)
    fill(tmp_path / "t-1", 10)
    (tmp_path / "t-1" / "partition.metadata").unlink()
    stream = Stream(tmp_path)
    end, _ = stream.first()
    assert json.loads(end)["@kreplog"]["topicIds"] == {"t": {"0": UUIDS[0]}}
    assert stream.end(end) == end


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"0": 100, "1": 10}),
        ({"startingOffsets": "latest"}, {"0": 100, "1": 10}),
        ({"startingOffsets": "earliest"}, {"0": 0, "1": 0}),
        ({"startingOffsets": '{"t": {"0": -2, "1": -1}}'}, {"0": 0, "1": 10}),
        ({"startingOffsets": '{"t": {"0": 23, "1": 9}}'}, {"0": 23, "1": 9}),
        ({"startingTimestamp": str(DAY + 5)}, {"0": 5, "1": 5}),
        ({"startingOffsetsByTimestamp": f'{{"t": {{"0": {DAY + 70}, "1": {DAY}}}}}'}, {"0": 70, "1": 0}),
        ({"startingTimestamp": str(DAY + 50), "startingOffsetsByTimestampStrategy": "latest"}, {"0": 50, "1": 10}),
        ({"startingTimestamp": str(DAY + 7), "startingOffsets": "earliest"}, {"0": 7, "1": 7}),
    ],
)
def test_start(tmp_path: Path, options: dict[str, str], expected: dict[str, int]) -> None:
    fill(tmp_path / "t-0", 100)
    fill(tmp_path / "t-1", 10)
    end, ranges = Stream(tmp_path, **options).first()
    assert json.loads(end)["@kreplog"]["startedAt"] == {"t": expected}
    assert ranges == [
        (f"t-{number}", expected[number], stop) for number, stop in (("0", 100), ("1", 10)) if expected[number] < stop
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"t": {"0": 5}}'}, "option 'startingOffsets' must name every partition .* lacks t-1"),
        ({"startingOffsets": '{"t": {"0": 5, "1": 11}}'}, "t-1: offset 11 of startingOffsets does not exist"),
        ({"startingTimestamp": str(DAY + 50)}, "t-1: no committed record has a timestamp of .* startingTimestamp"),
    ],
)
def test_a_start_that_does_not_fit(tmp_path: Path, options: dict[str, str], message: str) -> None:
    fill(tmp_path / "t-0", 100)
    fill(tmp_path / "t-1", 10)
    with pytest.raises(UsageError, match=message):
        Stream(tmp_path, **options).first()


@pytest.mark.parametrize("options", [{}, {"startingTimestamp": str(DAY + 5)}, {"startingOffsets": '{"t": {"0": 10}}'}])
def test_batch_0_starts_at_the_same_offsets_after_a_crash(tmp_path: Path, options: dict[str, str]) -> None:
    """Its start is in no file but in the end of batch 0, which Spark writes before it plans the batch.

    Spark requests the initial offset again, when the options may fit no more: here there is another partition, and
    records as late as startingTimestamp are gone.
    """
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path, **options)
    end, ranges = stream.first()
    fill(tmp_path / "t-0", 10)
    fill(tmp_path / "t-1", 10)
    stream.restart(startingTimestamp=str(DAY + 10**6))
    assert stream.ranges(stream.initial(), end) == ranges
    assert stream.following(end)[1] == [("t-0", 10, 20), ("t-1", 0, 10)]


def test_an_end_of_batch_0_without_its_start_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path)
    with pytest.raises(KreplogError, match="does not contain where that batch starts: use a new checkpointLocation"):
        stream.ranges(stream.initial(), '{"t": {"0": 10}}')


def test_nothing_new_leaves_the_offset_as_it_is(tmp_path: Path) -> None:
    """To the letter: Spark compares texts, and would run an empty batch for each difference."""
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path)
    end, _ = stream.first()
    assert stream.end(end) == end
    fill(tmp_path / "t-0", 10)
    later = stream.end(end)
    assert "startedAt" not in later
    assert stream.end(later) == later
    stream.restart()
    assert stream.end(later) == later


def test_an_offset_of_the_kafka_source_is_taken_over(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 30)
    stream = Stream(tmp_path)
    end, ranges = stream.following('{"t": {"0": 23}}')
    assert ranges == [("t-0", 23, 30)]
    assert offsets(end) == {"t": {"0": 30}}
    assert added_to(end) == {"topicIds": {"t": UUIDS[0]}, "leaderEpochs": {"t": 0}}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"t": 1},
        {"t": {"0": -1}},
        {"t": {"0": True}},
        {"t": {"x": 1}},
        {"t/u": {"0": 1}},
        {"t": {"0": 1}, "@kreplog": 1},
        {"t": {"0": 1}, "@kreplog": {"topicIds": 1}},
        {"t": {"0": 1}, "@kreplog": {"topicIds": {"t": 1}}},
        {"@kreplog": {"startedAt": {"t": 1}}},
        {"logOffset": 5},
    ],
)
def test_offsets_of_other_sources_are_refused(tmp_path: Path, document: Any) -> None:
    fill(tmp_path / "t-0", 30)
    with pytest.raises(UsageError, match="is no offset of a kreplog stream"):
        Stream(tmp_path).end(json.dumps(document))


# Partitions and topics that come and go


def test_topics_that_do_not_exist_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are read from the beginning once they exist; until then one warning names them."""
    stream = Stream(tmp_path, subscribe="t,u")
    end, ranges = stream.first()
    assert (offsets(end), ranges) == ({}, [])
    assert stream.end(end) == end
    assert [record.message for record in caplog.records] == [
        f"there is no topic {topic} in {tmp_path} yet; it is read once it exists" for topic in "tu"
    ]
    fill(tmp_path / "t-0", 10)
    assert stream.following(end)[1] == [("t-0", 0, 10)]


@pytest.mark.parametrize(
    "choice",
    [{"subscribe": "t"}, {"subscribePattern": "t"}, {"assign": '{"t": [0, 1]}'}],
    ids=lambda choice: min(choice),
)
def test_a_new_partition_is_read_from_its_beginning(tmp_path: Path, choice: dict[str, str]) -> None:
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path, **choice)
    end, _ = stream.first()
    (tmp_path / "t-1").mkdir()
    assert stream.end(end) == end, "a directory that is being created holds no log yet"
    (tmp_path / "t-1").rmdir()
    fill(tmp_path / "t-1", 10)
    fill(tmp_path / "u-0", 10)
    fill(tmp_path / "__consumer_offsets-0", 10)
    _, ranges = stream.following(end)
    assert ranges == [("t-1", 0, 10)]


def test_a_new_partition_that_lost_its_first_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path)
    end, _ = stream.first()
    fill(tmp_path / "t-1", 20)
    with kreplog.Log.open(tmp_path / "t-1") as log:
        log.delete_records_before(15)
    loss = "t-1: offsets 0 to 15, of a partition that is new to this query, were deleted before they were read"
    with pytest.raises(OffsetOutOfRangeError, match=f"{loss}; the log now starts at 15") as raised:
        stream.end(end)
    assert (raised.value.partition, raised.value.offset) == ("t-1", 0)
    stream.restart(failOnDataLoss="false")
    assert stream.following(end)[1] == [("t-1", 15, 20)]
    assert loss in caplog.text


def test_a_partition_that_the_options_name_no_more(tmp_path: Path) -> None:
    for name in ("t-0", "u-0"):
        fill(tmp_path / name, 10)
    stream = Stream(tmp_path, subscribe="t,u", startingOffsets="earliest")
    end, ranges = stream.first()
    stream.restart(subscribe="t")
    with pytest.raises(OffsetOutOfRangeError, match=r"u-0: the partition is no longer among those that the options"):
        stream.end(end)
    assert stream.ranges(stream.initial(), end) == ranges, "a batch that runs again has the rows that it had"


def test_a_partition_that_vanished(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path / "t-0", 10)
    fill(tmp_path / "t-1", 10)
    stream = Stream(tmp_path, startingOffsets="earliest")
    end, ranges = stream.first()
    shutil.move(tmp_path / "t-1", tmp_path / "elsewhere")
    fill(tmp_path / "t-0", 10)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"t-1: the partition no longer exists; it was read up to offset 10"
    ):
        stream.end(end)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-1: offsets 0 to 10 are gone: the partition no longer exists"):
        stream.ranges(stream.initial(), end)
    stream.restart(failOnDataLoss="false")
    assert stream.ranges(stream.initial(), end) == ranges[:1]
    later, ranges = stream.following(end)
    assert ranges == [("t-0", 10, 20)]
    assert offsets(later) == {"t": {"0": 20, "1": 10}}, "the position remains known"
    assert stream.end(later) == later
    assert caplog.text.count("it was read up to offset 10") == 1
    shutil.move(tmp_path / "elsewhere", tmp_path / "t-1")
    fill(tmp_path / "t-1", 10)
    assert stream.following(later)[1] == [("t-1", 10, 20)]


@pytest.mark.parametrize("count", [0, 5, 10, 50])
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_topic_that_was_created_again(tmp_path: Path, count: int, fail_on_data_loss: str) -> None:
    """However many records the new one has: an error with both ids, since its offsets mean other records."""
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path, startingOffsets="earliest", failOnDataLoss=fail_on_data_loss)
    end, _ = stream.first()
    shutil.rmtree(tmp_path / "t-0")
    fill(tmp_path / "t-0", count, IDS[1])
    message = f"t-0: the topic was deleted and created again: its topic id was {UUIDS[0]} and is now {UUIDS[1]}: .*"
    for _ in range(2):
        with pytest.raises(KreplogError, match=message):
            stream.end(end)
        with pytest.raises(KreplogError, match=message):
            stream.ranges(stream.initial(), end)
        stream.restart()


# Records that are gone


def test_retention_past_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path)
    end, _ = stream.first()
    fill(tmp_path / "t-0", 90)
    later = stream.end(end)
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.delete_records_before(40)
    loss = "t-0: offsets 10 to 40 were deleted before they were read; the log now starts at 40"
    for plan in (lambda: stream.end(end), lambda: stream.ranges(end, later)):
        with pytest.raises(OffsetOutOfRangeError, match=f"{loss}. .*failOnDataLoss = false") as raised:
            plan()
        assert (raised.value.partition, raised.value.offset) == ("t-0", 10)
    stream.restart(failOnDataLoss="false", maxOffsetsPerTrigger="5")
    assert stream.ranges(end, later) == [("t-0", 40, 100)]
    assert stream.following(end)[1] == [("t-0", 40, 45)], "a limit counts from the first record that exists"
    assert loss in caplog.text


def replicated(path: Path, count: int, committed: int) -> kreplog.Log:
    log = kreplog.Log.open(path, kreplog.LogConfig(replicated=True))
    log.append_many([b"x"] * count)
    log.advance_high_watermark(committed)
    return log


def test_records_that_are_not_committed_are_not_read(tmp_path: Path) -> None:
    with replicated(tmp_path / "t-0", 10, 4) as log:
        stream = Stream(tmp_path, startingOffsets="earliest")
        end, ranges = stream.first()
        assert ranges == [("t-0", 0, 4)]
        log.advance_high_watermark(7)
        assert stream.following(end)[1] == [("t-0", 4, 7)]


def test_an_end_that_fell(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an unclean election: records that were read and committed are gone, others come in their place."""
    monkeypatch.setattr("pyspark_kreplog.log_directory.sleep", lambda seconds: None)
    fill(tmp_path / "t-0", 100)
    stream = Stream(tmp_path, startingOffsets="earliest")
    end, _ = stream.first()
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.truncate_fully_and_start_at(0)
        log.append_many([b"y"] * 30)
        with pytest.raises(OffsetOutOfRangeError, match="t-0: the log now ends at offset 30, below offset 100, read"):
            stream.end(end)
        with pytest.raises(OffsetOutOfRangeError, match="t-0: offsets 30 to 100, committed when the batch began, no"):
            stream.ranges(stream.initial(), end)
        stream.restart(failOnDataLoss="false")
        assert stream.ranges(stream.initial(), end) == [("t-0", 0, 30)]
        later, ranges = stream.following(end)
        assert (offsets(later), ranges) == ({"t": {"0": 30}}, [])
        assert "the log now ends at offset 30" in caplog.text
        log.append_many([b"y"] * 5)
        assert stream.following(later)[1] == [("t-0", 30, 35)]


def elect(log: kreplog.Log, epoch: int, count: int) -> None:
    """A leader of the epoch appends `count` records, which are committed."""
    log.assign_leader_epoch(epoch)
    log.append_many([b"epoch %d" % epoch] * count)
    log.advance_high_watermark(log.log_end_offset)


def test_a_truncated_log_that_grew_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Past the position, as after an unclean election between two batches: the leader epochs reveal it (KIP-320)."""
    with replicated(tmp_path / "t-0", 0, 0) as log:
        elect(log, 3, 10)
        elect(log, 5, 10)
        stream = Stream(tmp_path, startingOffsets="earliest")
        end, ranges = stream.first()
        assert json.loads(end)["@kreplog"]["leaderEpochs"] == {"t": 5}
        elect(log, 6, 10)
        later, _ = stream.following(end)
        assert json.loads(later)["@kreplog"]["leaderEpochs"] == {"t": 6}
        log.truncate_to(10)
        elect(log, 7, 40)
        for position in (end, later):
            with pytest.raises(OffsetOutOfRangeError, match=r"t-0: offsets 10 to .0, which were read, have been trunc"):
                stream.end(position)
        with pytest.raises(OffsetOutOfRangeError, match="t-0: offsets 10 to 20, committed when the batch began, no"):
            stream.ranges(stream.initial(), end)
        stream.restart(failOnDataLoss="false")
        assert stream.ranges(stream.initial(), end) == [("t-0", 0, 10)]
        back, ranges = stream.following(later)
        assert (offsets(back), ranges) == ({"t": {"0": 10}}, [])
        assert json.loads(back)["@kreplog"]["leaderEpochs"] == {"t": 3}
        assert stream.following(back)[1] == [("t-0", 10, 50)]
        assert "t-0: offsets 10 to 30, which were read, have been truncated and replaced by others" in caplog.text


def test_a_truncated_log_that_is_still_shorter(tmp_path: Path) -> None:
    """The query goes back to where the logs part, not to the end of the log, lest it skip the records in between."""
    with replicated(tmp_path / "t-0", 0, 0) as log:
        elect(log, 5, 30)
        stream = Stream(tmp_path, startingOffsets="earliest", failOnDataLoss="false")
        end, _ = stream.first()
        log.truncate_to(0)
        elect(log, 5, 10)
        elect(log, 7, 5)
        back, _ = stream.following(end)
        assert offsets(back) == {"t": {"0": 10}}
        assert stream.following(back)[1] == [("t-0", 10, 15)]


def test_bytes_while_retention_deletes(tmp_path: Path) -> None:
    """Under AvailableNow the fixed end stays, the start moves."""
    fill(tmp_path / "t-0", 100)
    stream = Stream(tmp_path, startingOffsets="earliest", maxBytesPerTrigger="1", failOnDataLoss="false")
    stream.planner.freeze()
    end, ranges = stream.first()
    assert ranges == [("t-0", 0, 10)]
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.delete_records_before(55)
    end, ranges = stream.following(end)
    assert ranges == [("t-0", 55, 60)]
    assert stream.following(end)[1] == [("t-0", 60, 70)]
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.delete_records_before(100)
    assert offsets(stream.end(end)) == {"t": {"0": 100}}


def test_leader_epochs_of_records_that_retention_deleted(tmp_path: Path) -> None:
    """A new leader, and no record of the epoch that was read left: no truncation."""
    with replicated(tmp_path / "t-0", 0, 0) as log:
        elect(log, 3, 10)
        stream = Stream(tmp_path, startingOffsets="earliest")
        end, _ = stream.first()
        elect(log, 4, 10)
        assert stream.following(end)[1] == [("t-0", 10, 20)]
        log.roll()
        elect(log, 5, 10)
        log.delete_records_before(10)
        assert stream.following(end)[1] == [("t-0", 10, 30)]
        log.delete_records_before(20)
        stream.restart(failOnDataLoss="false")
        assert stream.following(end)[1] == [("t-0", 20, 30)]


@pytest.mark.parametrize(
    ("entries", "epoch", "offset", "expected"),
    [
        ((), 5, 10, 10),
        (((0, 0),), 0, 10, 10),
        (((0, 0), (1, 10)), 0, 10, 10),
        (((0, 0), (1, 7)), 0, 10, 7),
        (((0, 0), (2, 7)), 1, 10, 7),
        (((0, 0), (1, 5), (2, 7)), 1, 10, 7),
        (((0, 0), (1, 5), (2, 7)), 0, 10, 5),
        (((6, 3),), 5, 10, 10),
    ],
)
def test_end_of_shared_log(entries: tuple[tuple[int, int], ...], epoch: int, offset: int, expected: int) -> None:
    assert end_of_shared_log(entries, epoch, offset) == expected
    assert epoch_before(((0, 0), (2, 10)), 10) == 0
    assert epoch_before(((0, 0), (2, 10)), 11) == 2
    assert epoch_before(((0, 5),), 5) is None


@pytest.mark.parametrize("frozen", [False, True])
def test_an_end_that_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    """A high watermark steps back for a moment when another replica leads: no records are lost by that."""
    with replicated(tmp_path / "t-0", 10, 10) as log:
        stream = Stream(tmp_path, startingOffsets="earliest")
        end, ranges = stream.first()
        log.truncate_to(0)
        log.append_many([b"x"] * 12)
        pauses: list[float] = []

        def catch_up(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) % 2 == 0:
                log.advance_high_watermark(12)

        monkeypatch.setattr("pyspark_kreplog.log_directory.sleep", catch_up)
        if frozen:
            stream.planner.freeze()
        assert stream.end(end) == end
        assert pauses == [0.05, 0.2]
        if not frozen:
            assert stream.following(end)[1] == [("t-0", 10, 12)]
        assert stream.ranges(stream.initial(), end) == ranges


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"option 'path' = '.*/nowhere' is no directory"):
        Stream(tmp_path / "nowhere").first()


def test_a_log_that_cannot_be_read_is_no_data_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike a directory without segments, which is being created or deleted."""
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path, startingOffsets="earliest", failOnDataLoss="false")
    end, _ = stream.first()

    def fail(*arguments: object, **keywords: object) -> None:
        raise StorageError("t-0 keeps changing")

    stream.restart()
    monkeypatch.setattr(kreplog.Log, "open", fail)
    with pytest.raises(StorageError, match="t-0 keeps changing"):
        stream.end(end)


# Limits


def test_offsets_are_shared_by_backlog(tmp_path: Path) -> None:
    for number, count in enumerate((1000, 100, 10, 0)):
        fill(tmp_path / f"t-{number}", count)
    stream = Stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="111")
    end, ranges = stream.first()
    assert ranges == [("t-0", 0, 100), ("t-1", 0, 10), ("t-2", 0, 1)]
    rounds = 1
    while (later := stream.end(end)) != end:
        assert sum(stop - start for _, start, stop in stream.ranges(end, later)) <= 111 + 3
        end = later
        rounds += 1
    assert offsets(end) == {"t": {"0": 1000, "1": 100, "2": 10, "3": 0}}
    assert rounds == 10


def test_a_limit_counts_not_where_spark_says_so(tmp_path: Path) -> None:
    """Trigger.Once reads everything, whatever the options."""
    fill(tmp_path / "t-0", 100)
    stream = Stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="7", minOffsetsPerTrigger="7")
    assert offsets(stream.end(stream.initial(), unlimited=True)) == {"t": {"0": 100}}


def test_bytes_are_shared_by_backlog(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 1000)
    fill(tmp_path / "t-1", 100)
    with kreplog.Log.open(tmp_path / "t-0", read_only=True) as log:
        batch_bytes = log.offset_ranges(0, 10, 1 << 20)[0].bytes
    for batches in (1, 11, 55, 110, 1000):
        stream = Stream(tmp_path, startingOffsets="earliest", maxBytesPerTrigger=str(batches * batch_bytes))
        _, ranges = stream.first()
        large, small = (stop - start for _, start, stop in ranges)
        assert large == min(1000, max(10, -(-batches * 100 // 11 // 10) * 10) if batches > 1 else 10)
        assert small == min(100, max(10, batches // 11 * 10))


def test_bytes_of_records_of_many_sizes(tmp_path: Path) -> None:
    """Batches end where batches of the log end, never empty, of about the limit; all records come in the end."""
    rng = random.Random(5)
    with kreplog.Log.open(tmp_path / "t-0", kreplog.LogConfig(index_interval_bytes=1, segment_bytes=50_000)) as log:
        for _ in range(400):
            log.append_many([b"x" * rng.choice((1, 20, 3000)) for _ in range(rng.randrange(1, 9))])
        edges = {piece.stop for piece in log.offset_ranges(0, log.log_end_offset, 1)}
        stream = Stream(tmp_path, startingOffsets="earliest", maxBytesPerTrigger="40000")
        end, ranges = stream.first()
        sizes = []
        while ranges:
            ((_, start, stop),) = ranges
            assert stop in edges
            sizes.append(sum(piece.bytes for piece in log.offset_ranges(start, stop, 1 << 30)))
            end, ranges = stream.following(end)
        assert offsets(end) == {"t": {"0": log.log_end_offset}}
        assert len(sizes) > 10
        assert all(40_000 <= size <= 40_000 + 8 * 3100 for size in sizes[:-1])


def test_the_smaller_of_two_limits_counts(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 100)
    both = {"maxOffsetsPerTrigger": "15", "startingOffsets": "earliest"}
    assert Stream(tmp_path, **both, maxBytesPerTrigger="1000000").first()[1] == [("t-0", 0, 15)]
    assert Stream(tmp_path, **both, maxBytesPerTrigger="1").first()[1] == [("t-0", 0, 10)]


def test_a_batch_waits_for_enough_records(tmp_path: Path) -> None:
    """Or for maxTriggerDelay since the batch before; the first does not wait, as in the Kafka source."""
    fill(tmp_path / "t-0", 10)
    limits = {"minOffsetsPerTrigger": "30", "maxTriggerDelay": "60s", "maxOffsetsPerTrigger": "35"}
    stream = Stream(tmp_path, startingOffsets="earliest", **limits)
    end, ranges = stream.first()
    assert ranges == [("t-0", 0, 10)]
    fill(tmp_path / "t-0", 20)
    stream.now_s = 59.9
    assert stream.end(end) == end
    stream.now_s = 60.0
    end, ranges = stream.following(end)
    assert ranges == [("t-0", 10, 30)]
    fill(tmp_path / "t-0", 30)
    assert stream.following(end)[1] == [("t-0", 30, 60)]
    fill(tmp_path / "t-0", 20)
    stream.now_s = 200.0
    assert stream.following(end)[1] == [("t-0", 30, 65)]


def test_a_wait_does_not_outlast_a_run_that_ends(tmp_path: Path) -> None:
    """Under AvailableNow nothing more comes to wait for."""
    fill(tmp_path / "t-0", 10)
    stream = Stream(tmp_path, startingOffsets="earliest", minOffsetsPerTrigger="8", maxOffsetsPerTrigger="8")
    stream.planner.freeze()
    end, _ = stream.first()
    assert stream.following(end)[1] == [("t-0", 8, 10)]


# AvailableNow


def test_the_end_of_a_run_is_fixed_at_its_start(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 30)
    stream = Stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    stream.planner.freeze()
    fill(tmp_path / "t-0", 30)
    fill(tmp_path / "t-1", 10)
    end, ranges = stream.first()
    assert ranges == [("t-0", 0, 20)]
    end, ranges = stream.following(end)
    assert ranges == [("t-0", 20, 30)]
    assert stream.end(end) == end
    stream.restart(maxOffsetsPerTrigger="1000")
    stream.planner.freeze()
    assert stream.following(end)[1] == [("t-0", 30, 60), ("t-1", 0, 10)]


def test_a_first_run_that_starts_at_latest_ends_there(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 30)
    stream = Stream(tmp_path)
    stream.planner.freeze()
    fill(tmp_path / "t-0", 30)
    end, ranges = stream.first()
    assert ranges == []
    assert offsets(end) == {"t": {"0": 30}}


# Lag


def test_lag(tmp_path: Path) -> None:
    for name, count in (("t-0", 100), ("t-1", 20), ("u-0", 7)):
        fill(tmp_path / name, count)
    stream = Stream(tmp_path, subscribe="t,u", startingOffsets="earliest", maxOffsetsPerTrigger="12")
    stream.first()
    reported = json.dumps(stream.planner.latest())
    assert offsets(reported) == {"t": {"0": 100, "1": 20}, "u": {"0": 7}}
    assert json.loads(reported)["@kreplog"] == {
        "offsetsBehindLatest": {
            "t": {"min": 19, "max": 91, "avg": 55.0},
            "u": {"min": 6, "max": 6, "avg": 6.0},
        }
    }


def test_tasks_follow_the_options_of_a_batch_read(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 90)
    fill(tmp_path / "t-1", 10)
    base = {"startingOffsets": "earliest"}
    assert len(Stream(tmp_path, **base, minPartitions="10").first()[1]) == 10
    assert [stop - start for _, start, stop in Stream(tmp_path, **base, maxRecordsPerPartition="30").first()[1]] == [
        *(30, 30, 30, 10)
    ]


def test_warnings_are_of_one_logger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pyspark_kreplog"):
        Stream(tmp_path, assign='{"t": [3]}').first()
    fill(tmp_path / "t-0", 10)
    with caplog.at_level(logging.WARNING, "pyspark_kreplog"):
        Stream(tmp_path, assign='{"t": [0, 3]}').first()
    assert [record.message.split(" in ")[0] for record in caplog.records] == [
        "there is no topic t",
        "there is no partition t-3",
    ]
