"""Parsing of the arguments of scenario commands: settings, times, brokers, links. Syntax: the README here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.sim.scenarios.scenario_cluster import Direction


class ScenarioError(Exception):
    """A command failed, or an expectation does not hold; the message contains the line."""


def settings(words: Iterable[str]) -> dict[str, str]:
    """name=value, with Kafka's dots."""
    return {name.replace(".", "_"): value for name, _, value in (word.partition("=") for word in words) if value}


def setting(config: TopicConfig | ReplicationConfig, name: str, value: str) -> dict[str, Any]:
    return {name: value == "true" if isinstance(getattr(config, name), bool) else int(value)}


def milliseconds(word: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s)", word)
    if found is None:
        raise ScenarioError(f"{word!r} is not a time: write 20ms or 3s")
    return int(found[1]) * (1000 if found[2] == "s" else 1)


def brokers(word: str) -> tuple[int, ...]:
    return tuple(map(int, word.split(",")))


def _host(word: str) -> str:
    return f"b{word}" if word.isdigit() else word


def links(words: Sequence[str]) -> list[tuple[str, str]]:
    if not words:
        return []
    source, arrow, destination = words[0].partition("->")
    if arrow:
        return [(_host(source), _host(destination))]
    first, second = _host(words[0]), _host(words[1])
    return [(first, second), (second, first)]


def parse_direction(words: Sequence[str]) -> Direction:
    """1->2 fetch; 1->2 fetch-answers."""
    ((source, destination),) = links(words[:1])
    channel, dash, _ = words[1].partition("-")
    return Direction(source, destination, channel, bool(dash))


def broker_name(broker: int) -> str:
    return f"b{broker}" if broker >= 0 else "none"


def shown(ids: Iterable[int]) -> list[str]:
    return [str(broker_id) for broker_id in ids if broker_id >= 0]


def joined(values: Sequence[str]) -> str:
    return " ".join(values) or "nothing"
