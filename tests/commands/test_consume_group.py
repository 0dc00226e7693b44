"""consume --group at a coordinator that responds slowly: a rebalance that one poll begins ends in a later one."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kafka.errors import CommitFailedError, KafkaError, KafkaTimeoutError, RebalanceInProgressError

from kreplog._native.batch import build
from kreplog.commands import consume, patience
from kreplog.commands.consume import POLL_MS
from kreplog.commands.interruption import Interruption
from kreplog.commands.patience import MIN_PATIENCE_S, Patience
from kreplog.core.groups.subscription import write_assignment
from kreplog.errors import ErrorCode
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.client.fake_broker import CLOSE, PARTITION, TOPIC, TOPIC_ID, Answer, FakeBroker, log_of
from tests.commands.conftest import Kreplog

MEMBER = "member"
ENDED = f"{TOPIC}: 1 record\n"


class Coordinator(FakeBroker):
    """Coordinates a group of one member. Its topic has one record, and gets a second partition as the first generation
    begins, which assigns nothing: so there is a second. slow: SyncGroup of that is answered after the end of a poll.
    lost: it is not answered at all, but the connection closed. delays_s: of the next responses, by API."""

    def __init__(
        self, *, slow: bool = False, lost: bool = False, delays_s: Mapping[ApiKey, list[float]] | None = None
    ) -> None:
        self._slow, self._lost = slow, lost
        self._delays_s = delays_s or {}
        self._generation = 0
        self.commits = 0
        super().__init__({ApiKey.FETCH: log_of({0: [build([b"v"], leader_epoch=3)]})})

    def _next(self, api: ApiKey) -> Answer:
        answer, delays_s = super()._next(api), self._delays_s.get(api)
        delay_s = delays_s.pop(0) if delays_s else 0.0

        def delayed(header: RequestHeader, frame: bytes) -> list[Any]:
            time.sleep(delay_s)  # as a broker that is busy; in its own thread
            return answer(header, frame)

        return delayed

    def _metadata(self, header: RequestHeader, frame: bytes) -> list[Any]:
        partitions = [
            {"partition_index": number, "leader_id": 0, "leader_epoch": 3, "replica_nodes": [0], "isr_nodes": [0]}
            for number in range(1 if self._generation == 0 else 2)
        ]
        return list(
            generic.encode_response(
                header,
                brokers=[{"node_id": 0, "host": "127.0.0.1", "port": self.port}],
                topics=[{"name": TOPIC, "topic_id": TOPIC_ID, "partitions": partitions}],
            )
        )

    def _find_coordinator(self, header: RequestHeader, frame: bytes) -> list[Any]:
        (key,) = generic.decode_request(frame, header).coordinator_keys
        place = {"key": key, "node_id": 0, "host": "127.0.0.1", "port": self.port}
        return list(generic.encode_response(header, coordinators=[place]))

    def _join_group(self, header: RequestHeader, frame: bytes) -> list[Any]:
        self._generation += 1
        ((name, metadata),) = [
            (each.name, each.metadata) for each in generic.decode_request(frame, header).protocols[:1]
        ]
        return list(
            generic.encode_response(
                header,
                generation_id=self._generation,
                protocol_type="consumer",
                protocol_name=name,
                leader=MEMBER,
                member_id=MEMBER,
                members=[{"member_id": MEMBER, "metadata": metadata}],
            )
        )

    def _sync_group(self, header: RequestHeader, frame: bytes) -> list[Any]:
        request = generic.decode_request(frame, header)
        if self._generation == 2 and self._lost:
            self._lost = False
            raise CLOSE
        if self._generation == 2 and self._slow:
            time.sleep(2 * POLL_MS / 1000)  # longer than a poll waits
        assigned = [PARTITION] if self._generation > 1 else []
        return list(
            generic.encode_response(
                header,
                protocol_type="consumer",
                protocol_name=request.protocol_name,
                assignment=write_assignment(assigned, 0),
            )
        )

    def _heartbeat(self, header: RequestHeader, frame: bytes) -> list[Any]:
        return list(generic.encode_response(header, error_code=ErrorCode.NONE))

    def _leave_group(self, header: RequestHeader, frame: bytes) -> list[Any]:
        return list(generic.encode_response(header, members=[]))

    def _offset_fetch(self, header: RequestHeader, frame: bytes) -> list[Any]:
        partition = {"partition_index": PARTITION.partition, "committed_offset": -1, "committed_leader_epoch": -1}
        topics = [{"name": TOPIC, "partitions": [{**partition, "metadata": ""}]}]
        return list(generic.encode_response(header, groups=[{"group_id": "g", "topics": topics}]))

    def _list_offsets(self, header: RequestHeader, frame: bytes) -> list[Any]:
        found = {"partition_index": PARTITION.partition, "timestamp": -1, "offset": 0, "leader_epoch": 3}
        return list(generic.encode_response(header, topics=[{"name": TOPIC, "partitions": [found]}]))

    def _offset_commit(self, header: RequestHeader, frame: bytes) -> list[Any]:
        self.commits += 1
        done = {"partition_index": PARTITION.partition, "error_code": ErrorCode.NONE}
        return list(generic.encode_response(header, topics=[{"name": TOPIC, "partitions": [done]}]))


@pytest.mark.parametrize("trouble", [{}, {"slow": True}, {"lost": True}], ids=str)
def test_a_rebalance_that_outlasts_a_poll_gives_the_member_its_partitions(
    kreplog: Kreplog, trouble: dict[str, Any]
) -> None:
    with Coordinator(**trouble) as coordinator:
        words = ("--group", "g", "--from-beginning", "-n", 1, "--timeout", 20)
        outcome = kreplog("consume", TOPIC, *words, "--bootstrap", coordinator.bootstrap)
    assert (outcome.code, outcome.out, outcome.err) == (0, b"v\n", ENDED)
    assert coordinator.commits == 1


NOTE_S, SLOW_S = 0.6, 2.0
"""Other waits than the slow one stay below NOTE_S, on slow processors too."""


@pytest.mark.parametrize(
    ("api", "delays_s", "options", "subject"),
    [
        (ApiKey.API_VERSIONS, [2.5], (), "a broker that responds"),
        (ApiKey.API_VERSIONS, [0, 2.5], (), "a response of the brokers at {}"),
        (ApiKey.API_VERSIONS, [0, 2.5], ("--group", "g"), "a response of the brokers at {}"),
        (ApiKey.METADATA, [0, 2.5], (), "a response of the brokers at {}"),
        (ApiKey.LIST_OFFSETS, [SLOW_S], ("--offset", 0), "the leaders of fake, to look offsets up"),
        (ApiKey.OFFSET_COMMIT, [SLOW_S], ("--group", "g"), "the group's coordinator, to commit"),
        (ApiKey.JOIN_GROUP, [SLOW_S], ("--group", "g"), "the coordinator of group g, to assign partitions"),
        (ApiKey.FETCH, [SLOW_S], (), ""),
    ],
)
def test_slow_brokers_are_waited_for(
    kreplog: Kreplog,
    monkeypatch: pytest.MonkeyPatch,
    api: ApiKey,
    delays_s: list[float],
    options: tuple[str | int, ...],
    subject: str,
) -> None:
    """As Kafka's console consumer does; stderr has what for."""
    for module in (patience, consume):
        monkeypatch.setattr(module, "NOTE_S", NOTE_S)
    with Coordinator(delays_s={api: delays_s}) as coordinator:
        start = options if "--offset" in options else ("--from-beginning", *options)
        outcome = kreplog("consume", TOPIC, *start, "-n", 1, "--bootstrap", coordinator.bootstrap)
        note = f"waiting for {subject.format(coordinator.bootstrap)}\n" if subject else ""
    assert (outcome.code, outcome.out, outcome.err) == (0, b"v\n", note + ENDED)


