"""Traces of a run: one line for each event, effect, fault and client action, with the partitions that it concerns.

A trace costs time, so a seed is first run without; a seed that fails is run again with one. `explanation` selects the
few lines that matter for a violation out of thousands.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kreplog.core import effects, events
from kreplog.sim.machines.scheduler import Scheduler
from kreplog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class TraceLine:
    """A line of a trace. at_us: virtual time. actor: a core, a client, the checker, or the source of a fault.
    partitions: none means all."""

    at_us: int
    actor: str
    text: str
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_us / 1_000_000:10.6f} s  {self.actor:<14} {self.text}"

    def as_json(self) -> dict[str, Any]:
        return {
            "at_us": self.at_us,
            "actor": self.actor,
            "text": self.text,
            "partitions": [str(partition) for partition in self.partitions],
        }


class Trace:
    """The lines of one run. enabled: check it before the text of a line is built, since most runs are not traced.
    listener: called with each line at once."""

    def __init__(self, scheduler: Scheduler, enabled: bool) -> None:
        self.enabled = enabled
        self.lines: list[TraceLine] = []
        self.listener: Callable[[TraceLine], None] | None = None
        self._scheduler = scheduler

    def note(self, actor: str, text: str, *partitions: TopicPartition) -> None:
        if self.enabled:
            line = TraceLine(self._scheduler.now_us, actor, text, partitions)
            self.lines.append(line)
            if self.listener is not None:
                self.listener(line)

    def digest(self) -> str:
        """A hash of all lines, equal for two runs that took the same course."""
        digest = hashlib.blake2b(digest_size=16)
        for line in self.lines:
            digest.update(str(line).encode())
            digest.update(b"\n")
        return digest.hexdigest()


def explanation(lines: Sequence[TraceLine], partitions: Collection[TopicPartition]) -> list[TraceLine]:
    """The lines that explain a violation about `partitions`: up to the violation, without idle and repeated lines."""
    ends = [index for index, line in enumerate(lines) if line.actor == CHECKER and ": " in line.text]
    if ends:
        lines = lines[: ends[0] + 1]
    recent: deque[tuple[str, str]] = deque(maxlen=_REMEMBERED)
    selected = []
    for line in lines:
        if _matters(line, partitions) and (line.actor, line.text) not in recent:
            selected.append(line)
            recent.append((line.actor, line.text))
    return selected


def _matters(line: TraceLine, partitions: Collection[TopicPartition]) -> bool:
    if line.actor in ("fault", "admin", CHECKER):
        return True
    if partitions and not any(partition in partitions for partition in line.partitions):
        return False
    return not is_idle(line)


def is_idle(line: TraceLine) -> bool:
    """Whether the line is about polling that changes nothing, or repeats what another line has."""
    return any(idle in line.text for idle in _IDLE)


_REMEMBERED = 10
"""Number of selected lines in which a repetition is left out."""

CHECKER = "checker"
"""Actor of the lines about violations."""

_IDLE = (
    " 0 bytes",
    "by a consumer",
    " reads ",
    "sends broker",
    "UpdateMetadata",
    "replies LeaderAndIsr",
    "continues at",
)


def partitions_of(message: Any) -> tuple[TopicPartition, ...]:
    """The partitions that an event, effect, request or response is about."""
    if isinstance(message, events.Received):
        return partitions_of(message.request)
    if isinstance(message, events.FetchReplied | events.ControlReplied):
        return () if message.response is None else partitions_of(message.response)
    if isinstance(message, effects.Send | effects.SendControl):
        return partitions_of(message.request)
    if isinstance(message, effects.Reply | effects.LeaderAndIsrApplied):
        return partitions_of(message.response)
    if isinstance(message, effects.SubmitMulti | effects.Multi):
        return _partitions_of_paths(operation.path for operation in message.operations)
    if isinstance(message, effects.SubmitRead | effects.GetNodes):
        return _partitions_of_paths(message.paths)
    single = getattr(message, "partition", None)
    if isinstance(single, TopicPartition):
        return (single,)
    found: list[TopicPartition] = []
    for item in getattr(message, "partitions", ()):
        if isinstance(item, TopicPartition):
            found.append(item)
        elif isinstance(item, tuple) and item and isinstance(item[0], TopicPartition):
            found.append(item[0])
        elif isinstance(getattr(item, "partition", None), TopicPartition):
            found.append(item.partition)
    return tuple(found)


def _partitions_of_paths(paths: Iterable[str]) -> tuple[TopicPartition, ...]:
    found: dict[TopicPartition, None] = {}
    for path in paths:
        names = path.split("/")
        if len(names) >= 5 and names[4].isdigit():
            found[TopicPartition(names[3], int(names[4]))] = None
    return tuple(found)
