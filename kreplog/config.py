"""Settings of a log under Kafka's names (underscores for dots), validated once, when they are made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields, replace
from typing import Any

from kreplog.errors import ArgumentTypeError, UsageError

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC_COMPRESSION_TYPES = ("producer", "uncompressed", *COMPRESSION_TYPES[1:])
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")
REPLICA_SELECTORS = tuple(f"org.apache.kafka.common.replica.{name}Selector" for name in ("Leader", "RackAwareReplica"))
LEADER_SELECTOR, RACK_AWARE_SELECTOR = REPLICA_SELECTORS
"""Values of replica.selector.class (KIP-392): the classes that configs of Kafka name."""

CLEANUP_POLICIES = ("delete", "compact", "compact,delete", "delete,compact", "")

RANGES = {
    "min_insync_replicas": (1, 2**31 - 1),
    "replica_lag_time_max_ms": (1, 2**63 - 1),
    "replica_lag_max_bytes": (-1, 2**63 - 1),
    "replica_fetch_wait_max_ms": (0, 2**31 - 1),
    "replica_fetch_min_bytes": (1, 2**31 - 1),
    "replica_fetch_max_bytes": (1, 2**31 - 1),
    "replica_fetch_response_max_bytes": (1, 2**31 - 1),
    "replica_fetch_backoff_ms": (0, 2**31 - 1),
    "num_replica_fetchers": (1, 64),
    "max_incremental_fetch_session_cache_slots": (0, 2**31 - 1),
    "leader_replication_throttled_rate": (0, 2**63 - 1),
    "follower_replication_throttled_rate": (0, 2**63 - 1),
    "replication_quota_window_num": (1, 2**16),
    "replication_quota_window_size_seconds": (1, 2**31 // 1000),
    "leader_imbalance_check_interval_ms": (1, 2**63 - 1),
    "leader_imbalance_per_broker_percentage": (0, 100),
    "segment_bytes": (256, 2**31 - 1),
    "segment_ms": (1, 2**63 - 1),
    "index_interval_bytes": (0, 2**31 - 1),
    "segment_index_bytes": (4, 2**31 - 1),
    "max_message_bytes": (0, 2**30),
    "batch_bytes": (1, 2**30),
    "retention_ms": (-1, 2**63 - 1),
    "retention_bytes": (-1, 2**63 - 1),
    "flush_messages": (1, 2**63 - 1),
    "flush_ms": (0, 2**63 - 1),
    "producer_id_expiration_ms": (1, 2**63 - 1),
    "max_producer_ids": (1, 2**31 - 1),
    "group_min_session_timeout_ms": (1, 2**31 - 1),
    "group_max_session_timeout_ms": (1, 2**31 - 1),
    "group_initial_rebalance_delay_ms": (0, 2**31 - 1),
    "group_max_size": (1, 2**31 - 1),
    "group_consumer_heartbeat_interval_ms": (1, 2**31 - 1),
    "group_consumer_min_heartbeat_interval_ms": (1, 2**31 - 1),
    "group_consumer_max_heartbeat_interval_ms": (1, 2**31 - 1),
    "group_consumer_session_timeout_ms": (1, 2**31 - 1),
    "group_consumer_min_session_timeout_ms": (1, 2**31 - 1),
    "group_consumer_max_session_timeout_ms": (1, 2**31 - 1),
    "group_consumer_max_size": (1, 2**31 - 1),
    "offset_metadata_max_bytes": (0, 2**15 - 1),
    "offsets_commit_timeout_ms": (1, 2**31 - 1),
    "transaction_max_timeout_ms": (1, 2**31 - 1),
    "transaction_state_log_commit_timeout_ms": (1, 2**31 - 1),
    "transaction_state_log_num_partitions": (1, 2**31 - 1),
    "transaction_state_log_replication_factor": (1, 2**15 - 1),
    "transaction_state_log_segment_bytes": (14, 2**31 - 1),
    "transaction_state_log_min_isr": (1, 2**31 - 1),
    "transactional_id_expiration_ms": (1, 2**31 - 1),
    "transaction_remove_expired_transaction_cleanup_interval_ms": (10, 2**31 - 1),
    "offsets_retention_minutes": (1, 2**31 - 1),
    "offsets_retention_check_interval_ms": (10, 2**63 - 1),
    "offsets_topic_num_partitions": (1, 10_000),
    "offsets_topic_replication_factor": (1, 2**15 - 1),
    "offsets_topic_segment_bytes": (256, 2**31 - 1),
    "min_compaction_lag_ms": (0, 2**63 - 1),
    "max_compaction_lag_ms": (1, 2**63 - 1),
    "delete_retention_ms": (0, 2**63 - 1),
    "message_timestamp_before_max_ms": (0, 2**63 - 1),
    "message_timestamp_after_max_ms": (0, 2**63 - 1),
    "dedupe_buffer_size": (1 << 10, 1 << 40),
    "compression_gzip_level": (-1, 9),
    "compression_lz4_level": (1, 17),
    "compression_zstd_level": (-131072, 22),
    "connections_max_reauth_ms": (0, 2**63 - 1),
    "connection_failed_authentication_delay_ms": (0, 2**31 - 1),
    "sasl_server_max_receive_size": (1024, 2**31 - 1),
    "sasl_oauthbearer_clock_skew_seconds": (0, 2**31 - 1),
    "sasl_oauthbearer_jwks_endpoint_refresh_ms": (1000, 2**40),
    "sasl_oauthbearer_jwks_endpoint_retry_backoff_ms": (10, 2**31 - 1),
    "sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms": (10, 2**31 - 1),
    "quota_window_num": (1, 2**16),
    "quota_window_size_seconds": (1, 2**31 // 1000),
    "controller_quota_window_num": (1, 2**16),
    "controller_quota_window_size_seconds": (1, 2**31 // 1000),
}
"""By setting: the least and the greatest that is allowed."""

EXCLUDED = {"compression_gzip_level": 0}
"""By setting: a value of its range that is not allowed; that of gzip would store the records uncompressed."""

LISTS = frozenset(
    {"cleanup_policy", "group_consumer_assignors", "sasl_enabled_mechanisms", "sasl_oauthbearer_expected_audience"}
)
"""Settings that are lists, separated by commas."""


def _choice(default: str | None, choices: tuple[str, ...]) -> Any:
    """A field whose values are these texts."""
    return dataclasses.field(default=default, metadata={"choices": choices})


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one partition's log.

    replicated: False means this process is the only replica, so what is appended is committed; True means the high
        watermark moves only by `Log.advance_high_watermark`.
    segment_bytes, segment_ms: a new segment is rolled before either would be exceeded (bytes; ms of record time). A
        single encoded batch larger than segment_bytes gets a segment of its own; brokers refuse a producer's.
    index_interval_bytes: a batch is indexed once more than this many bytes have been written since the last that was.
    segment_index_bytes: a segment is rolled before the next write once either of its indexes may have grown to this.
    max_message_bytes: the largest record batch accepted, bytes, header included.
    batch_bytes: `append_many` closes a batch before it would hold more than this; one large record may.
    retention_ms, retention_bytes: what `Log.enforce_retention` may delete, and a topic's background thread does; -1
        for no limit. Kafka's default of seven days is not ours: an embedded log deletes nothing unasked.
    flush_messages: fsync at least once every so many records, before the append returns (1: every append is durable
        against power loss on return; concurrent appends share one fsync). The default never forces it.
    message_timestamp_type: "CreateTime" keeps the producer's timestamps, "LogAppendTime" overwrites them.
    message_timestamp_before_max_ms, message_timestamp_after_max_ms: how much older, and newer, than the clock a record
        of a producer's batch may be that keeps its timestamp; what `append` and the like write is not checked.
    compression_type: what `append`, `append_many` and, by default, `appender` write; encoded batches are
        kept as they come.
    producer_id_expiration_ms: an idempotent producer idle for so long is forgotten when the next segment is rolled,
        and by a broker when it looks for such.
    max_producer_ids: idempotent producers that a log remembers; more are refused until one has been idle for ten
        minutes.
    cleanup_policy: "delete", "compact" or both, separated by a comma; "" for neither. With "compact", `Log.compact`
        compacts it, records without a key are refused, and `append_as_follower` accepts the gaps that compaction by the
        leader has left. Not kept in the directory of an embedded log: to be given at each opening.
    min_cleanable_dirty_ratio: `Log.compact` waits until this share of the bytes that it may look at is of records
        appended since the last time, 0 to 1.
    min_compaction_lag_ms: a record stays for at least so long after its timestamp, newer ones of its key or not.
    max_compaction_lag_ms: a record that is older is compacted, whatever the ratio.
    delete_retention_ms: a tombstone, a record with a key and a null value, stays for so long after it was first met by
        compaction, so that readers from the start see it.
    dedupe_buffer_size: bytes of memory for the keys that one compaction has to know, 24 for each, a tenth of it unused;
        where there are more keys, it goes as far as it can.
    offset_gaps: accept what compaction by the leader has left, as under a policy with "compact", since an earlier
        policy was such a one.
    directory_group: name or number of a group that may read the directory, where that is made by this: a reader under
        another user needs it, such as Spark. By default all files are for their owner alone, whatever the umask.
    """

    replicated: bool = False
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    max_message_bytes: int = 1048588
    batch_bytes: int = 65536
    retention_ms: int = -1
    retention_bytes: int = -1
    flush_messages: int = 2**63 - 1
    message_timestamp_type: str = _choice("CreateTime", TIMESTAMP_TYPES)
    message_timestamp_before_max_ms: int = 2**63 - 1
    message_timestamp_after_max_ms: int = 2**63 - 1
    compression_type: str = _choice("none", COMPRESSION_TYPES)
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    max_producer_ids: int = 10_000
    cleanup_policy: str = _choice("delete", CLEANUP_POLICIES)
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = 24 * 3600 * 1000
    dedupe_buffer_size: int = 128 << 20
    offset_gaps: bool = False
    directory_group: str | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.directory_group is not None and not isinstance(self.directory_group, str):
            raise ArgumentTypeError(
                f"directory_group is a group's name or number as text, not {self.directory_group!r}"
            )
        _check_choices(self)

    @property
    def compacts(self) -> bool:
        """Whether the cleanup policy has "compact" in it."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether the cleanup policy has "delete" in it: retention_ms and retention_bytes apply."""
        return "delete" in self.cleanup_policy

    @property
    def has_retention_limit(self) -> bool:
        """Whether retention has a limit. What is below the log start, it deletes under any cleanup policy."""
        return self.retention_ms >= 0 or self.retention_bytes >= 0


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic: of its replication, the same on every broker, and of its logs, where they differ from
    the broker's.

    min_insync_replicas: an acks=all produce is refused, and the high watermark stands, while fewer are in sync; counts
        as the replication factor where that is smaller.
    unclean_leader_election_enable: elect a replica that may lack committed records when no other is left.
    flush_messages: 1 makes every replica fsync a record before it counts as replicated; the default leaves it to the
        page cache.
    flush_ms: a replica fsyncs a record at the latest so long after its append, plus the time that the fsyncs take; the
        default leaves it to the page cache. No producer and no follower waits for it.
    cleanup_policy: "delete" deletes segments past the retention limits, "compact" leaves of each key the newest
        record, and refuses records without a key; or both; "" for neither.
    compression_type: "producer" keeps batches as producers compress them; under a codec, or "uncompressed", a leader
        compresses what comes otherwise, before it appends it.
    compression_gzip_level: the level at which a leader compresses under gzip (KIP-390); -1 for that of zlib, 6.
    compression_lz4_level: the same under lz4; the default is its fast mode, every other its high compression, whose
        levels from 12 on are one.
    compression_zstd_level: the same under zstd; negative ones are faster, 0 is the default.
    offset_gaps: an earlier cleanup_policy had "compact" in it, so that offsets may be missing.
    unused: settings of Kafka's that no log uses, with their values as text, by name: the lists of throttled replicas,
        and those that have no effect.
    inherited: those of INHERITED that are not the topic's own: they have the defaults of the cluster's topics.

    The rest: as in LogConfig; None for the setting of the broker that has the replica.
    """

    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    flush_messages: int = 2**63 - 1
    flush_ms: int = 2**63 - 1
    cleanup_policy: str = _choice("delete", CLEANUP_POLICIES)
    compression_type: str = _choice("producer", TOPIC_COMPRESSION_TYPES)
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    offset_gaps: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    segment_bytes: int | None = None
    segment_ms: int | None = None
    segment_index_bytes: int | None = None
    max_message_bytes: int | None = None
    index_interval_bytes: int | None = None
    message_timestamp_type: str | None = _choice(None, TIMESTAMP_TYPES)
    message_timestamp_before_max_ms: int | None = None
    message_timestamp_after_max_ms: int | None = None
    min_cleanable_dirty_ratio: float | None = None
    min_compaction_lag_ms: int | None = None
    max_compaction_lag_ms: int | None = None
    delete_retention_ms: int | None = None
    unused: tuple[tuple[str, str], ...] = ()
    inherited: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_choices(self)

    @property
    def compacts(self) -> bool:
        """Whether the cleanup policy has "compact" in it."""
        return "compact" in self.cleanup_policy

    @property
    def codec(self) -> str | None:
        """The codec of every batch in the log, "none" for no compression; None for that of its producer."""
        if self.compression_type == "producer":
            return None
        return "none" if self.compression_type == "uncompressed" else self.compression_type

    @property
    def compression_level(self) -> int:
        """The level of the codec of compression_type; 0 if that has none."""
        return int(getattr(self, f"compression_{self.compression_type}_level", 0))

    def with_defaults(self, defaults: TopicConfig) -> TopicConfig:
        """The settings that count where those that it inherits are as in `defaults`."""
        return replace(self, **{name: getattr(defaults, name) for name in self.inherited}) if self.inherited else self

    def log_config(self, broker: LogConfig) -> LogConfig:
        """The settings of a log of the topic on a broker whose own settings are these."""
        given = {name: value for name in TOPIC_LOG_SETTINGS if (value := getattr(self, name)) is not None}
        given |= {name: getattr(self, name) for name in ("cleanup_policy", "offset_gaps")}
        return replace(broker, **given) if any(getattr(broker, name) != given[name] for name in given) else broker

    @property
    def flushes_every_record(self) -> bool:
        """Whether a replica holds a record only once it is fsynced."""
        return self.flush_messages == 1

    def min_isr(self, replication_factor: int) -> int:
        """min_insync_replicas, or `replication_factor` where that is smaller."""
        return min(self.min_insync_replicas, replication_factor)


TOPIC_LOG_SETTINGS = tuple(field.name for field in fields(TopicConfig) if field.default is None)
"""The fields of a TopicConfig that are those of a LogConfig."""

SETTINGS_OF_TOPICS = {
    "min.insync.replicas": "min_insync_replicas",
    "unclean.leader.election.enable": "unclean_leader_election_enable",
    "log.flush.interval.messages": "flush_messages",
    "log.flush.interval.ms": "flush_ms",
    "compression.type": "compression_type",
    "compression.gzip.level": "compression_gzip_level",
    "compression.lz4.level": "compression_lz4_level",
    "compression.zstd.level": "compression_zstd_level",
}
"""The defaults of the cluster's topics: names as brokers have them, and fields of a TopicConfig. log.cleanup.policy is
none, though it is in Kafka: a follower refuses a gap in the offsets of a topic that was never compacted, and could not
under a policy that a default may have been in between."""

INHERITED = tuple(SETTINGS_OF_TOPICS.values())
"""The fields of a TopicConfig that a topic has of its own, or inherits from the defaults of the cluster's topics."""


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """The settings of a broker as replica and, when elected, as controller.

    replica_lag_time_max_ms: a follower not caught up for so long leaves the ISR (KeepInSyncTime, MAX_TIME_LAG).
    replica_lag_max_bytes: or one whose position is more bytes of the log behind the leader's end; -1, the default,
        for no such bound (MAX_BYTES_LAG). A single request of more bytes than this removes every follower.
    replica_fetch_*: a follower's fetches: how long the leader may wait for min_bytes, bytes per partition and in all,
        and the pause after an error. Of a partition it is four times what Kafka's followers request: one that
        is far behind catches up with less CPU on either side.
    num_replica_fetchers: fetchers for each source broker.
    max_incremental_fetch_session_cache_slots: incremental fetch sessions that a leader remembers (KIP-227).
    leader_replication_throttled_rate, follower_replication_throttled_rate: bytes by the second that it sends as leader,
        and fetches as follower, of the replicas that a topic lists as throttled (KIP-73); those in the ISR count, and
        are not held up. The default is no limit.
    replication_quota_window_num, replication_quota_window_size_seconds: samples of these rates, and the time that each
        of them spans.
    replica_selector_class: which replica a consumer is to fetch from, by Kafka's name of the class (KIP-392): the
        leader, or one in the rack that the consumer names.
    auto_leader_rebalance_enable, leader_imbalance_check_interval_ms, leader_imbalance_per_broker_percentage: whether
        leadership moves back to the preferred replicas, how often that is looked at, and above which share of a
        broker's preferred partitions that are led elsewhere.
    """

    replica_lag_time_max_ms: int = 10000
    replica_lag_max_bytes: int = -1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 4 << 20
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_fetch_backoff_ms: int = 1000
    num_replica_fetchers: int = 1
    max_incremental_fetch_session_cache_slots: int = 1000
    leader_replication_throttled_rate: int = 2**63 - 1
    follower_replication_throttled_rate: int = 2**63 - 1
    replication_quota_window_num: int = 11
    replication_quota_window_size_seconds: int = 1
    replica_selector_class: str = _choice(LEADER_SELECTOR, REPLICA_SELECTORS)
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_ms: int = 300000
    leader_imbalance_per_broker_percentage: int = 10

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_choices(self)


