"""The cluster's nodes in the coordination store: their paths, and their content, encoded and decoded as JSON.

    /controller                                     ephemeral: {"broker_id"}
    /controller_epoch                               the epoch, decimal; its version fences every write of a controller
    /brokers/ids/[id]                               ephemeral: host, port, rack, stopping, unclean, internal,
                                                    directories, endpoints, features
    /brokers/epochs/[id]                            empty; its version is the broker epoch of the last registration
    /brokers/epochs/[id]/handled                    the last broker epoch that a controller handled, decimal
    /brokers/topics/[topic]                         topic id; per partition: replicas, adding, removing
    /brokers/topics/[topic]/[partition]             empty; after a removal the first leader epoch, decimal
    /brokers/topics/[topic]/[partition]/leaderAndISR   LeaderAndIsr; its version is the partition epoch
    /brokers/topic_names_[n]                        empty; written with each topic whose name has that hash, see
                                                    core.controller.topic_names
    /admin/partitions_reassigned/[topic]/[partition]   JSON list of target replicas; empty cancels
    /admin/partitions_add/[topic]/[partition]       JSON list of replicas
    /admin/partitions_remove/[topic]/[partition]    empty
    /admin/delete_topics/[topic]                    empty
    /admin/preferred_replica_election               JSON list of [topic, partition]; empty list for all
    /admin/unclean_leader_election                  JSON list of [topic, partition]
    /config/topics/[topic]                          settings under Kafka's names
    /config/brokers/[id], /config/brokers/default   dynamic configs of a broker, and of all: texts by Kafka's names
    /config/groups                                  all configs of groups, see core.groups.group_configs
    /feature                                        the finalized level of kreplog.version, see core.features
    /acls                                           all ACLs, see core.security.acl_requests
    /client_quotas                                  all client quotas, see core.quotas.quota_requests
    /config/users                                   the secret for the credentials of unknown users
    /config/users/[user]                            credentials of a user: texts by mechanism, as Kafka writes them
    /isr_change_notification/change_[n]             sequential: JSON list of [topic, partition], by a leader
    /log_dir_event_notification/event_[n]           sequential: {"broker", "partitions"}, by a broker whose disk failed
    /latest_producer_id_block                       the first producer id that no broker has allocated, decimal
    /broker_failure_notification/[id]-[epoch]-[by]  ephemeral, empty: broker [by] has evidence that that process is dead

Departures from the v3 document, and why: `/brokers/epochs` gives a broker epoch that a multi can check (KIP-380), and
the two notification directories save the controller watches on 10,000 nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kreplog.config import INHERITED, NO_OWN_SETTINGS, TopicConfig
from kreplog.core.throttled_replicas import stored_text
from kreplog.errors import CoordinationError
from kreplog.types import (
    KREPLOG_VERSION,
    BrokerRegistration,
    Endpoint,
    LeaderAndIsr,
    Node,
    SecurityProtocol,
    TopicPartition,
    check_partition_number,
    check_topic_id,
)

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_EPOCHS = "/brokers/epochs"
TOPICS = "/brokers/topics"
REASSIGNED = "/admin/partitions_reassigned"
ADDED = "/admin/partitions_add"
REMOVED = "/admin/partitions_remove"
DELETED_TOPICS = "/admin/delete_topics"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
UNCLEAN_ELECTION = "/admin/unclean_leader_election"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
FEATURE = "/feature"
ACLS = "/acls"
CLIENT_QUOTAS = "/client_quotas"
USERS = "/config/users"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
BROKER_FAILURES = "/broker_failure_notification"
PRODUCER_IDS = "/latest_producer_id_block"

PARTITION_REQUESTS = (REASSIGNED, ADDED, REMOVED)
"""Directories of administrators' requests, [directory]/[topic]/[partition]."""

PERSISTENT = (
    "/brokers",
    BROKER_IDS,
    BROKER_EPOCHS,
    TOPICS,
    "/admin",
    REASSIGNED,
    ADDED,
    REMOVED,
    DELETED_TOPICS,
    "/config",
    TOPIC_CONFIGS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    BROKER_FAILURES,
)
"""Nodes that a new cluster creates, parents first; CONTROLLER_EPOCH, with "0", after them."""


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_epoch(broker_id: int) -> str:
    return f"{BROKER_EPOCHS}/{broker_id}"


def handled_epoch(broker_id: int) -> str:
    """The node for the broker epoch that controllers have handled, so that a restart during an absence of controllers
    is not missed, and one that a controller has handled is not handled again by the next."""
    return f"{BROKER_EPOCHS}/{broker_id}/handled"


def broker_failure(broker_id: int, epoch: int, reporter: int) -> str:
    return f"{BROKER_FAILURES}/{broker_id}-{epoch}-{reporter}"


