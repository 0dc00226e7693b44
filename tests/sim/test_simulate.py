"""Whole seeds: no guarantee is violated, the same seed takes the same course, and what is printed leads back to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kreplog.cli import app
from kreplog.errors import UsageError
from kreplog.sim import faults, report, simulate
from kreplog.sim.history import Violation
from kreplog.sim.simulate import Options, Result
from kreplog.sim.trace import TraceLine, explanation
from kreplog.types import TopicPartition

SEEDS = range(40)
MORE_SEEDS = range(40, 300)

ONE_SEED = """
import sys
from kreplog.sim.simulate import Options, run_seed
for seed in (7, 8):
    result = run_seed(seed, Options(log=sys.argv[1]), traced=True)
    print(seed, result.digest, result.fingerprint, sorted(result.stats.items()), result.violations)
"""


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MORE_SEEDS, marks=pytest.mark.long)], ids=["few", "more"])
def test_no_seed_violates_a_guarantee(seeds: range) -> None:
    """On one core for each job; every core that may be used."""
    jobs = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 4)
    results = list(simulate.run_seeds(seeds, Options(), jobs))
    assert [(result.seed, result.violations) for result in results if result.violations] == []
    totals = simulate.total(results)
    assert totals["acked"] >= 15 * len(seeds)
    assert min(totals["crashes"], totals["leader epochs"], totals["controllers"]) >= len(seeds)


def test_without_faults_there_is_one_controller_and_no_crash() -> None:
    for seed in range(5):
        result = simulate.run_seed(seed, Options(faults=()))
        assert result.violations == ()
        assert (result.stats["crashes"], result.stats["controllers"], result.stats["faults"]) == (0, 1, 0)


@pytest.mark.parametrize("log", ["model", "native"])
def test_a_seed_takes_the_same_course_in_every_process(log: str) -> None:
    """Two processes whose hashes differ agree on every line of the trace."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", ONE_SEED, log],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 2


def test_a_trace_changes_nothing() -> None:
    plain, traced = (simulate.run_seed(11, Options(), traced) for traced in (False, True))
    assert (plain.fingerprint, plain.stats) == (traced.fingerprint, traced.stats)
    assert traced.lines
    assert not plain.lines


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    kinds = tuple(faults.KINDS)
    assert faults.draw(5, (3, 5), kinds, "model") == faults.draw(5, (3, 5), kinds, "model")
    plans = [faults.draw(seed, (3, 5), kinds, "both-by-seed") for seed in range(200)]
    assert {plan.brokers for plan in plans} == {3, 4, 5}
    assert {plan.native for plan in plans} == {False, True}
    assert {kind for plan in plans for kind in plan.kinds} == set(kinds)
    assert all(len(plan.kinds) < len(kinds) for plan in plans)
    assert any(plan.starved for plan in plans)


def test_the_command_that_replays_a_seed_has_all_options() -> None:
    options = report.options_of("3", "crash,pause", "model", "acks-before-watermark", "1,2")
    assert options.command(9) == (
        "kreplog simulate --seeds 9 --brokers 3..3 --faults crash,pause --log model --mutate acks-before-watermark "
        "--only 1,2"
    )
    assert Options().command(9) == "kreplog simulate --seeds 9"


def test_an_interruption_prints_what_was_found_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    run_seeds = simulate.run_seeds

    def interrupted(seeds: range, options: Options, jobs: int) -> Iterator[Result]:
        yield from run_seeds(seeds[:2], options, jobs)
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "run_seeds", interrupted)
    done = CliRunner().invoke(app, ["simulate", "--seeds", "0:50"])
    assert done.exit_code == 130
    assert "interrupted after 2 seeds of 50" in done.stderr
    assert done.stdout.startswith("2 seeds in ") and done.stdout.endswith("no guarantee was violated\n")


@pytest.mark.parametrize(
    ("mutation", "kind"), [("acks-before-watermark", "too early"), ("truncate-to-watermark", "lacks committed")]
)
def test_a_seed_that_fails_is_explained_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: str, kind: str
) -> None:
    """The replay prints the same explanation, line by line."""
    monkeypatch.setattr(report, "SHRINK_RUNS", 5)
    arguments = ["simulate", "--seeds", "1:20", "--mutate", mutation]
    first = CliRunner().invoke(app, [*arguments, "--trace", str(tmp_path / "trace.json")])
    assert first.exit_code == 1
    command = next(line for line in first.stdout.splitlines() if line.startswith("replay: "))
    explanation_text = first.stdout[first.stdout.index(" violates a guarantee:\n") : first.stdout.index("replay: ")]
    again = CliRunner().invoke(app, command.removeprefix("replay: kreplog ").split())
    assert again.exit_code == 1
    seed = command.split("--seeds ")[1].split()[0]
    assert f"seed {seed} violates a guarantee" in again.stdout
    assert f"\n  {kind}: " in explanation_text
    assert (
        again.stdout[again.stdout.index(" violates a guarantee:\n") : again.stdout.index("replay: ")]
        == explanation_text
    )
    assert "1 seed violated a guarantee" in again.stdout
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["seed"] == int(seed)
    assert any(line["actor"] == "checker" for line in trace["trace"])
    assert f"replay: {trace['replay']}" == command
    assert f"--only {','.join(map(str, trace['only'])) or 'none'}" in command
    as_json = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert as_json["violations"] == [
        {"seed": trace["seed"], **violation, "only": trace["only"], "replay": trace["replay"]}
        for violation in trace["violations"]
    ]


