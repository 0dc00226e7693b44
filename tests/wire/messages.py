"""Random messages, what each version keeps of them, and the same messages as kafka-python makes them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from hypothesis import strategies as st

from kreplog.core.messages import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from kreplog.errors import ErrorCode
from kreplog.types import EpochEndOffset, TopicPartition
from kreplog.wire.frames import RequestHeader

TOPICS = ("flights", "a", "weather.nyc", "x" * 200)
IDS = {name: base64.urlsafe_b64encode(bytes([n + 1]) * 16).decode()[:-2] for n, name in enumerate(TOPICS)}
NAMES = {topic_id: name for name, topic_id in IDS.items()}

PRODUCE_VERSIONS = range(10)
FETCH_VERSIONS = range(4, 19)

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
errors = st.sampled_from(ErrorCode)
topics = st.sampled_from(TOPICS)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
records = st.binary(max_size=40)
T = TypeVar("T")


def tuples_of(items: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(items, max_size=6).map(tuple)


produce_requests = st.builds(
    ProduceRequest, int16s, int32s, tuples_of(st.builds(ProducePartition, partitions, records))
)
produce_responses = st.builds(
    ProduceResponse,
    tuples_of(st.builds(ProducedPartition, partitions, errors, int64s, int64s, int64s, st.text(max_size=20))),
)
fetch_requests = st.builds(
    FetchRequest,
    *(int32s, int64s, int32s, int32s, int32s),
    tuples_of(
        partitions.flatmap(
            lambda place: st.builds(
                FetchPartition, st.just(place), st.just(IDS[place.topic]), int32s, int64s, int32s, int64s, int32s
            )
        )
    ),
    tuples_of(partitions),
    int32s,
    int32s,
    st.sampled_from([READ_UNCOMMITTED, READ_COMMITTED]),
    st.sampled_from(["", "a rack"]),
)
fetch_responses = st.builds(
    FetchResponse,
    errors,
    int32s,
    tuples_of(
        st.builds(
            FetchedPartition,
            *(partitions, errors, int64s, int64s),
            st.none() | st.builds(EpochEndOffset, int32s, int64s),
            *(int32s, int32s, records, st.just("")),
            *(tuples_of(st.tuples(int64s, int64s)), int32s),
        )
    ),
)


def header(api_key: int, version: int) -> RequestHeader:
    return RequestHeader(api_key, version, 77, "client")


def joined(buffers: Iterable[Any]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def body_of(frame: Iterable[Any]) -> bytes:
    """A written frame without its size, as a FrameReader gives it, and its size checked."""
    whole = joined(frame)
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    return whole[4:]


def seen_produce_response(response: ProduceResponse, version: int) -> ProduceResponse:
    """What `version` keeps of it."""
    lost: dict[str, Any] = {}
    if version < 2:
        lost["log_append_time_ms"] = -1
    if version < 5:
        lost["log_start_offset"] = -1
    if version < 8:
        lost["message"] = ""
    return ProduceResponse(tuple(replace(partition, **lost) for partition in response.partitions))


def seen_fetch_request(request: FetchRequest, version: int) -> FetchRequest:
    lost: dict[str, Any] = {}
    each: dict[str, Any] = {}
    if version < 5:
        each["log_start_offset"] = -1
    if version < 7:
        lost.update(forgotten=(), session_id=0, session_epoch=-1)
    if version < 9:
        each["current_leader_epoch"] = -1
    if version < 12:
        each["last_fetched_epoch"] = -1
    if version < 11:
        lost["rack"] = ""
    if version < 13:
        each["topic_id"] = ""
    if version < 15:
        lost["broker_epoch"] = -1
    return replace(request, partitions=tuple(replace(partition, **each) for partition in request.partitions), **lost)


def seen_fetch_response(response: FetchResponse, version: int) -> FetchResponse:
    lost: dict[str, Any] = {}
    each: dict[str, Any] = {}
    if version < 5:
        each["log_start_offset"] = -1
    if version < 7:
        lost.update(error=ErrorCode.NONE, session_id=0)
    if version < 12:
        each.update(diverging=None, leader=-1, leader_epoch=-1)
    if version < 11:
        each["preferred_read_replica"] = -1
    return replace(response, partitions=tuple(replace(partition, **each) for partition in response.partitions), **lost)


def by_topic(items: Sequence[T], place: Callable[[T], TopicPartition]) -> Iterator[tuple[str, list[T]]]:
    """Neighbours of the same topic."""
    for topic, group in groupby(items, lambda item: place(item).topic):
        yield topic, list(group)