ASSIGNORS = {
    f"org.apache.kafka.coordinator.group.assignor.{name.title()}Assignor": name for name in ("uniform", "range")
}
"""The assignors of groups whose coordinator assigns the partitions, by the classes that configs of Kafka's name."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of a broker as coordinator of consumer groups.

    group_min_session_timeout_ms, group_max_session_timeout_ms: the session time-outs that a member may choose.
    group_initial_rebalance_delay_ms: how long the first generation of a group waits for more members.
    group_max_size: maximum of members of a group.
    group_consumer_heartbeat_interval_ms: the interval of the heartbeats of members whose coordinator assigns the
        partitions.
    group_consumer_min_heartbeat_interval_ms, group_consumer_max_heartbeat_interval_ms: bounds of that interval.
    group_consumer_session_timeout_ms: how long such a member may be silent.
    group_consumer_min_session_timeout_ms, group_consumer_max_session_timeout_ms: bounds of that time.
    group_consumer_max_size: maximum of members of such a group.
    group_consumer_migration_policy: whether a group with members may change its protocol: `bidirectional`; `upgrade` to
        that whose coordinator assigns; `downgrade` from it; `disabled`, where it has no members of both either.
    group_consumer_assignors: the assignors that they may choose, the default first: `uniform` and `range`, or Kafka's
            names of their classes.
    offset_metadata_max_bytes: maximum size of the text that a client may commit with an offset.
    offsets_commit_timeout_ms: how long a commit waits for the in-sync replicas.
    offsets_retention_minutes: after this time without members the offsets of a group of the classic protocol are
        deleted; those that simple consumers and groups of the consumer protocol have committed, after this time
        without a commit, unless a member reads the topic.
    offsets_retention_check_interval_ms: interval of the checks for offsets to delete.
    offsets_topic_num_partitions, offsets_topic_replication_factor, offsets_topic_segment_bytes: of
        `__consumer_offsets`, when it is created. The groups are spread over its partitions by their names, so the
        number of partitions never changes.
    """

    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = 2**31 - 1
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_min_heartbeat_interval_ms: int = 5000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_migration_policy: str = _choice("bidirectional", MIGRATION_POLICIES)
    group_consumer_assignors: str = _choice("uniform,range", tuple(ASSIGNORS.values()))
    offset_metadata_max_bytes: int = 4096
    offsets_commit_timeout_ms: int = 5000
    offsets_retention_minutes: int = 10080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 100 << 20

    def __post_init__(self) -> None:
        _check_fields(self)
        _one_of("group_consumer_migration_policy", self._migration_policy, MIGRATION_POLICIES)
        names = self.consumer_assignors
        if not set(names) <= set(ASSIGNORS.values()) or len(set(names)) < len(names):
            known = ", ".join(sorted(ASSIGNORS.values()))
            raise UsageError(
                f"group_consumer_assignors = {self.group_consumer_assignors} is no list of assignors: of {known}"
            )

    @property
    def consumer_assignors(self) -> list[str]:
        """The names that members choose from, the default first."""
        names = [name.strip() for name in self.group_consumer_assignors.split(",")]
        return [ASSIGNORS.get(name, name) for name in names]

    @property
    def _migration_policy(self) -> str:
        return self.group_consumer_migration_policy.lower()

    @property
    def upgrades_groups(self) -> bool:
        """Whether a classic group with members becomes one whose coordinator assigns when a member of that joins."""
        return self._migration_policy in ("bidirectional", "upgrade")

    @property
    def downgrades_groups(self) -> bool:
        """Whether a group becomes a classic one when the last member of the consumer protocol is gone."""
        return self._migration_policy in ("bidirectional", "downgrade")

    @property
    def mixes_protocols(self) -> bool:
        """Whether members of the classic protocol may join a group whose coordinator assigns."""
        return self._migration_policy != "disabled"


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The settings of a broker as coordinator of transactions.

    transaction_max_timeout_ms: the longest time-out that a producer may choose for its transactions.
    transaction_state_log_commit_timeout_ms: how long a record of a transaction waits for the in-sync replicas.
    transaction_state_log_num_partitions: of `__transaction_state`, when it is created. The transactional ids are spread
        over its partitions by their names, so their number never changes.
    transaction_state_log_replication_factor, transaction_state_log_segment_bytes, transaction_state_log_min_isr: of the
        same topic, when it is created.
    transactional_id_expiration_ms: after this time without a transaction or a new producer a transactional id is
        deleted, unless one is open.
    transaction_remove_expired_transaction_cleanup_interval_ms: interval of the checks for ids to delete.
    """

    transaction_max_timeout_ms: int = 900_000
    transaction_state_log_commit_timeout_ms: int = 5000
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 3
    transaction_state_log_segment_bytes: int = 100 << 20
    transaction_state_log_min_isr: int = 2
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000

    def __post_init__(self) -> None:
        _check_fields(self)


SASL_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""The SASL mechanisms that a broker can have."""