def test_a_shrunk_seed_violates_the_same_guarantee_of_the_same_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without fault 3 breaks another; one without 5 the same of another partition; one without 1 none."""
    wanted = Violation("lost", "", (TopicPartition("t", 0),))
    others = Violation("diverged", "", (TopicPartition("t", 0),)), Violation("lost", "", (TopicPartition("t", 1),))

    def run(seed: int, options: Options, traced: bool = False) -> Result:
        remaining = set(range(99) if options.only is None else options.only)
        found = [others[1]] if 1 in remaining else []
        if remaining >= {1, 3, 5}:
            found.append(wanted)
        elif remaining >= {1, 5}:
            found.append(others[0])
        return Result(seed, tuple(found), {}, 0, 0)

    monkeypatch.setattr(simulate, "run_seed", run)
    assert len(simulate.plan_of(0, Options()).actions) > 6
    failed = Result(0, (wanted,), {}, 0, 0)
    options, result = simulate.shrink(failed, Options(), 1000)
    assert options.only == (1, 3, 5)
    assert result.violations == (others[1], wanted)
    options, result = simulate.shrink(failed, Options(only=(1, 3, 5)), 1000)
    assert options.only == (1, 3, 5)


def test_json_output() -> None:
    done = CliRunner().invoke(app, ["simulate", "--seeds", "3:5", "--brokers", "3", "--faults", "none", "--json"])
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert (facts["seeds"], facts["violations"]) == (2, [])
    assert facts["totals"]["acked"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "5:2"],
        ["--seeds", "x"],
        ["--brokers", "0"],
        ["--faults", "earthquake"],
        ["--log", "paper"],
        ["--mutate", "nothing"],
        ["--only", "x"],
    ],
)
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["simulate", *arguments])
    assert done.exit_code != 0
    assert type(done.exception).__name__ == "UsageError"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0", "--only", "3,999"], "--only 999: not in seed 0: its faults are 0 to "),
        (["--seeds", "0:3", "--only", "-1"], "--only -1: faults are numbered from 0 on"),
        (["--seeds", "3", "--faults", "none", "--only", "0"], "--only 0: not in seed 3: it has no faults"),
        (["--seeds", "0", "--trace", "/no/such/directory/trace.json"], "there is no directory /no/such/directory"),
        (["--seeds", "0", "--trace", "/"], "it is a directory; name a file"),
        (["--seed", "0", "--html", "/no/such/directory/seed.html"], "--html /no/such/directory/seed.html: there is no"),
    ],
)
def test_impossible_options_are_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(simulate, "run_seed", None)
    done = CliRunner().invoke(app, ["simulate", *arguments])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def test_only_names_faults_in_any_order_and_once() -> None:
    assert simulate.plan_of(0, Options(only=(2, 0, 2))).actions == tuple(
        simulate.plan_of(0, Options()).actions[number] for number in (0, 2)
    )


def test_jobs_share_the_seeds_and_keep_their_order() -> None:
    options = Options(faults=())
    alone = [(result.seed, result.fingerprint) for result in simulate.run_seeds(range(6), options, 1)]
    shared = [(result.seed, result.fingerprint) for result in simulate.run_seeds(range(6), options, 2)]
    assert alone == shared


def test_an_explanation_contains_a_repeated_line_once() -> None:
    partition, fetch = TopicPartition("t0", 0), "receives a fetch by broker 2: t0-0 from 325 (epoch 1, last fetched 1)"
    lines = [TraceLine(1000 * at, "broker 3", fetch, (partition,)) for at in range(5)]
    lines.insert(2, TraceLine(1500, "broker 3", "appends 325 to 326 in t0-0", (partition,)))
    assert [line.text for line in explanation(lines, {partition})] == [fetch, "appends 325 to 326 in t0-0"]
    assert explanation(lines, {TopicPartition("t0", 1)}) == []
