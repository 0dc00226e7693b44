"""What a broker of Apache Kafka 4.4 offers to clients, and why some of it is not offered here, for the documentation.

An API or a version that is not offered is not in the response to ApiVersions: clients report that the broker lacks it,
and a request of it closes its connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kreplog.wire.versions import ApiKey

KAFKA_4: Mapping[int, tuple[str, int, int]] = MappingProxyType(
    {
        0: ("Produce", 3, 13),
        1: ("Fetch", 4, 18),
        2: ("ListOffsets", 1, 11),
        3: ("Metadata", 0, 13),
        8: ("OffsetCommit", 2, 10),
        9: ("OffsetFetch", 1, 10),
        10: ("FindCoordinator", 0, 6),
        11: ("JoinGroup", 0, 9),
        12: ("Heartbeat", 0, 4),
        13: ("LeaveGroup", 0, 5),
        14: ("SyncGroup", 0, 5),
        15: ("DescribeGroups", 0, 6),
        16: ("ListGroups", 0, 5),
        17: ("SaslHandshake", 0, 1),
        18: ("ApiVersions", 0, 5),
        19: ("CreateTopics", 2, 7),
        20: ("DeleteTopics", 1, 6),
        21: ("DeleteRecords", 0, 2),
        22: ("InitProducerId", 0, 5),
        23: ("OffsetForLeaderEpoch", 2, 4),
        24: ("AddPartitionsToTxn", 0, 5),
        25: ("AddOffsetsToTxn", 0, 4),
        26: ("EndTxn", 0, 5),
        27: ("WriteTxnMarkers", 1, 2),
        28: ("TxnOffsetCommit", 0, 6),
        29: ("DescribeAcls", 1, 3),
        30: ("CreateAcls", 1, 3),
        31: ("DeleteAcls", 1, 3),
        32: ("DescribeConfigs", 1, 4),
        33: ("AlterConfigs", 0, 2),
        34: ("AlterReplicaLogDirs", 1, 2),
        35: ("DescribeLogDirs", 1, 5),
        36: ("SaslAuthenticate", 0, 2),
        37: ("CreatePartitions", 0, 3),
        38: ("CreateDelegationToken", 1, 3),
        39: ("RenewDelegationToken", 1, 2),
        40: ("ExpireDelegationToken", 1, 2),
        41: ("DescribeDelegationToken", 1, 3),
        42: ("DeleteGroups", 0, 3),
        43: ("ElectLeaders", 0, 2),
        44: ("IncrementalAlterConfigs", 0, 1),
        45: ("AlterPartitionReassignments", 0, 1),
        46: ("ListPartitionReassignments", 0, 0),
        47: ("OffsetDelete", 0, 0),
        48: ("DescribeClientQuotas", 0, 1),
        49: ("AlterClientQuotas", 0, 1),
        50: ("DescribeUserScramCredentials", 0, 0),
        51: ("AlterUserScramCredentials", 0, 0),
        55: ("DescribeQuorum", 0, 2),
        57: ("UpdateFeatures", 0, 2),
        60: ("DescribeCluster", 0, 2),
        61: ("DescribeProducers", 0, 0),
        64: ("UnregisterBroker", 0, 0),
        65: ("DescribeTransactions", 0, 0),
        66: ("ListTransactions", 0, 2),
        68: ("ConsumerGroupHeartbeat", 0, 1),
        69: ("ConsumerGroupDescribe", 0, 1),
        71: ("GetTelemetrySubscriptions", 0, 0),
        72: ("PushTelemetry", 0, 0),
        74: ("ListConfigResources", 0, 1),
        75: ("DescribeTopicPartitions", 0, 0),
        76: ("ShareGroupHeartbeat", 1, 1),
        77: ("ShareGroupDescribe", 1, 1),
        78: ("ShareFetch", 1, 2),
        79: ("ShareAcknowledge", 1, 2),
        80: ("AddRaftVoter", 0, 1),
        81: ("RemoveRaftVoter", 0, 0),
        83: ("InitializeShareGroupState", 0, 0),
        84: ("ReadShareGroupState", 0, 0),
        85: ("WriteShareGroupState", 0, 1),
        86: ("DeleteShareGroupState", 0, 0),
        87: ("ReadShareGroupStateSummary", 0, 1),
        88: ("StreamsGroupHeartbeat", 0, 1),
        89: ("StreamsGroupDescribe", 0, 1),
        90: ("DescribeShareGroupOffsets", 0, 1),
        91: ("AlterShareGroupOffsets", 0, 0),
        92: ("DeleteShareGroupOffsets", 0, 0),
        93: ("StreamsGroupTopologyDescriptionUpdate", 0, 0),
        94: ("UnregisterController", 0, 0),
    }
)
"""By API key: name, first and last version. Source: ApiMessageType of Kafka 4.4.0, the broker's listener."""

_NO_TOKENS = "there are no delegation tokens (KIP-48)"
_NO_QUORUM = "there is no KRaft quorum: controllers are elected in the coordination store"
_NO_CLIENT_METRICS = "brokers take no metrics of clients (KIP-714)"
_NO_SHARE_GROUPS = "there are no share groups (KIP-932)"
_NO_STREAMS_GROUPS = "there are no streams groups (KIP-1071)"

NOT_OFFERED: Mapping[int, str] = MappingProxyType(
    {
        **dict.fromkeys((38, 39, 40, 41), _NO_TOKENS),
        **dict.fromkeys((55, 80, 81, 94), _NO_QUORUM),
        64: "a registration ends with the broker's session",
        **dict.fromkeys((71, 72), _NO_CLIENT_METRICS),
        **dict.fromkeys((*range(76, 80), *range(83, 88), *range(90, 93)), _NO_SHARE_GROUPS),
        **dict.fromkeys((88, 89, 93), _NO_STREAMS_GROUPS),
    }
)
"""By API key: why clients are not offered it."""

LATER_VERSIONS: Mapping[int, str] = MappingProxyType(
    {
        ApiKey.PRODUCE: "13 has topic ids in place of names (KIP-516)",
        ApiKey.OFFSET_COMMIT: "10 has topic ids in place of names",
        ApiKey.OFFSET_FETCH: "10 has topic ids in place of names",
        ApiKey.API_VERSIONS: "4 allows features whose least level is 0, which none is; 5 names the expected broker",
        ApiKey.ADD_PARTITIONS_TO_TXN: "4 and 5 are between brokers (KIP-890)",
        ApiKey.WRITE_TXN_MARKERS: "2 has the version of the transaction's protocol (KIP-1228)",
        ApiKey.TXN_OFFSET_COMMIT: "6 has topic ids in place of names",
        ApiKey.DELETE_GROUPS: "3 has messages beside errors",
        ApiKey.DESCRIBE_LOG_DIRS: "5 has cordoned log directories (KIP-1066)",
    }
)
"""By API key: what the versions have that Kafka offers beyond those here."""