def test_patience_ends_with_a_signal_or_after_the_timeout() -> None:
    def late(timeout_ms: int) -> None:
        raise KafkaTimeoutError

    with Interruption() as interruption:
        limited = Patience(interruption, 0)
        assert limited.limit_ms == 1000 * MIN_PATIENCE_S
        limited._patience_s = 0
        with pytest.raises(KafkaTimeoutError):
            limited.retry(late, "nothing")
        signal.raise_signal(signal.SIGINT)
        endless = Patience(interruption, None)
        assert endless.limit_ms is None
        with pytest.raises(KeyboardInterrupt):
            endless.retry(late, "nothing")
        with pytest.raises(KeyboardInterrupt), endless.noting("nothing"):
            raise AssertionError


def test_what_a_signal_leaves_uncommitted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def commit(timeout_ms: int) -> None:
        raise KafkaTimeoutError

    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        consume._commit(SimpleNamespace(commit=commit), Patience(interruption, None))
    assert capsys.readouterr().err.startswith("interrupted before a commit: the group's members will print")


@pytest.mark.parametrize("error", [CommitFailedError, RebalanceInProgressError])
def test_a_commit_that_a_rebalance_refuses_is_no_failure(
    error: type[KafkaError], capsys: pytest.CaptureFixture[str]
) -> None:
    def commit(timeout_ms: int) -> None:
        raise error

    consume._commit(SimpleNamespace(commit=commit), Patience(Interruption(), None))
    assert capsys.readouterr().err.startswith("the group is in another generation: its members will print some records")
