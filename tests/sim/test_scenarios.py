"""Every file of tests/scenarios: the cores do what it says, and what it expects holds. See the README there.

`pytest tests/sim/test_scenarios.py --rewrite` writes what the cores do now into the files; the diff is to be reviewed.
"""

from __future__ import annotations

import difflib
import itertools
from pathlib import Path

import pytest

from kreplog.core.replication.partition import Partition
from kreplog.sim import scenario

FOLDER = Path(__file__).parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))

STORY = """\
# A cluster of two.
brokers 1 2
topic t replicas 1,2
produce p1 t-0 a b
run 150ms
"""


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text(encoding="utf-8")
    told = scenario.run(written)
    if request.config.getoption("--rewrite"):
        path.write_text(told, encoding="utf-8")
    elif told != written:
        lines = difflib.unified_diff(
            written.splitlines(), told.splitlines(), f"{path.name} as written", "what the cores do now", lineterm=""
        )
        pytest.fail("\n".join([*lines, "if that is right: pytest --rewrite"]), pytrace=False)


def test_the_end_does_not_depend_on_who_controlled() -> None:
    """The inconsistency told at the start of the replica-state-machine study: four ways, and one state."""
    texts = [path.read_text(encoding="utf-8") for path in FILES if path.stem.startswith("state-inconsistency")]
    shown = {tuple(line for line in text.splitlines() if line.startswith("t-0 on")) for text in texts}
    assert len(texts) == 4
    assert shown == {("t-0 on 1 2: leader none, epoch 2, isr 2",)}


def test_a_story_is_told_the_same_every_time() -> None:
    told = scenario.run(STORY)
    assert "p1 is told that t-0 [0, 2) is a b" in told
    assert scenario.run(told) == told
    assert scenario.run(told.replace("is a b", "is c d")) == told


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


@pytest.mark.parametrize("story", [MOVE, DELETION], ids=["reassignment", "deletion"])
def test_a_controller_that_dies_at_any_effect_leaves_no_trace(story: str) -> None:
    """The same end, whichever of its effects was its last; until the story is over before it gets that far."""
    for effects in itertools.count(1):
        if "b5 crashes" not in scenario.run(story.format(effects=effects)):
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
        ("expect weather t-0 = fine", "nothing is known of weather"),
        ("deliver 1->2 fetch-answers", "nothing is held"),
        ("jump 1", "no command jump"),
        ("restart 1", "broker 1 is up"),
        ('run until "b2 leads"', "within 30000 ms"),
        ("produce p1 nothing a", "InvalidTopicError"),
    ],
)
def test_what_does_not_hold_is_told_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(scenario.ScenarioError, match=f"(?s)line 7: {line.split()[0]}.*{complaint}"):
        scenario.run(f"{STORY}\n{line}\n")


def test_the_checkers_judge_every_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody expects, and what no line tells, they find."""
    monkeypatch.setattr(Partition, "is_committed", lambda self, next_offset: True)
    with pytest.raises(scenario.ScenarioError, match="at the end the checkers find\n  too early: t-0"):
        scenario.run(STORY)
