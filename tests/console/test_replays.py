"""Replays in the console: a seed, lessons, what brokers logged, traces; each in a frame of the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kreplog.console.access import HEADERS
from kreplog.console.replay_source import ReplaySource
from kreplog.console.replays import Replays
from kreplog.console.snapshot import PartitionRow
from kreplog.replay.lesson_files import GROUPS, names
from tests.console.served import Console, FakeSource, serving, topic
from tests.console.test_browser import HOSTILE, Visit, sees, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FrameLocator

SEED = 0
LESSON = "f3-kip-279"


class TracedSource(FakeSource):
    """Has offsets of replicas, which move at every look."""

    views = ("cluster", "replays")

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    async def replicas(self, topic: str, rows: Mapping[int, PartitionRow]) -> dict[int, list[dict[str, Any]]]:
        self.looks += 1
        offsets = {"log_start_offset": 0, "high_watermark": self.looks, "log_end_offset": self.looks}
        return {number: [{"broker": each, **offsets} for each in row.replicas] for number, row in rows.items()}


@pytest.fixture
def log_folders(tmp_path: Path) -> dict[int, Path]:
    """Broker 0 logs an election of a minute ago."""
    folders = {0: tmp_path / "b0", 1: tmp_path / "b1"}
    lines: list[dict[str, Any]] = [
        {"message": "LeaderAndIsr sent", "controller": 0, "controller_epoch": 3, "to": 0, "partition": "t-0"}
        | {"leader": 0, "leader_epoch": 4, "isr": [0], "brokers": [0]},
        {"message": HOSTILE[0], "level": "warning"},
    ]
    at = datetime.now(UTC) - timedelta(seconds=1)
    for folder in folders.values():
        folder.mkdir()
    with open(folders[0] / "state-change.log", "w") as file:
        for line in lines:
            file.write(json.dumps({"time": at.isoformat(), "level": "info", **line}) + "\n")
    return folders


@pytest.fixture
def console() -> Iterator[Console]:
    with serving(ReplaySource(), replays=Replays(SEED)) as made:
        made.log_in()
        yield made


def frame_of(visit: Visit) -> FrameLocator:
    return visit.page.frame_locator("iframe.replay")


def trace(console: Console, name: str, **parameters: str) -> Any:
    body = json.dumps({"parameters": parameters, "confirm": None}).encode()
    return console.request(f"/api/traces/{name}", "POST", body, Origin=console.origin).json


@pytest.mark.long
def test_a_seed_is_shown_first_then_lessons(browser: Browser) -> None:
    with visiting(browser, ReplaySource(), replays=Replays(SEED)) as visit:
        page, frame = visit.page, frame_of(visit)
        frame.get_by_text(f"Seed {SEED} of the kreplog simulator").wait_for()
        frame.locator(".row.current").wait_for()
        clock = str(frame.locator("#clock").text_content())
        assert clock.startswith("1 / ")
        page.keyboard.press("ArrowRight")  # the frame has the focus
        frame.locator("#clock", has_text="2 / ").wait_for()
        with page.expect_download() as saved:
            page.get_by_role("link", name="save as a file").click()
        assert saved.value.suggested_filename == f"replay-seed-{SEED}.html"
        assert "kreplog-replay 1" in saved.value.path().read_text()
        assert page.locator("#nav a").all_text_contents() == ["replays"]
        page.reload()
        frame.locator("#clock", has_text="1 / ").wait_for()
        page.get_by_role("link", name="all replays").click()
        sees(page, "Lessons", "h2")
        assert page.locator("li a").count() == sum(len(names(group)) for group in GROUPS)
        page.locator(f"a[href$='{LESSON}']").click()
        frame.locator("#caption", has_text="KIP-279").wait_for()
        page.go_back()
        sees(page, "Lessons", "h2")
        page.get_by_label("Seed", exact=True).fill("1")
        page.get_by_role("button", name="Replay").click()
        frame.get_by_text("Seed 1 of the kreplog simulator").wait_for()


def test_what_the_brokers_logged_around_an_event(browser: Browser, log_folders: dict[int, Path]) -> None:
    source = TracedSource()
    with visiting(browser, source, replays=Replays(None, log_folders), screen={"timezone_id": "Asia/Tokyo"}) as visit:
        page, frame = visit.page, frame_of(visit)
        sees(page, "Healthy: 2 brokers")
        source.now = replace(source.now, controller=1)
        page.locator(".events li", has_text="controller 0 → 1").get_by_role("link", name="replay").click()
        frame.locator(".row", has_text="LeaderAndIsr").wait_for()
        assert frame.locator(".row", has_text=HOSTILE[0]).count() == 1 and frame.locator("img").count() == 0
        page.get_by_role("link", name="replays", exact=True).click()
        page.get_by_label("From, UTC").fill("2020-01-01T00:00:00")
        page.get_by_label("until, UTC").fill("2020-01-01T00:00:01")
        page.get_by_role("button", name="Replay").first.click()
        sees(page, "there is no log line from")


def test_a_trace_that_is_stopped(browser: Browser, log_folders: dict[int, Path]) -> None:
    source, opened = TracedSource(), TracedSource()
    for each in (source, opened):
        each.now = replace(each.now, topics={"t": topic(PartitionRow(0, 3, (0, 1), (0, 1)))})
    with visiting(browser, source, replays=Replays(None, log_folders, lambda: opened)) as visit:
        page = visit.page
        page.goto(f"{visit.console.origin}/#/topic/t")
        page.get_by_role("link", name="trace this topic").click()
        page.get_by_label("Topics to trace").fill("t other")
        page.get_by_role("button", name="Begin").click()
        sees(page, "there is no topic 'other' that can be traced", ".traces")
        page.get_by_label("Topics to trace").fill("t")
        page.get_by_role("button", name="Begin").click()
        sees(page, "trace 2 of t, 30 s: ", ".traces")
        page.get_by_role("button", name="Begin").click()
        sees(page, "another trace runs")
        while opened.looks < 2:
            page.evaluate("() => new Promise((done) => setTimeout(done, 50))")  # it looks at the cluster by itself
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("link", name="trace 2 of t").click()
        frame_of(visit).get_by_text("What a trace saw").wait_for()
        frame_of(visit).locator("#scroll").press("End")
        frame_of(visit).locator(".replica", has_text="leader, epoch 3").wait_for()
        assert opened.closed and not source.closed


def test_a_replays_page_has_its_own_policy_and_needs_a_session(console: Console) -> None:
    page = console.request(f"/api/replays/page?seed={SEED}").json["page"]
    assert console.request(f"/api/replays/page?seed={SEED}").json["page"] == page  # made once
    answer = console.request(f"/replays/{page}")
    policy = answer.headers["Content-Security-Policy"]
    assert "script-src 'sha256-" in policy and "default-src 'none'" in policy and "frame-ancestors 'self'" in policy
    assert policy.partition("; frame-ancestors")[0] in answer.body.decode()
    for name in HEADERS.keys() - {"Content-Security-Policy"}:
        assert answer.headers[name] == HEADERS[name]
    assert console.request("/replays/99").status == 404
    console.cookie = ""
    for path in (f"/replays/{page}", "/api/replays", f"/api/replays/page?seed={SEED}"):
        assert console.request(path).status == 401


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("seed=-1", "give a number"),
        ("seed=x", "give a number"),
        ("lesson=../../etc/passwd", "there is no lesson"),
        ("lesson", "there is no lesson"),
        ("lesson=a%00b", "there is no lesson"),
        ("since=&until=", "start it with --cluster"),
    ],
)
def test_what_cannot_be_replayed(console: Console, query: str, text: str) -> None:
    answer = console.request(f"/api/replays/page?{query}")
    assert answer.status == 400 and text in answer.json["error"]


def test_wrong_times_and_traces(log_folders: dict[int, Path]) -> None:
    with serving(TracedSource(), replays=Replays(None, log_folders, TracedSource)) as console:
        console.log_in()
        assert "give a time" in console.request("/api/replays/page?since=soon").json["error"]
        for topics, seconds in (("", "5"), ("t", "0"), ("t", "601"), ("a b/c", "5")):
            assert "error" in trace(console, "start", topics=topics, seconds=seconds)
        assert "there is no trace 7" in trace(console, "stop", number="7")["error"]
        assert trace(console, "start", topics="t", seconds="600")["number"] == 1  # it ends with the console
    with serving(ReplaySource(), replays=Replays(SEED)) as console:
        console.log_in()
        assert "no cluster to trace" in trace(console, "start", topics="t")["error"]
        assert "replays alone" in console.request("/api/groups").json["error"]


def test_a_console_keeps_so_many_pages(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kreplog.console.replays.MAX_PAGES", 1)
    first = console.request(f"/api/replays/page?lesson={LESSON}").json["page"]
    second = console.request("/api/replays/page?lesson=f14-a-lost-reply-to-an-isr-write").json["page"]
    assert console.request(f"/replays/{first}").status == 404 and console.request(f"/replays/{second}").status == 200
    again = console.request(f"/api/replays/page?lesson={LESSON}").json["page"]
    assert again != first and console.request(f"/replays/{again}").status == 200
