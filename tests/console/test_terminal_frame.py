"""Frames of `kreplog top` of a fixed state, as text; and keys in parts."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from kreplog.console.snapshot import BrokerRow, ClusterSnapshot, PartitionRow, TopicSnapshot
from kreplog.console.terminal_frame import Facts, Selection, frame, whole
from kreplog.console.terminal_keys import Keys

SNAPSHOT = ClusterSnapshot(
    "id",
    1,
    {0: BrokerRow("127.0.0.1", 9092, None), 1: BrokerRow("127.0.0.1", 9093, None)},
    {
        "idle": TopicSnapshot(False, {0: PartitionRow(1, 3, (1, 0), (1, 0))}),
        "busy": TopicSnapshot(False, {0: PartitionRow(0, 3, (0, 1), (0, 1))}),
        "behind": TopicSnapshot(False, {0: PartitionRow(0, 3, (0, 1), (0, 1)), 1: PartitionRow(0, 7, (0, 2), (0,))}),
    },
    ("1 partition is under-replicated: behind-1",),
    controller_epoch=5,
)
GROUP: dict[str, Any] = {
    "state": "Stable",
    "members": [{}, {}],
    "lag": None,
    "known_lag": 1200,
    "lag_unknown": 1,
    "lag_ms": 62_000,
    "offsets": [
        {
            "topic": "busy",
            "partition": 0,
            "offset": 800,
            "log_end_offset": 2000,
            "lag": 1200,
            "lag_ms": 62_000,
            "member_id": "m-1",
        },
        {"topic": "idle", "partition": 0, "offset": None, "log_end_offset": 4, "lag": None, "member_id": None},
    ],
}
REPLICAS = [
    {"broker": 0, "state": "leader", "log_start_offset": 0, "high_watermark": 90, "log_end_offset": 100, "lag": 0},
    {
        "broker": 2,
        "state": "lagging",
        "log_start_offset": 0,
        "high_watermark": 60,
        "log_end_offset": 60,
        "lag": 40,
        "lag_ms": 9_400,
    },
]
OUT_OF_SYNC = "broker 2 is out of sync in 1 partition since 12:03:05: it is not running"
EXPECTED_TOPICS = """\
kreplog top  12:03:07Z  controller 1 of epoch 5
Degraded: broker 2 is not running; 1 partition is under-replicated: behind-1

id address        state        in/s out/s produce   pause  cpu out of sync
2  -              not running     -     -       -       -    -           1
0  127.0.0.1:9092 live        2 MiB  12 B  1.5 ms 20.0 ms 25 %           0
1  127.0.0.1:9093 live            -     -       -       -    -           0

   topic   partitions  no leader  under-replicated  records/s    lag
>  behind           2          0                 1          -      -
   busy             1          0                 0      1,234  1,200
   idle             1          0                 0          0    >=0
broker 2 is out of sync in 1 partition since 12:03:05: it is not running
1 of 3  topics  up down: select  enter: open  tab: groups  /: filter  q: quit"""
EXPECTED_PARTITIONS = """\
   partition  leader  epoch  replicas  ISR  start  HW  log end  behind
>          1       0      7  0,2       0        0  90      100  2 lagging by 40, 9 s
           0       0      3  0,1       0,1      -   -        -
1 of 2  topic behind  up down: select  esc: back  /: filter  q: quit"""
EXPECTED_OFFSETS = """\
   topic  partition  offset  log end    lag  in time  member
>  busy           0     800    2,000  1,200  1.0 min  m-1
   idle           0       -        4      -        -
1 of 2  group readers  up down: select  esc: back  /: filter  q: quit"""
EXPECTED_EVENTS = """\
   time       event                         where
>  12:03:07Z  ISR shrinks: broker 2 leaves  busy 0-2, 7
   12:03:06Z  broker 2 does not respond
   12:03:05Z  topic created                 a\\x1b
1 of 3  events  up down: select  tab: topics  /: filter  q: quit"""
EXPECTED_GROUPS = """\
   group    state   members      lag  in time  reads
>  readers  Stable        2  >=1,200  1.0 min  busy, idle; lag of 1 partition unknown
   denied   -             -        -        -  no ACL allows it
