"""The page of a replay in a real browser: it shows the trace step by step, runs no text of the data, loads nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from kreplog.cli import app
from kreplog.replay import lessons
from kreplog.replay.page import render
from kreplog.replay.recording import RecordedEvent, Recording
from kreplog.replay.seed_page import PageFile
from kreplog.sim import simulate
from kreplog.sim.simulate import Options, Result
from kreplog.sim.trace import TraceLine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SEED = 3
BROKEN = Options(mutation="truncate-to-watermark")
"""Found by SEED after 1.6 s of virtual time."""

SHOWN = """(step) => {
    replay.go(step);
    const texts = (selector) => [...document.querySelectorAll(selector)].map((node) => node.textContent);
    const visible = (node) => !node.closest("[hidden]");
    return {
        logs: [...document.querySelectorAll(".replica")].filter(visible).map((node) => [
            node.closest("article").querySelector("h3").firstChild.textContent,
            node.querySelector(".role").textContent,
            [...node.querySelectorAll(".cells > *")].map((cell) => cell.textContent),
        ]),
        red: texts("#guarantees li.violated"),
        detail: document.getElementById("detail").textContent,
    };
}"""


@dataclass
class Opened:
    """An open page, with the addresses that it has requested, and the complaints of the browser."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, path: Path, anchor: str = "") -> Page:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri() + anchor)
        return self.page


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = Opened(context.new_page())
    yield found
    context.close()
    assert found.complaints == []
    assert not [url for url in found.requests if not url.startswith(("file://", "data:"))]
    assert len([url for url in found.requests if url.startswith("file://")]) == 1


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    file = PageFile(tmp_path_factory.mktemp("replay") / "broken.html")
    result = simulate.run_seed(SEED, BROKEN, True, [file.watch])
    file.write(result, BROKEN)
    return result, file.path


@pytest.fixture
def lesson(tmp_path: Path) -> Path:
    recording = lessons.record("f2-kip-101-scenario-2")
    (tmp_path / "lesson.html").write_text(render(recording), encoding="utf-8")
    return tmp_path / "lesson.html"


def expected(line: TraceLine) -> Iterator[tuple[str, str, str, int]]:
    """(partition, broker, field, value) of a log, as the text of a line says it is after that line."""
    broker = line.actor.removeprefix("broker ")
    if not broker.isdigit() or "failed" in line.text:
        return
    if found := re.match(r"appends \[\d+, (\d+)\) to (\S+) as leader in epoch \d+$", line.text):
        yield found[2], broker, "end", int(found[1])
    elif found := re.match(r"moves the high watermark of (\S+) to (\d+)$", line.text):
        yield found[1], broker, "high_watermark", int(found[2])
    elif found := re.match(r"(?:appends to (\S+) as follower|truncates (\S+) to \d+): log \[(\d+), (\d+)\)", line.text):
        yield found[1] or found[2], broker, "start", int(found[3])
        yield found[1] or found[2], broker, "end", int(found[4])


def test_the_page_shows_what_the_trace_says_step_by_step(opened: Opened, broken: tuple[Result, Path]) -> None:
    result, path = broken
    page = opened.open(path)
    states = page.evaluate(
        """() => JSON.stringify(replay.events.map((event, step) => [event, replay.state(step)]),
            (key, value) => (key === "records" ? undefined : value))"""
    )
    steps = [(event, state) for event, state in json.loads(states) if event["kind"] != "message"]
    checked = 0
    for (event, state), line in zip(steps, result.lines, strict=True):
        assert (event["at"], event.get("actor")) == (line.at_us, line.actor)
        for partition, broker, name, value in expected(line):
            assert state["logs"][partition][broker][name] == value, (state["step"], line)
            checked += 1
    assert checked > 150
    kinds = {event["kind"] for event, _ in steps}
    assert {"fault", "client", "broker", "violation", "admin"} <= kinds


def test_the_view_shows_the_state(opened: Opened, lesson: Path) -> None:
    """Every replica of every tenth step: role, epoch, values of records, high watermark, log end."""
    page = opened.open(lesson)
    steps = page.evaluate("replay.events.length")
    for step in range(0, steps, 10):
        shown = page.evaluate(SHOWN, step)
        state = page.evaluate("(step) => replay.state(step)", step)
        logs = {}
        for partition, replicas in state["logs"].items():
            for broker, replica in replicas.items():
                if replica is not None:
                    status, role = state["brokers"][broker], replica["role"]
                    title = f"{role}, epoch {replica['leader_epoch']}" if role != "closed" else "log closed"
                    cells = [value for _, value in replica["records"]]
                    cells.insert(replica["high_watermark"] - replica["start"], f"HW {replica['high_watermark']}")
                    logs[partition, f"b{broker} {title if status == 'up' else status}"] = [
                        *cells,
                        f"END {replica['end']}",
                    ]
        assert {(partition, role): cells for partition, role, cells in shown["logs"]} == logs
        assert shown["red"] == []


