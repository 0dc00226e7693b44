"""A shell for tests: one broker's replication core over logs in memory, which applies or records every effect."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core.effects import (
    AdvanceHighWatermark,
    AppendAsFollower,
    AppendAsLeader,
    AppendMarker,
    AssignLeaderEpoch,
    ConfigureBroker,
    ConfigureLog,
    DeleteLog,
    DeleteRecordsBefore,
    DeleteStrays,
    Effect,
    EndOfRecords,
    EnforceRetention,
    Flush,
    LeaderAndIsrApplied,
    LogState,
    OffsetForTimestamp,
    OpenedLog,
    OpenLog,
    ReadLog,
    ReadStable,
    ReplaceLog,
    Reply,
    RestoreStray,
    Send,
    SendAddPartitions,
    SetAsideStray,
    SizeFrom,
    StateChange,
    SubmitMulti,
    SubmitRead,
    SyncReplacement,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from kreplog.core.events import Event, OffsetFound, Received, Registered, StoreReplied
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import LeaderAndIsrRequest, PartitionState, UpdateMetadataRequest
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.partition import Partition
from kreplog.sim.machines.model_log import ModelLog
from kreplog.sim.machines.records import ModelCodec, ModelRecords
from kreplog.types import BrokerRegistration, LeaderAndIsr, Node, NodeStat, TopicPartition

TP = TopicPartition("topic", 0)
CODEC = ModelCodec()


def batch(*values: str, producer_id: int = -1, sequence: int = -1) -> ModelRecords:
    return CODEC.encode(producer_id, 0 if producer_id >= 0 else -1, sequence, [value.encode() for value in values])


def values(records: Any) -> list[str]:
    return [record.value.decode() for record in CODEC.decode(records)]


def perform_on(log: ModelLog, effect: Any) -> Any:
    """Carry out an effect on the log of its partition; returns its answer."""
    match effect:
        case AppendAsLeader(_, records, epoch):
            how = effect.strict, effect.transactional, effect.sequenced, effect.verified_by
            return log.append_as_leader(records, epoch, *how), state(log)
        case AppendMarker(_, marker, epoch):
            return log.append_marker(marker, epoch), state(log)
        case EndOfRecords(_, records):
            return CODEC.end_of(records)
        case ReadLog(_, offset, limit, max_bytes):
            return log.read(offset, limit, max_bytes)
        case ReadStable(_, offset, limit, max_bytes):
            return log.read(offset, limit, max_bytes), ((7, offset),)
        case SizeFrom(_, offset):
            return log.size_from(offset)
        case AppendAsFollower(_, records):
            log.append_as_follower(records)
        case AssignLeaderEpoch(_, epoch):
            log.assign_leader_epoch(epoch)
        case TruncateTo(_, offset):
            log.truncate_to(offset)
        case TruncateFullyAndStartAt(_, offset):
            log.truncate_fully_and_start_at(offset)
        case DeleteRecordsBefore(_, offset):
            log.delete_records_before(offset)
        case EnforceRetention():
            log.enforce_retention(0)
        case _:
            raise AssertionError(f"no answer to {effect}")
    return state(log)


class Shell:
    """Broker `broker_id`, registered under epoch 1. `effects`: all without an answer, in order; `log_lines`: its
    state-change log; `fails`: the error that the next log effect of this type throws; `elected`: the
    controller epoch that the store is at, None while it does not respond; `memory`: the account
    of state for clients; `unstable`: the first unstable offset, when the high watermark advances; `copies`: logs that
    take over when they may."""

    def __init__(
        self,
        broker_id: int = 1,
        config: ReplicationConfig | None = None,
        epoch: int = 1,
        memory: MemoryAccount | None = None,
    ) -> None:
        self.memory = memory
        self.config = config or ReplicationConfig(replica_fetch_backoff_ms=100, replica_lag_time_max_ms=1000)
        self.logs: dict[TopicPartition, ModelLog] = {}
        self.topic_ids: dict[TopicPartition, str] = {}
        self.strays: dict[tuple[str, int], ModelLog] = {}
        self.checkpointed: dict[TopicPartition, int] = {}
        self.copies: dict[TopicPartition, ModelLog] = {}
        self.now_ms = 0
        self.unstable: int | None = None
        self.effects: list[Effect] = []
        self.log_lines: list[str] = []
        self.fails: dict[type[Any], Exception] = {}
        self.found: list[OffsetFound] = []
        self.elected = 1_000
        self.broker_id = broker_id
        self.start(epoch)

    def start(self, epoch: int) -> None:
        """A new process over the same logs."""
        self.manager = ReplicaManager(
            self.broker_id, self.config, dict(self.topic_ids), strays=self.strays, memory=self.memory
        )
        self.step(Registered(epoch, epoch))
        self.epoch = epoch

    def step(self, event: Event) -> list[Effect]:
        """The effects without an answer."""
        done: list[Effect] = []
        reads: list[Hashable] = []
        steps = self.manager.step(event, self.now_ms)
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                effect = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                self.effects += done
                found, self.found = self.found, []
                follow: list[Event] = [*found, *(StoreReplied(tag, (self._elected(),)) for tag in reads)]
                return [*done, *itertools.chain.from_iterable(map(self.step, follow))]
            answer = error = None
            if isinstance(effect, LeaderAndIsrApplied):  # the logs are in memory: there is nothing to sync
                effect = Reply(effect.reply_to, effect.response)
            if type(effect) in self.fails:
                error = self.fails.pop(type(effect))
                continue
            try:
                answer = self.perform(effect)
            except Exception as failure:
                error = failure
            if isinstance(effect, SubmitMulti) and effect.tag == ("controller epoch", "sync"):
                pass
            elif isinstance(effect, SubmitRead) and effect.tag == ("controller epoch", "read"):
                reads.append(effect.tag)
            elif not isinstance(effect, ReadLog | SizeFrom | AppendAsLeader | OpenLog | EndOfRecords | StateChange):
                done.append(effect)

    def _elected(self) -> Node:
        return Node(str(self.elected).encode(), NodeStat(0, 0, 0))

    def perform(self, effect: Any) -> Any:
        match effect:
            case OpenLog(partition, topic_id):
                if self.topic_ids.get(partition) != topic_id:
                    self.logs[partition] = ModelLog(str(partition), 1 << 20)
                    self.topic_ids[partition] = topic_id
                    self.checkpointed[partition] = 0
                return OpenedLog(state(self.logs[partition]), self.checkpointed[partition])
            case AdvanceHighWatermark(partition, offset):
                self.logs[partition].advance_high_watermark(offset)
                self.checkpointed[partition] = offset
                return self.unstable
            case OffsetForTimestamp(tag, partition, timestamp):
                self.found.append(OffsetFound(tag, *self.logs[partition].offset_for_timestamp(timestamp)))
            case SetAsideStray(partition):
                key = self.topic_ids.pop(partition), partition.partition
                self.strays[key] = self.logs.pop(partition)
            case RestoreStray(partition, topic_id):
                stray = self.strays.pop((topic_id, partition.partition), None)
                if stray is not None:
                    self.logs[partition], self.topic_ids[partition] = stray, topic_id
                return stray is not None
            case DeleteStrays(partition, topic_id):
                self.strays.pop((topic_id, partition.partition), None)
            case DeleteLog(partition):
                self.logs.pop(partition, None)
                self.topic_ids.pop(partition, None)
            case ReplaceLog(partition):
                if partition not in self.copies:
                    return None
                self.logs[partition] = self.copies.pop(partition)
                return state(self.logs[partition])
            case StateChange(level, text):
                self.log_lines.append(f"{level}: {text}")
            case Flush() | ConfigureBroker() | ConfigureLog() | SubmitMulti() | SubmitRead() | Send():
                pass
            case SendAddPartitions() | Reply() | SyncReplacement():
                pass
            case _:
                return perform_on(self.logs[effect.partition], effect)
        return None

    def request(self, request: Any, reply_to: Hashable = "client") -> list[Effect]:
        return self.step(Received(reply_to, request))

    def response_to(self, request: Any) -> Any:
        """The response, which must be immediate."""
        replies = [
            reply
            for reply in self.request(request, "caller")
            if isinstance(reply, Reply) and reply.reply_to == "caller"
        ]
        assert len(replies) == 1, replies
        return replies[0].response

    @property
    def partition(self) -> Partition:
        return self.manager.partitions[TP]

    @property
    def log(self) -> ModelLog:
        return self.logs[TP]

    def content(self) -> list[str]:
        return values(self.log.read(self.log.log_start, self.log.leo, 1 << 30))

    def update_metadata(self, *brokers: int, epoch: int = 1) -> None:
        """UpdateMetadata: these brokers are live, each registered under `epoch`."""
        living = tuple(BrokerRegistration(broker, epoch) for broker in brokers)
        self.request(UpdateMetadataRequest(9, 1, self.epoch, living))

    def leader_and_isr(
        self,
        leader: int,
        leader_epoch: int,
        isr: tuple[int, ...] = (1, 2, 3),
        *,
        version: int = 0,
        replicas: tuple[int, ...] = (1, 2, 3),
        config: TopicConfig | None = None,
        controller_epoch: int = 1,
        broker_epoch: int | None = None,
        topic_id: str = "id",
        is_init: bool = False,
        flush_every_record: bool | None = None,
        partition: TopicPartition = TP,
    ) -> Any:
        """Send a LeaderAndIsr; return the response. flush_every_record: of the epoch, by default as `config`."""
        config = config or TopicConfig()
        if flush_every_record is None:
            flush_every_record = config.flushes_every_record
        partition_state = PartitionState(
            partition,
            topic_id,
            LeaderAndIsr(leader, leader_epoch, isr, (), 1, version, flush_every_record),
            replicas,
            is_new=self.topic_ids.get(partition) != topic_id,
            config=config,
        )
        epoch = self.epoch if broker_epoch is None else broker_epoch
        return self.response_to(LeaderAndIsrRequest(9, controller_epoch, epoch, (partition_state,), is_init))


def state(log: ModelLog) -> LogState:
    return LogState(log.leo, log.log_start, log.epochs, log.first_unstable)


def only(effects: list[Effect], kind: type[Any]) -> Any:
    """The one effect of `kind`."""
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]
