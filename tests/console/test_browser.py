"""The page in a real browser: a cluster that loses a broker, hostile names and records, reload, back, two tabs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from kreplog import Log
from kreplog.cluster.state_change_log import StateChangeLogs
from kreplog.commands.connecting import bootstrap_servers
from kreplog.console.access import LOGIN
from kreplog.console.cluster_source import ClusterSource
from kreplog.console.directory_source import DirectorySource
from kreplog.console.replays import Replays
from kreplog.console.snapshot import ClusterSnapshot, PartitionRow, TopicSnapshot
from tests.console.served import WITHIN_S, Console, FakeSource, serving, topic
from tests.integration import clusters

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Route

    from kreplog.cluster.local_cluster import LocalCluster

WITHIN_MS = 20_000
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</td><script>alert(1)</script>",
    "javascript:alert(1)",
    "\"'`${alert(1)}",
    "\u202egnp.exe",
    "\x00\x1b[31m",
    "{{constructor.constructor('alert(1)')()}}",
)


def elsewhere(function: Callable[[], None]) -> None:
    """Run a function that runs an event loop, in another thread: the browser's client has one in this thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


class Visit:
    """A browser with a session. problems: errors of its pages, refusals by the policy among them, and dialogs."""

    def __init__(self, console: Console, context: BrowserContext) -> None:
        self.console = console
        self.problems: list[str] = []
        self._context = context
        context.set_default_timeout(WITHIN_MS)
        self.page = self.tab(f"{LOGIN}?token={console.tokens[-1]}")

    def tab(self, path: str) -> Page:
        page = self._context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", self._on_dialog)
        page.goto(self.console.origin + path)
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):  # the page reports that
            self.problems.append(message.text)

    def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog {dialog.message}")
        dialog.dismiss()


@contextmanager
def visiting(
    browser: Browser, source: Any, *, screen: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[Visit]:
    """A visit of a console of `source`; no page may have had a problem at its end. screen: settings of the browser's
    context."""
    with serving(source, **settings) as console:
        context = browser.new_context(**(screen or {}))
        try:
            visit = Visit(console, context)
            yield visit
            assert visit.problems == []
        finally:
            context.close()


def sees(page: Page, text: str, within: str = "body") -> None:
    page.locator(within, has_text=text).first.wait_for()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("console") / "c", clusters.GROUPS) as made:
        with clusters.admin_of(made.bootstrap()) as admin:
            admin.create_topics({"events": {"num_partitions": 6, "replication_factor": 3}})
        clusters.wait_for_topic(made, "events", 6)
        yield made


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield shared_cluster
    elsewhere(lambda: clusters.mend(shared_cluster))


def source_of(cluster: LocalCluster) -> ClusterSource:
    return ClusterSource(
        partial(bootstrap_servers, cluster.directory, None, None),
        ["--cluster", str(cluster.directory)],
        state_changes=StateChangeLogs({broker: cluster.home(broker) / "logs" for broker in cluster.brokers}).read,
    )


def test_a_broker_that_is_killed_while_one_looks(
    cluster: LocalCluster, browser: Browser, figure: Callable[[str], None]
) -> None:
    folders = {broker: cluster.home(broker) / "logs" for broker in cluster.brokers}
    with visiting(browser, source_of(cluster), replays=Replays(None, folders)) as visit:
        page = visit.page
        sees(page, "Healthy: 3 brokers")
        other = visit.tab("/#/topic/events")
        sees(other, "6 partitions, 0 degraded")
        page.bring_to_front()
        os.kill(clusters.pid_of(cluster, 2), signal.SIGKILL)
        killed = time.monotonic()
        sees(page, "broker 2 does not respond", "#health")
        figure(f"shown {time.monotonic() - killed:.2f} s after kill -9")
        sees(other, "6 partitions, 6 degraded")
        sees(other, "ISR shrinks", ".events")
        sees(page, "broker 2 is not running", "#health")
        sees(page, "broker 2 is gone", ".events")
        sees(page, "leaders or ISRs are written", ".events")  # the state-change log goes on by itself
        form = page.locator("form", has=page.get_by_label("Kind of lines"))
        form.get_by_label("Partition of lines").fill("events-0")
        form.get_by_label("Kind of lines").select_option("LeaderAndIsr")
        form.get_by_role("button", name="Show").click()
        lines = page.get_by_label("State changes, newest first")
        lines.locator("li", has_text="events-0, LeaderAndIsr applied").first.wait_for()
        form.get_by_label("Text of lines").fill("nowhere")
        form.get_by_role("button", name="Show").click()
        sees(page, "no such lines")
        elsewhere(lambda: cluster.wait_until_gone(2))
        elsewhere(lambda: cluster.start([2]))
        sees(page, "Healthy: 3 brokers")
        sees(other, "6 partitions, 0 degraded")
        sees(other, "ISR grows", ".events")
        # What really happened when it died: the logs of all brokers around that time.
        page.locator(".events li", has_text="broker 2 is gone").get_by_role("link", name="replay").click()
        replay = page.frame_locator("iframe.replay")
        replay.locator(".row").first.wait_for()  # of those near the moment shown; which these are is up to chance
        assert page.frames[-1].evaluate("() => JSON.stringify(replay.events).includes('LeaderAndIsr')")
        changes = page.frames[-1].evaluate("() => replay.events.flatMap((event) => event.changes ?? [])")
        assert {"broker": 2, "status": "down"} in changes
        assert any(change.get("leader") in (0, 1) and 2 not in change["isr"] for change in changes if "isr" in change)


