"""Portions of DescribeTopicPartitions: each partition once, whatever the limit."""

from __future__ import annotations

import pytest

from kreplog.core.broker.described_partitions import (
    MAX_PARTITIONS_DESCRIBED,
    START,
    PartitionCursor,
    portion,
    portion_limit,
    topics_from,
)

KNOWN = {"a": range(3), "b": range(1), "c": range(4)}
WHOLE = [("a", [0, 1, 2]), ("b", [0]), ("c", [0, 1, 2, 3])]


def test_the_topics_of_a_portion_are_those_from_its_cursor_on() -> None:
    assert topics_from(START, (), KNOWN) == ["a", "b", "c"]
    assert topics_from(PartitionCursor("b", 0), (), KNOWN) == ["b", "c"]
    assert topics_from(PartitionCursor("aa", 0), {"c", "no", "a"}, KNOWN) == ["c", "no"]


def test_a_limit_is_at_least_one_and_at_most_the_brokers() -> None:
    limits = [portion_limit(number) for number in (-1, 0, 1, MAX_PARTITIONS_DESCRIBED + 1)]
    assert limits == [1, 1, 1, MAX_PARTITIONS_DESCRIBED]


@pytest.mark.parametrize("limit", range(1, 10))
def test_portions_have_each_partition_once(limit: int) -> None:
    found: dict[str, list[int]] = {}
    cursor: PartitionCursor | None = START
    while cursor is not None:
        topics, following = portion(cursor, topics_from(cursor, (), KNOWN), KNOWN, limit)
        assert sum(len(numbers or ()) for _, numbers in topics) <= limit
        assert following is None or following > cursor
        for name, numbers in topics:
            assert numbers
            found.setdefault(name, []).extend(numbers)
        cursor = following
    assert list(found.items()) == WHOLE


def test_a_portion_that_ends_with_a_topic_continues_with_the_next() -> None:
    assert portion(START, "abc", KNOWN, 3) == (WHOLE[:1], PartitionCursor("b", 0))
    assert portion(PartitionCursor("b", 0), "bc", KNOWN, 3) == ([("b", [0]), ("c", [0, 1])], PartitionCursor("c", 2))
    assert portion(PartitionCursor("c", 2), "c", KNOWN, 3) == ([("c", [2, 3])], None)


def test_topics_that_do_not_exist_or_have_no_partition_left_are_listed() -> None:
    assert portion(PartitionCursor("a", 9), ["a", "no"], KNOWN, 1) == ([("a", []), ("no", None)], None)