1 of 2  groups  up down: select  enter: open  tab: events  /: filter  q: quit"""


def facts() -> Facts:
    figures = {"bytes_in_per_s": 2_500_000.0, "bytes_out_per_s": 12.0, "produce_mean_s": 0.0015, "cpu_share": 0.254}
    return Facts(
        time="12:03:07Z",
        overview={**SNAPSHOT.overview(), "out_of_sync": [{"broker": 2, "partitions": 1, "text": OUT_OF_SYNC}]},
        figures={0: {**figures, "longest_pause_s": 0.02}, 1: {"error": "it does not respond"}},
        rates={"busy": 1234.4, "idle": 0.0},
        groups={"readers": GROUP, "denied": {"error": "no ACL allows it"}},
    )


def text(part: RenderableType, width: int = 80, **settings: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, **settings).print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_topics_those_with_problems_first_then_the_busiest() -> None:
    assert text(frame(facts(), Selection(), 80, 24)) == EXPECTED_TOPICS


def test_an_open_topic_and_an_open_group() -> None:
    rows = SNAPSHOT.topics["behind"].partitions
    known = replace(facts(), partitions=rows, replicas={1: REPLICAS})
    assert text(frame(known, Selection("topics", "behind"), 100, 12), 100).split("\n\n", 2)[2] == EXPECTED_PARTITIONS
    assert text(frame(known, Selection("groups", "readers"), 100, 12), 100).split("\n\n", 2)[2] == EXPECTED_OFFSETS
    assert text(frame(known, Selection("groups"), 100, 12), 100).split("\n\n", 2)[2] == EXPECTED_GROUPS


def test_below_an_open_topic_who_is_out_of_sync_and_who_reads_it() -> None:
    row = SNAPSHOT.topics["busy"].partitions
    known = replace(facts(), partitions=row, out_of_sync=["broker 2 is behind\x1b"])
    known.groups = {"late\x1b": {"offsets": [{**GROUP["offsets"][0], "lag": 5000}]}, "readers": GROUP}
    lines = text(frame(known, Selection("topics", "busy"), 100, 24), 100).splitlines()
    assert lines[-3:-1] == [
        "broker 2 is behind\\x1b",
        "read by late\\x1b, lag 5,000, 1.0 min; readers, lag 1,200, 1.0 min",
    ]
    assert "behind" not in text(frame(known, Selection("topics", "busy"), 100, 12), 100).splitlines()[-2]  # no room


def test_the_time_line_and_filters() -> None:
    events = [
        {
            "number": 8,
            "time_ms": 43_387_000,
            "text": "ISR shrinks: broker 2 leaves",
            "partitions": {"busy": [0, 1, 2, 7]},
        },
        {"number": 7, "time_ms": 43_386_000, "text": "broker 2 does not respond"},
        {"number": 6, "time_ms": 43_385_000, "text": "topic created", "topic": "a\x1b"},
    ]
    known = replace(facts(), events=events)
    assert text(frame(known, Selection("events"), 100, 14), 100).split("\n\n", 2)[2] == EXPECTED_EVENTS
    found = text(frame(known, Selection("events", filter="RESPOND", typing=True), 100, 14), 100).split("\n\n", 2)[2]
    assert found.splitlines()[1:] == [
        ">  12:03:06Z  broker 2 does not respond",
        "1 of 1  /RESPOND_  events  enter: keep the filter  esc: drop it",
    ]
    groups = text(frame(known, Selection("groups", filter="idle"), 100, 14), 100)  # by a topic that it reads
    assert ">  readers" in groups and "denied" not in groups
    none = text(frame(known, Selection("topics", filter="nowhere"), 100, 14), 100).splitlines()
    assert none[-1].startswith("none  /nowhere  topics")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (20, 8)])
def test_a_frame_fits_and_shows_the_selected_row(width: int, height: int) -> None:
    rows = {number: PartitionRow(0, 1, (0, 1), (0, 1)) for number in range(10_000)}
    brokers = {number: BrokerRow("host", 9092, None) for number in range(50)}
    snapshot = replace(SNAPSHOT, brokers=brokers, topics={"big": TopicSnapshot(False, rows)}, degraded=())
    known = Facts(overview=snapshot.overview(), partitions=rows, note="a note")
    for selected in (0, 7777, 9999):
        lines = text(frame(known, Selection("topics", "big", str(selected)), width, height), width).splitlines()
        assert len(lines) <= height and max(map(len, lines)) <= width
        assert any(line.split()[:2] == [">", str(selected)] for line in lines)
        assert f"{selected + 1:,} of 10,000"[:width] in lines[-1]
        assert lines[-2] == "a note"


def test_nothing_that_a_client_names_controls_the_terminal() -> None:
    hostile = "a\x1b[2Jb\rc[red]d"
    known = facts()
    known.groups = {hostile: {"error": hostile}, "g": {**GROUP, "state": hostile}}
    known.error, known.note = hostile, hostile
    for shown in (frame(known, Selection("groups"), 200, 24), whole(known, 200)):
        found = text(shown, 200)
        assert "\x1b" not in found and "\r" not in found and "a\\x1b[2Jb\\rc[red]d" in found


def test_without_colour_the_selected_row_has_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = text(frame(facts(), Selection(), 80, 24), force_terminal=True, color_system="standard")
    assert "\x1b[31m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = text(frame(facts(), Selection(), 80, 24), force_terminal=True, color_system="standard")
    assert "\x1b[31m" not in plain and ">" in plain


def test_what_is_old_is_called_old() -> None:
    known = replace(facts(), error="no broker responds at 127.0.0.1:9092 (connection refused)")
    assert "What is shown is old: no broker responds at" in text(frame(known, Selection(), 80, 24))
    assert "Nothing is known yet." in text(frame(Facts(), Selection(), 80, 24))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((b"\x1b[A", b"\x1bOB", b"jk\r\tq"), ["up", "down", "down", "up", "open", "list", "quit"]),
        ((b"\x1b", b"[", b"5~x"), ["page up"]),
        ((b"\x1b[1;5C\x1b[Aq",), ["up", "quit"]),
        ((b"\x1b\x1b[B",), ["back", "down"]),
        ((b"\xff\x00\x1b[200~q",), ["quit"]),
    ],
)
def test_keys_in_parts(parts: tuple[bytes, ...], expected: list[str]) -> None:
    keys = Keys()
    assert [key for part in parts for key in keys.feed(part)] == expected
    assert list(keys.flush()) == []


def test_keys_that_are_typed() -> None:
    keys = Keys()
    assert list(keys.feed(b"/")) == ["filter"]
    keys.typing = True
    assert list(keys.feed("q/k ü\x1b[A\x7f\t\x01\xc3\r".encode("latin-1"))) == ["q", "/", "k", " ", "erase", "open"]
    assert list(keys.feed("ü→".encode())) == ["ü", "→"]
    assert list(keys.feed(b"\x1b")) == [] and list(keys.flush()) == ["back"]


def test_an_escape_by_itself_is_a_key_once_nothing_follows() -> None:
    keys = Keys()
    assert list(keys.feed(b"\x1b")) == [] and keys.pending
    assert list(keys.flush()) == ["back"]
    assert list(keys.feed(b"\x1b[")) == [] and list(keys.flush()) == []
    assert list(keys.feed(b"q")) == ["quit"]