def test_a_cluster_that_is_gone_and_comes_back(cluster: LocalCluster, browser: Browser) -> None:
    with visiting(browser, source_of(cluster)) as visit:
        sees(visit.page, "Healthy: 3 brokers")
        elsewhere(lambda: clusters.kill(cluster, 0, 1, 2))
        sees(visit.page, "what is shown is old", "#banner")
        elsewhere(cluster.start)
        visit.page.locator("#banner").wait_for(state="hidden")
        sees(visit.page, "Healthy: 3 brokers")


def test_acts_need_the_name(cluster: LocalCluster, browser: Browser) -> None:
    with visiting(browser, source_of(cluster), allow_writes=True) as visit:
        page = visit.page
        page.get_by_text("Create a topic").click()
        page.get_by_label("name", exact=True).fill("made-here")
        page.get_by_role("button", name="Prepare").click()
        sees(page, "Creates topic made-here: 1 partition of 1 replica.")
        command = f"kreplog topic create made-here --partitions 1 --replication-factor 1 --cluster {cluster.directory}"
        sees(page, command, "code")
        page.get_by_label("Name that confirms").fill("made")
        page.get_by_role("button", name="Do it").click()
        sees(page, "not confirmed, nothing is changed")
        page.get_by_label("Name that confirms").fill("made-here")
        page.get_by_role("button", name="Do it").click()
        sees(page, "made-here is created")
        page.get_by_role("link", name="made-here", exact=True).first.click()
        sees(page, "1 partition, 0 degraded")
        page.get_by_text("Produce a record").click()
        page.get_by_label("value", exact=True).fill(HOSTILE[0])
        page.get_by_role("button", name="Prepare").last.click()
        page.get_by_label("Name that confirms").last.fill("made-here")
        page.get_by_role("button", name="Do it").last.click()
        sees(page, "produced to made-here-0 at offset 0")
        page.goto(f"{visit.console.origin}/#/records/made-here/0")
        sees(page, HOSTILE[0], "pre")


def test_names_and_records_are_never_markup(browser: Browser, tmp_path: Path) -> None:
    source = FakeSource()
    source.now = replace(source.now, topics={name: topic(PartitionRow(0, 1, (0, 1), (0,))) for name in HOSTILE})
    with visiting(browser, source) as visit:
        for name in HOSTILE:
            link = visit.page.get_by_role("link", name=name, exact=True).first
            assert link.text_content() == name and str(link.get_attribute("href")).startswith("#/")
            link.click()
            sees(visit.page, "1 partition, 1 degraded")
            assert visit.page.locator("h1").text_content() == name
            visit.page.go_back()
        assert visit.page.locator("img, body script").count() == 0
    with Log.open(tmp_path / "t-0") as log:
        for text in HOSTILE:
            log.append(text.encode(), key=text.encode(), headers=[(text, text.encode())])
    with visiting(browser, DirectorySource(tmp_path)) as visit:
        visit.page.goto(f"{visit.console.origin}/#/records/t/0")
        sees(visit.page, HOSTILE[0], "pre")
        for form in ("text", "JSON", "hex"):
            visit.page.get_by_label("Show bytes as").select_option(form)
            assert visit.page.locator("tbody tr").count() >= len(HOSTILE)
        assert visit.page.locator("img, body script").count() == 0


