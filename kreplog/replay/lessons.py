"""Recordings of lessons (lesson_files), with the comments and commands of the scenario among the events."""

from __future__ import annotations

import re

from kreplog.replay.lesson_files import heading_of, text_of
from kreplog.replay.recorder import Recorder
from kreplog.replay.recording import RecordedEvent, Recording
from kreplog.sim.scenarios import scenario
from kreplog.sim.scenarios.scenario_cluster import ScenarioCluster

_KINDS = {
    **dict.fromkeys(("produce", "retry", "consume", "end"), "client"),
    **dict.fromkeys(("config", "brokers", "topic", "reassign", "cancel", "delete", "configure"), "admin"),
    **dict.fromkeys(("delete-records", "elect", "add-brokers", "detect-failures", "shutdown", "restart"), "admin"),
    "expect": "checker",
}
"""Kind of event of a command; "fault" of all others but those that let time pass or print."""

_UNSEEN = ("run", "settle", "trace", "show")
_OF_BROKER = re.compile(r"b(\d+) (.*)")


def record(name: str) -> Recording:
    """The recording of a lesson. Raises UsageError, and ScenarioError if an expectation does not hold."""
    return record_text(name, text_of(name))


def record_text(name: str, text: str) -> Recording:
    """The recording of the scenario `name` with that text. Raises ScenarioError if an expectation does not hold."""
    recorders: list[_Lesson] = []

    def watch(cluster: ScenarioCluster) -> _Lesson:
        recorders.append(_Lesson(cluster))
        return recorders[0]

    scenario.run(text, watch)
    title, sentence = heading_of(name, text)
    return recorders[0].recorder.finish(title, sentence, "")


class _Lesson:
    """Adds what a scenario says, does and reports to a recorder."""

    def __init__(self, cluster: ScenarioCluster) -> None:
        self.recorder = Recorder(cluster)
        self._cluster = cluster
        cluster.listener = self._reported

    def comment(self, text: str) -> None:
        self._add("comment", "", text)

    def command(self, line: str) -> None:
        name = line.split(maxsplit=1)[0]
        if name not in _UNSEEN:
            kind = _KINDS.get(name, "fault")
            self._add(kind, "scenario", line)

    def _reported(self, line: str) -> None:
        found = _OF_BROKER.match(line)
        if found is not None:
            self._add("broker", f"b{found[1]}", found[2], int(found[1]))
        else:
            self._add("client", "", line)

    def _add(self, kind: str, actor: str, text: str, broker: int = -1) -> None:
        at_us = self._cluster.scheduler.now_us
        self.recorder.add(RecordedEvent(at_us, kind, actor, text, self.recorder.named_in(text), broker))