def failure_reporters(names: Iterable[str], broker_id: int, epoch: int) -> set[int]:
    """Ids of the brokers that report that registration, by the children of BROKER_FAILURES."""
    prefix = f"{broker_id}-{epoch}-"
    return {int(reporter) for name in names if (reporter := name.removeprefix(prefix)) != name and reporter.isdigit()}


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def topic_names(number: int) -> str:
    """The node whose version guards the creation of topics whose names have this hash."""
    return f"/brokers/topic_names_{number}"


def partition(of: TopicPartition, under: str = TOPICS) -> str:
    return f"{under}/{of.topic}/{of.partition}"


def leader_and_isr(of: TopicPartition) -> str:
    return f"{TOPICS}/{of.topic}/{of.partition}/leaderAndISR"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config(broker_id: int | None) -> str:
    """The node of a broker's dynamic configs; None: of the cluster-wide default."""
    return f"{BROKER_CONFIGS}/{'default' if broker_id is None else broker_id}"


def user(name: str) -> str:
    """The node of a user's credentials: all bytes but letters, digits, - and _ are escaped as in URLs."""
    plain = b"-_"
    escaped = (chr(byte) if bytes((byte,)).isalnum() or byte in plain else f"%{byte:02X}" for byte in name.encode())
    return f"{USERS}/{''.join(escaped)}"


def user_name(path: str) -> str:
    """The user that a node is of. Raises CoordinationError."""
    first, *escaped = path.removeprefix(f"{USERS}/").encode().split(b"%")
    try:
        return (first + b"".join(bytes((int(part[:2], 16),)) + part[2:] for part in escaped)).decode()
    except ValueError as error:
        raise CoordinationError(f"the node {path} is of no user: delete it", path=path) from error


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of one partition. replicas: AR, preferred leader first. adding, removing: of a reassignment."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once the reassignment is done (RAR)."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


@dataclass(frozen=True, slots=True)
class TopicNode:
    """Content of a topic's node. version: of that node, for compare-and-set. created: the transaction that created it,
    0 for a topic that is not stored yet."""

    topic_id: str
    partitions: Mapping[int, Assignment]
    version: int = 0
    created: int = 0


def encode_controller(broker_id: int) -> bytes:
    return _encode({"broker_id": broker_id})


def encode_leader_and_isr(state: LeaderAndIsr) -> bytes:
    return _encode(
        {
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
            "eligible": list(state.elr),
            "controller_epoch": state.controller_epoch,
            "flush_every_record": state.flush_every_record,
        }
    )


