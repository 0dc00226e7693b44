"""Every file of kreplog/sim/scenarios: the cores report the same lines, and expectations hold. See the README there.

`pytest tests/sim/test_scenarios.py --rewrite` writes the lines of the present run into the files; review the diff.
"""

from __future__ import annotations

import difflib
import itertools
from pathlib import Path

import pytest

from kreplog.core.replication.partition import Partition
from kreplog.sim.scenarios import scenario

FOLDER = Path(scenario.__file__).parent
FILES = sorted(FOLDER.glob("*.txt"))

SCENARIO = """\
# A cluster of two.
brokers 1 2
topic t replicas 1,2
produce p1 t-0 a b
run 150ms
"""


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text(encoding="utf-8")
    rewritten = scenario.run(written)
    if request.config.getoption("--rewrite"):
        path.write_text(rewritten, encoding="utf-8")
    elif rewritten != written:
        lines = difflib.unified_diff(
            written.splitlines(), rewritten.splitlines(), f"{path.name} as written", "as run now", lineterm=""
        )
        pytest.fail("\n".join([*lines, "if this is right: pytest --rewrite"]), pytrace=False)


def test_the_result_does_not_depend_on_the_controller() -> None:
    """The state inconsistency of the replica-state-machine study: four ways to the same state."""
    texts = [path.read_text(encoding="utf-8") for path in FILES if path.stem.startswith("state-inconsistency")]
    shown = {tuple(line for line in text.splitlines() if line.startswith("t-0 on")) for text in texts}
    assert len(texts) == 4
    assert shown == {("t-0 on 1 2: leader none, epoch 2, isr 2",)}


def test_a_scenario_reports_the_same_lines_every_time() -> None:
    text = scenario.run(SCENARIO)
    assert "p1 gets t-0 [0, 2) acknowledged: a b" in text
    assert scenario.run(text) == text
    assert scenario.run(text.replace("acknowledged: a b", "acknowledged: c d")) == text


MOVE = """\
brokers 5 6 1 2 3 4
topic t replicas 1,2,3 min.insync.replicas=2
produce p1 t-0 a b
run 150ms

crash-controller after {effects} effects
reassign t-0 4,2,3
run 300ms
restart
settle
produce p1 t-0 c
run 200ms
expect acked p1 = a b c
expect replicas t-0 = 4 2 3
expect leader t-0 = 4
expect log t-0 2 3 4 = a b c
expect disk 1 = none
"""

DELETION = """\
brokers 5 6 1 2 3
topic t replicas 1,2,3 3,1,2
produce p1 t-0 a b
run 150ms

crash-controller after {effects} effects
delete t
run 300ms
restart
settle
expect topics = none
expect disk 1 2 3 = none
"""


@pytest.mark.parametrize("text", [MOVE, DELETION], ids=["reassignment", "deletion"])
def test_a_controller_that_fails_at_any_effect_leaves_no_trace(text: str) -> None:
    """The result is the same after every effect; up to the one that the scenario does not reach any more."""
    for effects in itertools.count(1):
        if "b5 crashes" not in scenario.run(text.format(effects=effects)):
            break
    assert effects > 10


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("expect log t-0 1 2 = a c", "log t-0 on b1 is a b, not a c"),
        ("expect isr t-0 = 1", "isr t-0 is 1 2, not 1"),
        ("expect leader t-0 = none", "leader t-0 is 1, not nothing"),
        ("expect acked p1 = a", "acked p1 is a b, not a"),
        ('expect said "b2 leads"', "never said"),
        ('expect never "b1 leads"', "was said"),
        ("expect isr t-0 1 2", "needs an ="),
        ("expect weather t-0 = fine", "there is no expectation weather"),
        ("deliver 1->2 fetch-answers", "no message is held"),
        ("jump 1", "no command jump"),
        ("restart 1", "broker 1 is up"),
        ('run until "b2 leads"', "within 30000 ms"),
        ("produce p1 nothing a", "InvalidTopicError"),
    ],
)
def test_an_expectation_that_fails_names_its_line(line: str, complaint: str) -> None:
    with pytest.raises(scenario.ScenarioError, match=f"(?s)line 7: {line.split()[0]}.*{complaint}"):
        scenario.run(f"{SCENARIO}\n{line}\n")


def test_the_checkers_judge_every_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """They find violations that no expectation and no line shows."""
    monkeypatch.setattr(Partition, "is_committed", lambda self, next_offset: True)
    with pytest.raises(scenario.ScenarioError, match="at the end the checkers find\n  too early: t-0"):
        scenario.run(SCENARIO)
