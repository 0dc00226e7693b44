"""Throttles of replicas that move (KIP-73): lists of topics and rates of brokers, as kafka-reassign-partitions sets and
removes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.broker_configs import alter_broker_configs
from kreplog.client.reassignment import Targets, by_topic, ongoing_reassignments
from kreplog.client.topic_configs import alter_topic_configs, topic_configs
from kreplog.core.throttled_replicas import (
    FOLLOWER_THROTTLED_RATE,
    FOLLOWER_THROTTLED_REPLICAS,
    LEADER_THROTTLED_RATE,
    LEADER_THROTTLED_REPLICAS,
)
from kreplog.types import TopicPartition

_RATES = (LEADER_THROTTLED_RATE, FOLLOWER_THROTTLED_RATE)
_LISTS = (LEADER_THROTTLED_REPLICAS, FOLLOWER_THROTTLED_REPLICAS)


def set_throttles(
    admin: AdminClient, targets: Targets, before: Mapping[TopicPartition, Any], bytes_per_second: int
) -> None:
    """Throttle the moves of `targets` before they are requested: the lists get their replicas, those that are copied
    from and those that copy; all live brokers of these get the rates. before: metadata of the partitions. Raises
    TopicRequestError, UnreachableError."""
    admin.metadata(())
    brokers: set[int] = set()
    for topic, partitions in by_topic(targets):
        present = topic_configs(admin, topic)
        copied = {(partition, broker) for partition in partitions for broker in before[partition].replica_nodes}
        copying = {(partition, broker) for partition in partitions for broker in targets[partition] or ()} - copied
        brokers |= {broker for _, broker in copied | copying}
        changes = {
            name: _with(present.get(name, ""), (f"{partition.partition}:{broker}" for partition, broker in added))
            for name, added in zip(_LISTS, (copied, copying), strict=True)
        }
        alter_topic_configs(admin, topic, changes, validate_only=False)
    for broker in sorted(brokers.intersection(admin.live)):
        alter_broker_configs(admin, broker, dict.fromkeys(_RATES, str(bytes_per_second)))


def remove_throttles(admin: AdminClient, partitions: Iterable[TopicPartition]) -> bool:
    """Take partitions that have moved off the lists of their topics, where they are named. Of the brokers that were
    named with them the rates are deleted, unless other reassignments go on. Returns whether there was anything to
    remove. Raises TopicRequestError, UnreachableError."""
    existing = {topic.name for topic in admin.metadata().topics}
    brokers: set[int] = set()
    for topic, group in by_topic(partition for partition in partitions if partition.topic in existing):
        present, moved = topic_configs(admin, topic), {str(partition.partition) for partition in group}
        changes: dict[str, str | None] = {}
        for name in _LISTS:
            items = present.get(name, "").split(",")
            removed = [item for item in items if item.partition(":")[0] in moved]
            if removed:
                changes[name] = ",".join(item for item in items if item not in removed) or None
                brokers |= {int(item.partition(":")[2]) for item in removed}
        if changes:
            alter_topic_configs(admin, topic, changes, validate_only=False)
    if brokers and not ongoing_reassignments(admin):
        for broker in sorted(brokers.intersection(admin.live)):
            alter_broker_configs(admin, broker, dict.fromkeys(_RATES))
    return bool(brokers)


def _with(present: str, items: Iterable[str]) -> str:
    """A list of replicas with further ones; `*` has all."""
    return present if present == "*" else ",".join(dict.fromkeys([*_items(present), *sorted(items)]))


def _items(text: str) -> Collection[str]:
    return [item for item in text.split(",") if ":" in item]
