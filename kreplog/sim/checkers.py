"""Whether the promises are kept: judged from the disks, the store and what clients saw, outside the code under test.

What must hold, and when it is looked at:

    two values          one value for each offset below a high watermark, on every replica, for ever    as it moves
    written twice       a producer's record is in the log once                                          as it commits
    out of order        a producer's records are in the order of their sequences, none missing          as it commits
    lacks committed     every replica in sync or eligible (KIP-966) holds all that is committed         at any change
    not fsynced         ... and has fsynced it, with flush.messages=1                                   at any change
    two leaders         one leader for each leader epoch, and only it commits; no broker goes back      at any change
    two controllers     leaders are elected by the controller of the newest epoch                       at any change
    too few             what a leader commits is held by min.insync.replicas                            as it commits
    stale life          nobody joins the ISR by what an earlier life of its broker held (KIP-903)       at any change
    unclean election    a leader from outside ISR and eligible, unless the topic allows it              at any change
    isr                 within the assigned replicas, the leader in it; never empty with eligible       at any change
    illegal transition  of a replica or a partition in the controller                                   at any change
    watermark           a replica's stays within its log and is the one that its log keeps              after each step
    too early           an acks=all batch is acknowledged once it is committed, where the answer says   at the answer
    refused             ... and never refused for want of what was acknowledged before                  at the answer
    phantom             a consumer sees only what is committed, and nothing else at that offset ever    at the answer
    gap                 ... offset by offset, from where it began                                       at the answer
    out of range        ... and never stands outside the log                                            at the answer
    denied              no client hears that a partition does not exist from a broker that was never told  at the answer
    lag in bytes        nobody in sync is more than replica.lag.max.bytes behind, but on its way out    after each step
    log state           what a broker's core believes of its log, its end and epochs, is so             after each step
    report of the dead  failed logs are reported under the registration of the process that has them    at the write
    memory              what is held for fetchers is charged, and within its bound                     after each step
    failed in vain      a replica is offline only where its disk has failed                            after each step
    deleted unnamed     a replica's files go only when a controller names it for that                   as they go
    deleted             nothing is, but what an operator or retention let go; nothing that is not committed   as it goes
    watermark fell      nor is it told a lower high watermark by the same or a later leader             at the answer
    lost                all that was acknowledged under acks=all is in the log                          at the end
    not converged, logs differ, context                                                                 final_checks.py

What is excused. The promise of acks=all: a record is in the page cache of every replica in sync, at least
min.insync.replicas of them, so it survives any crash of processes and the power failing under all but one of those
that the store calls in sync or eligible. It is broken when each of these has lost committed records to a power cut and
not got them back; then, as after an unclean election in a topic that allows it, nothing is held against that partition
any more. With flush.messages=1 a power cut excuses nothing. Nor is anything owed once a topic's deletion was asked for.
What was deleted from the start on purpose is not lost, a consumer that stands there is out of range, and of a producer
whose last records are gone a new leader may know nothing. New settings count for a leader from when it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kreplog.config import TopicConfig
from kreplog.core import effects, nodes
from kreplog.core.memory import NO_LIMIT
from kreplog.core.messages import CONSUMER
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.sim.disk import DiskLog, Disks, Loss
from kreplog.sim.history import (
    DeletionDone,
    DeletionRequested,
    Event,
    Fail,
    History,
    Ok,
    Position,
    PowerLost,
    PromiseBroken,
    Read,
    TopicDeleted,
    UncleanElectionDeclared,
    Watermark,
)
from kreplog.sim.partition_history import Lost, PartitionHistory, describe
from kreplog.types import NO_LEADER, Check, LeaderAndIsr, Node, StoreOperation, TopicPartition

_NEW, _ONLINE, _OFFLINE = "NewReplica", "OnlineReplica", "OfflineReplica"
_STARTED, _DELETED = "ReplicaDeletionStarted", "ReplicaDeletionSuccessful"
_INELIGIBLE, _NONE = "ReplicaDeletionIneligible", "NonExistentReplica"

LEGAL = {
    _NEW: {_NONE},
    _ONLINE: {_NEW, _ONLINE, _OFFLINE, _INELIGIBLE},
    _OFFLINE: {_NEW, _ONLINE, _OFFLINE, _INELIGIBLE},
    _STARTED: {_OFFLINE},
    _DELETED: {_STARTED},
    _INELIGIBLE: {_OFFLINE, _STARTED},
    _NONE: {_DELETED},
    "NewPartition": {"NonExistentPartition"},
    "OnlinePartition": {"NewPartition", "OnlinePartition", "OfflinePartition"},
    "OfflinePartition": {"NewPartition", "OnlinePartition", "OfflinePartition"},
    "NonExistentPartition": {"OfflinePartition"},
}
"""State -> the states that it may be entered from. Source: the v3 document and the study of the state machines; written
down a second time, since the controller's own table is what is checked."""

