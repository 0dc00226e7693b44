"""The plan of a seed: the shape of its cluster and its faults, drawn completely before the run.

Swarm testing: each seed draws which kinds of faults it has, how dense they are, and the shape of the cluster, so that
some seeds have many faults of one kind and none of others. Uniform schedules miss failures that need several conditions
at once, so the draw is biased: leaders and controllers are hit more often, leadership moves
often, and in many seeds one broker gets the controller's requests late.

An `Action` contains its time and its random numbers, not its target: "the leader of the second partition" is looked up
when it is injected. So any subset of a plan's actions can be run, which is how a failing seed is shrunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from kreplog.config import RACK_AWARE_SELECTOR, GroupConfig, ReplicationConfig, TopicConfig, TransactionConfig
from kreplog.core.broker.request_parts import REPLICAS_PER_PART
from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.core.throttled_replicas import FOLLOWER_THROTTLED_REPLICAS, LEADER_THROTTLED_REPLICAS
from kreplog.core.transaction_messages import INTERNAL_TOPICS, LAST_EPOCH, TRANSACTIONS_TOPIC
from kreplog.core.transactions.transaction_coordinator import PATIENCE_MS

KINDS: dict[str, int] = {
    "late": 2,
    "drop": 4,
    "cut": 4,
    "isolate": 4,
    "slow_link": 2,
    "starve": 4,
    "crash": 8,
    "power": 4,
    "rejoin": 4,
    "new_disk": 3,
    "all_down": 2,
    "crash_step": 8,
    "pause": 6,
    "pause_step": 4,
    "expire": 4,
    "slow_disk": 2,
    "disk_fail": 2,
    "clock": 2,
    "store_cut": 4,
    "store_down": 2,
    "store_loss": 4,
    "shutdown": 4,
    "depose": 3,
    "preferred": 6,
    "reorder": 6,
    "reassign": 3,
    "settings": 4,
    "delete_records": 6,
    "retention": 6,
    "topic": 2,
    "grow": 1,
    "broker": 1,
    "refuse": 4,
    "exhaust": 4,
    "forge": 4,
    "broker_config": 4,
    "unreadable_config": 4,
    "default_config": 4,
    "unclean_election": 4,
}
"""Every kind of fault, and its weight among the kinds of its seed."""

APART = {
    "refuse": ("refusals", 0.4),
    "exhaust": ("exhaustion", 0.2),
    "forge": ("forgeries", 0.4),
    "broker_config": ("broker-configs", 0.1),
    "unreadable_config": ("spoilt-configs", 0.05),
    # Without -37, seeds by which tests/sim/test_mutations.py finds other mutations, 0 among them, would have it too.
    "default_config": ("default-configs-37", 0.05),
    "unclean_election": ("unclean-elections", 0.05),
}
"""Kinds with random numbers of their own: the name of those, and the share of the seeds that have the kind."""


GROUPS = GroupConfig(
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=50,
    offsets_commit_timeout_ms=500,
    offsets_retention_check_interval_ms=3000,
    group_consumer_heartbeat_interval_ms=200,
    group_consumer_session_timeout_ms=1200,
)
"""How brokers coordinate the groups."""

GROUP_SHARE = 0.18
"""The share of the seeds that have a group."""

GROUP_PARTITIONS = 2

LAG_BYTES = 400
"""replica.lag.max.bytes where there is a bound: a few batches of records."""

LAG_OF_GROUPS_BYTES = 4000

SUBSCRIBER_SHARE = 0.1
"""The share of the seeds that have a group whose coordinator assigns the partitions."""

MIGRATION_SHARE = 0.4
"""Of these, the share whose members change their protocol."""

EXTRA_TOPIC = "x0"
"""The first topic that operators create during a run."""

TRANSACTED_TOPIC = "transacted"
"""The topic that transactions write to, and no other client."""

MANY_TRANSACTED = 5
"""Its number of partitions in some seeds, where a leader has several and a process writes to them at once."""

OWN_TOPICS = frozenset({*INTERNAL_TOPICS, TRANSACTED_TOPIC})
"""Topics that other clients and operators leave alone."""

TRANSACTIONS = TransactionConfig(
    transaction_state_log_commit_timeout_ms=500,
    transactional_id_expiration_ms=1500,
    transaction_remove_expired_transaction_cleanup_interval_ms=1000,
)
"""How brokers coordinate transactions."""

TRANSACTION_TIMEOUTS_MS = (800, 2000, 5000)
"""One of which a producer chooses."""

TRANSACTION_SHARE = 0.1
"""The share of the seeds that have transactions."""


FEW_EPOCHS = 2
"""The last epoch of producers in some of these seeds, which use them up."""

FEW_EPOCHS_SHARE = 0.3

PATIENCE_SHARE = 0.5

HASTE_SHARE = 0.3

COPIERS_JOIN_SHARE = 0.3

CROWD_SHARE = 0.3

CROWD = 5
"""Writers of a crowd: with so many, the markers of several transactions wait for one leader at a time."""

SLOW_FILE_SYNC_MS = 2500
"""What the fsync of new replicas takes in some seeds: the controller sends its request again meanwhile, twice."""

THROTTLED_RATE = 500
"""Bytes by the second of replicas that catch up, in some seeds: a few batches."""

LATE_REGISTRATION_MS = 2500
"""How late a broker registers in some seeds: its clients' requests have it read the store meanwhile."""


