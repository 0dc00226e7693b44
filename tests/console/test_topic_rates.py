"""Records a second of topics, by the log ends of their leaders at two moments."""

from __future__ import annotations

from kreplog.console.topic_rates import rates
from kreplog.types import TopicPartition


def test_partitions_that_are_known_twice_count() -> None:
    a0, a1, b0, c0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("c", 0)
    before = {a0: 10, a1: 100, b0: 5}
    assert rates(before, {a0: 30, a1: 90, b0: 5, c0: 1000}, 2.0) == {"a": 10.0, "b": 0.0}
    assert rates({}, {a0: 30}, 2.0) == {}