_FIRST = {_ONLINE, _OFFLINE, "NewPartition", "OnlinePartition", "OfflinePartition"}
"""What a new controller may find: it enters these from nowhere, once."""

_DELETION = "its deletion was asked for"


class Violation(NamedTuple):
    """A promise broken. kind: as in the module's table. offset: -1 where it is about none."""

    kind: str
    text: str
    partitions: tuple[TopicPartition, ...] = ()
    offset: int = -1


class Checkers:
    """Listens to disks, clients, store and brokers of one run; see each method for when the engine calls it.

    replica_of(broker, partition): the core's view in the broker's running process, None where there is none.
    """

    def __init__(
        self, disks: Disks, history: History, replica_of: Callable[[int, TopicPartition], Partition | None]
    ) -> None:
        self.violations: list[Violation] = []
        self.lines: dict[tuple[TopicPartition, str], PartitionHistory] = {}
        self.history = history
        self.disks = disks
        self._replica_of = replica_of
        self._configs: dict[str, list[TopicConfig]] = {}
        self._topic_ids: dict[str, str] = {}
        self._deleted: dict[tuple[str, int], None] = {}
        self._assigned: dict[TopicPartition, tuple[int, ...]] = {}
        self._modified: dict[str, int] = {}
        self._registrations: dict[int, int] = {}
        self._controller_epoch = 0
        self._seen: dict[tuple[int, TopicPartition], tuple[Any, ...]] = {}
        self._consumers_bytes: dict[int, int] = {}
        self._positions: dict[tuple[str, TopicPartition, str], int] = {}
        self._watermarks: dict[tuple[str, TopicPartition, str], tuple[int, int]] = {}
        self._counts = {"acked": 0, "read": 0}
        disks.observe(self)
        history.listener = self.heard

    def violate(self, kind: str, text: str, line: PartitionHistory | None, offset: int = -1) -> None:
        """Take note of a violation, once for each kind and partition; none against a partition that is excused."""
        if line is not None and line.excused:
            return
        partitions = () if line is None else (line.partition,)
        if not any(one.kind == kind and one.partitions == partitions for one in self.violations):
            named = text if line is None else f"{line.partition}: {text}"
            self.violations.append(Violation(kind, named, partitions, offset))

    def stats(self) -> dict[str, int]:
        """acked, read: records. committed: of all partitions. excused: partitions that may lose records from here on;
        deleted ones do not count."""
        return {
            **self._counts,
            "committed": sum(len(line.values) for line in self.lines.values()),
            "excused": sum(bool(line.excused) and line.excused != _DELETION for line in self.lines.values()),
        }

    def line(self, partition: TopicPartition, topic_id: str) -> PartitionHistory:
        found = self.lines.get((partition, topic_id))
        if found is None:
            configs = self._configs.setdefault(topic_id, [TopicConfig()])
            found = self.lines[partition, topic_id] = PartitionHistory(partition, topic_id, configs)
            if not {(topic_id, -1), (topic_id, partition.partition)}.isdisjoint(self._deleted):
                self.excuse(found, _DELETION)
        return found

    def excuse(self, line: PartitionHistory, reason: str) -> None:
        if not line.excused:
            line.excused = reason

    # What operators and faults do, told by the engine

    def topic_created(self, name: str, topic_id: str, config: TopicConfig) -> None:
        """Before it is in the store. The store tells it, too."""
        self._topic_ids[name] = topic_id
        self._configs[topic_id] = [config]

    def topic_deleted(self, name: str) -> None:
        """Its deletion is asked for. The store tells it, too."""
        self._delete(name, -1)

    def power_lost(self, losses: Iterable[Loss]) -> None:
        """What Disk.crash answered."""
        for loss in losses:
            now_ms = self.history.now_ms()
            self.history.add(PowerLost(now_ms, loss.partition, loss.topic_id, loss.broker, loss.start, loss.end))

    def unclean_election(self, effect: effects.UncleanElection) -> None:
        """A controller has declared one."""
        topic_id = self._topic_ids.get(effect.partition.topic, "")
        now_ms = self.history.now_ms()
        self.history.add(
            UncleanElectionDeclared(now_ms, effect.partition, topic_id, effect.leader, effect.leader_epoch)
        )

    # Disks (kreplog.sim.disk.Observer)

    def appended(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        line = self.lines.get((partition, log.topic_id))
        if line is not None and broker in line.lost:
            self._check_members(line)

    def truncated(self, broker: int, partition: TopicPartition, log: DiskLog, end: int) -> None:
        line = self.lines.get((partition, log.topic_id))
        if line is not None and broker in line.members:
            self._check_members(line)

    def committed(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        line = self.line(partition, log.topic_id)
        if line.excused:
            return
        end = self._take_committed(line, broker, log, start)
        replica = self._replica_of(broker, partition)
        if replica is not None and replica.role is Role.LEADER and replica.topic_id == log.topic_id:
            other = line.committers.setdefault(replica.leader_epoch, broker)
            if other != broker:
                text = f"brokers {other} and {broker} both commit in leader epoch {replica.leader_epoch}"
                self.violate("two leaders", text, line, start)
        if end > line.end:
            line.end = end
            if line.config.flush_messages == 1 and (replica is None or replica.config.flush_messages == 1):
                line.durable_end = end
            self._check_holders(line, broker, replica)
            self._check_members(line)

    def deleted(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        line = self.line(partition, log.topic_id)
        replica = self._replica_of(broker, partition)
        begin = log.state().log_start
        if line.all_requested and begin <= line.end and replica is not None and replica.role is Role.LEADER:
            line.released = max(line.released, begin)
        self._check_deleted(line, broker, begin)

    def denied(self, broker: int, partition: TopicPartition) -> None:
        """A broker that no controller has sent its metadata yet has answered that there is no such partition."""
        if partition in self._assigned and (self._topic_ids.get(partition.topic, ""), -1) not in self._deleted:
            self.violate("denied", f"broker {broker} was told of nothing yet and denies {partition}", None)

    def deleting(self, broker: int, partition: TopicPartition, named: bool) -> None:
        """A broker deletes a replica's files. named: a StopReplica has asked for it."""
        if not named:
            self.violate("deleted unnamed", f"broker {broker} deletes {partition}, which no StopReplica names", None)

    def expired(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        line = self.line(partition, log.topic_id)
        begin = log.state().log_start
        if begin <= line.end:
            line.released = max(line.released, begin)
        self._check_deleted(line, broker, begin)

    def _check_deleted(self, line: PartitionHistory, broker: int, begin: int) -> None:
        if begin > line.end:
            text = f"broker {broker} has deleted all below {begin}, but only {line.end} is committed"
            self.violate("deleted", text, line, begin)
        elif begin > line.released:
            text = f"broker {broker} has deleted all below {begin}, but nobody let go of what is above {line.released}"
            self.violate("deleted", text, line, begin)

    def opened(self, broker: int, partition: TopicPartition, log: DiskLog) -> None:
        line = self.line(partition, log.topic_id)
        if not line.excused:
            self._take_committed(line, broker, log, 0)

    def _take_committed(self, line: PartitionHistory, broker: int, log: DiskLog, start: int) -> int:
        """Compare what this replica has committed from `start` on; return where that ends."""
        end = log.high_watermark
        start = max(start, log.state().log_start)
        if start >= end:
            return end
        for record in self.disks.codec.decode(log.read(start, end, 1 << 40)):
            if start <= record.offset < end:
                wrong = line.add(record.offset, (record.producer_id, record.sequence, record.value))
                if wrong is not None:
                    self.violate(wrong[0], f"{wrong[1]}, by broker {broker}", line, record.offset)
        return end

    def _check_holders(self, line: PartitionHistory, broker: int, replica: Partition | None) -> None:
        """As broker commits: min.insync.replicas hold it, or held it until a power cut."""
        assigned = self._assigned.get(line.partition, ())
        told = line.config if replica is None or replica.config not in line.configs else replica.config
        needed = min(told.min_insync_replicas, len(assigned))
        holders = [
            one
            for one, disk in self.disks.all()
            if one in line.lost or disk.ends(line.partition, line.topic_id)[0] >= line.end
        ]
        if len(holders) < needed:
            text = f"broker {broker} committed below {line.end}, which only {holders} hold; {needed} must"
            self.violate("too few", text, line, line.end)

    def _check_members(self, line: PartitionHistory) -> None:
        """Who is in sync or eligible holds all that is committed, but for what a power cut took."""
        if line.excused:
            return
        flushes = line.config.flush_messages == 1 and line.durable_end == line.end
        lacking = []
        for broker in line.members:
            disk = self.disks.disk(broker)
            leo, durable = disk.ends(line.partition, line.topic_id)
            lost = line.lost.get(broker)
            if leo < line.end:
                lacking.append(broker)
                if lost is None:
                    among = "in sync" if line.state is not None and broker in line.state.isr else "eligible"
                    text = f"broker {broker} is {among} and ends at {leo}, but all below {line.end} is committed"
                    self.violate("lacks committed", text, line, leo)
                continue
            if lost is not None and (leo >= lost.end or lost.leader_epoch < line.led_epoch):
                del line.lost[broker]
            if durable < line.durable_end:
                text = f"committed below {line.durable_end}, but broker {broker} has fsynced it below {durable} only"
                self.violate("not fsynced", text, line, durable)
            self._check_last(line, broker, disk.log(line.partition))
        if lacking and lacking == [*line.members] and line.lost.keys() >= {*lacking} and not flushes:
            self.excuse(
                line, f"power failed under all of {list(line.members)}, who alone had to hold what is committed"
            )

    def _check_last(self, line: PartitionHistory, broker: int, log: DiskLog | None) -> None:
        """The last committed record is what a replica has there; one that is as long may be another log."""
        if log is None or log.topic_id != line.topic_id or log.state().log_start >= line.end:
            return
        for record in self.disks.codec.decode(log.read(line.end - 1, line.end, 1)):
            fact = (record.producer_id, record.sequence, record.value)
            if record.offset == line.end - 1 and line.values.get(record.offset, fact) != fact:
                text = f"broker {broker} has {describe(fact)} at offset {record.offset}, where another is committed"
                self.violate("lacks committed", text, line, record.offset)

    @staticmethod
    def _epoch_of(line: PartitionHistory) -> int:
        return -1 if line.state is None else line.state.leader_epoch

    # The store

    def store(self, dump: Mapping[str, Node]) -> None:
        """All nodes, whenever one has changed."""
        modified = self._modified
        changed = [path for path, node in dump.items() if modified.get(path) != node.stat.modified]
        states = []
        for path in sorted(changed):  # what is deleted, the settings, the topics, and their states
            node = dump[path]
            modified[path] = node.stat.modified
            match path.split("/"):
                case ["", "admin", "delete_topics", name]:
                    self._delete(name, -1)
                case ["", "admin", "partitions_remove", name, number]:
                    self._delete(name, int(number))
                case ["", "controller_epoch"]:
                    self._controller_epoch = int(node.data)
                case ["", "brokers", "epochs", broker]:
                    self._registrations[int(broker)] = node.stat.version
                case ["", "brokers", "topics", name]:
                    topic = nodes.decode_topic(path, node)
                    self._topic_ids[name] = topic.topic_id
                    config = dump.get(nodes.topic_config(name))
                    if config is not None:
                        self._configured(topic.topic_id, nodes.decode_topic_config(nodes.topic_config(name), config))
                    for index, assignment in topic.partitions.items():
                        self._assigned[TopicPartition(name, index)] = assignment.replicas
                case ["", "config", "topics", name]:
                    self._configured(self._topic_ids.get(name, ""), nodes.decode_topic_config(path, node))
                case ["", "brokers", "topics", name, number, "leaderAndISR"]:
                    states.append((TopicPartition(name, int(number)), path))
        for partition, path in states:
            line = self.line(partition, self._topic_ids.get(partition.topic, ""))
            self._state_changed(line, nodes.decode_leader_and_isr(path, dump[path]))

    def _configured(self, topic_id: str, config: TopicConfig) -> None:
        """A topic's settings were written, or those of a new topic."""
        configs = self._configs.setdefault(topic_id, [config])
        if configs[-1] == config:
            return
        configs.append(config)
        for line in self.lines.values():
            if line.topic_id == topic_id and config.flush_messages != 1:
                line.durable_end = 0

    def _delete(self, name: str, number: int) -> None:
        """The deletion of a topic, or of one partition of it, is asked for. number: -1 for all."""
        topic_id = self._topic_ids.get(name, "")
        if (topic_id, number) in self._deleted:
            return
        self._deleted[topic_id, number] = None
        for line in list(self.lines.values()):
            if line.topic_id == topic_id and number in (-1, line.partition.partition):
                self.history.add(TopicDeleted(self.history.now_ms(), line.partition, topic_id))

    def _state_changed(self, line: PartitionHistory, state: LeaderAndIsr) -> None:
        before, line.state = line.state, state
        line.members = tuple(sorted({*state.isr, *state.elr}))
        self._one_leader(line, state.leader_epoch, state.leader)
        assigned = self._assigned.get(line.partition, ())
        if not line.members:
            self.violate("isr", f"nobody is in sync or eligible in leader epoch {state.leader_epoch}", line)
        elif not set(state.isr) <= set(assigned):
            self.violate("isr", f"in sync are {list(state.isr)}, assigned {list(assigned)}", line)
        elif state.leader not in (NO_LEADER, *state.isr):
            self.violate("isr", f"its leader {state.leader} is not among those in sync, {list(state.isr)}", line)
        if before is None or state.leader_epoch != before.leader_epoch:
            self._elected(line, state)
        if before is not None:
            if state.leader_epoch < before.leader_epoch:
                text = f"its leader epoch fell from {before.leader_epoch} to {state.leader_epoch}"
                self.violate("two leaders", text, line)
            if state.leader not in (NO_LEADER, *before.isr, *before.elr):
                self._unclean(line, state.leader, state.leader_epoch)
            else:
                # A leader takes in followers. A controller may elect who was eligible by what it knew: epochs fence it.
                by_leader = state.leader_epoch == before.leader_epoch
                known = before.isr if by_leader else (*before.isr, *before.elr)
                self._joined(line, [broker for broker in state.isr if broker not in known])
        self._check_members(line)

    def _elected(self, line: PartitionHistory, state: LeaderAndIsr) -> None:
        if state.controller_epoch != self._controller_epoch:
            text = f"leader epoch {state.leader_epoch} is of a controller of epoch {state.controller_epoch}"
            self.violate("two controllers", f"{text}, while epoch {self._controller_epoch} has begun", line)

    def _joined(self, line: PartitionHistory, brokers: Iterable[int]) -> None:
        for broker in brokers:
            lost = line.lost.get(broker)
            leo, _ = self.disks.disk(broker).ends(line.partition, line.topic_id)
            if lost is not None and leo < line.end and lost.registration < self._registrations.get(broker, -1):
                text = f"broker {broker} joined those in sync with {leo} of {line.end}: power had failed, and it knows"
                self.violate("stale life", text, line, leo)

    def _unclean(self, line: PartitionHistory, leader: int, epoch: int) -> None:
        if line.config.unclean_leader_election_enable:
            self.excuse(line, f"unclean election of broker {leader} in leader epoch {epoch}")
        else:
            text = f"broker {leader} was elected in leader epoch {epoch} though it was neither in sync nor eligible"
            self.violate("unclean election", text, line)

    def _one_leader(self, line: PartitionHistory, epoch: int, leader: int) -> None:
        other = line.leaders.setdefault(epoch, leader)
        if other != leader:
            self.violate("two leaders", f"brokers {other} and {leader} both lead in leader epoch {epoch}", line)

    # Brokers

    def stepped(self, broker: int, manager: ReplicaManager) -> None:
        """After each step of a broker's replication core."""
        if manager.memory.limit < NO_LIMIT:
            self._check_memory(broker, manager)
        max_lag_bytes = manager.config.replica_lag_max_bytes
        for partition, replica in manager.partitions.items():
            if max_lag_bytes >= 0:
                self._check_lag(broker, partition, replica, max_lag_bytes)
            now = (
                *(replica.role, replica.leader_epoch, replica.isr, replica.high_watermark, replica.log),
                *(replica.interrupted, replica),
            )
            key = (broker, partition)
            before = self._seen.get(key)
            if before != now:
                self._seen[key] = now
                self._look_at(broker, partition, replica)
                if before is not None and before[-1] is replica and before[1] > replica.leader_epoch:
                    line = self.line(partition, replica.topic_id)
                    text = f"broker {broker} went back from leader epoch {before[1]} to {replica.leader_epoch}"
                    self.violate("two leaders", text, line)

    def _check_memory(self, broker: int, manager: ReplicaManager) -> None:
        held: Counter[str] = Counter()
        consumers = 0
        for account, replica_id, size in manager.charges():
            held[account] += size
            consumers += size if replica_id <= CONSUMER else 0
        if held != manager.memory.held:
            text = (
                f"broker {broker} holds {dict(held)} bytes for fetchers, its account says {dict(manager.memory.held)}"
            )
            self.violate("memory", text, None)
        if consumers > self._consumers_bytes.get(broker, 0) and held.total() > manager.memory.limit // 2:
            text = f"broker {broker} took more for a consumer: {held.total()} bytes of {manager.memory.limit} are held"
            self.violate("memory", text, None)
        self._consumers_bytes[broker] = consumers

    def _look_at(self, broker: int, partition: TopicPartition, replica: Partition) -> None:
        line = self.line(partition, replica.topic_id)
        if replica.role is Role.LEADER:
            self._one_leader(line, replica.leader_epoch, broker)
            line.led_epoch = max(line.led_epoch, replica.leader_epoch)
            if not set(replica.isr) <= set(replica.assigned_replicas):
                text = f"leader {broker} has {list(replica.isr)} in sync of {list(replica.assigned_replicas)}"
                self.violate("isr", text, line)
        disk = self.disks.disk(broker)
        if replica.role is Role.OFFLINE and not disk.failed:
            self.violate("failed in vain", f"broker {broker} took its replica offline, and its disk works", line)
        log = disk.log(partition)
        if log is None or log.topic_id != replica.topic_id or replica.role is Role.OFFLINE or replica.interrupted:
            return
        self._check_deleted(line, broker, replica.log.log_start)
        if not log.high_watermark == replica.high_watermark <= replica.log.leo:
            text = (
                f"broker {broker} has high watermark {replica.high_watermark}, "
                f"its log {log.high_watermark} and end {replica.log.leo}"
            )
            self.violate("watermark", text, line, replica.high_watermark)
        if log.state() != replica.log:
            text = f"broker {broker} takes its log for {replica.log}, and it is {log.state()}"
            self.violate("log state", text, line, replica.log.leo)

    def _check_lag(self, broker: int, partition: TopicPartition, replica: Partition, max_bytes: int) -> None:
        disk = self.disks.disk(broker)
        log = disk.log(partition)
        if replica.role is not Role.LEADER or replica.pending is not None or replica.interrupted or log is None:
            return
        for member in replica.isr:
            follower = replica.replicas.get(member)
            if follower is not None and follower.leo >= 0:
                position = max(follower.leo, log.state().log_start)
                behind = log.size_from(position)
                if behind > max_bytes and (partition, position) not in disk.sizes_not_read:
                    text = f"broker {member} stays in sync {behind} bytes behind leader {broker}, {max_bytes} allowed"
                    self.violate("lag in bytes", text, self.line(partition, replica.topic_id))

    def written(self, broker: int, broker_epoch: int, operations: Sequence[StoreOperation]) -> None:
        """The store has carried out what a broker's replication core sent under the registration `broker_epoch`.

        What a process sent may arrive after its broker has registered again. That takes a death and a delay at the one
        moment, which few runs have, so it is also looked at whether the store would refuse it then.
        """
        reports = any(operation.path.startswith(f"{nodes.LOG_DIR_EVENTS}/") for operation in operations)
        current = self._registrations.get(broker, -1)
        if reports and (broker_epoch != current or Check(nodes.broker_epoch(broker), current) not in operations):
            text = f"broker {broker} reports failed logs whatever its registration, sent in {broker_epoch} of {current}"
            self.violate("report of the dead", text, None)

    def exits(self, broker: int, all_moved: bool) -> None:
        """A broker exits in order. all_moved: because it leads nothing any more."""
        for line in self.lines.values():
            state = line.state
            if all_moved and state is not None and state.leader == broker and set(state.isr) - {broker}:
                self.violate("exit of a leader", f"broker {broker} exits while it leads, in sync {state.isr}", line)

    def unclean_mark_cleared(self, broker: int, not_durable: Sequence[str]) -> None:
        """A broker's disk no longer says that it may lack records. not_durable: topic ids of replicas that its last
        INIT created."""
        if not_durable:
            text = f"broker {broker} counts as clean again before {len(not_durable)} new replicas are durable"
            self.violate("clean too early", text, None)

    def transition(self, thing: object, old: str, new: str) -> None:
        """A controller has changed the state of a replica or a partition."""
        if old not in LEGAL.get(new, ()) and not (old.startswith("NonExistent") and new in _FIRST):
            self.violate("illegal transition", f"{thing} went from {old} to {new}", None)

    # Clients

    def heard(self, event: Event) -> None:
        """Called by the history, for every event."""
        line = self.line(event.partition, event.topic_id)
        match event:
            case Ok(acks=-1):
                self._acknowledged(line, event)
            case Fail(acks=-1):
                text = f"{event.client} was refused sequence {event.sequence} of producer {event.producer_id}"
                if not line.forgotten(event.producer_id):
                    self.violate("refused", f"{text}: {event.error}", line)
            case Read():
                self._read(line, event)
            case Watermark():
                self._watermark(line, event)
            case Position():
                key = (event.client, event.partition, event.topic_id)
                before, self._positions[key] = self._positions.get(key, -1), event.offset
                if event.offset < 0 and not 0 <= before < line.released:
                    self.violate("out of range", f"{event.client}: {event.reason}", line)
            case DeletionRequested():
                line.all_requested = line.all_requested or event.offset < 0
                line.released = max(line.released, event.offset)
            case DeletionDone():
                if event.low_watermark < event.offset:
                    text = f"deletion below {event.offset} is done, but the low watermark is {event.low_watermark}"
                    self.violate("too early", text, line, event.offset)
            case UncleanElectionDeclared():
                self._unclean(line, event.leader, event.leader_epoch)
            case PowerLost():
                self._power_lost(line, event)
            case PromiseBroken():
                self.excuse(line, event.reason)
            case TopicDeleted():
                self.excuse(line, _DELETION)
            case _:
                pass

    def _acknowledged(self, line: PartitionHistory, event: Ok) -> None:
        self._counts["acked"] += len(event.values)
        for index, value in enumerate(event.values):
            sequence = event.sequence + index
            told_offset = event.base_offset >= 0
            offset = event.base_offset + index if told_offset else line.place_of(event.producer_id, sequence)
            fact = (event.producer_id, sequence, value.encode())
            line.acked.append((offset, fact))
            found = line.values.get(offset)
            if found != fact:
                there = "nothing is committed there" if found is None else f"{describe(found)} is committed there"
                where = f"at offset {offset}" if told_offset else "somewhere"
                text = f"{event.client} got {describe(fact)} acknowledged {where}, but {there}"
                self.violate("too early" if found is None else "two values", text, line, offset)

    def _read(self, line: PartitionHistory, event: Read) -> None:
        self._counts["read"] += 1
        key = (event.client, event.partition, event.topic_id)
        expected = self._positions.get(key, event.offset)
        self._positions[key] = event.offset + 1
        if event.offset != expected:
            text = f"{event.client} stood at offset {expected} and got offset {event.offset}"
            self.violate("gap", text, line, event.offset)
        fact = (event.producer_id, event.sequence, event.value.encode())
        found = line.values.get(event.offset)
        if found != fact:
            there = "nothing" if found is None else describe(found)
            text = (
                f"{event.client} read {describe(fact)} at offset {event.offset} from broker {event.leader} in "
                f"leader epoch {event.leader_epoch}, where {there} is committed"
            )
            self.violate("phantom", text, line, event.offset)

    def _watermark(self, line: PartitionHistory, event: Watermark) -> None:
        key = (event.client, event.partition, event.topic_id)
        epoch, highest = self._watermarks.get(key, (-1, -1))
        if event.leader_epoch < epoch:
            return
        if event.high_watermark < highest:
            text = (
                f"{event.client} was told high watermark {highest} in leader epoch {epoch}, "
                f"then {event.high_watermark} by broker {event.leader} in leader epoch {event.leader_epoch}"
            )
            self.violate("watermark fell", text, line, event.high_watermark)
        if event.high_watermark > line.end:
            text = f"{event.client} was told high watermark {event.high_watermark}; only {line.end} is committed"
            self.violate("phantom", text, line, line.end)
        self._watermarks[key] = (event.leader_epoch, event.high_watermark)

    def _power_lost(self, line: PartitionHistory, event: PowerLost) -> None:
        end = line.durable_end
        if event.broker in line.members and event.start < end:
            text = f"a power cut took [{event.start}, {event.end}) from broker {event.broker}; {end} is committed"
            self.violate("not fsynced", text, line, event.start)
        registration = self._registrations.get(event.broker, -1)
        held = line.lost.get(event.broker)
        end = event.end if held is None else max(event.end, held.end)
        line.lost[event.broker] = Lost(event.start, end, registration, self._epoch_of(line))
        self._check_members(line)
