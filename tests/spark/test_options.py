"""Options of a read: defaults, meaning and refusals as in Spark's Kafka source. No Spark, no files."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import pytest

from kreplog.errors import UsageError
from kreplog.types import TopicPartition
from pyspark_kreplog.options import EARLIEST, LATEST, Bound, ReadOptions, TriggerLimits, parse_batch, parse_stream
from pyspark_kreplog.sink_options import parse_path_sink

BASE = {"path": "/data", "subscribe": "t"}


def given(**more: str) -> ReadOptions:
    return parse_batch(BASE | more)


def test_defaults() -> None:
    assert given() == ReadOptions(
        path="/data",
        bootstrap=None,
        topics=("t",),
        pattern=None,
        assigned=None,
        starting=Bound("startingOffsets", EARLIEST),
        ending=Bound("endingOffsets", LATEST),
        latest_if_no_start=False,
        min_partitions=None,
        max_records_per_partition=None,
        fail_on_data_loss=True,
        include_headers=False,
        pushdown=False,
        limits=TriggerLimits(),
        stream=False,
    )
    assert parse_stream(BASE) == replace(
        given(), starting=Bound("startingOffsets", LATEST), limits=TriggerLimits(max_delay_ms=900_000), stream=True
    )


def test_names_in_any_case() -> None:
    """Spark hands them over in lower case."""
    assert given(FAILONDATALOSS="False", minpartitions="3") == given(failOnDataLoss="false", minPartitions=" 3 ")


def test_choices() -> None:
    assert given(subscribe=" b, a,,b ").topics == ("a", "b")
    assert parse_batch({"path": "/d", "subscribePattern": "fl.*"}).pattern == "fl.*"
    assert parse_batch({"path": "/d", "assign": '{"b": [1, 0, 1], "a": [7]}'}).assigned == (
        TopicPartition("a", 7),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    )


def test_bounds() -> None:
    both = {TopicPartition("t", 0): 23, TopicPartition("t", 1): -2}
    assert given(startingOffsets='{"t": {"0": 23, "1": -2}}').starting == Bound("startingOffsets", both)
    assert given(endingOffsets=" Latest ").ending == Bound("endingOffsets", LATEST)
    assert given(startingOffsetsByTimestamp='{"t": {"0": 5}}').starting == Bound(
        "startingOffsetsByTimestamp", {TopicPartition("t", 0): 5}, by_time=True
    )
    assert given(endingTimestamp="1700000000000").ending == Bound("endingTimestamp", 1_700_000_000_000, by_time=True)
    assert given(startingOffsetsByTimestampStrategy="LATEST").latest_if_no_start


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_which_bound_wins(side: str) -> None:
    """One time for all, then times by partition, then offsets, as in the Kafka source."""
    offsets, times, time = f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp"
    values = {offsets: '{"t": {"0": 1}}', times: '{"t": {"0": 2}}', time: "3"}
    for winner in (time, times, offsets):
        parsed = given(**values)
        assert (parsed.starting if side == "starting" else parsed.ending).option == winner
        del values[winner]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/a/b", "/a/b"),
        ("file:///a/b%20c", "/a/b c"),
        ("file:/a", "/a"),
        ("file://localhost/a#1?", "/a#1?"),
        ("//[a", "//[a"),
        ("a/b", os.path.abspath("a/b")),
    ],
)
def test_path(path: str, meant: str) -> None:
    assert given(path=path).path == meant
    assert parse_path_sink({"path": path, "topic": "t"}).path == meant


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t"}, "option 'path' is missing"),
        ({"path": "hdfs://x/y", "subscribe": "t"}, "option 'path' = 'hdfs://x/y': only local directories"),
        ({"path": "file://host/x", "subscribe": "t"}, "option 'path' = .*: only local directories .* not file://host"),
        ({"path": "http://[", "subscribe": "t"}, "option 'path' = .*: only local directories"),
        ({"path": "/a\0b", "subscribe": "t"}, "option 'path' = .* has a zero byte"),
        ({"path": "/d"}, "exactly one of the options subscribe, subscribePattern and assign is needed: none is given"),
        (BASE | {"assign": '{"t": [0]}'}, "is needed: not subscribe and assign"),
        ({"path": "/d", "subscribe": " , "}, "option 'subscribe' = ',' names no topic"),
        ({"path": "/d", "subscribe": ""}, "option 'subscribe' is empty"),
        ({"path": "/d", "subscribe": "../x"}, "option 'subscribe': '../x' is no legal topic name"),
        ({"path": "/d", "subscribePattern": "a("}, "option 'subscribePattern' = 'a\\(' is no regular expression"),
        ({"path": "/d", "subscribePattern": f"a{{{2**64}}}"}, "is no regular expression: the repetition number is too"),
        ({"path": "/d", "subscribePattern": "(" * 9000 + ")" * 9000}, "is no regular expression: maximum recursion"),
        ({"path": "/d", "assign": "t"}, "option 'assign' = 't' must be a JSON object of partitions"),
        ({"path": "/d", "assign": "{}"}, "option 'assign'"),
        ({"path": "/d", "assign": '{"t": ["0"]}'}, "option 'assign'"),
        ({"path": "/d", "assign": '{"t": [-1]}'}, "option 'assign'"),
        ({"path": "/d", "assign": '{"t": 0}'}, "option 'assign'"),
        ({"path": "/d", "assign": "[" * 100_000}, "option 'assign'"),
        (BASE | {"startingOffsets": "latest"}, "option 'startingOffsets' must not be latest"),
        (BASE | {"startingOffsets": '{"t": {"0": -1}}'}, "option 'startingOffsets' must not be latest"),
        (BASE | {"endingOffsets": "earliest"}, "option 'endingOffsets' must not be earliest"),
        (BASE | {"endingOffsets": '{"t": {"0": -2}}'}, "option 'endingOffsets' must not be earliest"),
        (BASE | {"startingOffsets": "first"}, "option 'startingOffsets' = 'first' must be earliest, latest, or a JSON"),
        (BASE | {"startingOffsets": '{"t": {"0": -3}}'}, "-3 for t-0 is not fit"),
        (BASE | {"startingOffsets": '{"t": {"0": 1.5}}'}, "1.5 for t-0 is not fit"),
        (BASE | {"startingOffsets": '{"t": {"0": true}}'}, "True for t-0 is not fit"),
        (BASE | {"startingOffsets": '{"t": {"x": 1}}'}, "1 for t-x is not fit"),
        (BASE | {"startingOffsets": '{"t": [1]}'}, "option 'startingOffsets'"),
        (BASE | {"startingTimestamp": "yesterday"}, "option 'startingTimestamp' = 'yesterday' must be milliseconds"),
        (BASE | {"endingTimestamp": "-1"}, "option 'endingTimestamp'"),
        (BASE | {"endingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "option 'endingOffsetsByTimestamp'"),
        (BASE | {"endingOffsetsByTimestamp": "7"}, "option 'endingOffsetsByTimestamp' = '7' must be a JSON object"),
        (BASE | {"startingOffsetsByTimestampStrategy": "skip"}, "must be error or latest"),
        (BASE | {"minPartitions": "0"}, "option 'minPartitions' = '0' must be a whole number above zero"),
        (BASE | {"maxRecordsPerPartition": "many"}, "option 'maxRecordsPerPartition' = 'many' must be a whole number"),
        (BASE | {"failOnDataLoss": "no"}, "option 'failOnDataLoss' = 'no' must be false or true"),
        (BASE | {"includeHeaders": "1"}, "option 'includeHeaders' = '1' must be false or true"),
        (
            BASE | {"isolationLevel": "snapshot"},
            "option 'isolationLevel' = 'snapshot' must be read_committed or read_unc",
        ),
        (
            BASE | {"kafka.isolation.level": ""},
            "option 'kafka.isolation.level' = '' must be read_committed or read_uncom",
        ),
        (
            BASE | {"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "options 'isolationLevel' = 'read_committed' and 'kafka.isolation.level' = 'read_uncommitted' contradict",
        ),
        (
            BASE | {"kafka.auto.offset.reset": "earliest"},
            "option 'kafka.auto.offset.reset' is not supported: .*starting",
        ),
        (BASE | {"kafka.key.deserializer": "x"}, "option 'kafka.key.deserializer' is not supported"),
        (BASE | {"kafka.value.serializer": "x"}, "option 'kafka.value.serializer' is not supported"),
        (BASE | {"kafka.enable.auto.commit": "true"}, "option 'kafka.enable.auto.commit' is not supported"),
        (BASE | {"kafka.interceptor.classes": "x"}, "option 'kafka.interceptor.classes' is not supported"),
    ],
)
def test_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_batch(options)


def test_limits_of_a_stream() -> None:
    limits = {"maxOffsetsPerTrigger": "100", "minOffsetsPerTrigger": " 10 ", "maxBytesPerTrigger": "4096"}
    assert parse_stream(BASE | limits | {"maxTriggerDelay": "30S"}).limits == TriggerLimits(100, 10, 30_000, 4096)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("250", 250),
        ("250ms", 250),
        ("2s", 2000),
        ("3m", 180_000),
        ("3min", 180_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
    ],
)
def test_units_of_a_delay(value: str, expected: int) -> None:
    assert parse_stream(BASE | {"maxTriggerDelay": value}).limits.max_delay_ms == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "option 'endingOffsets' is of batch reads alone: a stream has no end"),
        ({"endingTimestamp": "5"}, "option 'endingTimestamp' is of batch reads alone"),
        ({"endingOffsetsByTimestamp": '{"t": {"0": 5}}'}, "option 'endingOffsetsByTimestamp' is of batch reads alone"),
        ({"maxOffsetsPerTrigger": "0"}, "option 'maxOffsetsPerTrigger' = '0' must be a whole number above zero"),
        ({"minOffsetsPerTrigger": "-1"}, "option 'minOffsetsPerTrigger' = '-1' must be a whole number above zero"),
        ({"maxBytesPerTrigger": "1m"}, "option 'maxBytesPerTrigger' = '1m' must be a whole number above zero"),
        ({"maxTriggerDelay": "soon"}, "option 'maxTriggerDelay' = 'soon' must be a time, as in 500ms, 30s, 15m or 2h"),
        (
            {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
            "option 'minOffsetsPerTrigger' = 11 must not exceed maxOffsetsPerTrigger = 10",
        ),
        ({"startingOffsets": "first"}, "option 'startingOffsets' = 'first' must be earliest, latest, or a JSON"),
        ({"assign": '{"t": [0]}'}, "exactly one of the options subscribe, subscribePattern and assign is needed"),
        ({"kafka.auto.offset.reset": "earliest"}, "option 'kafka.auto.offset.reset' is not supported"),
    ],
)
def test_refused_in_a_stream(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_stream(BASE | options)


def test_options_of_the_other_kind_of_read_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """As in the Kafka source, which ignores limits of a stream in a batch read."""
    assert given(maxOffsetsPerTrigger="10") == given()
    assert "option 'maxOffsetsPerTrigger' has no effect here: it is of streams alone" in caplog.text
    parse_stream(BASE | {"pushdown": "true"})
    assert "option 'pushdown' has no effect here: it is of batch reads alone" in caplog.text


def test_options_of_a_kafka_job_are_let_pass(caplog: pytest.LogCaptureFixture) -> None:
    job = {
        "kafka.bootstrap.servers": "host:9092",
        "kafka.security.protocol": "SSL",
        "kafka.group.id": "g",
        "groupIdPrefix": "p",
        "kafkaConsumer.pollTimeoutMs": "1",
        "fetchOffset.numRetries": "1",
        "fetchOffset.retryIntervalMs": "1",
        "kafka.isolation.level": "read_uncommitted",
    }
    assert given(**job) == given()
    assert not caplog.records


def test_a_misspelt_option_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pyspark_kreplog"):
        assert given(startingOffset="earliest") == given()
    assert "option 'startingoffset' is not known and has no effect; is 'startingOffsets' meant?" in caplog.text