def decode_leader_and_isr(path: str, node: Node) -> LeaderAndIsr:
    """Raises CoordinationError with `path` if the node has other content, here and below. Nodes of versions before
    flush_every_record count as without it."""
    try:
        content = _parsed(node.data)
        return LeaderAndIsr(
            int(content["leader"]),
            int(content["leader_epoch"]),
            tuple(content["isr"]),
            tuple(content["eligible"]),
            int(content["controller_epoch"]),
            node.stat.version,
            bool(content.get("flush_every_record", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, node.data) from error


def encode_topic(content: TopicNode) -> bytes:
    assignments = sorted(content.partitions.items())
    return _encode(
        {
            "topic_id": content.topic_id,
            "partitions": {str(number): list(assignment.replicas) for number, assignment in assignments},
            "adding": {str(number): list(assignment.adding) for number, assignment in assignments if assignment.adding},
            "removing": {
                str(number): list(assignment.removing) for number, assignment in assignments if assignment.removing
            },
        }
    )


def decode_topic(path: str, node: Node) -> TopicNode:
    try:
        content = _parsed(node.data)
        adding, removing = content["adding"], content["removing"]
        return TopicNode(
            check_topic_id(content["topic_id"]),
            {
                check_partition_number(int(number)): Assignment(
                    tuple(replicas), tuple(adding.get(number, ())), tuple(removing.get(number, ()))
                )
                for number, replicas in content["partitions"].items()
            },
            node.stat.version,
            node.stat.created,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, node.data) from error


def encode_broker(content: BrokerRegistration) -> bytes:
    """A registration's node, without the epoch, which is the version of `broker_epoch`."""
    endpoints = [
        (endpoint.listener, endpoint.host, endpoint.port, endpoint.security_protocol.name)
        for endpoint in content.endpoints
    ]
    return _encode(
        {
            "host": content.host,
            "port": content.port,
            "rack": content.rack,
            "stopping": content.stopping,
            "unclean": content.unclean,
            "internal": content.internal,
            "directories": content.directories,
            "features": {KREPLOG_VERSION: dict(zip(_RANGE, content.supported_versions, strict=True))},
        }
        | ({"endpoints": endpoints} if endpoints else {})
    )


def decode_broker(path: str, node: Node, epoch: int) -> BrokerRegistration:
    try:
        content = _parsed(node.data)
        internal = content.get("internal")
        supported = content.get("features", {}).get(KREPLOG_VERSION)
        return BrokerRegistration(
            int(path.rpartition("/")[2]),
            epoch,
            str(content["host"]),
            int(content["port"]),
            content["rack"],
            bool(content["stopping"]),
            bool(content["unclean"]),
            None if internal is None else (str(internal[0]), int(internal[1])),
            tuple(map(str, content.get("directories", ()))),
            tuple(
                Endpoint(str(listener), str(host), int(port), SecurityProtocol[protocol])
                for listener, host, port, protocol in content.get("endpoints", ())
            ),
            (1, 1) if supported is None else (int(supported[_RANGE[0]]), int(supported[_RANGE[1]])),
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unreadable(path, node.data) from error


def encode_topic_config(config: TopicConfig) -> bytes:
    """The node of a topic's own settings, without inherited ones."""
    default = TopicConfig(inherited=config.inherited)
    settings = {
        name.replace("_", "."): getattr(config, name)
        for name in TopicConfig.__slots__
        if (name in INHERITED and name not in config.inherited) or getattr(config, name) != getattr(default, name)
    }
    return _encode(settings | {"unused": dict(config.unused)} if config.unused else settings)


def decode_topic_config(path: str, node: Node | None) -> TopicConfig:
    """A topic's own settings, none if there is no node. Unknown settings, such as a newer version's, are ignored."""
    if node is None:
        return NO_OWN_SETTINGS
    try:
        settings = {name.replace(".", "_"): value for name, value in _parsed(node.data).items()}
        unused = sorted(settings.get("unused", {}).items())
        settings["unused"] = tuple((name, stored_text(name, str(value))) for name, value in unused)
        settings["inherited"] = tuple(name for name in INHERITED if name not in settings)
        return replace(TopicConfig(), **{name: settings[name] for name in TopicConfig.__slots__ if name in settings})
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(path, node.data) from error


def encode_broker_config(config: Mapping[str, str]) -> bytes:
    return _encode(dict(sorted(config.items())))


def decode_broker_config(path: str, node: Node | None) -> tuple[tuple[str, str], ...]:
    """Names and values, sorted; none if there is no node."""
    if node is None:
        return ()
    try:
        return tuple(sorted((name, str(value)) for name, value in _parsed(node.data).items()))
    except (ValueError, AttributeError) as error:
        raise _unreadable(path, node.data) from error


def encode_user(credentials: Mapping[str, str]) -> bytes:
    return _encode(dict(sorted(credentials.items())))


def decode_user(path: str, node: Node | None) -> dict[str, str]:
    """Texts by mechanism, none if there is no node. Raises CoordinationError, which does not quote them."""
    if node is None:
        return {}
    try:
        return {name: str(value) for name, value in _parsed(node.data).items()}
    except (ValueError, AttributeError) as error:
        raise CoordinationError(
            f"the node {path} has no credentials as kreplog writes them: delete it", path=path
        ) from error


def encode_replicas(replicas: Iterable[int]) -> bytes:
    return _encode(list(replicas))


def decode_replicas(path: str, node: Node) -> tuple[int, ...]:
    try:
        return tuple(int(replica) for replica in _parsed(node.data))
    except (ValueError, TypeError) as error:
        raise _unreadable(path, node.data) from error


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    return _encode(_pairs(partitions))


def decode_partitions(path: str, node: Node) -> tuple[TopicPartition, ...]:
    try:
        return tuple(TopicPartition(str(name), int(number)) for name, number in _parsed(node.data))
    except (ValueError, TypeError) as error:
        raise _unreadable(path, node.data) from error


def decode_number(path: str, node: Node) -> int:
    """The number in a node, 0 for an empty one. Raises CoordinationError."""
    try:
        return int(node.data or b"0")
    except ValueError as error:
        raise CoordinationError(
            f"the node {path} has the content {node.data[:80]!r}, which is no number", path=path
        ) from error


def encode_log_dir_event(broker_id: int, partitions: Iterable[TopicPartition]) -> bytes:
    return _encode({"broker": broker_id, "partitions": _pairs(partitions)})


def decode_controller(node: Node) -> int:
    """The id of the controller, from the node CONTROLLER. Raises CoordinationError."""
    try:
        return int(_parsed(node.data)["broker_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(CONTROLLER, node.data) from error


def decode_log_dir_event(path: str, node: Node) -> tuple[int, tuple[TopicPartition, ...]]:
    try:
        content = _parsed(node.data)
        return int(content["broker"]), tuple(TopicPartition(str(name), int(n)) for name, n in content["partitions"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, node.data) from error


def _pairs(partitions: Iterable[TopicPartition]) -> list[list[str | int]]:
    return [[topic_partition.topic, topic_partition.partition] for topic_partition in partitions]


_RANGE = ("min_version", "max_version")

_json = json.JSONEncoder(separators=(",", ":")).encode
_of_json = json.JSONDecoder().decode


def _encode(content: object) -> bytes:
    return _json(content).encode()


def _parsed(data: bytes) -> Any:
    """Raises ValueError."""
    return _of_json(data.decode())


def _unreadable(path: str, data: bytes) -> CoordinationError:
    return CoordinationError(
        f"the node {path} has the content {data[:80]!r}, which kreplog does not write: correct or delete it",
        path=path,
    )
