"""MetadataCache: errors for topics before a controller has sent metadata, and after."""

from __future__ import annotations

from kreplog.core.messages import PartitionState, UpdateMetadataRequest
from kreplog.core.replication.metadata import MetadataCache
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER, BrokerRegistration, LeaderAndIsr, TopicPartition

TP, OTHER = TopicPartition("topic", 0), TopicPartition("other", 0)


def state(partition: TopicPartition, leader: int) -> PartitionState:
    return PartitionState(partition, "id", LeaderAndIsr(leader, 3, (1, 2)), (1, 2))


def errors(cache: MetadataCache, partition: TopicPartition) -> tuple[ErrorCode, ErrorCode, ErrorCode]:
    return cache.topic_error(), cache.topic_error(by_id=True), cache.replica_error(partition)


def test_nothing_is_denied_before_anything_is_known() -> None:
    assert errors(MetadataCache(), TP) == (
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )


def test_metadata_of_the_store_holds_until_a_controller_sends_its_own() -> None:
    cache = MetadataCache()
    cache.read([BrokerRegistration(1, 5), BrokerRegistration(2, 6)], [state(TP, 1), state(OTHER, 2)], own_id=2)
    assert (cache.from_controller, cache.from_store, sorted(cache.brokers)) == (False, True, [1, 2])
    assert (cache.leader_of(TP), cache.leader_of(TopicPartition("missing", 0))) == (1, NO_LEADER)
    assert cache.leader_of(OTHER) == NO_LEADER, "it leads nothing before a controller says so"
    assert errors(cache, TopicPartition("missing", 0)) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    cache.apply(UpdateMetadataRequest(1, 1, 6, (BrokerRegistration(2, 6),), (state(TP, 2),)))
    assert (cache.from_controller, sorted(cache.brokers), sorted(cache.partitions)) == (True, [2], [TP])
    cache.read([BrokerRegistration(1, 5)], [state(OTHER, 1)], own_id=2)
    assert (sorted(cache.brokers), sorted(cache.partitions)) == ([2], [TP]), "it knows better now"


def test_unknown_partitions_are_denied_once_a_controller_has_sent_metadata() -> None:
    """Kafka, ReplicaManager.getPartitionOrError: a partition that moved away is looked for again."""
    cache = MetadataCache()
    cache.apply(UpdateMetadataRequest(1, 1, 6, (), (state(TP, 2),)))
    assert cache.replica_error(TP) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert errors(cache, OTHER) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def test_a_broker_lists_itself_before_any_metadata_do() -> None:
    cache, own = MetadataCache(), BrokerRegistration(2, 6)
    assert list(cache.listed_brokers(lambda: own)) == [2]
    cache.read([BrokerRegistration(1, 5)], [], own_id=2)
    assert sorted(cache.listed_brokers(lambda: own)) == [1, 2]
    cache.apply(UpdateMetadataRequest(1, 1, 6, (BrokerRegistration(1, 5),), ()))
    assert list(cache.listed_brokers(lambda: own)) == [1], "it is not registered any more"


def test_a_topic_that_is_requested_by_an_id_of_an_earlier_one_is_unknown() -> None:
    """KIP-516: the name may stand for a topic that was created again, whose replicas are elsewhere."""
    cache = MetadataCache()
    assert cache.replica_error(TP, "id") is ErrorCode.NOT_LEADER_OR_FOLLOWER, "nothing is known yet"
    cache.apply(UpdateMetadataRequest(1, 1, 6, (), (state(TP, 2),)))
    assert cache.replica_error(TP, "id") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cache.replica_error(TP, "earlier") is ErrorCode.UNKNOWN_TOPIC_ID
    assert cache.replica_error(TopicPartition("topic", 9), "id") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cache.replica_error(OTHER, "id") is ErrorCode.UNKNOWN_TOPIC_ID


def test_the_partitions_of_a_topic_are_counted() -> None:
    cache = MetadataCache()
    parts = [TopicPartition("topic", number) for number in range(3)]
    cache.read([], [state(part, 1) for part in parts[:2]], own_id=2)
    assert (cache.partition_count("topic"), cache.partition_count("other")) == (2, 0)
    for controller_epoch, sent, deleted, counts in [
        (5, [*parts, OTHER], (), (3, 1)),
        (5, parts[:1], (OTHER, OTHER), (3, 0)),
        (6, parts[1:], (), (2, 0)),
        (5, parts, (), (2, 0)),
    ]:
        states = tuple(state(part, 2) for part in sent)
        cache.apply(UpdateMetadataRequest(1, controller_epoch, 6, (), states, deleted))
        assert (cache.partition_count("topic"), cache.partition_count("other")) == counts
