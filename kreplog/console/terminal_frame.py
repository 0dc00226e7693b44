"""A frame of `kreplog top`: facts of a cluster and what is selected, as text of a width and a height. No I/O.

time, controller and its epoch
health in one sentence, or why what is shown is old

id  address  state  in/s  out/s  produce  pause  cpu  out of sync    brokers, those that are not live first

topic  partitions  no leader  under-replicated  records/s  lag       the list, of which one row is selected
keys
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kreplog.console.cluster_changes import where
from kreplog.console.snapshot import PartitionRow
from kreplog.types import NO_LEADER, counted, printable

MAX_HEALTH_LINES = 2
MIN_ROWS = 3
"""Of the list; on a screen that has no room for them the brokers are left out."""

MAX_LINES, MIN_HEIGHT_OF_LINES = 3, 16
"""Lines about brokers that are out of sync, below the topics or an open one, and the height of a screen that has no
room for them."""

MIN_WIDTH = 8
"""Of a text that is cut so that others have room."""

BROKERS_SHARE = 3
"""Brokers take at most one of so many parts of the height."""

UNKNOWN = "-"
TOPICS, GROUPS, EVENTS = "topics", "groups", "events"
LISTS = (TOPICS, GROUPS, EVENTS)
OPENED = (TOPICS, GROUPS)
"""Lists whose rows can be opened."""


@dataclass(slots=True)
class Facts:
    """Facts of a cluster, as far as they are known.

    overview: as ClusterSnapshot.overview. error: why that is old, "" where it is not.
    figures: by broker id, as BrokerMetrics. rates: records a second by topic. groups: facts of a group by its name, as
    read_group has them, of those that were read. events: of the time line, the newest first. partitions, replicas: of
    the open topic; out_of_sync: lines about its brokers. note: why a view lacks something."""

    time: str = ""
    overview: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    figures: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    partitions: Mapping[int, PartitionRow] = field(default_factory=dict)
    out_of_sync: Sequence[str] = ()
    replicas: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    note: str = ""


@dataclass(slots=True)
class Selection:
    """The list that is shown, the topic or group that is open, and the name of the selected row, "" for the first: it
    stays selected where others pass it by. filter: a text that the rows shown contain, in any case; typing: it is being
    typed. before: the selection that Esc returns to."""

    of: str = TOPICS
    opened: str | None = None
    row: str = ""
    filter: str = ""
    typing: bool = False
    before: Selection | None = None


@dataclass(slots=True)
class Row:
    """A row of a list. name: selects it. bad: something is wrong there."""

    name: str
    cells: Sequence[str]
    bad: bool = False


@dataclass(slots=True)
class Listing:
    """A list with its headings. columns: those that begin with "<" are aligned to the left."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]


def listing(facts: Facts, selection: Selection) -> Listing:
    """The list, or what is open of it: those with problems first, then the busiest or those with most lag."""
    if selection.opened is not None:
        found = _partitions(facts, selection.opened) if selection.of == TOPICS else _offsets(facts, selection.opened)
    else:
        found = {TOPICS: _topics, GROUPS: _groups, EVENTS: _events}[selection.of](facts)
    wanted = selection.filter.casefold()
    if wanted:
        found.rows = [row for row in found.rows if any(wanted in cell.casefold() for cell in row.cells)]
    return found