def test_the_lesson_ends_with_the_logs_of_its_expectations(opened: Opened, lesson: Path) -> None:
    """KIP-101's second scenario: `expect log t-0 1 2 = m1 m2`, `expect log u-0 1 2 = m1 m3`."""
    shown = opened.open(lesson).evaluate(SHOWN, 10_000)
    assert [(partition, cells[:2]) for partition, _, cells in shown["logs"]] == [
        ("t-0", ["m1", "m2"]),
        ("t-0", ["m1", "m2"]),
        ("u-0", ["m1", "m3"]),
        ("u-0", ["m1", "m3"]),
    ]
    assert "m2 at offset 1 of both" in opened.page.inner_text("#caption")


def test_a_guarantee_turns_red_at_the_event_at_which_the_checker_found_it(
    opened: Opened, broken: tuple[Result, Path]
) -> None:
    result, path = broken
    page = opened.open(path)
    page.click("#violation")
    step = page.evaluate("replay.step()")
    line = next(line for line in result.lines if line.actor == "checker" and ": " in line.text)
    assert page.evaluate("replay.events[replay.step()]")["at"] == line.at_us
    assert "lacks committed" in page.inner_text("#verdict")
    assert page.evaluate(SHOWN, step)["red"] == ["lacks committed"]
    assert line.text in page.evaluate(SHOWN, step)["detail"]
    assert page.evaluate(SHOWN, step - 1)["red"] == []
    page.click("#violation")
    page.wait_for_selector(".row.violation.current", state="attached")  # drawn in the next animation frame
    colours = page.evaluate(
        """() => ["#guarantees li.violated", "#guarantees li:not(.violated)"].map((selector) =>
            getComputedStyle(document.querySelector(selector)).color)"""
    )
    assert colours[0] != colours[1]


HOSTILE = "</script><img src=x onerror=window.harmed=1><script>window.harmed=1</script><!--{{7*7}}&lt;b&gt;"


def test_hostile_texts_never_become_markup(opened: Opened, tmp_path: Path) -> None:
    replica = {"broker": 1, "partition": HOSTILE, "role": HOSTILE, "leader_epoch": 0, "start": 0, "end": 1}
    changes: list[dict[str, Any]] = [
        {"broker": 1, "status": HOSTILE},
        {"partition": HOSTILE, "leader": 1, "leader_epoch": 0, "isr": [HOSTILE], "elr": [HOSTILE]},
        {**replica, "high_watermark": 0, "records": [[0, HOSTILE]]},
        {"violation": HOSTILE},
    ]
    named = (HOSTILE,)
    event = RecordedEvent(0, "comment", HOSTILE, HOSTILE, named, 1, HOSTILE, HOSTILE, HOSTILE, 5, False, changes)
    message = RecordedEvent(1, "message", HOSTILE, HOSTILE, named, 1, HOSTILE, HOSTILE, HOSTILE)
    recording = Recording(HOSTILE, HOSTILE, HOSTILE, [1], [HOSTILE], {HOSTILE: HOSTILE}, [event, message], [HOSTILE])
    (tmp_path / "hostile.html").write_text(render(recording), encoding="utf-8")
    page = opened.open(tmp_path / "hostile.html", "#step-1")
    assert page.evaluate("[replay.step(), window.harmed]") == [1, None]
    assert page.locator("img, b").count() == 0
    assert page.locator("script").count() == 2
    assert page.title() == page.inner_text("h1") == HOSTILE
    for selector in ("#about", "#command", "#notes", "#caption", "#guarantees ul", "#logs", "#detail"):
        assert HOSTILE in (page.text_content(selector) or ""), selector


