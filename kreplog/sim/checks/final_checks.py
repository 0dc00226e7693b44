"""Checks at the end of a run: no acknowledged record is lost, and in a cluster at rest all views agree.

lost             a record acknowledged under acks=all is missing, or another one has its offset
logs differ      two replicas of a partition are not equal byte for byte
not converged    no leader, a replica out of sync, a log not committed to its end, a pending request of an operator,
                 files of an unassigned replica, a leader epoch with another flush.messages than its topic
context          the controller's context differs from the store, or has a replica or partition that is not online
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kreplog.core import nodes
from kreplog.core.controller.context import ControllerContext
from kreplog.core.controller.leader_elections import ELECTIONS
from kreplog.sim.checks.checkers import Checkers
from kreplog.sim.history import Violation
from kreplog.sim.machines.partition_model import PartitionModel, describe
from kreplog.types import NO_LEADER, LeaderAndIsr, Node, TopicPartition

_REQUESTS = (
    nodes.REASSIGNED,
    nodes.ADDED,
    nodes.REMOVED,
    nodes.DELETED_TOPICS,
    *ELECTIONS,
    nodes.ISR_CHANGES,
    nodes.LOG_DIR_EVENTS,
)


class _Log(NamedTuple):
    start: int
    end: int
    high_watermark: int
    records: Any


def judge(
    checkers: Checkers,
    dump: Mapping[str, Node],
    context: ControllerContext | None,
    at_rest: bool,
    *,
    context_known: bool = True,
) -> list[Violation]:
    """All violations, those found during the run first. dump: all nodes. context: of the active controller.

    at_rest: all faults have ended and the cluster has come to rest, so that all views must agree.
    context_known: False if the context is not accessible, as in another process; None is no violation then.
    """
    checkers.store(dump)
    assigned = _assigned(dump)
    for (partition, topic_id), model in sorted(checkers.models.items(), key=lambda item: item[0]):
        if model.excused or model.state is None:
            continue
        found = assigned.get(partition)
        if found is None or found[0] != topic_id:
            checkers.violate("lost", "the partition is missing, though its deletion was not requested", model)
            continue
        logs = {broker: log for broker in found[1] if (log := _read(checkers, broker, model)) is not None}
        for broker in model.members:
            if broker in logs and broker not in model.lost:
                _check_acknowledged(checkers, model, broker, logs[broker])
        if at_rest:
            _check_replicas(checkers, model, model.state, found[1], logs)
    if at_rest:
        _check_leftovers(checkers, dump, assigned)
        if context is not None:
            _check_context(checkers, dump, context)
        elif context_known:
            checkers.violate("context", "there is no active controller", None)
    return checkers.violations


def _assigned(dump: Mapping[str, Node]) -> dict[TopicPartition, tuple[str, tuple[int, ...]]]:
    """Topic id and replicas of every partition in the store."""
    found = {}
    for path in sorted(dump):
        match path.split("/"):
            case ["", "brokers", "topics", name]:
                topic = nodes.decode_topic(path, dump[path])
                for number, assignment in sorted(topic.partitions.items()):
                    found[TopicPartition(name, number)] = (topic.topic_id, assignment.replicas)
    return found


def _read(checkers: Checkers, broker: int, model: PartitionModel) -> _Log | None:
    log = checkers.disks.disk(broker).peek(model.partition)
    if log is None or log.topic_id != model.topic_id:
        return None
    state = log.state()
    return _Log(state.log_start, state.leo, log.high_watermark, log.read(state.log_start, state.leo, 1 << 40))


def _check_acknowledged(checkers: Checkers, model: PartitionModel, broker: int, log: _Log) -> None:
    """All records acknowledged under acks=all, and all other committed ones, are in the log of an in-sync replica."""
    facts = {
        record.offset: (record.producer_id, record.sequence, record.value)
        for record in checkers.disks.codec.decode(log.records)
    }
    for offset, fact in [*model.acked, *model.values.items()]:
        found = facts.get(offset)
        if found != fact and (offset >= min(log.start, model.released) or found is not None):
            instead = "nothing" if found is None else describe(found)
            text = f"{describe(fact)} was acknowledged or read at offset {offset}; broker {broker} has {instead} there"
            checkers.violate("lost", text, model, offset)
            return


def _check_replicas(
    checkers: Checkers, model: PartitionModel, state: LeaderAndIsr, replicas: tuple[int, ...], logs: Mapping[int, _Log]
) -> None:
    if state.leader == NO_LEADER:
        checkers.violate("not converged", f"it has no leader, the ISR is {list(state.isr)}", model)
    if sorted(state.isr) != sorted(replicas):
        text = f"the ISR is {list(state.isr)} of {list(replicas)}"
        checkers.violate("not converged", text, model)
    if state.flush_every_record != model.config.flushes_every_record:
        text = f"flush.messages is {model.config.flush_messages}, but leader epoch {state.leader_epoch} has another"
        checkers.violate("not converged", text, model)
    for broker in replicas:
        if broker not in logs:
            checkers.violate("not converged", f"broker {broker} has no log of it", model)
    ends = {broker: (log.end, log.high_watermark) for broker, log in logs.items()}
    if len({offset for pair in ends.values() for offset in pair}) > 1:
        text = ", ".join(f"{broker}: {end} and {watermark}" for broker, (end, watermark) in ends.items())
        checkers.violate("not converged", f"log ends and high watermarks differ ({text})", model)
    start = max((log.start for log in logs.values()), default=0)
    for broker, log in logs.items():
        if state.leader in logs and log.start < logs[state.leader].start:
            text = f"the log of broker {broker} begins at {log.start}, that of its leader at {logs[state.leader].start}"
            checkers.violate("not converged", text, model)
    codec = checkers.disks.codec
    first: tuple[int, Any] | None = None
    for broker, log in logs.items():
        records = log.records if log.start == start else None
        if records is None:
            peeked = checkers.disks.disk(broker).peek(model.partition)
            records = peeked.read(start, log.end, 1 << 40) if peeked is not None and start <= log.end else log.records
        if first is None:
            first = broker, records
        elif records != first[1]:
            pairs = zip(codec.decode(first[1]), codec.decode(records), strict=False)
            offset = next((a.offset for a, b in pairs if a != b), -1)
            where = f"from offset {offset} on" if offset >= 0 else "in their bytes or their ends"
            text = f"the logs of brokers {first[0]} and {broker} differ {where}"
            checkers.violate("logs differ", text, model, offset)


def _check_leftovers(
    checkers: Checkers, dump: Mapping[str, Node], assigned: Mapping[TopicPartition, tuple[str, tuple[int, ...]]]
) -> None:
    for path in sorted(dump):
        for root in _REQUESTS:
            # The parents of requests may stay: /admin/partitions_reassigned/[topic] holds no request itself.
            depth = 2 if root in nodes.PARTITION_REQUESTS else 1
            below = path.removeprefix(root + "/").split("/") if path.startswith(root + "/") else []
            if len(below) == depth or path == root in ELECTIONS:
                checkers.violate("not converged", f"{path} is still pending", None)
    for broker, disk in checkers.disks.all():
        for partition, topic_id in disk.on_disk().items():
            owner = assigned.get(partition)
            if owner is None or owner[0] != topic_id or broker not in owner[1]:
                text = f"broker {broker} still has files of {partition}, topic id {topic_id}, which is not its to keep"
                checkers.violate("not converged", text, None)


def _check_context(checkers: Checkers, dump: Mapping[str, Node], context: ControllerContext) -> None:
    """The active controller's context, compared with the store."""
    topics, states, brokers = {}, {}, {}
    for path in sorted(dump):
        node = dump[path]
        match path.split("/"):
            case ["", "brokers", "topics", name]:
                topic = nodes.decode_topic(path, node)
                topics[name] = (topic.topic_id, dict(topic.partitions))
            case ["", "brokers", "topics", name, number, "leaderAndISR"]:
                states[TopicPartition(name, int(number))] = nodes.decode_leader_and_isr(path, node)
            case ["", "brokers", "ids", number]:
                epoch = dump.get(nodes.broker_epoch(int(number)))
                brokers[int(number)] = -1 if epoch is None else epoch.stat.version
    in_context = {name: (topic.topic_id, dict(topic.partitions)) for name, topic in context.topics.items()}
    _compare(checkers, "topics", in_context, topics)
    _compare(checkers, "leaders and ISRs", context.states, states)
    _compare(
        checkers, "brokers and their epochs", {broker.id: broker.epoch for broker in context.brokers.values()}, brokers
    )
    for replica, status in context.replica_statuses.items():
        if str(status) != "OnlineReplica":
            checkers.violate("context", f"replica {replica} is {status} with all at rest", None)
    for partition, state in context.partition_statuses.items():
        if str(state) != "OnlinePartition":
            checkers.violate("context", f"partition {partition} is {state} with all at rest", None)


def _compare(checkers: Checkers, subject: str, in_context: Mapping[Any, Any], stored: Mapping[Any, Any]) -> None:
    for key in sorted({*in_context, *stored}):
        if in_context.get(key) != stored.get(key):
            text = f"{subject}: of {key} the context has {in_context.get(key)}, the store {stored.get(key)}"
            checkers.violate("context", text, None)
