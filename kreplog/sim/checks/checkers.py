"""Checkers: judge the guarantees from disks, store and the clients' history, independently of the code under test.

The guarantees, and when they are checked:

    two values          one value for each offset below a high watermark, on every replica, forever     as it advances
    written twice       a producer's record is in the log once                                          as it commits
    out of order        a producer's records are in the order of their sequences, without gaps          as it commits
    lacks committed     every in-sync or eligible replica (KIP-966) holds all committed records         at any change
    not fsynced         ... and has fsynced them, with flush.messages=1                                 at any change
    two leaders         one leader per leader epoch, and only it commits; no broker goes back           at any change
    two controllers     leaders are elected by the controller of the newest epoch                       at any change
    too few             min.insync.replicas replicas hold what a leader commits                         as it commits
    stale registration  no replica joins the ISR by fetches of an earlier registration (KIP-903)        at any change
    unclean election    a leader outside ISR and ELR, unless the topic allows it or it is requested     at any change
    isr                 within the assigned replicas, contains the leader; never empty without ELR      at any change
    illegal transition  of a replica or a partition in the controller                                   at any change
    partition missing   the partitions of a topic are numbered from 0 without a gap                     at any change
    watermark           a replica's high watermark is within its log, and the same as in its log        after each step
    denied              a broker without metadata never responds that a partition does not exist        at the response
    lag in bytes        no ISR member lags more than replica.lag.max.bytes, unless it is being removed  after each step
    log state           a core's view of a log, its end and epochs, is the log's                        after each step
    stale log dir event log dir events are written under the registration of the process                at the write
    wrongly offline     a replica is offline only if its disk has failed                                after each step
    failed but online   ... and all of a broker's are once it knows that the log directory has failed   as it fails
    failed but used     nothing in a log directory that has failed is opened, renamed, deleted or marked as it is tried
    uncommitted load    a coordinator takes only committed records of its log                           as it reads
    fsync retried       an fsync that failed is final, except for want of descriptors or memory         as it fails
    deleted unnamed     a replica's files are deleted only if a StopReplica names it                    as they go
    deposed             a broker whose registration has ended leads nothing and is no controller        as it ends
    useless request     a controller that has resigned sends nothing, nor to ended registrations        as it sends
    drained early       a new controller goes on once all brokers have responded, or after a time       as it goes on
    clean too early     the unclean mark is cleared once no loss can be unknown to controllers          as it is cleared
    deleted             only records released by an operator or retention, and only committed ones      as they go
    lost                all records acknowledged under acks=all are in the log                          at the end
    of the responses to clients                                                                       client_checker.py
    not converged, logs differ, context                                                                 final_checks.py
    of transactions                                                                             transaction_checker.py
    of groups: offsets, generations, members                               group_checker.py, consumer_group_checker.py
    of dynamic configs, Metadata, sessions    config_checker.py, metadata_checker.py, session_checker.py
    of memory, strays, submissions to the store          memory_checker.py, stray_checker.py, submission_checker.py
    of delayed fetches, followers' sessions                                                        fetch_checker.py

Excused losses. The guarantee of acks=all: a record is in the page cache of every in-sync replica, at least
min.insync.replicas of them, so it survives any crash of processes, and a power failure of all but one of the ISR and
ELR members. It ends when each of these has lost committed records to a power failure and has not refetched them; then,
as after an unclean election that is allowed or requested, later violations of that partition are ignored. With
flush.messages=1 a power failure excuses nothing. Nor is anything guaranteed once a topic's deletion is requested.
Records deleted from the start on request are not lost, a consumer below the log start is out of range, and a new leader
may lack the state of a producer whose last records are deleted. A leader applies new settings when it receives them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kreplog.config import TopicConfig
from kreplog.core import effects, nodes
from kreplog.core.broker.stray_retention import DEFAULT_RETENTION_MS
from kreplog.core.memory import NO_LIMIT
from kreplog.core.messages import ControlRequest
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.sim.checks.client_checker import ClientChecker
from kreplog.sim.checks.config_history import TopicConfigHistory
from kreplog.sim.checks.consumer_group_checker import ConsumerGroupChecker
from kreplog.sim.checks.fetch_checker import FetchChecker
from kreplog.sim.checks.group_checker import GroupChecker
from kreplog.sim.checks.legal_transitions import is_legal
from kreplog.sim.checks.memory_checker import MemoryChecker
from kreplog.sim.checks.stray_checker import StrayChecker
from kreplog.sim.checks.transaction_checker import TransactionChecker
from kreplog.sim.faults import OWN_TOPICS
from kreplog.sim.history import (
    ConsumerGroupEvent,
    Event,
    GroupEvent,
    GuaranteeViolated,
    History,
    Misdirected,
    PowerLost,
    TopicDeleted,
    TransactionEvent,
    UncleanElectionDeclared,
    Violation,
)
from kreplog.sim.machines.disk import DiskLog, Disks, Loss
from kreplog.sim.machines.partition_model import Lost, PartitionModel, describe
from kreplog.types import NO_EPOCH, NO_LEADER, Check, LeaderAndIsr, Node, StoreOperation, TopicPartition

_DELETION = "its deletion was requested"


class Checkers:
    """Observes disks, clients, store and brokers of one run; each method says when the simulator calls it.

    replica_of(broker, partition): the partition in the broker's running process, None where it has none. leader_of: the
    leader of a partition in the store.
    """

    def __init__(
        self,
        disks: Disks,
        history: History,
        replica_of: Callable[[int, TopicPartition], Partition | None],
        leader_of: Callable[[TopicPartition], int] = lambda partition: NO_LEADER,
    ) -> None:
        self.violations: list[Violation] = []
        self.models: dict[tuple[TopicPartition, str], PartitionModel] = {}
        self.history = history
        self.disks = disks
        self._replica_of = replica_of
        self._configs = TopicConfigHistory()
        self._topic_ids: dict[str, str] = {}
        self._deleted: dict[tuple[str, int], None] = {}
        self._replaced: dict[int, Mapping[TopicPartition, str]] = {}
        self._power_cuts: set[tuple[TopicPartition, int]] = set()
        self._assigned: dict[TopicPartition, tuple[int, ...]] = {}
        self._modified: dict[str, int] = {}
        self._registrations: dict[int, int] = {}
        self._controller_epoch = 0
        self._unclean_requested: tuple[int, tuple[TopicPartition, ...]] = (0, ())
        self._seen: dict[tuple[int, TopicPartition], tuple[Any, ...]] = {}
        self.clients = ClientChecker(self.violate)
        self.memory = MemoryChecker(partial(self.violate, model=None))
        self.fetches = FetchChecker(partial(self.violate, model=None))
        self.strays = StrayChecker(DEFAULT_RETENTION_MS, partial(self.violate, model=None))
        self.groups = defaultdict[str, GroupChecker](partial(GroupChecker, self._group_violated, leader_of))
        self.consumer_groups = ConsumerGroupChecker(self._group_violated, leader_of, self._is_owned_deleted)
        self.transactions = TransactionChecker(self._transaction_violated, leader_of)
        disks.observe(self)
        history.listener = self.observe

    def violate(self, kind: str, text: str, model: PartitionModel | None, offset: int = -1) -> None:
        """Record a violation, once for each kind and partition; none of an excused partition."""
        if model is not None and model.excused:
            return
        partitions = () if model is None else (model.partition,)
        if not any(found.kind == kind and found.partitions == partitions for found in self.violations):
            named = text if model is None else f"{model.partition}: {text}"
            self.violations.append(Violation(kind, named, partitions, offset))

    def stats(self) -> dict[str, int]:
        """Counts of what was checked.

        acked, read: records. committed: of all partitions. excused: partitions that may lose records from here on,
        without deleted ones."""
        return {
            **self.clients.counts,
            **{name: sum(group.counts[name] for group in self.groups.values()) for name in ("offsets", "generations")},
            **self.consumer_groups.counts,
            **self.transactions.counts,
            "committed": sum(len(model.values) for model in self.models.values()),
            "excused": sum(bool(model.excused) and model.excused != _DELETION for model in self.models.values()),
        }

    def _group_violated(self, kind: str, text: str, event: Event) -> None:
        topic_id = self._topic_ids.get(event.partition.topic)
        self.violate(kind, text, None if topic_id is None else self.model(event.partition, topic_id))

    def _transaction_violated(self, kind: str, text: str) -> None:
        """Report a violation, unless a coordinator's log is excused for a loss: that may have been a decision."""
        if not any(model.excused for (partition, _), model in self.models.items() if partition.topic in OWN_TOPICS):
            self.violate(kind, text, None)

    def model(self, partition: TopicPartition, topic_id: str) -> PartitionModel:
        found = self.models.get((partition, topic_id))
        if found is None:
            found = self.models[partition, topic_id] = PartitionModel(partition, topic_id, self._configs.of(topic_id))
            if self._is_deleted(topic_id, partition.partition):
                self.excuse(found, _DELETION)
        return found

    def _is_owned_deleted(self, owned: str) -> bool:
        """As _is_deleted, of the topic id and the number that a member reports."""
        topic_id, _, number = owned.rpartition("-")
        return self._is_deleted(topic_id, int(number))

    def _is_deleted(self, topic_id: str, number: int) -> bool:
        """Whether the deletion of a partition was requested."""
        return (topic_id, -1) in self._deleted or (topic_id, number) in self._deleted

    def excuse(self, model: PartitionModel, reason: str) -> None:
        if not model.excused:
            model.excused = reason

    # Operators and faults, reported by the simulator

    def topic_created(self, name: str, topic_id: str, config: TopicConfig) -> None:
        """Called before the topic is in the store, which reports it too."""
        self._topic_ids[name] = topic_id
        self._configs.created(topic_id, config)

    def topic_deleted(self, name: str) -> None:
        """Its deletion is requested. The store reports it, too."""
        self._delete(name, -1)

    def power_lost(self, losses: Iterable[Loss]) -> None:
        """Note what a loss of power took. losses: as returned by Disk.crash."""
        for loss in losses:
            now_ms = self.history.now_ms()
            self.history.add(PowerLost(now_ms, loss.partition, loss.topic_id, loss.broker, loss.start, loss.end))

    def unclean_election(self, effect: effects.UncleanElection) -> None:
        """A controller has reported an unclean election."""
        topic_id = self._topic_ids.get(effect.partition.topic, "")
        now_ms = self.history.now_ms()
        self.history.add(
            UncleanElectionDeclared(now_ms, effect.partition, topic_id, effect.leader, effect.leader_epoch)
        )

    def disk_replaced(self, broker: int, lost: Mapping[TopicPartition, str]) -> None:
        """Note an empty disk. lost: topic ids of all replicas on the broker's former disk."""
        self._replaced[broker] = lost
        self.strays.disk_replaced(broker)

    # Disks (kreplog.sim.machines.disk.Observer)

    def appended(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        model = self.models.get((partition, log.topic_id))
        if model is not None and broker in model.lost:
            self._check_members(model)

    def truncated(self, broker: int, partition: TopicPartition, log: DiskLog, end: int) -> None:
        model = self.models.get((partition, log.topic_id))
        if model is not None and broker in model.members:
            self._check_members(model)

    def committed(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        model = self.model(partition, log.topic_id)
        if model.excused:
            return
        end = self._take_committed(model, broker, log, start)
        replica = self._replica_of(broker, partition)
        if replica is not None and replica.role is Role.LEADER and replica.topic_id == log.topic_id:
            other = model.committers.setdefault(replica.leader_epoch, broker)
            if other != broker:
                text = f"brokers {other} and {broker} both commit in leader epoch {replica.leader_epoch}"
                self.violate("two leaders", text, model, start)
        if end > model.end:
            model.end = end
            if model.config.flushes_every_record and (replica is None or replica.flush_every_record):
                model.durable_end = end
            self._check_holders(model, broker, replica)
            self._check_members(model)

    def deleted(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        model = self.model(partition, log.topic_id)
        replica = self._replica_of(broker, partition)
        begin = log.state().log_start
        if model.all_requested and begin <= model.end and replica is not None and replica.role is Role.LEADER:
            model.released = max(model.released, begin)
        self._check_deleted(model, broker, begin)

    def denied(self, broker: int, partition: TopicPartition) -> None:
        """A broker without metadata of a controller has responded that a partition does not exist."""
        if partition in self._assigned and (self._topic_ids.get(partition.topic, ""), -1) not in self._deleted:
            self.violate("denied", f"broker {broker} has no metadata yet and denies {partition}", None)

    def deleting(self, broker: int, partition: TopicPartition, named: bool) -> None:
        """A broker deletes a replica's files. named: by a StopReplica."""
        if not named:
            self.violate("deleted unnamed", f"broker {broker} deletes {partition}, which no StopReplica names", None)

    def expired(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        model = self.model(partition, log.topic_id)
        begin = log.state().log_start
        if begin <= model.end:
            model.released = max(model.released, begin)
        self._check_deleted(model, broker, begin)

    def _check_deleted(self, model: PartitionModel, broker: int, begin: int) -> None:
        if begin > model.end:
            text = f"broker {broker} has deleted all below {begin}, but only {model.end} is committed"
            self.violate("deleted", text, model, begin)
        elif begin > model.released:
            text = f"broker {broker} has deleted all below {begin}, but only below {model.released} was released"
            self.violate("deleted", text, model, begin)

    def opened(self, broker: int, partition: TopicPartition, log: DiskLog) -> None:
        model = self.model(partition, log.topic_id)
        if not model.excused:
            self._take_committed(model, broker, log, 0)

    def _take_committed(self, model: PartitionModel, broker: int, log: DiskLog, start: int) -> int:
        """Compare the records that this replica has committed from `start` on; return their end."""
        end = log.high_watermark
        start = max(start, log.state().log_start)
        if start >= end:
            return end
        for record in self.disks.codec.decode(log.read(start, end, 1 << 40)):
            if start <= record.offset < end:
                wrong = model.add(record.offset, (record.producer_id, record.sequence, record.value))
                if wrong is not None:
                    self.violate(wrong[0], f"{wrong[1]}, by broker {broker}", model, record.offset)
        return end

    def _check_holders(self, model: PartitionModel, broker: int, replica: Partition | None) -> None:
        """As a broker commits: min.insync.replicas hold the records, or held them until a power failure."""
        assigned = self._assigned.get(model.partition, ())
        config = model.config if replica is None or replica.config not in model.configs else replica.config
        needed = min(config.min_insync_replicas, len(assigned))
        holders = [
            broker_id
            for broker_id, disk in self.disks.all()
            if broker_id in model.lost or disk.ends(model.partition, model.topic_id)[0] >= model.end
        ]
        if len(holders) < needed:
            text = f"broker {broker} committed below {model.end}, which only {holders} hold; {needed} must"
            self.violate("too few", text, model, model.end)

    def _check_members(self, model: PartitionModel) -> None:
        """Every in-sync or eligible replica holds all committed records, except those lost to a power failure."""
        if model.excused:
            return
        flushes = model.config.flush_messages == 1 and model.durable_end == model.end
        lacking = []
        for broker in model.members:
            disk = self.disks.disk(broker)
            leo, durable = disk.ends(model.partition, model.topic_id)
            lost = model.lost.get(broker)
            if leo < model.end:
                lacking.append(broker)
                if lost is None:
                    among = "in sync" if model.state is not None and broker in model.state.isr else "eligible"
                    text = f"broker {broker} is {among} and ends at {leo}, but all below {model.end} is committed"
                    self.violate("lacks committed", text, model, leo)
                continue
            if lost is not None and (leo >= lost.end or lost.leader_epoch < model.led_epoch):
                del model.lost[broker]
            if durable < model.durable_end:
                text = f"committed below {model.durable_end}, but broker {broker} has fsynced it below {durable} only"
                self.violate("not fsynced", text, model, durable)
            self._check_last(model, broker, disk.log(model.partition))
        if lacking and lacking == [*model.members] and model.lost.keys() >= {*lacking} and not flushes:
            self.excuse(
                model,
                f"power failed under all of {list(model.members)}, the only guaranteed holders of committed records",
            )

    def _check_last(self, model: PartitionModel, broker: int, log: DiskLog | None) -> None:
        """A replica holds the last committed record at its offset; a log of the same length may be a different one."""
        if log is None or log.topic_id != model.topic_id or log.state().log_start >= model.end:
            return
        for record in self.disks.codec.decode(log.read(model.end - 1, model.end, 1)):
            fact = (record.producer_id, record.sequence, record.value)
            if record.offset == model.end - 1 and model.values.get(record.offset, fact) != fact:
                text = f"broker {broker} has {describe(fact)} at offset {record.offset}, where another is committed"
                self.violate("lacks committed", text, model, record.offset)

    # The store

    def store(self, dump: Mapping[str, Node]) -> None:
        """Called with all nodes whenever a node has changed."""
        modified = self._modified
        if nodes.UNCLEAN_ELECTION not in dump:
            self._unclean_requested = (0, ())
        changed = [path for path, node in dump.items() if modified.get(path) != node.stat.modified]
        states = []
        for path in sorted(changed):  # deletions, settings, topics, and then their states
            node = dump[path]
            modified[path] = node.stat.modified
            match path.split("/"):
                case ["", "admin", "delete_topics", name]:
                    self._delete(name, -1)
                case ["", "admin", "partitions_remove", name, number]:
                    self._delete(name, int(number))
                case ["", "controller_epoch"]:
                    self._controller_epoch = int(node.data)
                case ["", "admin", "unclean_leader_election"]:
                    requested = nodes.decode_partitions(path, node)
                    self._unclean_requested = int(dump[nodes.CONTROLLER_EPOCH].data), requested
                case ["", "brokers", "epochs", broker]:
                    self._registrations[int(broker)] = node.stat.version
                case ["", "brokers", "topics", name]:
                    topic = nodes.decode_topic(path, node)
                    self._topic_ids[name] = topic.topic_id
                    if sorted(topic.partitions) != list(range(len(topic.partitions))):
                        self.violate("partition missing", f"topic {name} has partitions {[*topic.partitions]}", None)
                    config = dump.get(nodes.topic_config(name))
                    if config is not None:
                        self._configured(topic.topic_id, nodes.decode_topic_config(nodes.topic_config(name), config))
                    for index, assignment in topic.partitions.items():
                        self._assigned[TopicPartition(name, index)] = assignment.replicas
                case ["", "config", "topics", name]:
                    self._configured(self._topic_ids.get(name, ""), nodes.decode_topic_config(path, node))
                case ["", "config", "brokers", "default"]:
                    self._settings_changed(*self._configs.default_written(path, node))
                case ["", "brokers", "topics", name, number, "leaderAndISR"]:
                    states.append((TopicPartition(name, int(number)), path))
        for partition, path in states:
            model = self.model(partition, self._topic_ids.get(partition.topic, ""))
            self._state_changed(model, nodes.decode_leader_and_isr(path, dump[path]))

    def _may_be_unclean(self, partition: TopicPartition) -> bool:
        """Whether the current controller is to elect any replica of it. A later one drops the request."""
        return self._unclean_requested[0] == self._controller_epoch and partition in self._unclean_requested[1]

    def _configured(self, topic_id: str, config: TopicConfig) -> None:
        self._settings_changed(*self._configs.written(topic_id, config))

    def _settings_changed(self, *topic_ids: str) -> None:
        for model in self.models.values():
            if model.topic_id in topic_ids and model.config.flush_messages != 1:
                model.durable_end = 0

    def _delete(self, name: str, number: int) -> None:
        """The deletion of a topic, or of one partition of it, is requested. number: -1 for all."""
        topic_id = self._topic_ids.get(name, "")
        if (topic_id, number) in self._deleted:
            return
        self._deleted[topic_id, number] = None
        for model in list(self.models.values()):
            if model.topic_id == topic_id and number in (-1, model.partition.partition):
                self.history.add(TopicDeleted(self.history.now_ms(), model.partition, topic_id))

    def _state_changed(self, model: PartitionModel, state: LeaderAndIsr) -> None:
        before, model.state = model.state, state
        model.members = tuple(sorted({*state.isr, *state.elr}))
        self._one_leader(model, state.leader_epoch, state.leader)
        assigned = self._assigned.get(model.partition, ())
        if not model.members:
            self.violate("isr", f"no replica is in sync or eligible in leader epoch {state.leader_epoch}", model)
        elif not set(state.isr) <= set(assigned):
            self.violate("isr", f"the ISR is {list(state.isr)}, assigned are {list(assigned)}", model)
        elif state.leader not in (NO_LEADER, *state.isr):
            self.violate("isr", f"its leader {state.leader} is not in the ISR {list(state.isr)}", model)
        if before is None or state.leader_epoch != before.leader_epoch:
            self._elected(model, state)
        if before is not None:
            if state.leader_epoch < before.leader_epoch:
                text = f"its leader epoch fell from {before.leader_epoch} to {state.leader_epoch}"
                self.violate("two leaders", text, model)
            if state.leader not in (NO_LEADER, *before.isr, *before.elr):
                self._unclean(model, state.leader, state.leader_epoch)
            else:
                # A leader adds followers. A controller may elect one that was eligible in its view: epochs fence it.
                by_leader = state.leader_epoch == before.leader_epoch
                known = before.isr if by_leader else (*before.isr, *before.elr)
                self._joined(model, [broker for broker in state.isr if broker not in known])
        self._check_members(model)

    def _elected(self, model: PartitionModel, state: LeaderAndIsr) -> None:
        if state.controller_epoch != self._controller_epoch:
            text = f"leader epoch {state.leader_epoch} is of a controller of epoch {state.controller_epoch}"
            self.violate("two controllers", f"{text}, while epoch {self._controller_epoch} has begun", model)

    def _joined(self, model: PartitionModel, brokers: Iterable[int]) -> None:
        for broker in brokers:
            lost = model.lost.get(broker)
            leo, _ = self.disks.disk(broker).ends(model.partition, model.topic_id)
            if lost is not None and leo < model.end and lost.registration < self._registrations.get(broker, -1):
                text = (
                    f"broker {broker} joined the ISR with {leo} of {model.end}, after it registered with lost records"
                )
                self.violate("stale registration", text, model, leo)

    def _unclean(self, model: PartitionModel, leader: int, epoch: int) -> None:
        if model.config.unclean_leader_election_enable or self._may_be_unclean(model.partition):
            self.excuse(model, f"unclean election of broker {leader} in leader epoch {epoch}")
        else:
            text = f"broker {leader} was elected in leader epoch {epoch} though it was neither in sync nor eligible"
            self.violate("unclean election", text, model)

    def _one_leader(self, model: PartitionModel, epoch: int, leader: int) -> None:
        other = model.leaders.setdefault(epoch, leader)
        if other != leader:
            self.violate("two leaders", f"brokers {other} and {leader} both lead in leader epoch {epoch}", model)

    # Brokers

    def stepped(self, broker: int, manager: ReplicaManager) -> None:
        """After each step of a broker's replication core."""
        if manager.memory.limit < NO_LIMIT:
            self.memory.fetchers_stepped(broker, manager)
        self.fetches.stepped(broker, manager, self.history.now_ms())
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
                self.fetches.partition_changed(broker, manager, replica)
                if before is not None and before[-1] is replica and before[1] > replica.leader_epoch:
                    model = self.model(partition, replica.topic_id)
                    text = f"broker {broker} went back from leader epoch {before[1]} to {replica.leader_epoch}"
                    self.violate("two leaders", text, model)

    def directory_failed(self, broker: int, manager: ReplicaManager) -> None:
        """The replicas of a failed log directory have been reported to their core."""
        disk = self.disks.disk(broker)
        for partition, replica in manager.partitions.items():
            if replica.role is not Role.OFFLINE and disk.log(partition) is not None:
                text = f"broker {broker} has its replica as {replica.role.name}, but its log directory has failed"
                self.violate("failed but online", text, self.model(partition, replica.topic_id))

    def _look_at(self, broker: int, partition: TopicPartition, replica: Partition) -> None:
        model = self.model(partition, replica.topic_id)
        if replica.role is Role.LEADER:
            self._one_leader(model, replica.leader_epoch, broker)
            model.led_epoch = max(model.led_epoch, replica.leader_epoch)
            if not set(replica.isr) <= set(replica.assigned_replicas):
                text = f"leader {broker} has the ISR {list(replica.isr)} of {list(replica.assigned_replicas)}"
                self.violate("isr", text, model)
        disk = self.disks.disk(broker)
        if replica.role is Role.OFFLINE and not disk.failed:
            self.violate("wrongly offline", f"broker {broker} has its replica offline, but its disk works", model)
        log = disk.log(partition)
        if log is None or log.topic_id != replica.topic_id or replica.role is Role.OFFLINE or replica.interrupted:
            return
        self._check_deleted(model, broker, replica.log.log_start)
        if not log.high_watermark == replica.high_watermark <= replica.log.leo:
            text = (
                f"broker {broker} has high watermark {replica.high_watermark}, "
                f"its log {log.high_watermark} and end {replica.log.leo}"
            )
            self.violate("watermark", text, model, replica.high_watermark)
        if log.state() != replica.log:
            text = f"broker {broker} has log state {replica.log}, its log {log.state()}"
            self.violate("log state", text, model, replica.log.leo)

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
                    self.violate("lag in bytes", text, self.model(partition, replica.topic_id))

    def written(self, broker: int, broker_epoch: int, operations: Sequence[StoreOperation]) -> None:
        """The store has applied a multi that a broker's replication core sent under the registration `broker_epoch`.

        It may arrive after the broker has registered again. That needs a crash and a delay at the same moment, which
        few runs have, so the condition that lets the store refuse it is checked as well.
        """
        reports = any(operation.path.startswith(f"{nodes.LOG_DIR_EVENTS}/") for operation in operations)
        current = self._registrations.get(broker, -1)
        if reports and (broker_epoch != current or Check(nodes.broker_epoch(broker), current) not in operations):
            text = f"broker {broker} reports failed logs unchecked, sent in registration {broker_epoch} of {current}"
            self.violate("stale log dir event", text, None)

    def exits(self, broker: int, all_moved: bool) -> None:
        """A broker exits after a controlled shutdown. all_moved: since it leads no partition any more that another
        broker could lead."""
        for model in self.models.values():
            state = model.state
            if all_moved and state is not None and state.leader == broker and set(state.isr) - {broker}:
                self.violate(
                    "exit of a leader", f"broker {broker} exits while it leads, with the ISR {state.isr}", model
                )

    def deposed(self, broker: int, leads: ReplicaManager | None, controls: bool) -> None:
        """A broker's registration has ended, or its session. leads: its replicas, None if they cannot know yet."""
        for partition, replica in {} if leads is None else leads.partitions.items():
            if replica.role is Role.LEADER:
                text = f"broker {broker} leads it in epoch {replica.leader_epoch} although its registration has ended"
                self.violate("deposed", text, self.model(partition, replica.topic_id))
        if controls:
            self.violate("deposed", f"broker {broker} is controller although its registration has ended", None)

    def sent_in_vain(self, broker: int, to: int, request: ControlRequest) -> None:
        """A controller sends a request although it has resigned, or to a broker whose registration has ended."""
        text = f"broker {broker} sends broker {to} a {type(request).__name__} of controller epoch"
        self.violate("useless request", f"{text} {request.controller_epoch} that can only be refused", None)

    def unclean_mark_cleared(self, broker: int, not_durable: Sequence[str], losses_unknown: bool) -> None:
        """A broker's unclean mark is cleared. not_durable: topic ids of replicas that its last INIT created and that
        are not durable yet. losses_unknown: this process has not had an INIT, and so may lack replicas."""
        if losses_unknown and self._registrations.get(broker, -1) > 1:
            self.violate("clean too early", f"broker {broker} clears its unclean mark before its INIT", None)
        on_disk = self.disks.disk(broker).on_disk()
        for (partition, topic_id), model in self.models.items():
            gone = on_disk.get(partition) != topic_id == self._replaced.get(broker, {}).get(partition)
            if gone and broker in model.members and not self._is_deleted(model.topic_id, model.partition.partition):
                text = f"broker {broker} clears its unclean mark, but its replica of {partition} was lost with the disk"
                self.violate("clean too early", text, None)
        if not_durable:
            text = f"broker {broker} clears its unclean mark before {len(not_durable)} new replicas are durable"
            self.violate("clean too early", text, None)

    def transition(self, changed: object, old: str, new: str) -> None:
        """A controller has changed the state of a replica or a partition."""
        if not is_legal(old, new):
            self.violate("illegal transition", f"{changed} went from {old} to {new}", None)

    # Clients

    def observe(self, event: Event) -> None:
        """Called by the history for every event."""
        if isinstance(event, GroupEvent):
            self.groups[event.group_id].observe(event, len(self.history.events) - 1)
            return
        if isinstance(event, ConsumerGroupEvent):
            self.consumer_groups.observe(event)
            return
        if isinstance(event, TransactionEvent):
            self.transactions.observe(event)
            return
        model = self.model(event.partition, event.topic_id)
        match event:
            case UncleanElectionDeclared():
                self._unclean(model, event.leader, event.leader_epoch)
            case PowerLost():
                self._power_lost(model, event)
            case GuaranteeViolated():
                self.excuse(model, event.reason)
            case TopicDeleted():
                self.excuse(model, _DELETION)
            case Misdirected(broker=broker) if (
                broker in self._replaced or (event.partition, broker) in self._power_cuts
            ):
                pass  # it may have lost what it had
            case _:
                self.clients.observe(model, event)

    def _power_lost(self, model: PartitionModel, event: PowerLost) -> None:
        self._power_cuts.add((event.partition, event.broker))
        end = model.durable_end
        if event.broker in model.members and event.start < end:
            text = f"a power failure took [{event.start}, {event.end}) from broker {event.broker}; {end} is committed"
            self.violate("not fsynced", text, model, event.start)
        registration = self._registrations.get(event.broker, -1)
        held = model.lost.get(event.broker)
        end = event.end if held is None else max(event.end, held.end)
        epoch = NO_EPOCH if model.state is None else model.state.leader_epoch
        model.lost[event.broker] = Lost(event.start, end, registration, epoch)
        self._check_members(model)