def test_the_policy_stops_scripts_styles_and_requests(browser: Browser, lesson: Path) -> None:
    page = browser.new_page()
    page.goto(lesson.as_uri())
    page.evaluate("window.stopped = []")
    page.evaluate(
        "document.addEventListener('securitypolicyviolation', (event) => stopped.push(event.effectiveDirective))"
    )
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.harmed = 1";
            const style = document.createElement("style");
            style.textContent = "body { display: none }";
            const image = document.createElement("img");
            image.src = "http://127.0.0.1:9/x.png";
            document.body.append(script, style, image);
        }"""
    )
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    page.wait_for_function("stopped.length >= 4")
    assert set(page.evaluate("stopped")) == {"script-src-elem", "style-src-elem", "img-src", "connect-src"}
    assert page.evaluate("window.harmed") is None
    page.close()


def test_the_keyboard_does_everything(opened: Opened, broken: tuple[Result, Path]) -> None:
    page = opened.open(broken[1])

    def step() -> int:
        return int(page.evaluate("replay.step()"))

    rows: list[int] = page.evaluate("replay.rows()")
    assert step() == rows[0] == 0
    press = page.keyboard.press
    press("ArrowRight")
    press("ArrowDown")
    assert step() == rows[2]
    press("ArrowLeft")
    assert step() == rows[1]
    press("PageDown")
    assert step() == rows[21]
    press("End")
    assert step() == rows[-1]
    press("Home")
    press("f")
    fault = step()
    assert page.evaluate("replay.events[replay.step()].kind") == "fault" and fault > 0
    press("f")
    press("Shift+F")
    assert step() == fault
    press("v")
    assert page.evaluate("replay.events[replay.step()].kind") == "violation"
    press("/")
    page.keyboard.type("truncates t0-0 ")
    found: list[int] = page.evaluate("replay.rows()")
    assert found
    assert all("truncates t0-0 " in page.evaluate("(step) => replay.events[step].text", row) for row in found)
    press("Escape")
    press("Home")
    assert step() == found[0]
    assert page.evaluate("document.activeElement.id") == "scroll"
    assert page.locator(f"#step-{found[0]}").get_attribute("aria-selected") == "true"
    reached = set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(40):
        press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {
        "play",
        "back",
        "forward",
        "slider",
        "partition",
        "broker",
        "text",
        "fault",
        "idle",
        "logs",
        "scroll",
    } <= reached


def test_it_plays_and_pauses(opened: Opened, lesson: Path) -> None:
    opened.page.clock.install(time=0)
    page = opened.open(lesson)
    page.clock.pause_at(60_000)  # from now on time passes only by run_for
    rows: list[int] = page.evaluate("replay.rows()")
    page.keyboard.press("Space")
    page.clock.run_for(1000)
    assert page.evaluate("replay.step()") == rows[8], "8 events a second"
    page.click("#play")
    page.clock.run_for(5000)
    assert page.evaluate("replay.step()") == rows[8]
    page.select_option("#speed", "30")
    page.evaluate("replay.go(replay.rows().at(-25))")
    page.click("#play")
    page.clock.run_for(510)
    assert page.evaluate("replay.step()") == rows[-10], "30 events a second"
    page.clock.run_for(510)
    assert page.evaluate("replay.step()") == rows[-1]
    assert page.get_attribute("#play", "aria-pressed") == "false", "it stops at the end"


def test_filters_leave_a_view_of_their_own(opened: Opened, lesson: Path) -> None:
    page = opened.open(lesson)
    everything = page.evaluate("replay.rows().length")
    page.select_option("#partition", "u-0")
    page.evaluate("replay.go(replay.events.length - 1)")
    assert page.locator("#logs article:visible h3").all_inner_texts() == ["u-0leader 2, epoch 4, ISR 1 2"]
    shown = page.evaluate("replay.rows().map((step) => replay.events[step])")
    assert 0 < len(shown) < everything
    assert all("u-0" in event.get("partitions", ["u-0"]) for event in shown)
    page.select_option("#broker", "1")
    events = page.evaluate("replay.rows().map((step) => replay.events[step])")
    own = [event for event in events if event["kind"] in ("broker", "client", "message")]
    assert own and all(event.get("broker") == 1 or "b1" in (event.get("source"), event.get("target")) for event in own)
    assert page.locator("#logs .replica:visible").count() == 1
    page.uncheck("input[name=message]")
    assert "message" not in page.evaluate("replay.rows().map((step) => replay.events[step].kind)")
    page.select_option("#partition", "")
    page.select_option("#broker", "")
    page.check("input[name=message]")
    page.check("input[name=idle]")
    assert page.evaluate("replay.rows().length === replay.events.length")


def test_a_row_is_chosen_by_a_click(opened: Opened, lesson: Path) -> None:
    page = opened.open(lesson, "#step-50")
    assert page.evaluate("replay.step()") == 50
    row = page.locator(".row").nth(12)
    step = int((row.get_attribute("id") or "").removeprefix("step-"))
    row.click()
    assert page.evaluate("replay.step()") == step


def test_20000_events_draw_only_what_is_visible(opened: Opened, tmp_path: Path) -> None:
    events = [
        RecordedEvent(number, "message", "b1", f"message {number}", (), 1, "Fetch", "b1", "b2", number + 3)
        for number in range(30_000)
    ]
    recording = Recording("many", "", "", [1, 2], [], {}, events)
    recording.limit()
    (tmp_path / "many.html").write_text(render(recording), encoding="utf-8")
    page = opened.open(tmp_path / "many.html")
    assert page.evaluate("replay.events.length") == 20_000
    assert page.inner_text("#notes") == "The first 10,000 events, until 0.010 s, are left out."
    for step in (0, 10_000, 19_999):
        page.evaluate("(step) => replay.go(step)", step)
        page.wait_for_selector(f"#step-{step}.current")
        assert page.locator(".row").count() < 80
        assert page.evaluate("document.querySelector('canvas').height") < 3000


def pixels(page: Page) -> int:
    """The number of pixels that are drawn on the canvas."""
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    script = """() => {
        const canvas = document.querySelector("canvas");
        const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
        pen.drawImage(canvas, 0, 0);
        const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
        return data.filter((value, index) => index % 4 === 3 && value > 0).length;
    }"""
    drawn: int = page.evaluate(script)
    return drawn


def test_arrows_and_columns_are_drawn(opened: Opened, tmp_path: Path) -> None:
    started = RecordedEvent(0, "broker", "broker 1", "starts", broker=1, changes=[{"broker": 1, "status": "up"}])
    arrived = RecordedEvent(1, "message", "b1", "a", (), 1, "Fetch", "b1", "b2", 9)
    lost = RecordedEvent(2, "message", "b1", "b", (), 1, "Fetch", "b1", "b2")
    ended = RecordedEvent(9, "broker", "broker 2", "receives", broker=2)
    counts: list[int] = []
    for events in ([started], [started, ended], [started, ended, lost], [started, arrived, ended, lost]):
        events.sort(key=lambda event: event.at)
        (tmp_path / "arrows.html").write_text(render(Recording("", "", "", [1, 2], [], {}, events)), encoding="utf-8")
        page = opened.page if counts else opened.open(tmp_path / "arrows.html")
        if counts:
            opened.requests.clear()
            page.reload()
        counts.append(pixels(page))
    assert page.locator("#columns span").all_text_contents() == ["clients", "b1\n", "b2\nunknown"]
    assert 0 < counts[0] < counts[1] < counts[2] < counts[3]


@pytest.mark.parametrize("width", [340, 800, 1280])
def test_it_fits_narrow_screens(browser: Browser, lesson: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 700})
    page.goto(lesson.as_uri() + "#step-100")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#play").is_visible() and page.locator(".row.current").is_visible()
    page.close()


def contrast(page: Page) -> float:
    """The contrast of the text with its background, as WCAG 2 defines it."""
    colours = page.evaluate(
        "(() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; })()"
    )

    def luminance(colour: str) -> float:
        shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def test_it_is_dark_where_the_system_is(browser: Browser, lesson: Path) -> None:
    backgrounds = set()
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(lesson.as_uri())
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert contrast(page) > 7
        page.close()
    assert len(backgrounds) == 2


def test_the_command_writes_the_page_and_the_trace_of_the_same_run(opened: Opened, tmp_path: Path) -> None:
    html, trace = tmp_path / "seed.html", tmp_path / "trace.json"
    arguments = ["simulate", "--seed", str(SEED), "--mutate", "truncate-to-watermark", "--only", "none"]
    done = CliRunner().invoke(app, [*arguments, "--html", str(html), "--trace", str(trace)])
    assert done.exit_code == 0, "without a fault the rule does no harm"
    written = json.loads(trace.read_text(encoding="utf-8"))
    page = opened.open(html)
    assert page.inner_text("#command") == written["replay"]
    assert "--only none" in page.inner_text("#command")
    times = page.evaluate("replay.events.filter((event) => event.kind === 'admin').map((event) => event.at)")
    assert times == [line["at_us"] for line in written["trace"] if line["actor"] == "admin"]