def test_long_records_damaged_batches_and_new_ones(browser: Browser, tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        log.append(b"first")
        log.append(b"damaged")
        log.append(b"[" + b"1," * 499_000 + b"2]")
    (segment,) = (tmp_path / "t-0").glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"damaged", b"changed"))
    with visiting(browser, DirectorySource(tmp_path)) as visit:
        page = visit.page
        page.goto(f"{visit.console.origin}/#/records/t/0")
        sees(page, "3 batches, 1 damaged")
        sees(page, "damaged: the CRC-32C does not match")
        sees(page, "first", "pre")
        long = page.locator("tbody tr", has_text="show all")
        assert len(long.locator("pre").text_content() or "") < 5000
        with page.expect_download() as saved:
            long.get_by_role("link", name="save").click()
        assert saved.value.path().stat().st_size == 998_003
        long.get_by_role("button", name="show all").click()
        page.get_by_role("button", name="show all").wait_for(state="detached")
        assert len(page.locator("pre").last.text_content() or "") == 998_003
        page.get_by_label("follow").check()
        with Log.open(tmp_path / "t-0") as log:
            log.append(b"new")
        sees(page, "new", "pre")


def test_records_stay_those_that_were_shown(browser: Browser, tmp_path: Path) -> None:
    for name, value in (("a-0", b"of a " * 2000), ("b-0", b"of b " * 3000)):
        with Log.open(tmp_path / name) as log:
            log.append(value)
    with visiting(browser, DirectorySource(tmp_path)) as visit:
        page = visit.page
        page.goto(f"{visit.console.origin}/#/records/a/0")
        sees(page, "of a", "pre")
        page.get_by_label("Topic").fill("b")
        page.get_by_label("Show bytes as").select_option("JSON")
        with page.expect_download() as saved:
            page.get_by_role("link", name="save").click()
        assert saved.value.path().stat().st_size == 10_000
        with page.expect_request("**/api/records*") as followed:
            page.get_by_label("follow").check()
        assert "topic=a&" in followed.value.url


def test_follow_goes_on_behind_a_failure(browser: Browser, tmp_path: Path) -> None:
    Log.open(tmp_path / "a-0").close()
    with visiting(browser, DirectorySource(tmp_path)) as visit:
        page = visit.page
        page.goto(f"{visit.console.origin}/#/records")
        page.get_by_label("Topic").fill("late")
        page.get_by_label("follow").check()
        with page.expect_response("**/api/records*") as failed:
            page.get_by_role("button", name="Show").click()
        assert not failed.value.ok
        with Log.open(tmp_path / "late-0") as log:
            log.append(b"came later")
        sees(page, "came later", "pre")


def test_a_confirmation_does_what_was_prepared(browser: Browser) -> None:
    source = FakeSource()

    async def act(name: str, parameters: Mapping[str, str], confirmed: str | None) -> dict[str, Any]:
        source.acts.append((name, dict(parameters), confirmed))
        return {"text": f"prepared {parameters['topic']}", "command": "c", "name": "n", "done": "is done"}

    source.act = act  # type: ignore[method-assign]  # it describes what it would do
    with visiting(browser, source, allow_writes=True) as visit:
        page = visit.page
        page.get_by_text("Create a topic").click()
        name = page.get_by_label("name", exact=True)
        name.fill("first")

        def edit(route: Route) -> None:
            name.fill("second")
            route.continue_()

        page.route("**/api/acts/*", edit)
        with page.expect_response("**/api/acts/*"):
            page.get_by_role("button", name="Prepare").click()
        page.unroute("**/api/acts/*")
        page.evaluate("() => new Promise((done) => setTimeout(done, 100))")  # the page has seen the answer
        assert not page.get_by_role("button", name="Do it").is_visible()
        page.get_by_role("button", name="Prepare").click()
        sees(page, "prepared second")
        name.evaluate("(input) => { input.value = 'third'; }")
        page.get_by_label("Name that confirms").fill("n")
        page.get_by_role("button", name="Do it").click()
        sees(page, "is done")
        assert source.acts[-1][1]["topic"] == "second"


