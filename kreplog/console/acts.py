"""Acts: what a page may change where the console was started with --allow-writes.

Each is prepared first: what it will do, in words; the command that does the same; and the name that confirms it, which
the page sends back. Preparing changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kreplog.batches import build
from kreplog.client import topic_admin
from kreplog.client.bootstrap import TopicRequestError, raise_for_error
from kreplog.client.group_admin import committed_offsets
from kreplog.client.group_offsets import commit_offsets
from kreplog.client.leader_election import elect_leaders
from kreplog.client.offset_reset import ResetTarget, plan_reset, require_resettable
from kreplog.client.partition_batches import leader_of, produce_batch
from kreplog.client.reassignment import alter_reassignments, existing_partitions, leader_sizes, partitions_in, target_in
from kreplog.client.topic_configs import alter_topic_configs
from kreplog.console.client_threads import ThreadClients
from kreplog.console.cluster_requests import deadline
from kreplog.console.parameters import Parameters, number_in, partition_in, topic_in
from kreplog.errors import UsageError
from kreplog.types import ElectionType, TopicPartition, counted

MAX_SHOWN = 20
"""Partitions that a text names."""


@dataclass(frozen=True, slots=True)
class Act:
    """A prepared change. name: confirms it. words: of the command, without those that name the cluster. before: what
    the command reads, as words of a shell."""

    text: str
    name: str
    words: Sequence[str]
    run: Callable[[], str]
    before: str = ""

    def to_json(self, cluster_words: Sequence[str]) -> dict[str, Any]:
        """As a page shows it. command: None for names that the command would take for options."""
        command = (
            None if self.name.startswith("-") else self.before + shlex.join(["kreplog", *self.words, *cluster_words])
        )
        return {"text": self.text, "name": self.name, "command": command}


def create_topic(clients: ThreadClients, parameters: Parameters) -> Act:
    """Create `topic` with `partitions` partitions of `replication_factor` replicas."""
    topic = topic_in(parameters)
    partitions = number_in(parameters, "partitions", 1)
    replicas = number_in(parameters, "replication_factor", 1)

    def run() -> str:
        topic_admin.create_topic(clients.admin, topic, partitions, replicas, {})
        return f"{topic} is created"

    words = ["topic", "create", topic, "--partitions", str(partitions), "--replication-factor", str(replicas)]
    text = f"Creates topic {topic}: {counted(partitions, 'partition')} of {counted(replicas, 'replica')}."
    return Act(text, topic, words, run)


def delete_topic(clients: ThreadClients, parameters: Parameters) -> Act:
    """Delete `topic` with all its records."""
    topic = topic_in(parameters)
    metadata = clients.admin.metadata([topic])
    (found,) = metadata.topics
    raise_for_error("topic", topic, found)
    sizes = leader_sizes(clients.admin, partitions_in(metadata))

    def run() -> str:
        topic_admin.delete_topic(clients.admin, topic)
        return f"{topic} is deleted"

    text = (
        f"Deletes topic {topic} with all its records: {counted(len(found.partitions), 'partition')}, "
        f"{_bytes(sizes.values(), len(found.partitions))} at their leaders. This cannot be undone."
    )
    return Act(text, topic, ["topic", "delete", topic], run)


def reassign_partitions(clients: ThreadClients, parameters: Parameters) -> Act:
    """Move partitions of `topic` to the replicas in `replicas`, such as "0=1,2,3 1=2,3,1"."""
    topic, words = topic_in(parameters), parameters.get("replicas", "").split()
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for word in words:
        at, target = target_in(topic, word)
        if target is None or at in targets:
            raise UsageError(f"{word!r}: give each partition once, as in 0=1,2,3")
        targets[at] = target
    if not targets:
        raise UsageError("give partitions with their new replicas, the preferred leader first, as in 0=1,2,3 1=2,3,1")
    before = existing_partitions(clients.admin, targets)
    if unknown := {broker for target in targets.values() for broker in target} - clients.admin.live.keys():
        raise UsageError(f"brokers {sorted(unknown)} are not live: those that are: {sorted(clients.admin.live)}")
    added = {at: set(target) - set(before[at].replica_nodes) for at, target in targets.items()}
    sizes = leader_sizes(clients.admin, {at: before[at] for at, brokers in added.items() if brokers})
    copied = [size * len(added[at]) for at, size in sizes.items()]

    def run() -> str:
        if refused := alter_reassignments(clients.admin, targets):
            raise TopicRequestError("; ".join(refused.values()))
        return f"{counted(len(targets), 'partition')} of {topic} are being reassigned"

    shown = _shown(f"{at} {list(before[at].replica_nodes)} → {list(target)}" for at, target in sorted(targets.items()))
    text = f"Reassigns {shown}: {_bytes(copied, sum(map(bool, added.values())))} to copy."
    return Act(text, topic, ["partition", "reassign", topic, *words, "--no-wait"], run)


def _bytes(sizes: Collection[int], expected: int) -> str:
    """The sum. expected: number of sizes; it is a lower bound where some are not known."""
    return f"{'at least ' if len(sizes) < expected else ''}{counted(sum(sizes), 'byte')}"


def alter_config(clients: ThreadClients, parameters: Parameters) -> Act:
    """Set the setting `config` of `topic` to `value`; without a value, back to its default."""
    topic, config = topic_in(parameters), parameters.get("config", "")
    value = parameters.get("value") or None
    if not config or "=" in config:
        raise UsageError(f"config = {config!r}: give the name of a topic's setting")
    alter_topic_configs(clients.admin, topic, {config: value}, validate_only=True)

    def run() -> str:
        alter_topic_configs(clients.admin, topic, {config: value}, validate_only=False)
        return f"{topic}: {config} is {'its default' if value is None else value}"

    change = ["--delete-config", config] if value is None else ["--config", f"{config}={value}"]
    text = f"Sets {config} of topic {topic} to {'its default' if value is None else value}."
    return Act(text, topic, ["topic", "alter", topic, *change], run)


def elect_preferred(clients: ThreadClients, parameters: Parameters) -> Act:
    """Elect the preferred replicas of `topic` as leaders."""
    topic = topic_in(parameters)
    (found,) = clients.admin.metadata([topic]).topics
    raise_for_error("topic", topic, found)
    moved = {
        TopicPartition(topic, partition.partition_index): (partition.leader_id, partition.replica_nodes[0])
        for partition in found.partitions
        if partition.replica_nodes and partition.leader_id != partition.replica_nodes[0]
    }

    def run() -> str:
        result = elect_leaders(clients.admin, ElectionType.PREFERRED, moved)
        failed = "".join(f"; {text}" for text in result.failed.values())
        return f"{len(result.elected)} leaders elected{failed}"

    shown = _shown(f"{at} {old} → {new}" for at, (old, new) in sorted(moved.items()))
    text = f"Elects the preferred leaders: {shown}." if moved else "Changes nothing: all leaders are preferred."
    return Act(text, topic, ["partition", "elect-preferred", topic], run)


def reset_offsets(clients: ThreadClients, parameters: Parameters) -> Act:
    """Reset the offsets of `group`, which has no members, for all it has committed: `to` earliest, latest, or an
    offset."""
    group, to = parameters.get("group", ""), parameters.get("to", "")
    if to in ("earliest", "latest"):
        target, words = getattr(ResetTarget, to)(), [f"--to-{to}"]
    else:
        number = number_in({"to": to}, "to")
        target, words = ResetTarget(offset=number), ["--to-offset", str(number)]
    require_resettable(clients.connections, group, deadline())
    committed = committed_offsets(clients.connections, group, deadline())
    if not committed:
        raise UsageError(f"group {group} has no committed offsets")
    resets = plan_reset(clients.connections, list(committed), committed, target, deadline())

    def run() -> str:
        offsets = {at: reset.offset for at, reset in resets.items()}
        commit_offsets(clients.connections, group, offsets, {}, deadline())
        return f"{len(resets)} offsets of group {group} are committed"

    shown = _shown(f"{at} {reset.committed} → {reset.offset}" for at, reset in sorted(resets.items()))
    words = ["group", "reset-offsets", group, "--all-topics", *words, "--execute"]
    return Act(f"Commits for group {group}: {shown}.", group, words, run)


def produce(clients: ThreadClients, parameters: Parameters) -> Act:
    """Produce one record with `value`, and `key` if there is one, to a partition. Each is one line of text."""
    at, value, key = partition_in(parameters), parameters.get("value", ""), parameters.get("key")
    if any(character in value + (key or "") for character in "\n\0") or (key is not None and "\t" in key):
        raise UsageError("a key or value is one line, a key without tabs: as `kreplog produce` reads them")
    leader = leader_of(clients.admin, at)
    batch = build([value.encode()], [None if key is None else key.encode()])

    def run() -> str:
        return f"produced to {at} at offset {produce_batch(clients.admin, leader, at, batch):,}"

    separator = [] if key is None else ["--key-separator", "\t"]
    line = value if key is None else f"{key}\t{value}"
    size = len(value.encode())
    return Act(
        f"Appends one record of {size:,} bytes to {at}, acknowledged by all in-sync replicas.",
        at.topic,
        ["produce", at.topic, "--partition", str(at.partition), *separator],
        run,
        f"printf '%s\\n' {shlex.quote(line)} | ",
    )


def _shown(changes: Iterable[str]) -> str:
    """The first changes of an act, and how many there are beyond."""
    listed = list(changes)
    more = f" and {len(listed) - MAX_SHOWN:,} more" if len(listed) > MAX_SHOWN else ""
    return ", ".join(listed[:MAX_SHOWN]) + more


ACTS: dict[str, Callable[[ThreadClients, Parameters], Act]] = {
    "create-topic": create_topic,
    "delete-topic": delete_topic,
    "reassign-partitions": reassign_partitions,
    "alter-config": alter_config,
    "elect-preferred": elect_preferred,
    "reset-offsets": reset_offsets,
    "produce": produce,
}
"""By the name in /api/acts/<name>."""


def perform(
    clients: ThreadClients, name: str, parameters: Parameters, confirmed: str | None, cluster_words: Sequence[str]
) -> dict[str, Any]:
    """Prepare an act, and carry it out if it is `confirmed` by its name; None: only prepare it. Raises UsageError, and
    as the act."""
    prepare = ACTS.get(name)
    if prepare is None:
        raise UsageError(f"there is no act {name!r}")
    act = prepare(clients, parameters)
    if confirmed is None:
        return act.to_json(cluster_words)
    if confirmed != act.name:
        raise UsageError(f"not confirmed, nothing is changed: give the name {act.name!r}")
    return {"done": act.run()}