@dataclass(frozen=True, slots=True)
class SaslConfig:
    """The settings of a broker's listeners of SASL_PLAINTEXT and SASL_SSL.

    sasl_enabled_mechanisms: the mechanisms that clients may choose from; `PLAIN`, which sends the password, on
        listeners of SASL_SSL and unix sockets alone; `OAUTHBEARER`, which sends a token, there and on loopback
        addresses.
    connections_max_reauth_ms: time after which a client must authenticate itself again (KIP-368), 0 for never.
    connection_failed_authentication_delay_ms: time before a client that has failed to authenticate itself is answered
        and disconnected.
    sasl_server_max_receive_size: maximum size of a request of a client that has not authenticated itself.
    sasl_oauthbearer_jwks_endpoint_url: where the public keys of the issuer of tokens are, as a JWK set (RFC 7517):
        `https://`, `file://`, or `http://` of a loopback address.
    sasl_oauthbearer_expected_audience: the audiences of this cluster, of which a token must have one; a token with an
        audience is refused without it.
    sasl_oauthbearer_expected_issuer: the issuer that a token must have; None for any whose keys there are.
    sasl_oauthbearer_sub_claim_name: the claim that has the name of the principal.
    sasl_oauthbearer_scope_claim_name: the claim that has the scope, which must be a text or a list of texts.
    sasl_oauthbearer_clock_skew_seconds: how much the clocks of the issuer and of brokers may differ.
    sasl_oauthbearer_jwks_endpoint_refresh_ms: interval at which the keys are read again; a file is, each second.
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms, sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: pause after
        the keys could not be read, which doubles from the first to the second; the second is also the least pause
        between reads that tokens with unknown keys cause.
    """

    sasl_enabled_mechanisms: str = _choice("SCRAM-SHA-256,SCRAM-SHA-512", SASL_MECHANISMS)
    connections_max_reauth_ms: int = 0
    connection_failed_authentication_delay_ms: int = 100
    sasl_server_max_receive_size: int = 512 << 10
    sasl_oauthbearer_jwks_endpoint_url: str | None = None
    sasl_oauthbearer_expected_audience: str | None = None
    sasl_oauthbearer_expected_issuer: str | None = None
    sasl_oauthbearer_sub_claim_name: str = "sub"
    sasl_oauthbearer_scope_claim_name: str = "scope"
    sasl_oauthbearer_clock_skew_seconds: int = 30
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = 3_600_000
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = 100
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = 10_000

    def __post_init__(self) -> None:
        _check_fields(self)
        names = self.mechanisms
        if not set(names) <= set(SASL_MECHANISMS) or len(set(names)) < len(names):
            raise UsageError(
                f"sasl_enabled_mechanisms = {self.sasl_enabled_mechanisms}: must be a list of some of "
                f"{', '.join(SASL_MECHANISMS)}, each once"
            )

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The enabled mechanisms, in the order of responses to SaslHandshake."""
        return tuple(name.strip() for name in self.sasl_enabled_mechanisms.split(","))

    @property
    def audiences(self) -> tuple[str, ...]:
        """The expected audiences of tokens."""
        return tuple(
            name.strip() for name in (self.sasl_oauthbearer_expected_audience or "").split(",") if name.strip()
        )


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """The time over which client quotas hold.

    quota_window_num: samples of the use of quotas of bytes and of requests.
    quota_window_size_seconds: time that each of them spans, and maximum for which a quota of requests throttles.
    controller_quota_window_num: the same as quota_window_num, of mutations.
    controller_quota_window_size_seconds: the same as quota_window_size_seconds, of mutations.
    """

    quota_window_num: int = 11
    quota_window_size_seconds: int = 1
    controller_quota_window_num: int = 11
    controller_quota_window_size_seconds: int = 1

    def __post_init__(self) -> None:
        _check_fields(self)


def _check_fields(
    settings: LogConfig | TopicConfig | ReplicationConfig | GroupConfig | TransactionConfig | SaslConfig | QuotaConfig,
) -> None:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is None and field.default is None:
            continue
        if field.name in RANGES:
            low, high = RANGES[field.name]
            if isinstance(value, bool) or not isinstance(value, int):
                raise ArgumentTypeError(f"{field.name} must be an int, not {type(value).__name__} {value!r}")
            if not low <= value <= high:
                raise UsageError(f"{field.name} = {value} is out of range: allowed are {low} to {high}")
            if value == EXCLUDED.get(field.name):
                raise UsageError(f"{field.name} = {value} is not allowed: allowed are {low} to {high} but {value}")
        elif str(field.type).startswith("float"):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ArgumentTypeError(f"{field.name} must be a number, not {type(value).__name__} {value!r}")
            if not 0 <= value <= 1:
                raise UsageError(f"{field.name} = {value} is out of range: allowed are 0 to 1")
        elif field.type == "bool" and not isinstance(value, bool):
            raise ArgumentTypeError(f"{field.name} must be a bool, not {value!r}")


def _check_choices(settings: LogConfig | TopicConfig | ReplicationConfig) -> None:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if "choices" in field.metadata and not (value is None and field.default is None):
            _one_of(field.name, value, field.metadata["choices"])


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(choice or '""' for choice in allowed)
        raise UsageError(f"{name} = {value!r} is not known: choose one of {choices}")


NO_OWN_SETTINGS = TopicConfig(inherited=INHERITED)
"""The settings of a topic that inherits everything, before the defaults are known."""

BUILT_IN_DEFAULTS = TopicConfig()
"""What a topic inherits where no broker is given another default."""