def test_groups_and_settings_are_never_markup(browser: Browser) -> None:
    source, name = FakeSource(), HOSTILE[0]
    member = {"member_id": name, "instance_id": name, "client_id": name, "host": name, "partitions": [name]}
    offset = {"topic": name, "partition": 0, "offset": 1, "log_end_offset": 3, "lag": 2, "member_id": name}
    overview = {"group": name, "state": name, "type": name, "protocol_type": name, "members": 1, "error": name}
    overview |= {"lag": 2, "lag_unknown": 1, "lag_ms": 62_000}
    history = {"times_ms": [1000, 2000], "lags": {"all": [None, 2], name: [3, 2]}}
    facts = {
        "state": name,
        "protocol": name,
        "epoch": None,
        "coordinator": name,
        "lag": None,
        "known_lag": 2,
        "lag_unknown": 1,
        "lag_ms": 62_000,
        "history": history,
    }
    source.answers = {
        "groups": {"groups": [overview], "unread": 3},
        "group": {**facts, "members": [member], "offsets": [offset]},
        "topic-settings": {"settings": [{"name": name, "value": name, "source": name}]},
        "users": {"users": [{"user": name, "mechanisms": {name: 1}}]},
        "acls": {"acls": [dict.fromkeys(("resource", "principal", "host", "operation", "permission"), name)]},
    }
    with visiting(browser, source) as visit:
        for path in ("groups", f"groups/{name}", "settings/topic/t", "settings/users", "settings/acls"):
            visit.page.goto(f"{visit.console.origin}/#/{quote(path)}")
            sees(visit.page, name, "td")
            if path == "groups":
                sees(visit.page, "3 groups not read yet")
                sees(visit.page, "≥ 2", "td")
            if path.startswith("groups/"):
                sees(visit.page, "lag at least 2, 1 partition unknown, the oldest record of it 1 min 2 s old")
                sees(visit.page, f"up to 3; all: 2, {name}: 2", "figure")
                assert visit.page.locator("path").first.get_attribute("d") == "M260.0 20.7"  # a gap, then one point
            assert visit.page.locator("img, body script").count() == 0


def test_who_reads_a_topic_and_who_is_out_of_sync(browser: Browser) -> None:
    source, name = FakeSource(), HOSTILE[0]
    source.views = ("cluster", "records", "groups")  # type: ignore[assignment]  # its type is that of two views
    source.now = replace(source.now, topics={name: topic(PartitionRow(0, 1, (0, 1), (0,)))})
    with visiting(browser, source, screen={"viewport": {"width": 360, "height": 640}}) as visit:
        page, other = visit.page, visit.tab(f"/#/topic/{quote(name)}")
        sees(page, "broker 1 is out of sync in 1 partition since before ", ".problems")
        sees(other, "broker 1 is out of sync in 1 partition since before ", ".problems")
        source.answers["groups"] = {"groups": [], "unread": 0}
        sees(other, "No consumer group has offsets in this topic")
        row = {"group": name, "state": name, "type": name, "protocol_type": name, "members": 2, "error": ""}
        rows = [
            {**row, "group": "up to date", "lag": 0, "lag_unknown": 0, "lag_ms": 0},
            {**row, "lag": 1234, "lag_unknown": 0, "lag_ms": 62_000},
        ]
        source.answers["groups"] = {"groups": rows, "unread": 0}
        readers = other.locator("section", has=other.get_by_role("heading", name="Read by"))
        first = readers.locator("tbody tr").first
        sees(other, "1,234", "td")
        sees(other, "1 min 2 s", "td")
        assert first.get_by_role("link").text_content() == name
        assert ("groups", {"topic": name}) in source.read_names
        other.reload()
        sees(other, "1,234", "td")
        assert other.evaluate("document.documentElement.scrollWidth") <= 360
        first.get_by_role("link").click()
        assert other.locator("h1").text_content() == name
        source.now = replace(source.now, topics={name: topic(PartitionRow(0, 1, (0, 1), (0, 1)))})
        page.locator(".problems").wait_for(state="hidden")
        sees(page, "ISR grows: broker 1 joins", ".events")
        assert page.locator(".events").get_by_role("link", name=name, exact=True).count() == 1
        assert page.locator("img, body script").count() + other.locator("img, body script").count() == 0


def test_a_failover_of_many_partitions_is_a_few_lines(browser: Browser) -> None:
    source = FakeSource()
    rows = {number: PartitionRow(number % 2, 1, (0, 1), (0, 1)) for number in range(100)}
    names = [f"topic-{number}" for number in range(10)]
    source.now = replace(source.now, topics={name: TopicSnapshot(False, rows) for name in names})
    with visiting(browser, source) as visit:
        sees(visit.page, "1,000 partitions, every replica in sync")
        other = visit.tab("/#/topic/topic-7")
        sees(other, "100 partitions, 0 degraded")
        failed = {number: PartitionRow(0, 1 + number % 2, (0, 1), (0,)) for number in rows}
        source.now = replace(source.now, topics={name: TopicSnapshot(False, failed) for name in names})
        sees(visit.page, "leader 1 → 0, epoch 2: topic-0 1, 3, 5, ", ".events")
        sees(visit.page, "; and 4 more topics", ".events")
        sees(visit.page, "ISR shrinks: broker 1 leaves: topic-0 0-99; topic-1 0-99", ".events")
        assert visit.page.locator(".events li").count() == 2
        sees(other, "leader 1 → 0, epoch 2: topic-7 1, 3, 5, ", ".events")
        sees(other, "… (50 partitions)", ".events")
        assert other.locator(".events a").count() == 2  # those of other topics are not named