def frame(facts: Facts, selection: Selection, width: int, height: int) -> RenderableType:
    """`height` lines of `width` columns, or fewer."""
    head = _head(facts, width)
    shown = listing(facts, selection)
    note = [_line(facts.note, "yellow")] if facts.note else []
    if selection.of == TOPICS and height > MIN_HEIGHT_OF_LINES:
        about = _out_of_sync(facts)[:MAX_LINES] if selection.opened is None else _about(facts, selection.opened)
        note = about + note
    room = height - len(head) - len(note) - 2  # two lines: the headings of the list, and the keys
    brokers = _brokers(facts)
    listed = brokers.rows[: max(1, room // BROKERS_SHARE - 2)]
    above: list[RenderableType] = []
    if room - len(listed) - 2 >= MIN_ROWS:
        room -= len(listed) + 2
        above = [_table(brokers, listed, None, width), Text()]
    room = max(1, room)
    index = selected_index(shown.rows, selection)
    start = max(0, min(index - room // 2, len(shown.rows) - room))
    rows = shown.rows[start : start + room]
    keys = _keys(selection, index, len(shown.rows))
    return Group(*head, *above, _table(shown, rows, index - start, width), *note, keys)


def whole(facts: Facts, width: int) -> RenderableType:
    """All brokers, topics and groups, for output that is no terminal."""
    parts: list[RenderableType] = [*_head(facts, width)]
    if lines := _out_of_sync(facts):
        parts += [*lines, Text()]
    for shown in (_brokers(facts), _topics(facts), _groups(facts)):
        if shown.rows:
            parts += [_table(shown, shown.rows, None, width), Text()]
    return Group(*parts[:-1], *([Text(printable(facts.note))] if facts.note else []))


def selected_index(rows: Sequence[Row], selection: Selection) -> int:
    """0 where the selected row is gone."""
    return next((index for index, row in enumerate(rows) if row.name == selection.row), 0)


def following(of: str) -> str:
    """The list that Tab shows after this one."""
    return LISTS[(LISTS.index(of) + 1) % len(LISTS)]


def _head(facts: Facts, width: int) -> list[Text]:
    overview = facts.overview
    controller = overview.get("controller", -1)
    epoch = overview.get("controller_epoch")
    text = f"kreplog top  {facts.time}  "
    text += "no controller" if controller < 0 else f"controller {controller}"
    text += "" if epoch is None else f" of epoch {epoch}"
    health, style = overview.get("health", "Nothing is known yet."), "green"
    if overview.get("problems"):
        style = "red"
    if facts.error:
        health, style = f"What is shown is old: {facts.error}", "red"
    lines = textwrap.wrap(printable(health), width, max_lines=MAX_HEALTH_LINES, placeholder=" ...")
    return [
        Text(text, "bold", no_wrap=True, overflow="ellipsis"),
        *(Text(line, style, no_wrap=True, overflow="crop") for line in lines),
        Text(),
    ]


def _brokers(facts: Facts) -> Listing:
    rows = []
    counts = {each["broker"]: each["partitions"] for each in facts.overview.get("out_of_sync", ())}
    for broker in facts.overview.get("brokers", ()):
        figures = facts.figures.get(broker["id"], {})
        out_of_sync = counts.get(broker["id"], 0)
        cells = (
            str(broker["id"]),
            f"{broker['host']}:{broker['port']}" if broker["host"] else UNKNOWN,
            broker["state"],
            _bytes(figures.get("bytes_in_per_s")),
            _bytes(figures.get("bytes_out_per_s")),
            _milliseconds(figures.get("produce_mean_s")),
            _milliseconds(figures.get("longest_pause_s")),
            UNKNOWN if (share := figures.get("cpu_share")) is None else f"{100 * share:.0f} %",
            _count(out_of_sync),
        )
        rows.append(Row(str(broker["id"]), cells, broker["state"] != "live" or out_of_sync > 0))
    rows.sort(key=lambda row: (not row.bad, int(row.name)))
    columns = ("<id", "<address", "<state", "in/s", "out/s", "produce", "pause", "cpu", "out of sync")
    return Listing("brokers", columns, rows)


def _topics(facts: Facts) -> Listing:
    lags: dict[str, int] = {}
    unknown: set[str] = set()
    for group in facts.groups.values():
        of_group: dict[str, int] = {}
        for offset in group.get("offsets", ()):
            of_group[offset["topic"]] = of_group.get(offset["topic"], 0) + (offset["lag"] or 0)
            if offset["lag"] is None:
                unknown.add(offset["topic"])
        for topic, lag in of_group.items():
            lags[topic] = max(lag, lags.get(topic, 0))
    topics = sorted(
        facts.overview.get("topics", ()),
        key=lambda topic: (
            -topic["leaderless"],
            -topic["under_replicated"],
            -facts.rates.get(topic["name"], 0.0),
            topic["internal"],
            topic["name"],
        ),
    )
    rows = [
        Row(
            topic["name"],
            (
                topic["name"],
                _count(topic["partitions"]),
                _count(topic["leaderless"]),
                _count(topic["under_replicated"]),
                _rate(facts.rates.get(topic["name"])),
                _lag(lags.get(topic["name"]), topic["name"] in unknown),
                topic["error"],
            ),
            bool(topic["leaderless"] or topic["under_replicated"] or topic["error"]),
        )
        for topic in topics
    ]
    columns = ("<topic", "partitions", "no leader", "under-replicated", "records/s", "lag", "<")
    return Listing("topics", columns, rows)


def _partitions(facts: Facts, topic: str) -> Listing:
    rows = []
    for number, row in facts.partitions.items():
        replicas = facts.replicas.get(number, ())
        leader = next((each for each in replicas if each["broker"] == row.leader), {})
        out_of_sync = [broker for broker in row.replicas if broker not in row.isr]
        behind = [
            f"{each['broker']} {each['state']}" + _behind(each)
            for each in replicas
            if each["lag"] or each["state"] not in ("leader", "in sync")
        ]
        cells = (
            str(number),
            "none" if row.leader == NO_LEADER else str(row.leader),
            str(row.leader_epoch),
            ",".join(map(str, row.replicas)),
            ",".join(map(str, row.isr)),
            _count(leader.get("log_start_offset")),
            _count(leader.get("high_watermark")),
            _count(leader.get("log_end_offset")),
            "; ".join(behind),
        )
        rows.append(Row(str(number), cells, row.leader == NO_LEADER or bool(out_of_sync)))
    rows.sort(key=lambda row: not row.bad)
    columns = ("partition", "leader", "epoch", "<replicas", "<ISR", "start", "HW", "log end", "<behind")
    return Listing(f"topic {topic}", columns, rows)


def _groups(facts: Facts) -> Listing:
    groups = sorted(facts.groups.items(), key=lambda item: (-item[1].get("known_lag", 0), item[0]))
    rows = [
        Row(
            name,
            (
                name,
                group.get("state", UNKNOWN),
                _count(len(group["members"]) if "members" in group else None),
                _lag(group.get("known_lag"), group.get("lag_unknown", 0) > 0),
                _duration(group.get("lag_ms")),
                group.get("error") or _read_topics(group),
            ),
            "error" in group,
        )
        for name, group in groups
    ]
    return Listing("groups", ("<group", "<state", "members", "lag", "in time", "<reads"), rows)


def _out_of_sync(facts: Facts) -> list[Text]:
    return [_line(each["text"], "red") for each in facts.overview.get("out_of_sync", ())]


def _about(facts: Facts, topic: str) -> list[Text]:
    """Lines about a topic: brokers that are out of sync, and its readers."""
    return [*(_line(text, "red") for text in facts.out_of_sync[:MAX_LINES]), *map(_line, _readers(facts, topic))]


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def _readers(facts: Facts, topic: str) -> list[str]:
    """A line about the groups that read a topic, those with most lag first; [] for none."""
    found = []
    for name, group in facts.groups.items():
        rows = [each for each in group.get("offsets", ()) if each["topic"] == topic]
        if rows:
            lag = sum(each["lag"] or 0 for each in rows)
            oldest = max((each.get("lag_ms") or 0 for each in rows), default=0)
            unknown = any(each["lag"] is None for each in rows)
            found.append((lag, f"{name}, lag {_lag(lag, unknown)}" + (f", {_duration(oldest)}" if oldest else "")))
    found.sort(key=lambda each: -each[0])
    return [f"read by {'; '.join(text for _, text in found)}"] if found else []


def _events(facts: Facts) -> Listing:
    rows = [
        Row(
            str(event["number"]),
            (time.strftime("%H:%M:%SZ", time.gmtime(event["time_ms"] / 1000)), event["text"], where(event)),
        )
        for event in facts.events
    ]
    return Listing("events", ("<time", "<event", "<where"), rows)


def _offsets(facts: Facts, group: str) -> Listing:
    offsets = sorted(
        facts.groups.get(group, {}).get("offsets", ()),
        key=lambda each: (-(each["lag"] or 0), each["topic"], each["partition"]),
    )
    rows = [
        Row(
            f"{each['topic']}-{each['partition']}",
            (
                each["topic"],
                str(each["partition"]),
                _count(each["offset"]),
                _count(each["log_end_offset"]),
                _count(each["lag"]),
                _duration(each.get("lag_ms")),
                each["member_id"] or "",
            ),
        )
        for each in offsets
    ]
    return Listing(f"group {group}", ("<topic", "partition", "offset", "log end", "lag", "in time", "<member"), rows)


def _table(shown: Listing, rows: Sequence[Row], selected: int | None, width: int) -> Table:
    """The rows in at most `width` columns: long text is cut. selected: index among `rows`; None: no row can be."""
    headings = [column.removeprefix("<") for column in shown.columns]
    texts = [[Text(printable(cell)) for cell in row.cells] for row in rows]
    widths = [max(map(cell_len, (heading, *(line[at].plain for line in texts)))) for at, heading in enumerate(headings)]
    marked = 0 if selected is None else 2
    gap = 2 if sum(widths) + 2 * len(widths) + marked <= width else 1
    left = [at for at, column in enumerate(shown.columns) if column.startswith("<")]
    for at in sorted(left, key=lambda at: -widths[at]):
        excess = sum(widths) + gap * len(widths) + marked - width
        widths[at] = max(min(widths[at], MIN_WIDTH), widths[at] - max(0, excess))
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    if selected is not None:
        table.add_column("", width=1, no_wrap=True)
    while len(widths) > 1 and sum(widths) + gap * len(widths) + marked > width:
        widths.pop()  # the first columns are those that matter
    for at, column_width in enumerate(widths):
        table.add_column(
            headings[at],
            justify="left" if at in left else "right",
            width=column_width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for index, (row, line) in enumerate(zip(rows, texts, strict=True)):
        mark = [] if selected is None else [">" if index == selected else " "]
        style = ("red" if row.bad else "") + (" reverse" if index == selected else "")
        table.add_row(*mark, *line[: len(widths)], style=style)
    return table


def _keys(selection: Selection, index: int, rows: int) -> Text:
    shown = selection.of if selection.opened is None else f"{selection.of.removesuffix('s')} {selection.opened}"
    keys = ["up down: select"]
    if selection.typing:
        keys = ["enter: keep the filter", "esc: drop it"]
    elif selection.opened is None:
        if selection.of in OPENED:
            keys.append("enter: open")
        keys += [f"tab: {following(selection.of)}", "/: filter", "q: quit"]
    else:
        keys += ["esc: back", "/: filter", "q: quit"]
    place = f"{index + 1:,} of {rows:,}  " if rows else "none  "
    if selection.filter or selection.typing:
        place += f"/{printable(selection.filter)}{'_' if selection.typing else ''}  "
    text = "  ".join([printable(shown), *keys])
    return Text(place + text, "bold", no_wrap=True, overflow="ellipsis")


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _behind(replica: Mapping[str, Any]) -> str:
    if not replica["lag"]:
        return ""
    lag_ms = replica.get("lag_ms")
    return f" by {replica['lag']:,}" + (f", {_duration(lag_ms)}" if lag_ms else "")


def _duration(ms: int | None) -> str:
    if ms is None:
        return UNKNOWN
    if ms < 1000:
        return f"{ms} ms"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms // 1000} s"


def _lag(known: int | None, at_least: bool) -> str:
    return f"{'>=' if at_least else ''}{_count(known)}"


def _read_topics(group: Mapping[str, Any]) -> str:
    unknown = group.get("lag_unknown", 0)
    topics = ", ".join(dict.fromkeys(each["topic"] for each in group.get("offsets", ())))
    return topics + (f"; lag of {counted(unknown, 'partition')} unknown" if unknown else "")


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _milliseconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{1000 * seconds:.1f} ms"


def _bytes(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
