"""Senders: a broker's connections to the other brokers, by what is sent over them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kreplog.core.broker.control_channel import ControlChannels
from kreplog.core.messages import ControlRequest, ControlResponse
from kreplog.server.network.peers import Connect
from kreplog.server.replication.add_partitions_sender import AddPartitionsSender
from kreplog.server.replication.addresses import BrokerAddresses
from kreplog.server.replication.control_sender import ControlSender
from kreplog.server.replication.fetch_client import ReplicaFetchClient
from kreplog.server.replication.marker_sender import MarkerSender
from kreplog.server.replication.peer_connections import PeerConnections
from kreplog.server.replication.shutdown_sender import ShutdownSender
from kreplog.server.runtime.core_runners import CoreRunners
from kreplog.server.settings import BrokerSettings


@dataclass(frozen=True, slots=True)
class Senders:
    """Carry out the effects that send to other brokers. peers: connections that detect failures, without requests."""

    fetches: ReplicaFetchClient
    control: ControlSender
    markers: MarkerSender
    add_partitions: AddPartitionsSender
    shutdown: ShutdownSender
    peers: PeerConnections

    def close(self) -> None:
        """Close all connections."""
        self.shutdown.close()
        self.control.close()
        self.peers.close()
        self.fetches.close()
        self.markers.close()
        self.add_partitions.close()


def make_senders(
    settings: BrokerSettings,
    runners: CoreRunners,
    channels: ControlChannels,
    addresses: BrokerAddresses,
    names: Callable[[], Mapping[str, str]],
    connect: Connect,
    apply_locally: Callable[[ControlRequest], Awaitable[ControlResponse]],
    on_closed: Callable[[int], None],
    on_end: Callable[[asyncio.Task[None]], None],
) -> Senders:
    """The senders of a broker; what they receive goes to `runners`. channels: of its controller. names: of topics by
    id. connect: connects to an address. apply_locally: as of ControlSender. on_closed: called with the id of a broker
    that has closed a connection. on_end: as of ShutdownSender."""
    own, client_id, max_bytes = settings.broker_id, f"broker-{settings.broker_id}", settings.socket_request_max_bytes
    replicas, transactions = runners.replicas.put, runners.transactions.put
    return Senders(
        ReplicaFetchClient(
            client_id, max_bytes, addresses.known, addresses.resolve, names, replicas, on_closed, connect
        ),
        ControlSender(channels, client_id, addresses.controlled, runners.controller.put, own, apply_locally, connect),
        MarkerSender(client_id, own, replicas, transactions, addresses.known, connect),
        AddPartitionsSender(client_id, own, transactions, replicas, addresses.known, connect),
        ShutdownSender(client_id, max_bytes, addresses.resolve, runners.shutdown.put, on_end, connect),
        PeerConnections(connect, runners.detector.put, on_closed),
    )