def test_a_console_that_hangs(browser: Browser) -> None:
    source, hangs, goes_on = FakeSource(), threading.Event(), threading.Event()
    snapshot = source.snapshot

    async def hanging() -> ClusterSnapshot:
        if hangs.is_set():
            assert goes_on.wait(WITHIN_S)  # the event loop of the console stands still
        return await snapshot()

    source.snapshot = hanging  # type: ignore[method-assign]  # one that hangs until the test ends, in place of its own
    with visiting(browser, source) as visit:
        sees(visit.page, "Healthy: 2 brokers")
        visit.page.locator("#banner").wait_for(state="hidden")
        try:
            hangs.set()
            sees(visit.page, "what is shown is old", "#banner")
            source.now = replace(source.now, controller=-1)
        finally:
            hangs.clear()
            goes_on.set()
        visit.page.locator("#banner").wait_for(state="hidden")
        sees(visit.page, "there is no controller", "#health")


def test_a_console_that_ends_and_one_that_follows(browser: Browser) -> None:
    source = FakeSource()
    context = browser.new_context()
    try:
        with serving(source) as console:
            visit = Visit(console, context)
            sees(visit.page, "Healthy: 2 brokers")
            for controller in (1, 0):
                source.now = replace(source.now, controller=controller)
                sees(visit.page, f"→ {controller}", ".events")
        sees(visit.page, "The console does not respond", "#banner")
        with serving(source, port=console.port) as console:
            sees(visit.page, "This page has no session any more", "#banner")
            context.new_page().goto(f"{console.origin}{LOGIN}?token={console.tokens[-1]}")
            visit.page.locator("#banner").wait_for(state="hidden")
            source.now = replace(source.now, controller=-1)
            sees(visit.page, "there is no controller", "#health")
            sees(visit.page, "controller 0 → none", ".events")
            assert visit.page.locator(".events li").count() == 1  # those of the console that ended are gone
    finally:
        context.close()


def test_reload_back_and_two_tabs(browser: Browser) -> None:
    source = FakeSource()
    with visiting(browser, source) as visit:
        page = visit.page
        assert page.url == f"{visit.console.origin}/"  # without the token, which the history would keep
        assert page.evaluate("document.referrer") == ""
        page.get_by_role("link", name="t", exact=True).click()
        sees(page, "1 partition, 0 degraded")
        page.reload()
        sees(page, "1 partition, 0 degraded")
        page.go_back()
        sees(page, "a:1", "main")
        second = visit.tab("/")
        sees(second, "a:1", "main")
        source.now = replace(source.now, controller=-1)
        for each in (page, second):
            sees(each, "there is no controller", "#health")


def test_charts_of_brokers_with_metrics(browser: Browser) -> None:
    source = FakeSource()
    with visiting(browser, source) as visit:
        for second in range(1, 4):
            names = ("bytes_in_per_s", "bytes_out_per_s", "longest_pause_s", "cpu_share")
            figures = dict.fromkeys(names, 1024 if second > 1 else None)
            brokers = {"0": figures, "1": {"error": "it does not respond"}}
            source.answers["metrics"] = {"time_ms": 1000 * second, "brokers": brokers}
            with visit.page.expect_response("**/api/metrics*"):
                pass
        sees(visit.page, "broker 1: it does not respond")
        sees(visit.page, "up to 1.0 KiB; 0: 1.0 KiB, 1: ", "figure")
        assert visit.page.locator("path").first.get_attribute("d")


def test_ten_thousand_partitions(browser: Browser) -> None:
    source = FakeSource()
    rows = {number: PartitionRow(number % 2, 1, (0, 1), (0, 1)) for number in range(10_000)}
    source.now = replace(source.now, topics={"big": TopicSnapshot(False, rows)})
    with visiting(browser, source) as visit:
        visit.page.goto(f"{visit.console.origin}/#/topic/big")
        sees(visit.page, "10,000 partitions, 0 degraded")
        assert 0 < visit.page.locator(".partition-row").count() < 100
        visit.page.locator(".virtual").focus()
        visit.page.keyboard.press("End")
        visit.page.get_by_role("link", name="9999", exact=True).wait_for()
        source.now = replace(
            source.now, topics={"big": TopicSnapshot(False, {**rows, 7777: PartitionRow(1, 2, (0, 1), (1,))})}
        )
        visit.page.get_by_label("only those degraded").check()
        visit.page.get_by_role("link", name="7777", exact=True).wait_for()
        sees(visit.page, "10,000 partitions, 1 degraded")
