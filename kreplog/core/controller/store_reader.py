"""Reads of the store by the controller: in bulk, and with a watch wherever later changes matter.

Each function reads one kind of node. Malformed nodes under /admin are reported and skipped; a malformed topic or
leaderAndISR node stops the controller, since without the topic its replicas would be deleted as strays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kreplog.config import BUILT_IN_DEFAULTS, TopicConfig
from kreplog.core import nodes
from kreplog.core.controller.context import ControllerContext, LogDirEvent
from kreplog.core.effects import GetChildren, GetNodes, Nodes, StateChange, Steps
from kreplog.core.messages import BrokerConfigs, Configs, PartitionState
from kreplog.core.nodes import TopicNode
from kreplog.core.topic_defaults import topic_defaults
from kreplog.errors import CoordinationError, InvalidTopicError
from kreplog.types import NO_EPOCH, NO_LEADER, BrokerRegistration, LeaderAndIsr, Node, TopicPartition, check_topic


class RegisteredBroker(NamedTuple):
    """A registered broker. created: the store's transaction. handled_epoch: the last broker epoch that a controller has
    applied, None for none. configs: its dynamic ones."""

    registration: BrokerRegistration
    created: int
    handled_epoch: int | None
    configs: BrokerConfigs


TOPICS_AT_ONCE, PARTITIONS_AT_ONCE = 100, 500
"""Topics, and partitions, per read of `metadata`, so that its caller serves other work in between."""

STRICTEST = TopicConfig(min_insync_replicas=2**31 - 1, unclean_leader_election_enable=False, flush_messages=1)
"""Replaces unreadable topic settings: no durability that the topic was configured for is lost under it."""


def children(path: str) -> Steps[list[str]]:
    """The names of the children, empty where the node does not exist; leaves a watch."""
    found: list[str] | None = yield GetChildren(path, watch=True)
    return found or []


def brokers(last_readable: dict[str, Configs]) -> Steps[tuple[dict[int, RegisteredBroker], Configs]]:
    """All registered brokers, and the cluster-wide default of dynamic configs. Epochs are read before registrations: if
    a registration is replaced in between, the watch on the children fires, and the epoch returned here differs from the
    new one. Leaves a watch on the configs.

    last_readable: dynamic configs by the path of their node, kept where the node is unreadable now; updated here."""
    ids = sorted(number for name in (yield from children(nodes.BROKER_IDS)) if (number := _number(name)) is not None)
    if not ids:
        return {}, last_readable.get(nodes.broker_config(None), ())
    epochs: Nodes = yield GetNodes((*map(nodes.broker_epoch, ids), *map(nodes.handled_epoch, ids)))
    config_paths = tuple(map(nodes.broker_config, (*ids, None)))
    registered: Nodes = yield GetNodes((*map(nodes.broker, ids), *config_paths), watch=True)
    *own, default = yield from _broker_configs(config_paths, registered[len(ids) :], last_readable)
    found = {}
    for broker, epoch, handled, node, config in zip(
        ids, epochs[: len(ids)], epochs[len(ids) :], registered[: len(ids)], own, strict=True
    ):
        if node is None or epoch is None:
            continue
        try:
            content = nodes.decode_broker(nodes.broker(broker), node, epoch.stat.version)
        except CoordinationError as error:
            yield StateChange("error", str(error))
            continue
        handled_epoch = None if handled is None else nodes.decode_number(nodes.handled_epoch(broker), handled)
        configs = BrokerConfigs(config, default)
        found[broker] = RegisteredBroker(content, node.stat.created, handled_epoch, configs)
    return found, default


def _broker_configs(paths: Sequence[str], found: Nodes, last_readable: dict[str, Configs]) -> Steps[list[Configs]]:
    """The dynamic configs at `paths`. An unreadable node counts as it was when it was last readable: under a shorter
    static retention a typo would delete records."""
    for path, node in zip(paths, found, strict=True):
        try:
            last_readable[path] = nodes.decode_broker_config(path, node)
        except CoordinationError as error:
            settings = ", ".join(f"{name} = {value}" for name, value in last_readable.setdefault(path, ()))
            remaining = f"keep {settings}" if settings else "have their static settings"
            yield StateChange("error", f"{error}; brokers {remaining} until it is repaired")
    return [last_readable[path] for path in paths]


def topics(names: Sequence[str]) -> Steps[dict[str, tuple[TopicNode, TopicConfig]]]:
    """The topics among `names` that exist, with watches on all of `names` and their settings. An illegal topic name is
    reported and skipped: no disk can hold a replica of it."""
    names = yield from _legal(names)
    if not names:
        return {}
    found: Nodes = yield GetNodes(tuple(map(nodes.topic, names)), watch=True)
    settings: Nodes = yield GetNodes(tuple(map(nodes.topic_config, names)), watch=True)
    read = {}
    for name, node, setting in zip(names, found, settings, strict=True):
        if node is not None:
            config = yield from _config(name, setting)
            read[name] = nodes.decode_topic(nodes.topic(name), node), config
    return read


def _legal(names: Iterable[str]) -> Steps[list[str]]:
    legal = []
    for name in names:
        try:
            legal.append(check_topic(name))
        except InvalidTopicError as error:
            yield StateChange("error", f"a node below {nodes.TOPICS} is skipped: {error}")
    return legal


def topic_config(name: str) -> Steps[TopicConfig]:
    """A topic's settings, with a watch."""
    found: Nodes = yield GetNodes((nodes.topic_config(name),), watch=True)
    return (yield from _config(name, found[0]))


