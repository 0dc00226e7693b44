"""consume --group at a coordinator that responds slowly: a rebalance that one poll begins ends in a later one."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kafka.errors import CommitFailedError, KafkaError, RebalanceInProgressError

from kreplog._native.batch import build
from kreplog.commands import consume
from kreplog.commands.consume import POLL_MS
from kreplog.core.groups.subscription import write_assignment
from kreplog.errors import ErrorCode
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.client.fake_broker import CLOSE, PARTITION, TOPIC, TOPIC_ID, FakeBroker, log_of
from tests.commands.conftest import Kreplog

MEMBER = "member"
ENDED = f"{TOPIC}: 1 record\n"


class Coordinator(FakeBroker):
    """Coordinates a group of one member. Its topic has one record, and gets a second partition as the first generation
    begins, which assigns nothing: so there is a second. slow: SyncGroup of that is answered after the end of a poll.
    lost: it is not answered at all, but the connection closed."""

    def __init__(self, *, slow: bool = False, lost: bool = False) -> None:
        self._slow, self._lost = slow, lost
        self._generation = 0
        self.commits = 0
        super().__init__({ApiKey.FETCH: log_of({0: [build([b"v"], leader_epoch=3)]})})

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
    kreplog: Kreplog, trouble: dict[str, bool]
) -> None:
    with Coordinator(**trouble) as coordinator:
        words = ("--group", "g", "--from-beginning", "-n", 1, "--timeout", 20)
        outcome = kreplog("consume", TOPIC, *words, "--bootstrap", coordinator.bootstrap)
    assert (outcome.code, outcome.out, outcome.err) == (0, b"v\n", ENDED)
    assert coordinator.commits == 1


@pytest.mark.parametrize("error", [CommitFailedError, RebalanceInProgressError])
def test_a_commit_that_a_rebalance_refuses_is_no_failure(
    error: type[KafkaError], capsys: pytest.CaptureFixture[str]
) -> None:
    def commit() -> None:
        raise error

    consume._commit(SimpleNamespace(commit=commit))
    assert capsys.readouterr().err.startswith("the group is in another generation: its members will print some records")
