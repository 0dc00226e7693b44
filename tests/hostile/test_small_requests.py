"""No request of at most 1 MB holds up a broker: the longest pause of its event loop under each, and under many.

A pause is compared with a unit of work that is measured in the same run, so a slow machine is given more time; and
since other processes can only lengthen a pause, the shortest of several attempts counts.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kreplog._native.batch import build
from kreplog.core.broker.client_requests import ALWAYS_ALLOWED
from kreplog.core.memory import PRODUCERS as PRODUCER_IDS
from kreplog.core.replication.sessions import ACCOUNT as SESSIONS
from kreplog.errors import ErrorCode
from kreplog.server.monitoring.exporter import MAX_CONNECTIONS
from kreplog.server.storage.producer_memory import PRODUCER_BYTES
from kreplog.wire.versions import ApiKey
from tests.hostile.floods import (
    Flood,
    array,
    bomb,
    bombs,
    fetch,
    fetched,
    floods,
    int32,
    list_offsets,
    new_topic,
    produce,
    text,
    wide_floods,
)
from tests.hostile.victim import UNITS, Victim, receive, unit_s

ATTEMPTS = 4
PRODUCERS = 500
PARTITIONS = 300
"""Of a topic with more partitions than one slice, so that as many entries are let pass as its requests may have."""


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    settings = {
        "queued.max.request.bytes": 32 << 20,
        "max.producer.ids.per.partition": PRODUCERS,
        "max.partitions": 1000,
    }
    victim = Victim(tmp_path_factory.mktemp("victim"), **settings)
    try:
        create(victim, "small", 4)
        create(victim, "wide", PARTITIONS)
        create(victim, "bombed", 1)
        yield victim
    finally:
        victim.close()


def create(victim: Victim, topic: str, partitions: int) -> None:
    entry = new_topic(topic, partitions)
    made = Flood("create", ApiKey.CREATE_TOPICS, 2, array([entry]) + int32(60_000) + b"\0")
    assert victim.request(made.frame()) is not None


def assert_short(victim: Victim, work: Callable[[], object]) -> None:
    """The loop pauses for at most UNITS units of work while `work` is done."""
    units = []
    for _ in range(ATTEMPTS):
        units.append(victim.longest_pause_s(work) / unit_s())
        if units[-1] <= UNITS:
            return
    pytest.fail(f"pauses of {units} units of work: {UNITS} are allowed")


def is_served(victim: Victim) -> bool:
    """Whether the broker still answers an ordinary Metadata request."""
    answer = victim.request(Flood("metadata", ApiKey.METADATA, 4, array([text("small")]) + b"\0").frame())
    return answer is not None and b"small" in answer


@pytest.mark.parametrize("flood", list(floods("small")), ids=lambda flood: flood.name)
def test_many_entries(victim: Victim, flood: Flood) -> None:
    frame = flood.frame()
    assert_short(victim, lambda: victim.request(frame))
    assert is_served(victim)


@pytest.mark.parametrize("flood", list(wide_floods("wide", PARTITIONS)), ids=lambda flood: flood.name)
def test_as_many_entries_as_are_let_pass(victim: Victim, flood: Flood) -> None:
    frame = flood.frame()
    answers: list[bytes | None] = []
    assert_short(victim, lambda: answers.append(victim.request(frame)))
    assert answers[-1] is not None, "it is answered, not refused"


@pytest.mark.parametrize("flood", list(bombs("small")), ids=lambda flood: flood.name)
def test_bombs(victim: Victim, flood: Flood) -> None:
    frame = flood.frame()
    assert_short(victim, lambda: victim.request(frame))
    assert is_served(victim)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_batches_that_expand_as_far_as_is_allowed(victim: Victim, compression: str) -> None:
    """Such a batch is inflated in a thread, and appended."""
    batch = bomb(ALWAYS_ALLOWED - 1000, compression)
    frame = Flood("produce", ApiKey.PRODUCE, 3, produce("bombed", [(0, batch)])).frame()
    answers: list[bytes | None] = []
    assert_short(victim, lambda: answers.append(victim.request(frame)))
    assert answers[-1] is not None and error_of_produce(answers[-1]) == 0


def error_of_produce(answer: bytes) -> int:
    """The error code in a Produce response of version 3 with one partition."""
    at = 4 + 4
    at += 2 + struct.unpack_from(">h", answer, at)[0] + 4 + 4
    return int(struct.unpack_from(">h", answer, at)[0])


def test_offsets_by_time_in_a_batch_that_expands_far(victim: Victim) -> None:
    """Eighty entries of 12 bytes, each of which would have it inflated."""
    batch = bomb(ALWAYS_ALLOWED - 1000)
    assert victim.request(Flood("produce", ApiKey.PRODUCE, 3, produce("bombed", [(0, batch)])).frame()) is not None
    repeated = Flood("repeated", ApiKey.LIST_OFFSETS, 1, list_offsets("bombed", [(0, 1)] * 80)).frame()
    assert_short(victim, lambda: victim.request(repeated))
    single = Flood("single", ApiKey.LIST_OFFSETS, 1, list_offsets("bombed", [(0, 1)])).frame()
    answers: list[bytes | None] = []
    assert_short(victim, lambda: answers.append(victim.request(single)))
    assert answers[-1] is not None
    error, timestamp, offset = struct.unpack(">hqq", answers[-1][-18:])
    assert (error, timestamp >= 1, offset >= 0) == (0, True, True)


def test_a_producers_batches_are_appended_in_the_order_in_which_it_sent_them(victim: Victim) -> None:
    """Large compressed ones, which are inflated in a thread, between small ones, which are not; by their sequences."""
    small, large = [b"x"], [bytes(2 << 20)]
    with victim.connect() as sock:
        for number in range(20):
            values, compression = (large, "gzip") if number % 2 == 0 else (small, "none")
            batch = build(values, producer_id=5, producer_epoch=0, base_sequence=number, compression=compression)
            sock.sendall(Flood("produce", ApiKey.PRODUCE, 3, produce("small", [(1, batch)])).frame(number))
        for number in range(20):
            answer = receive(sock)
            assert answer is not None
            assert (struct.unpack_from(">i", answer)[0], error_of_produce(answer)) == (number, 0)


def test_thousands_of_parked_fetches(victim: Victim) -> None:
    """They are answered so many at a time when what they wait for comes."""
    waiting = Flood("fetch", ApiKey.FETCH, 7, fetch("small", [fetched(2)], wait_ms=60_000)).frame()
    record = Flood("produce", ApiKey.PRODUCE, 3, produce("small", [(2, build([b"x"]))])).frame()
    socks = [victim.connect() for _ in range(40)]

    def request(sock: socket.socket) -> None:
        sock.sendall(waiting * 99)
        sock.sendall(Flood("metadata", ApiKey.METADATA, 4, array([text("small")]) + b"\0").frame())

    try:
        offset = end_of(victim, "small", 2)
        waiting = Flood("fetch", ApiKey.FETCH, 7, fetch("small", [fetched(2, offset)], wait_ms=60_000)).frame()
        for sock in socks:
            request(sock)
        until_parked(victim, 99 * len(socks))

        def append() -> None:
            victim.request(record)
            for sock in socks:
                for _ in range(100):
                    assert receive(sock) is not None

        pause = victim.longest_pause_s(append)
        assert pause <= UNITS * unit_s() * 2, f"{pause} s"  # there is only one attempt
    finally:
        for sock in socks:
            sock.close()


def end_of(victim: Victim, topic: str, number: int) -> int:
    answer = victim.request(Flood("end", ApiKey.LIST_OFFSETS, 1, list_offsets(topic, [(number, -1)])).frame())
    assert answer is not None
    return int(struct.unpack(">q", answer[-8:])[0])


def until_parked(victim: Victim, count: int) -> None:
    """What parked fetches are charged says how many there are."""
    while victim.on_loop(lambda: victim.broker.memory.held["parked_fetches"]) < count * 2000:
        pass


def test_fetch_sessions_are_bounded(victim: Victim) -> None:
    """Large ones of consumers are granted until half of the account is taken; then there are none, and fetches are
    answered all the same."""
    frame = Flood("fetch", ApiKey.FETCH, 7, fetch("wide", [fetched(number) for number in range(4500)], epoch=0)).frame()
    granted = []
    for _ in range(12):
        answer = victim.request(frame)
        assert answer is not None
        granted.append(struct.unpack_from(">i", answer, 10)[0] != 0)
    assert granted[0] and not granted[-1]
    assert victim.on_loop(lambda: victim.broker.memory.held[SESSIONS]) <= 16 << 20
    assert is_served(victim)


def test_invented_producer_ids_are_bounded(victim: Victim) -> None:
    """One batch each: those that write already go on, new ones are refused with a retriable error."""

    def write(producer: int, sequence: int = 0) -> int:
        batch = build([b"x"], producer_id=producer, producer_epoch=0, base_sequence=sequence)
        sock.sendall(Flood("produce", ApiKey.PRODUCE, 3, produce("small", [(3, batch)])).frame())
        answer = receive(sock)
        assert answer is not None
        return error_of_produce(answer)

    with victim.connect() as sock:
        errors = [write(producer) for producer in range(PRODUCERS + 10)]
        assert errors == [0] * PRODUCERS + [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 10
        assert write(7, 1) == 0
    assert victim.on_loop(lambda: victim.broker.memory.held[PRODUCER_IDS]) >= PRODUCERS * PRODUCER_BYTES


def test_partitions_are_bounded(victim: Victim) -> None:
    entry = new_topic("beyond", 900)
    frame = Flood("create", ApiKey.CREATE_TOPICS, 2, array([entry]) + int32(60_000) + b"\0").frame()
    answer = victim.request(frame)
    assert answer is not None and b"max.partitions" in answer


@pytest.mark.parametrize("timeout_ms", [0, 60_000])
def test_partitions_are_bounded_however_many_create_them_at_once(tmp_path: Path, timeout_ms: int) -> None:
    """No request sees the topics of the others, which are on their way through the store and the controller."""
    victim = Victim(tmp_path, **{"max.partitions": 100})
    try:
        frames = [
            Flood("create", ApiKey.CREATE_TOPICS, 2, array([new_topic(f"t{number}", 30)]) + int32(timeout_ms) + b"\0")
            for number in range(12)
        ]
        socks = [victim.connect() for _ in frames]
        for sock, flood in zip(socks, frames, strict=True):
            sock.sendall(flood.frame())
        answers = [receive(sock) or b"" for sock in socks]
        for sock in socks:
            sock.close()
        assert sum(b"max.partitions" in answer for answer in answers) == 9
    finally:
        victim.close()


def test_replicas_are_created_and_deleted_a_few_at_a_time(victim: Victim) -> None:
    entry = new_topic("paced", 500)
    made = Flood("create", ApiKey.CREATE_TOPICS, 2, array([entry]) + int32(60_000) + b"\0").frame()
    gone = Flood("delete", ApiKey.DELETE_TOPICS, 1, array([text("paced")]) + int32(60_000)).frame()

    def make_and_delete() -> None:
        assert victim.request(made) is not None and victim.request(gone) is not None

    assert_short(victim, make_and_delete)


def test_slow_readers_of_metrics(victim: Victim) -> None:
    address = victim.broker.metrics.address
    slow = [socket.create_connection((address.host, address.port)) for _ in range(MAX_CONNECTIONS)]
    try:
        for sock in slow:
            sock.sendall(b"GET /met")
        with socket.create_connection((address.host, address.port)) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            answer = b"".join(iter(lambda: sock.recv(1 << 20), b""))
        assert b"kafka_server_eventloop_longestpause_seconds" in answer
    finally:
        for sock in slow:
            sock.close()