def _config(name: str, node: Node | None) -> Steps[TopicConfig]:
    try:
        return nodes.decode_topic_config(nodes.topic_config(name), node)
    except CoordinationError as error:
        yield StateChange("error", f"{error}; the strictest settings apply until it is repaired")
        return STRICTEST


def states(partitions: Sequence[TopicPartition]) -> Steps[dict[TopicPartition, LeaderAndIsr]]:
    """leaderAndISR of those that have one, without watches: leaders write a notification after they change an ISR."""
    if not partitions:
        return {}
    found: Nodes = yield GetNodes(tuple(map(nodes.leader_and_isr, partitions)))
    return {
        partition: nodes.decode_leader_and_isr(nodes.leader_and_isr(partition), node)
        for partition, node in zip(partitions, found, strict=True)
        if node is not None
    }


def tree(under: str) -> Steps[dict[TopicPartition, Node]]:
    """The nodes [under]/[topic]/[partition], with watches on every level."""
    partitions = []
    for topic in (yield from children(under)):
        for name in (yield from children(f"{under}/{topic}")):
            number = _number(name)
            if number is None:
                yield StateChange("error", f"{under}/{topic}/{name} is skipped: {name!r} is no partition number")
            else:
                partitions.append(TopicPartition(topic, number))
    if not partitions:
        return {}
    partitions.sort()
    found: Nodes = yield GetNodes(tuple(nodes.partition(partition, under) for partition in partitions), watch=True)
    return {partition: node for partition, node in zip(partitions, found, strict=True) if node is not None}


def isr_changes() -> Steps[tuple[list[str], list[TopicPartition]]]:
    """Paths of the ISR change notifications that leaders wrote, and the partitions in them."""
    found = yield from _notifications(nodes.ISR_CHANGES)
    named: dict[TopicPartition, None] = {}
    for path, node in found:
        try:
            named.update(dict.fromkeys(nodes.decode_partitions(path, node)))
        except CoordinationError as error:
            yield StateChange("error", str(error))
    return [path for path, _ in found], list(named)


def log_dir_events() -> Steps[tuple[LogDirEvent, ...]]:
    """The log dir events that brokers wrote when a disk failed."""
    events = []
    for path, node in (yield from _notifications(nodes.LOG_DIR_EVENTS)):
        try:
            broker, lost = nodes.decode_log_dir_event(path, node)
        except CoordinationError as error:
            yield StateChange("error", str(error))
            continue
        events.append(LogDirEvent(path, node.stat.created, broker, lost))
    return tuple(events)


def fill(context: ControllerContext) -> Steps[None]:
    """Read topics with their settings, states and deletions: all of the context except brokers and reassignments."""
    context.deleting = dict.fromkeys((yield from children(nodes.DELETED_TOPICS)))
    for name, (topic, config) in (yield from topics((yield from children(nodes.TOPICS)))).items():
        context.put_topic(name, topic)
        context.configs[name] = config
    partitions = [partition for name in context.topics for partition in context.partitions_of(name)]
    context.states.update((yield from states(partitions)))


def metadata(
    static_topic_defaults: TopicConfig = BUILT_IN_DEFAULTS,
) -> Steps[tuple[list[BrokerRegistration], list[PartitionState]]]:
    """Content of a controller's UpdateMetadata, for a broker that no controller reaches; read in pieces. A partition
    without a state has no leader. static_topic_defaults: as a controller has them."""
    registered, default = yield from brokers({})
    live = [each.registration for each in registered.values()]
    defaults = topic_defaults(static_topic_defaults, default)
    names = yield from children(nodes.TOPICS)
    partition_states: list[PartitionState] = []
    for start in range(0, len(names), TOPICS_AT_ONCE):
        found = yield from topics(names[start : start + TOPICS_AT_ONCE])
        configs = {name: config.with_defaults(defaults) for name, (_, config) in found.items()}
        partitions = [TopicPartition(name, number) for name, (topic, _) in found.items() for number in topic.partitions]
        for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
            piece = partitions[first : first + PARTITIONS_AT_ONCE]
            known = yield from states(piece)
            for partition in piece:
                topic, _ = found[partition.topic]
                assigned = topic.partitions[partition.partition]
                state = known.get(partition, LeaderAndIsr(NO_LEADER, NO_EPOCH, ()))
                partition_states.append(
                    PartitionState(
                        partition,
                        topic.topic_id,
                        state,
                        assigned.replicas,
                        assigned.adding,
                        assigned.removing,
                        config=configs[partition.topic],
                    )
                )
    return live, partition_states


def _notifications(directory: str) -> Steps[list[tuple[str, Node]]]:
    paths = [f"{directory}/{name}" for name in (yield from children(directory))]
    if not paths:
        return []
    found: Nodes = yield GetNodes(tuple(paths))
    return [(path, node) for path, node in zip(paths, found, strict=True) if node is not None]


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None


def existing(paths: Iterable[str]) -> Steps[list[str]]:
    """The nodes among `paths` that exist."""
    wanted = tuple(paths)
    if not wanted:
        return []
    found: Nodes = yield GetNodes(wanted)
    return [path for path, node in zip(wanted, found, strict=True) if node is not None]
