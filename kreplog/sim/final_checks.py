"""What must hold at the end of a run: nothing acknowledged is lost, and where all is at rest, all agree.

lost             a record acknowledged under acks=all is missing, or another stands there
logs differ      two replicas of a partition are not the same, byte for byte
not converged    no leader, somebody not in sync, a log that is not committed to its end, a request of an operator
                 that still stands, files of what belongs to nobody
context          the controller's picture is not what the store says, or has somebody not online
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kreplog.core import nodes
from kreplog.core.controller.context import ControllerContext
from kreplog.sim.checkers import Checkers, Violation
from kreplog.sim.partition_history import PartitionHistory, describe
from kreplog.types import NO_LEADER, LeaderAndIsr, Node, TopicPartition

_REQUESTS = (
    nodes.REASSIGNED,
    nodes.ADDED,
    nodes.REMOVED,
    nodes.DELETED_TOPICS,
    nodes.PREFERRED_ELECTION,
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

    at_rest: all faults have ended and the engine has seen everything settle, so that all must agree.
    context_known: False where the controller cannot be looked into, as in another process; None says nothing then.
    """
    checkers.store(dump)
    assigned = _assigned(dump)
    for (partition, topic_id), line in sorted(checkers.lines.items(), key=lambda item: item[0]):
        if line.excused or line.state is None:
            continue
        found = assigned.get(partition)
        if found is None or found[0] != topic_id:
            checkers.violate("lost", "the partition is gone, though nobody asked for its deletion", line)
            continue
        logs = {broker: log for broker in found[1] if (log := _read(checkers, broker, line)) is not None}
        for broker in line.members:
            if broker in logs and broker not in line.lost:
                _check_acknowledged(checkers, line, broker, logs[broker])
        if at_rest:
            _check_replicas(checkers, line, line.state, found[1], logs)
    if at_rest:
        _check_leftovers(checkers, dump, assigned)
        if context is not None:
            _check_context(checkers, dump, context)
        elif context_known:
            checkers.violate("context", "nobody controls", None)
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


def _read(checkers: Checkers, broker: int, line: PartitionHistory) -> _Log | None:
    log = checkers.disks.disk(broker).peek(line.partition)
    if log is None or log.topic_id != line.topic_id:
        return None
    state = log.state()
    return _Log(state.log_start, state.leo, log.high_watermark, log.read(state.log_start, state.leo, 1 << 40))


def _check_acknowledged(checkers: Checkers, line: PartitionHistory, broker: int, log: _Log) -> None:
    """All that was acknowledged under acks=all, and all else that was committed, is in the log of a replica in sync."""
    facts = {
        record.offset: (record.producer_id, record.sequence, record.value)
        for record in checkers.disks.codec.decode(log.records)
    }
    for offset, fact in [*line.acked, *line.values.items()]:
        found = facts.get(offset)
        if found != fact and (offset >= min(log.start, line.released) or found is not None):
            there = "nothing is" if found is None else f"{describe(found)} stands"
            text = f"{describe(fact)}, acknowledged or seen at offset {offset}: {there} there on broker {broker}"
            checkers.violate("lost", text, line, offset)
            return


def _check_replicas(
    checkers: Checkers, line: PartitionHistory, state: LeaderAndIsr, replicas: tuple[int, ...], logs: Mapping[int, _Log]
) -> None:
    if state.leader == NO_LEADER:
        checkers.violate("not converged", f"it has no leader, in sync are {list(state.isr)}", line)
    if sorted(state.isr) != sorted(replicas):
        text = f"in sync are {list(state.isr)} of {list(replicas)}"
        checkers.violate("not converged", text, line)
    for broker in replicas:
        if broker not in logs:
            checkers.violate("not converged", f"broker {broker} has no log of it", line)
    ends = {broker: (log.end, log.high_watermark) for broker, log in logs.items()}
    if len({offset for pair in ends.values() for offset in pair}) > 1:
        text = ", ".join(f"{broker}: {end} and {watermark}" for broker, (end, watermark) in ends.items())
        checkers.violate("not converged", f"log ends and high watermarks differ ({text})", line)
    start = max((log.start for log in logs.values()), default=0)
    for broker, log in logs.items():
        if state.leader in logs and log.start < logs[state.leader].start:
            text = f"the log of broker {broker} begins at {log.start}, that of its leader at {logs[state.leader].start}"
            checkers.violate("not converged", text, line)
    codec = checkers.disks.codec
    first: tuple[int, Any] | None = None
    for broker, log in logs.items():
        records = log.records if log.start == start else None
        if records is None:
            peeked = checkers.disks.disk(broker).peek(line.partition)
            records = peeked.read(start, log.end, 1 << 40) if peeked is not None and start <= log.end else log.records
        if first is None:
            first = broker, records
        elif records != first[1]:
            pairs = zip(codec.decode(first[1]), codec.decode(records), strict=False)
            offset = next((a.offset for a, b in pairs if a != b), -1)
            where = f"from offset {offset} on" if offset >= 0 else "in their bytes or their ends"
            text = f"the logs of brokers {first[0]} and {broker} differ {where}"
            checkers.violate("logs differ", text, line, offset)


def _check_leftovers(
    checkers: Checkers, dump: Mapping[str, Node], assigned: Mapping[TopicPartition, tuple[str, tuple[int, ...]]]
) -> None:
    for path in sorted(dump):
        for root in _REQUESTS:
            # The parents of requests may stay: /admin/partitions_reassigned/[topic] holds no request itself.
            depth = 2 if root in (nodes.REASSIGNED, nodes.ADDED, nodes.REMOVED) else 1
            below = path.removeprefix(root + "/").split("/") if path.startswith(root + "/") else []
            if len(below) == depth or path == root == nodes.PREFERRED_ELECTION:
                checkers.violate("not converged", f"{path} still stands", None)
    for broker, disk in checkers.disks.all():
        for partition, topic_id in disk.on_disk().items():
            owner = assigned.get(partition)
            if owner is None or owner[0] != topic_id or broker not in owner[1]:
                text = f"broker {broker} still has files of {partition}, topic id {topic_id}, which is not its to keep"
                checkers.violate("not converged", text, None)


def _check_context(checkers: Checkers, dump: Mapping[str, Node], context: ControllerContext) -> None:
    """What the active controller believes, against the store."""
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
    believed = {name: (topic.topic_id, dict(topic.partitions)) for name, topic in context.topics.items()}
    _compare(checkers, "topics", believed, topics)
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


def _compare(checkers: Checkers, what: str, believed: Mapping[Any, Any], stored: Mapping[Any, Any]) -> None:
    for key in sorted({*believed, *stored}):
        if believed.get(key) != stored.get(key):
            text = f"{what}: of {key} the controller believes {believed.get(key)}, the store says {stored.get(key)}"
            checkers.violate("context", text, None)
