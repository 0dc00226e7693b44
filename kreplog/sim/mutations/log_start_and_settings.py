"""Mutations of log start offsets, retention, topic settings and dynamic configs of brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kreplog.config import INHERITED, NO_OWN_SETTINGS, TopicConfig
from kreplog.core import dynamic_configs
from kreplog.core.controller import config_changes, controller, store_reader
from kreplog.core.controller.broker_changes import BrokerChanges
from kreplog.core.controller.context import ControllerContext, LogDirEvent
from kreplog.core.controller.election_policies import apply_flush_setting
from kreplog.core.controller.leader_selectors import Election
from kreplog.core.controller.store_reader import RegisteredBroker
from kreplog.core.effects import Nodes, Steps
from kreplog.core.messages import NO_CONFIGS, Configs, PartitionState
from kreplog.core.replication import epochs
from kreplog.core.replication.fetcher_manager import ReplicaFetcherManager, fetcher_index
from kreplog.core.replication.follower import FollowerRole
from kreplog.core.replication.leader import LeaderRole
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.replica_fetcher import FetchOutcome, FetchState, Pipelined, ReplicaFetcher
from kreplog.core.replication.sessions import FetchContext
from kreplog.errors import ErrorCode
from kreplog.sim.machines.model_log import ModelLog
from kreplog.sim.mutations.mutation import MutationGroup, Patch
from kreplog.types import EpochEndOffset, LeaderAndIsr, TopicPartition

MUTATIONS = MutationGroup()


@MUTATIONS.add("log-start-ignored-by-followers")
def _log_start_ignored() -> list[Patch]:
    """A follower does not follow the log start offset of its leader (KIP-107)."""

    def follow(self: Partition, leaders: int) -> Steps[None]:
        return
        yield

    return [(FollowerRole, "_follow_log_start", follow)]


@MUTATIONS.add("deletes-above-watermark")
def _deletes_above_watermark() -> list[Patch]:
    """DeleteRecords and retention delete records that are not committed (F39)."""
    delete, enforce = ModelLog.delete_records_before, ModelLog.enforce_retention

    def deleted(self: ModelLog, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.leo))
        delete(self, offset)

    def enforced(self: ModelLog, keep_bytes: int) -> None:
        watermark, self.high_watermark = self.high_watermark, self.leo
        enforce(self, keep_bytes)
        self.high_watermark = watermark

    return [
        (LeaderRole, "_deletable_end", lambda self: self.log.leo),
        (ModelLog, "delete_records_before", deleted),
        (ModelLog, "enforce_retention", enforced),
    ]


@MUTATIONS.add("settings-never-applied")
def _settings_never_applied() -> list[Patch]:
    """A replica keeps the settings that its topic had when the replica was opened (F18)."""
    apply = Partition.apply

    def applied_without(self: Partition, partition_state: PartitionState, now_ms: int) -> Steps[ErrorCode]:
        return (yield from apply(self, partition_state._replace(config=self.config), now_ms))

    return [(Partition, "apply", applied_without)]


@MUTATIONS.add("flush-messages-within-an-epoch")
def _flush_messages_within_an_epoch() -> list[Patch]:
    """flush.messages changes within a leader epoch, so that fetches sent under another value count as fsynced."""

    def same_epoch(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
        election = apply_flush_setting(context, partition, current)
        if election is None:
            return None
        return Election(election.state._replace(leader_epoch=current.leader_epoch))

    return [(module, "apply_flush_setting", same_epoch) for module in (config_changes, controller)]


@MUTATIONS.add("flush-messages-not-applied")
def _flush_messages_not_applied() -> list[Patch]:
    """The controller begins no leader epoch where flush.messages has changed, so that it never takes effect."""

    def unchanged(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
        return None

    return [(module, "apply_flush_setting", unchanged) for module in (config_changes, controller)]


@MUTATIONS.add("forgotten-epochs-trusted")
def _forgotten_epochs_trusted() -> list[Patch]:
    """A follower keeps records that diverge from its leader's log below the leader's log start offset (F3, KIP-107)."""

    def reconcile(self: Partition, parted: EpochEndOffset, leaders_start: int) -> Steps[FetchOutcome]:
        yield from self._truncate(epochs.truncation_offset(self.log.epochs, self.log.leo, parted))
        yield from self._flush_tail()
        return FetchOutcome.AWAIT_FLUSH if self.awaits_flush else FetchOutcome.TRUNCATED

    return [(FollowerRole, "_reconcile", reconcile)]


@MUTATIONS.add("broker-configs-only-with-init")
def _broker_configs_only_with_init() -> list[Patch]:
    """The controller does not send altered dynamic configs to brokers that have registered before (KIP-226)."""

    def take(self: BrokerChanges, found: Mapping[int, RegisteredBroker]) -> Steps[None]:
        return
        yield

    return [(BrokerChanges, "_take_configs", take)]


@MUTATIONS.add("broker-configs-lost-in-failover")
def _broker_configs_lost_in_failover() -> list[Patch]:
    """A new controller sends brokers no dynamic configs before these are altered again (KIP-226)."""
    failover = BrokerChanges.on_failover

    def without(
        self: BrokerChanges,
        registrations: Mapping[int, RegisteredBroker],
        default: Configs,
        events: tuple[LogDirEvent, ...],
    ) -> Steps[None]:
        bare = {broker: found._replace(configs=NO_CONFIGS) for broker, found in registrations.items()}
        yield from failover(self, bare, (), events)

    return [(BrokerChanges, "on_failover", without)]


@MUTATIONS.add("unreadable-configs-forgotten")
def _unreadable_configs_forgotten() -> list[Patch]:
    """A controller that cannot read the dynamic configs of a node any more sends brokers none of them: a shorter static
    retention deletes records."""
    right = store_reader._broker_configs

    def forget(paths: Sequence[str], found: Nodes, last_readable: dict[str, Configs]) -> Steps[list[Configs]]:
        return right(paths, found, {})

    return [(store_reader, "_broker_configs", forget)]


@MUTATIONS.add("topic-defaults-not-sent")
def _topic_defaults_not_sent() -> list[Patch]:
    """The controller takes an altered default of topics, but does not send it to the replicas (KIP-226)."""
    put = ControllerContext.put_topic_defaults

    def silently(self: ControllerContext, dynamic: Configs) -> list[str]:
        put(self, dynamic)
        return []

    return [(ControllerContext, "put_topic_defaults", silently)]


@MUTATIONS.add("defaults-before-own-settings")
def _defaults_before_own_settings() -> list[Patch]:
    """A default of topics that is altered applies to topics with their own setting too."""

    def all_of(self: TopicConfig, defaults: TopicConfig) -> TopicConfig:
        changed = [name for name in INHERITED if getattr(defaults, name) != getattr(TopicConfig(), name)]
        names = {*self.inherited, *changed}
        return replace(self, **{name: getattr(defaults, name) for name in names})

    def config(self: ControllerContext, topic: str) -> TopicConfig:
        return all_of(self.configs.get(topic, NO_OWN_SETTINGS), self.topic_defaults)

    return [(ControllerContext, "config", config)]


@MUTATIONS.add("moved-partitions-not-fetched")
def _moved_partitions_not_fetched() -> list[Patch]:
    """Under another num.replica.fetchers the partitions that leave a fetcher are added to no other."""

    def resize(self: ReplicaFetcherManager, num_replica_fetchers: int, now_ms: int) -> None:
        self._config = replace(self._config, num_replica_fetchers=num_replica_fetchers)
        for topic_partition, (_, fetcher) in list(self._fetched.items()):
            if fetcher.index != fetcher_index(topic_partition, num_replica_fetchers):
                self.stop(topic_partition)

    return [(ReplicaFetcherManager, "resize", resize)]


@MUTATIONS.add("cluster-default-before-own-config")
def _cluster_default_before_own_config() -> list[Patch]:
    """The cluster-wide default of a dynamic config counts more than a broker's own (KIP-226)."""
    return [(dynamic_configs, "effective", lambda configs: {**dict(configs.own), **dict(configs.default)})]


@MUTATIONS.add("held-back-records-forgotten")
def _held_back_records_forgotten() -> list[Patch]:
    """A partition whose records a throttle has held back is not read again before it changes (KIP-73, KIP-227)."""
    finish = FetchContext.finish
    return [(FetchContext, "finish", lambda self, results, throttled: finish(self, results))]


@MUTATIONS.add("throttled-for-ever")
def _throttled_for_ever() -> list[Patch]:
    """A replica that is throttled is left out of all further requests (KIP-73)."""

    def deactivate(self: ReplicaFetcher, pipelined: Pipelined, now_ms: int) -> None:
        for topic_partition, entry in list(self._active.items()):
            if topic_partition not in pipelined and self._is_throttled(entry, now_ms):
                entry.state = FetchState.DELAYED
                self._deactivate(topic_partition)

    return [(ReplicaFetcher, "_delay_throttled", deactivate)]
