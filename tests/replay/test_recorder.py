"""The recorder: a seed takes the same course with it, its events are those of the trace, its state that of the logs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kreplog.replay import lessons
from kreplog.replay.guarantees import GUARANTEES
from kreplog.replay.recorder import Recorder
from kreplog.replay.recording import FORMAT, RecordedEvent, Recording
from kreplog.sim import simulate
from kreplog.sim.cluster import Cluster
from kreplog.sim.simulate import Options, Result

ROOT = Path(__file__).parents[2]
SEED = 3
BROKEN = Options(mutation="truncate-to-watermark")
"""Found by SEED after 1.6 s of virtual time."""

LESSON = """\
# A cluster of two. The second is killed.
brokers 1 2
topic t replicas 1,2 min.insync.replicas=2
produce p1 t-0 a b
run 150ms

# It has no leader without b1.
cut 1->2
produce p1 t-0 c
crash 1
run 50ms
expect isr t-0 = 1 2
"""


def recorded(options: Options) -> tuple[Result, Recorder, Cluster]:
    found: list[tuple[Recorder, Cluster]] = []
    result = simulate.run_seed(SEED, options, True, [lambda cluster: found.append((Recorder(cluster), cluster))])
    return result, *found[0]


@pytest.mark.parametrize("log", ["model", "native"])
def test_a_recorded_seed_takes_the_same_course(log: str) -> None:
    options = Options(mutation=BROKEN.mutation, log=log)
    plain = simulate.run_seed(SEED, options, traced=True)
    result, recorder, _ = recorded(options)
    assert (result.fingerprint, result.digest) == (plain.fingerprint, plain.digest)
    assert any(event.kind == "message" for event in recorder.events)


def test_each_line_of_the_trace_is_an_event() -> None:
    result, recorder, _ = recorded(BROKEN)
    events = [event for event in recorder.events if event.kind != "message"]
    assert [(event.at, event.actor) for event in events] == [(line.at_us, line.actor) for line in result.lines]
    assert all(
        event.text == line.text or line.text.startswith(event.text.removesuffix("..."))
        for event, line in zip(events, result.lines, strict=True)
    )


def state_after(events: list[RecordedEvent]) -> dict[str, Any]:
    """The last change of each broker's status, replica and partition; records of a replica by offset."""
    found: dict[str, Any] = {}
    records: dict[tuple[int, str], dict[int, list[Any]]] = {}
    for change in (change for event in events for change in event.changes):
        if "role" in change:
            key = change["broker"], change["partition"]
            if change["role"] == "none":
                found.pop(str(key)), records.pop(key, None)
                continue
            new = change.get("records", [])
            first = change["end"] - len(new)
            held = {offset: record for offset, record in records.get(key, {}).items() if offset < first}
            records[key] = held | dict(enumerate(new, first))
            shown = {"start": change["start"], "end": change["end"], "high_watermark": change["high_watermark"]}
            found[str(key)] = {
                **shown,
                "records": [records[key].get(at) for at in range(change["start"], change["end"])],
            }
        elif "status" in change:
            found[f"broker {change['broker']}"] = change["status"]
        elif "controller" in change:
            found["controller"] = change["controller"]
        elif "leader" in change:
            found[change["partition"]] = change["leader"], change["leader_epoch"], change["isr"]
    return found


@pytest.mark.parametrize("log", ["model", "native"])
def test_the_state_after_the_last_event_is_that_of_the_cluster(log: str) -> None:
    found: list[tuple[Recorder, Cluster, dict[str, Any]]] = []

    class AtTheEnd(Recorder):
        """Reads the logs once the run is over, while they are still open."""

        def __init__(self, cluster: Cluster) -> None:
            super().__init__(cluster)
            judge = cluster.verdict

            def verdict(at_rest: bool) -> Any:
                found.append((self, cluster, logs_of(cluster)))
                return judge(at_rest)

            cluster.verdict = verdict  # type: ignore[method-assign]  # called by the run as its last action

    simulate.run_seed(SEED, Options(log=log, faults=()), True, [AtTheEnd])
    ((recorder, cluster, logs),) = found
    state = state_after(recorder.events)
    assert state["controller"] == cluster.controller()
    assert logs
    assert {name: state[name] for name in logs} == logs
    for partition in cluster.partitions():
        stored = cluster.state_of(partition)
        assert stored is not None
        assert state[str(partition)] == (stored.leader, stored.leader_epoch, list(stored.isr))