@dataclass(frozen=True, slots=True)
class Action:
    """One fault. number: its place in the plan. at_ms, duration_ms: virtual time. draws: numbers in [0, 1)."""

    number: int
    at_ms: int
    kind: str
    duration_ms: int
    draws: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that is created at the start."""

    name: str
    partitions: int
    replication_factor: int
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """The cluster, the clients and the faults of one seed.

    starved: brokers whose control requests are always late. fence_late_ms: how long after the end of its session a
    broker still considers it alive. all_flush: every topic fsyncs each record, so that the power may fail everywhere at
    once. quick_notice: the store detects a dead process at once, as the embedded store does. members: of a consumer
    group; 0 in most seeds, which then have no topic for its offsets. subscribers: members of a group whose coordinator
    assigns the partitions; the same. migrates: these restart with the classic protocol, and back. writers: processes
    that write transactions; the same. file_sync_ms: what the fsync of new replicas takes beyond the usual, on all
    disks. replicas_per_part: replicas that a part of a control request creates or deletes at most. last_epoch: of
    producers, few in some seeds. patience_ms: of coordinators of transactions, none in some of these seeds. hasty: the
    writers soon send an EndTxn again that has had no response; in some of these seeds. copiers_join: those of them that
    copy are members of the group whose offsets they commit; in some as well. crowd: further writers, each with a
    transactional id of its own, that hardly pause; in some as well. creates_topics: clients cause the automatic
    creation of topics. awaits_metadata: Metadata requests wait for metadata and for elections, in one of
    24 seeds. drains_channels: a controller waits for responses only until it has them, in the same. registers_late_ms:
    from the beginning of a broker's session to its registration; 0 in most of these seeds. misused: clients and
    operators also request what is refused, and a consumer has sessions. allocates_producer_ids: brokers allocate those
    that they hand out in the store, which loses more responses. reads_in_racks: leaders send consumers to the followers
    in their racks, where there is a consumer of each. replaces_topics: operators create a deleted topic again as soon
    as it is gone, and reassign it just before. moves_replicas: brokers move replicas between log directories, on
    model logs.
    """

    seed: int
    brokers: int
    racks: int
    topics: tuple[TopicPlan, ...]
    config: ReplicationConfig
    session_timeout_ms: int
    fence_late_ms: int
    quick_notice: bool
    native: bool
    producers: int
    consumers: int
    duration_ms: int
    late: float
    starved: tuple[int, ...]
    kinds: tuple[str, ...]
    actions: tuple[Action, ...]
    all_flush: bool = False
    members: int = 0
    subscribers: int = 0
    migrates: bool = False
    groups: GroupConfig = GROUPS
    writers: int = 0
    transactions: TransactionConfig = TRANSACTIONS
    file_sync_ms: int = 0
    replicas_per_part: int = REPLICAS_PER_PART
    last_epoch: int = LAST_EPOCH
    patience_ms: int = 0
    hasty: bool = False
    copiers_join: bool = False
    crowd: int = 0
    creates_topics: bool = False
    awaits_metadata: bool = False
    registers_late_ms: int = 0
    drains_channels: bool = False
    misused: bool = False
    allocates_producer_ids: bool = False
    reads_in_racks: bool = False
    replaces_topics: bool = False
    moves_replicas: bool = False


def draw(seed: int, brokers: tuple[int, int], kinds: Sequence[str], log: str) -> SimulationPlan:
    """The plan of a seed. kinds: to choose from; brokers: minimum and maximum; log: model, native, both-by-seed."""
    random = Random(f"kreplog-{seed}")
    count = random.randint(*brokers)
    duration_ms = random.randint(6000, 14000)
    others = [kind for kind in kinds if kind not in APART]
    chosen = tuple(kind for kind in others if random.random() < 0.4)
    if others and not chosen:
        chosen = (random.choice(others),)
    gap_ms = 10 ** random.uniform(2.1, 3.2)
    late = random.choice((0.01, 0.05, 0.2))
    starved = random.random() < 0.3
    power = any(kind in chosen for kind in ("power", "rejoin", "new_disk"))
    all_flush = random.random() < 0.15
    topics = tuple(
        _draw_topic(random, f"t{number}", count, power, all_flush) for number in range(random.choice((1, 1, 2)))
    )
    plan = SimulationPlan(
        seed=seed,
        brokers=count,
        topics=topics,
        config=_draw_config(random, seed),
        session_timeout_ms=random.choice((600, 1000, 1500)),
        racks=random.choice((0, 0, 2)),
        fence_late_ms=random.choice((0, 0, 0, 300, 2000)) if kinds else 0,
        quick_notice=random.random() < 0.5,
        native={"native": True, "model": False}.get(log, random.random() < 0.25),
        producers=random.randint(1, 3),
        consumers=random.randint(1, 2),
        duration_ms=duration_ms,
        late=late if "late" in chosen else 0.0,
        starved=(random.randint(1, count),) if starved and "starve" in kinds else (),
        all_flush=all_flush,
        kinds=chosen,
        actions=(),
    )
    plan = replace(plan, actions=tuple(_draw_actions(random, plan, gap_ms)))
    plan = _with_kinds_apart(plan, kinds, power)
    plan = _with_rare_conditions(plan, kinds)
    plan = _with_transactions(_with_group(plan, power), power)
    return _with_subscribers(plan, power)


def _draw_config(random: Random, seed: int) -> ReplicationConfig:
    return ReplicationConfig(
        replica_lag_time_max_ms=random.choice((500, 1000, 2000)),
        replica_lag_max_bytes=random.choice((-1, -1, -1, LAG_BYTES)),
        replica_fetch_wait_max_ms=random.choice((100, 300, 500)),
        replica_fetch_max_bytes=random.choice((200, 1000, 1 << 20)),
        replica_fetch_backoff_ms=random.choice((20, 100, 300)),
        num_replica_fetchers=1 if seed % 4 else 3,
        max_incremental_fetch_session_cache_slots=random.choice((0, 2, 1000)),
        auto_leader_rebalance_enable=random.random() < 0.5,
        leader_imbalance_check_interval_ms=random.choice((400, 1500, 5000)),
        leader_imbalance_per_broker_percentage=0,
    )


# What follows is drawn apart, or not at all, so that seeds that are known to find a mutation still do.


def _with_kinds_apart(plan: SimulationPlan, kinds: Sequence[str], power: bool) -> SimulationPlan:
    """The plan with the faults of the kinds in APART that its seed has."""
    for kind, (name, share) in APART.items():
        random = Random(f"kreplog-{name}-{plan.seed}")
        if kind in kinds and random.random() < share:
            plan = _with_actions(replace(plan, kinds=(*plan.kinds, kind)), random, kind)
            if kind == "default_config":
                plan = replace(plan, topics=tuple(_inheriting(topic, power) for topic in plan.topics))
    return plan


def _with_rare_conditions(plan: SimulationPlan, kinds: Sequence[str]) -> SimulationPlan:
    """The plan with the conditions that only some seeds have, by their numbers."""
    seed = plan.seed
    plan = replace(
        plan,
        file_sync_ms=SLOW_FILE_SYNC_MS if seed % 18 == 11 else 0,
        replicas_per_part=1 if seed % 18 == 11 else REPLICAS_PER_PART,
        creates_topics=seed % 24 == 19,
        awaits_metadata=seed % 24 == 22,
        registers_late_ms=LATE_REGISTRATION_MS if seed % 120 == 118 else 0,
        drains_channels=seed % 24 == 22,
        misused=seed % 21 == 14,
        allocates_producer_ids=seed % 16 == 7,
        reads_in_racks=seed % 40 == 15,
        replaces_topics=seed % 60 == 23,
        moves_replicas=seed % 60 == 38 and not plan.native,
    )
    if plan.reads_in_racks:
        plan = replace(plan, racks=2, config=replace(plan.config, replica_selector_class=RACK_AWARE_SELECTOR))
    if plan.replaces_topics and "topic" in kinds:
        plan = _with_actions(plan, Random(f"kreplog-replaced-topics-{seed}"), "topic")
    if plan.misused and "topic" in kinds:  # sessions hold topics that are deleted
        plan = _with_actions(plan, Random(f"kreplog-topics-{seed}"), "topic")
    if plan.misused and "grow" in kinds:  # refused: internal topics keep their partitions
        plan = _with_actions(plan, Random(f"kreplog-internal-topics-{seed}"), "grow_internal")
    if plan.allocates_producer_ids and "store_loss" in kinds:
        plan = _with_actions(plan, Random(f"kreplog-producer-ids-{seed}"), "store_loss")
    return _throttled(plan) if seed % 120 == 76 else plan


def _throttled(plan: SimulationPlan) -> SimulationPlan:
    """The plan with throttles of all replicas that catch up (KIP-73)."""
    config = replace(
        plan.config,
        leader_replication_throttled_rate=THROTTLED_RATE,
        follower_replication_throttled_rate=2 * THROTTLED_RATE,
        replication_quota_window_num=2,
    )
    everywhere = ((FOLLOWER_THROTTLED_REPLICAS, "*"), (LEADER_THROTTLED_REPLICAS, "*"))
    topics = tuple(replace(topic, config=replace(topic.config, unused=everywhere)) for topic in plan.topics)
    return replace(plan, config=config, topics=topics)


def _with_group(plan: SimulationPlan, power: bool) -> SimulationPlan:
    """The plan with a group in some seeds."""
    random = Random(f"kreplog-groups-{plan.seed}")
    if random.random() >= GROUP_SHARE:
        return plan
    topic = _internal_topic(
        OFFSETS_TOPIC, GROUP_PARTITIONS, plan, not plan.all_flush and power and random.random() < 0.5
    )
    return replace(plan, topics=(*plan.topics, topic), members=random.randint(2, 3))


def _with_transactions(plan: SimulationPlan, power: bool) -> SimulationPlan:
    """The plan with transactions in some seeds, drawn under a name that leaves the seeds as they are that are known to
    find a mutation."""
    random = Random(f"kreplog-transactions-37-{plan.seed}")
    if random.random() >= TRANSACTION_SHARE:
        return plan
    flushes = power and random.random() < 0.5
    topics = [
        _internal_topic(TRANSACTED_TOPIC, _transacted_partitions(plan.seed, random.randint(1, 2)), plan, flushes),
        _internal_topic(TRANSACTIONS_TOPIC, 1, plan, flushes),
    ]
    if not plan.members:
        topics.append(_internal_topic(OFFSETS_TOPIC, GROUP_PARTITIONS, plan, flushes))
    return replace(
        plan,
        topics=(*plan.topics, *topics),
        writers=random.randint(2, 4),
        last_epoch=_last_epoch(plan.seed),
        patience_ms=_patience_ms(plan.seed),
        hasty=Random(f"kreplog-haste-18-{plan.seed}").random() < HASTE_SHARE,  # as of the transactions
        copiers_join=Random(f"kreplog-copiers-911-{plan.seed}").random() < COPIERS_JOIN_SHARE,  # as well
        crowd=CROWD if Random(f"kreplog-crowd-2440-{plan.seed}").random() < CROWD_SHARE else 0,  # as well
    )


def _with_subscribers(plan: SimulationPlan, power: bool) -> SimulationPlan:
    """The plan with a group in some seeds whose coordinator assigns; drawn apart too, under a name as that of the
    transactions. Not where clocks run fast: a member owns what it has until its session ends by its own clock."""
    random = Random(f"kreplog-consumers-43-{plan.seed}")
    if random.random() >= SUBSCRIBER_SHARE or "clock" in plan.kinds:
        return plan
    topics = plan.topics
    if all(topic.name != OFFSETS_TOPIC for topic in topics):
        flushes = power and random.random() < 0.5
        topics = (*topics, _internal_topic(OFFSETS_TOPIC, GROUP_PARTITIONS, plan, flushes))
    # With -24, no seed by which tests/sim/test_mutations.py finds another mutation has such members.
    # Nor any where topics are replaced: classic members get names, which they take for those of the former topics.
    migrates = Random(f"kreplog-migrations-24-{plan.seed}").random() < MIGRATION_SHARE and not plan.replaces_topics
    # A record of a group's members is larger than the bound of other seeds: each would take all followers out of sync.
    config = plan.config
    if config.replica_lag_max_bytes >= 0:
        config = replace(config, replica_lag_max_bytes=LAG_OF_GROUPS_BYTES)
    # As of the transactions; in more of these seeds, since few have both.
    copiers_join = plan.copiers_join or Random(f"kreplog-epochs-1-{plan.seed}").random() < COPIERS_JOIN_SHARE
    return replace(
        plan,
        topics=topics,
        config=config,
        subscribers=random.randint(2, 4),
        migrates=migrates,
        copiers_join=copiers_join,
    )


def _last_epoch(seed: int) -> int:
    """Drawn apart, under a name as that of the transactions."""
    return FEW_EPOCHS if Random(f"kreplog-epochs-8-{seed}").random() < FEW_EPOCHS_SHARE else LAST_EPOCH


def _patience_ms(seed: int) -> int:
    """Drawn apart as well."""
    return PATIENCE_MS if Random(f"kreplog-patience-26716-{seed}").random() < PATIENCE_SHARE else 0


def _transacted_partitions(seed: int, few: int) -> int:
    return MANY_TRANSACTED if seed % 6 == 1 else few


def _internal_topic(name: str, partitions: int, plan: SimulationPlan, flushes: bool) -> TopicPlan:
    config = TopicConfig(2, False, 1 if plan.all_flush or flushes else 2**63 - 1)
    return TopicPlan(name, partitions, min(plan.brokers, 3), config)


def _draw_topic(random: Random, name: str, brokers: int, power: bool, all_flush: bool) -> TopicPlan:
    replication_factor = min(brokers, random.choice((2, 3, 3, 3)))
    min_insync_replicas = min(replication_factor, random.choice((1, 2, 2)))
    flush_messages = (
        1
        if random.random() < 0.25 or all_flush or (power and min_insync_replicas == 1)
        else TopicConfig().flush_messages
    )
    unclean = random.random() < 0.1
    config = TopicConfig(min_insync_replicas, unclean, flush_messages)
    return TopicPlan(name, random.choice((1, 1, 2)), replication_factor, config)


def _inheriting(topic: TopicPlan, power: bool) -> TopicPlan:
    """A topic that inherits min.insync.replicas or flush.messages; where the power may fail, only one of the two, as in
    the fault `settings`."""
    config = topic.config
    if config.flush_messages == 1:
        inherited: tuple[str, ...] = ("min_insync_replicas",)
    else:
        inherited = ("flush_messages",) if power else ("min_insync_replicas", "flush_messages")
    return replace(topic, config=replace(config, inherited=inherited))


def drawn_default(draws: Sequence[float]) -> tuple[str, str | None]:
    """A setting of brokers, and its next cluster-wide default; None to delete it."""
    name, values = (
        ("min.insync.replicas", ("1", "2", "2", None)),
        ("log.flush.interval.messages", ("1", "1", "1000000", None)),
        ("num.replica.fetchers", ("1", "2", "3", None)),
    )[int(3 * draws[0])]
    return name, values[int(len(values) * draws[1])]


def _draw_actions(random: Random, plan: SimulationPlan, gap_ms: float) -> list[Action]:
    actions: list[Action] = []
    if not plan.kinds:
        return actions
    weights = [KINDS[kind] * random.choice((1, 1, 1, 4)) for kind in plan.kinds]
    at_ms = random.randint(100, 2500)
    while at_ms < plan.duration_ms:
        kind = random.choices(plan.kinds, weights)[0]
        duration_ms = int(10 ** random.uniform(1.3, 3.5))
        draws = tuple(random.random() for _ in range(6))
        actions.append(Action(len(actions), at_ms, kind, duration_ms, draws))
        # Faults come in bursts: often a second failure, just after the first, breaks a protocol.
        at_ms += int(random.expovariate(1 / gap_ms) * (0.1 if random.random() < 0.3 else 1.2)) + 1
    return actions


def _with_actions(plan: SimulationPlan, random: Random, kind: str) -> SimulationPlan:
    """The plan with a few more actions of a kind."""
    actions = list(plan.actions)
    for _ in range(random.randint(1, 8)):
        at_ms, duration_ms = random.randint(100, plan.duration_ms), int(10 ** random.uniform(1.3, 3.5))
        draws = tuple(random.random() for _ in range(6))
        actions.append(Action(len(actions), at_ms, kind, duration_ms, draws))
    return replace(plan, actions=tuple(actions))
