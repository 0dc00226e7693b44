"""The partitions of Metadata responses are encoded from tuples: the bytes are those of fields by their names."""

from __future__ import annotations

import pytest

from kreplog.core.messages import PartitionState
from kreplog.server.handlers.metadata import _Clients, partition_fields
from kreplog.types import NO_LEADER, BrokerRegistration, LeaderAndIsr, TopicPartition
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

STATES = {
    0: PartitionState(TopicPartition("t", 0), "", LeaderAndIsr(2, 7, (1, 2)), (2, 1, 3)),
    5: PartitionState(TopicPartition("t", 5), "", LeaderAndIsr(NO_LEADER, 3, ()), (3,)),
}


CLIENTS = _Clients(dict.fromkeys((1, 2), BrokerRegistration(1, 1, "localhost", 9092)), (), frozenset())
"""Those of brokers 1 and 2, which are live."""


@pytest.mark.parametrize("version", range(14))
def test_the_bytes_are_those_of_named_fields(version: int) -> None:
    header = RequestHeader(ApiKey.METADATA, version, 1, "test")
    named = [
        {
            "error_code": CLIENTS.error_of(state, state.state.leader, version),
            "partition_index": number,
            "leader_id": state.state.leader,
            "leader_epoch": state.state.leader_epoch,
            "replica_nodes": list(state.replicas),
            "isr_nodes": list(state.state.isr),
            "offline_replicas": CLIENTS.offline_replicas(state),
        }
        for number, state in STATES.items()
    ]
    tuples = [partition_fields(number, state, CLIENTS, version) for number, state in STATES.items()]
    encoded = [
        b"".join(
            map(bytes, generic.encode_response(header, brokers=[], topics=[{"name": "t", "partitions": partitions}]))
        )
        for partitions in (named, tuples)
    ]
    assert encoded[0] == encoded[1]