def logs_of(cluster: Cluster) -> dict[str, Any]:
    found = {}
    for broker, machine in cluster.machines.items():
        for partition in machine.disk.open_replicas():
            log = machine.disk.log(partition)
            assert log is not None
            state = log.state()
            texts = not partition.topic.startswith("__")
            records = [
                [record.leader_epoch, record.value.decode() if texts else ""]
                for record in cluster.disks.codec.decode(log.read(state.log_start, state.leo, 1 << 40))
                if record.offset >= state.log_start
            ]
            found[str((broker, str(partition)))] = {
                "start": state.log_start,
                "end": state.leo,
                "high_watermark": log.high_watermark,
                "records": records,
            }
    return found


def test_a_violation_is_at_the_event_at_which_the_checker_found_it() -> None:
    result, recorder, _ = recorded(BROKEN)
    recording = recorder.finish("", "", "", result.violations)
    (event,) = [event for event in recording.events if any("violation" in change for change in event.changes)]
    assert event.kind == "violation"
    assert event.text == f"lacks committed: {result.violations[0].text}"
    assert {"violation": "lacks committed"} in event.changes


def test_a_violation_that_is_found_at_the_end_is_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "REST_LIMIT_MS", 0)
    result, recorder, _ = recorded(Options(faults=()))
    last = recorder.finish("", "", "", result.violations).events[-1]
    assert [violation.kind for violation in result.violations] == ["not at rest"]
    assert (last.kind, last.changes) == ("violation", [{"violation": "not at rest"}])


def test_every_guarantee_of_the_checkers_has_its_sentence() -> None:
    kinds = set()
    for path in (ROOT / "kreplog" / "sim").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].strip("_") in (
                *("violate", "Violation", "violated", "group_violated"),
            ):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    kinds.add(first.value)
    returned = {"two values", "written twice", "out of order"}  # by PartitionModel.add
    assert kinds | returned == GUARANTEES.keys()


def test_messages_arrive_or_are_lost() -> None:
    recording = lessons.record_text("cut", LESSON)
    fetches = [event for event in recording.events if event.label == "Fetch response" and event.target == "b2"]
    assert {event.source for event in fetches} == {"b1"}
    assert [event.until < 0 for event in fetches][-1], "the last response meets the cut, and b1 is killed"
    assert all(event.until == event.at + 600 for event in fetches[:-1])


def test_a_lesson_has_comments_commands_faults_and_expectations() -> None:
    recording = lessons.record_text("f2-a-cut", LESSON)
    assert (recording.title, recording.about) == ("A cut (F2)", "A cluster of two.")
    found = [(event.kind, event.text) for event in recording.events if event.actor in ("", "scenario")]
    assert ("comment", "A cluster of two. The second is killed.") in found
    assert ("fault", "crash 1") in found and ("fault", "cut 1->2") in found
    assert ("checker", "expect isr t-0 = 1 2") in found
    assert not [text for _, text in found if text.startswith("run")]
    assert ("broker", "leads t-0 in epoch 0 from offset 0, isr 1 2") in [
        (event.kind, event.text) for event in recording.events
    ]
    statuses = [
        change["status"]
        for event in recording.events
        for change in event.changes
        if change.get("broker") == 1
        if "status" in change
    ]
    assert statuses == ["up", "down"]


def test_the_lines_are_a_header_and_events() -> None:
    header, *events = map(json.loads, lessons.record_text("cut", LESSON).lines())
    assert header["format"] == FORMAT
    assert (header["brokers"], header["partitions"]) == ([1, 2], ["t-0"])
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert all({"at", "kind"} <= event.keys() and "" not in event.values() for event in events)


def test_a_long_run_is_limited_and_its_state_stays() -> None:
    def event(number: int, idle: bool) -> RecordedEvent:
        changes = [{"broker": number % 3, "status": f"s{number}"}]
        return RecordedEvent(number * 1000, "broker", text=str(number), idle=idle, changes=changes)

    def limited(most: int) -> Recording:
        events = [event(number, idle=number % 4 == 0) for number in range(100)]
        recording = Recording("", "", "", [0, 1, 2], [], {}, events)
        recording.limit(most)
        return recording

    untouched, without_idle, late = limited(100), limited(80), limited(10)
    assert (len(untouched.events), untouched.notes) == (100, [])
    assert len(without_idle.events) == 75
    assert without_idle.notes == ["25 events of polling that changes nothing are left out."]
    assert len(late.events) == 10
    assert "The first 65 events" in late.notes[1] and re.search(r"until 0\.087 s", late.notes[1])
    last = {f"broker {number % 3}": f"s{number}" for number in range(100)}
    assert state_after(untouched.events) == state_after(without_idle.events) == state_after(late.events) == last
    before = {f"broker {number % 3}": f"s{number}" for number in range(late.events[0].at // 1000 + 1)}
    assert state_after(late.events[:1]) == before
