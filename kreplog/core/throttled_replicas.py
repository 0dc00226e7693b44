"""The replicas that a topic throttles as leaders and as followers (KIP-73), as lists of PARTITION:BROKER; and the names
of the settings for that."""

from __future__ import annotations

from functools import lru_cache

from kreplog.config import TopicConfig

LEADER_THROTTLED_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED_REPLICAS = "follower.replication.throttled.replicas"
LEADER_THROTTLED_RATE = "leader.replication.throttled.rate"
FOLLOWER_THROTTLED_RATE = "follower.replication.throttled.rate"

THROTTLED = (LEADER_THROTTLED_REPLICAS, FOLLOWER_THROTTLED_REPLICAS)
"""Settings that list replicas; none by default."""

MAX_LIST_CHARACTERS = 100_000
"""Maximum of a list: the settings of a topic are in one node of the coordination store, and in control requests."""

_MAX_DIGITS = 10
"""Of a number in a list, which is one of 32 bits; Python reads none of thousands of digits."""

_ALL = "*"
_NONE = "none"
_LISTS_IN_USE = 256
"""Lists that are remembered as sets: each is looked up for each fetch of a partition of its topic."""


def stored_text(setting: str, text: str) -> str:
    """The text of a setting as it is stored, in which a list of no replicas may be `none`: earlier builds took that."""
    return "" if setting in THROTTLED and text == _NONE else text


def check_replica_list(text: str) -> str:
    """The text of a list. Raises ValueError."""
    if len(text) > MAX_LIST_CHARACTERS or not _is_replica_list(text):
        raise ValueError("must be a list such as 0:1,1:2 of PARTITION:BROKER, *, or empty")
    return text


def _is_replica_list(text: str) -> bool:
    return text.strip() == _ALL or all(
        _is_number(number) for item in _items(text) for number in item.partition(":")[::2]
    )


def _items(text: str) -> list[str]:
    """The replicas of a list; as in Kafka, empty items are none."""
    return [item.strip() for item in text.split(",") if item.strip()]


def _is_number(text: str) -> bool:
    return len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()


def is_throttled(config: TopicConfig, setting: str, partition: int, broker_id: int) -> bool:
    """Whether a list of a topic, LEADER_THROTTLED_REPLICAS or FOLLOWER_THROTTLED_REPLICAS, has a broker's replica. One
    that cannot be read, as of a newer version, has none."""
    for name, text in config.unused:
        if name == setting:
            return text.strip() == _ALL or partition in _partitions(text, broker_id)
    return False


@lru_cache(_LISTS_IN_USE)
def _partitions(text: str, broker_id: int) -> frozenset[int]:
    """The partitions whose replica on a broker is listed."""
    if not _is_replica_list(text):
        return frozenset()
    replicas = (item.partition(":") for item in _items(text))
    return frozenset(int(partition) for partition, _, broker in replicas if int(broker) == broker_id)
