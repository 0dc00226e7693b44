"""Parameters of a page's requests: text of an address, unchecked until here. Every function raises UsageError."""

from __future__ import annotations

from collections.abc import Mapping

from kreplog.errors import UsageError
from kreplog.types import TopicPartition, check_topic

Parameters = Mapping[str, str]


def number_in(parameters: Parameters, name: str, default: int | None = None) -> int:
    """A number from 0 to 2^63 - 1."""
    text = parameters.get(name, "" if default is None else str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 1 << 63):
        raise UsageError(f"{name} = {text!r}: give a number, 0 or more")
    return int(text)


def topic_in(parameters: Parameters) -> str:
    """A name that a topic may have."""
    return check_topic(parameters.get("topic", ""))


def partition_in(parameters: Parameters) -> TopicPartition:
    number = number_in(parameters, "partition")
    if number >= 1 << 31:
        raise UsageError(f"partition = {number}: there is no such number")
    return TopicPartition(topic_in(parameters), number)
