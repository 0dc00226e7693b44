"""The `kreplog` command: what it prints, what it leaves with, and that looking at a log changes nothing."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

import kreplog
from kreplog.cli import app, main
from kreplog.commands import clusters
from tests.reference import sent

FIRST_MS = 1_700_000_000_000


def commands(command: Any, *names: str) -> Iterator[list[str]]:
    """What to type for it and for all below it, those included that `kreplog` imports when they are called."""
    yield list(names)
    for name, below in getattr(command, "commands", {}).items():
        mounted = clusters.APPS.get(name) if not names else None
        yield from commands(typer.main.get_command(mounted) if mounted else below, *names, name)


COMMANDS = list(commands(typer.main.get_command(app)))


class Outcome(NamedTuple):
    """How one run of the command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `kreplog log ...` in this process, with `stdin` as its standard input."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as left:
            main(["log", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Outcome(int(left.value.code or 0), out, err)

    return run


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """A partition of 100 records: values "value 0".., keys "UA" and "B6" in turn, a second of time each."""
    path = tmp_path / "flights-3"
    with kreplog.Log.open(path, kreplog.LogConfig(segment_bytes=4096, batch_bytes=512)) as log:
        log.append_many(
            [b"value %d" % number for number in range(100)],
            keys=[(b"UA", b"B6")[number % 2] for number in range(100)],
            timestamps_ms=[FIRST_MS + 1000 * number for number in range(100)],
        )
    return path


def values(path: Path) -> list[bytes | None]:
    with kreplog.Log.open(path, read_only=True) as log:
        return list(log.values())


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of last change of every file under `path`."""
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def flip_bit(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def log_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


class TestCommand:
    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as left:
            main(["--version"])
        assert not left.value.code
        assert capsys.readouterr().out == f"kreplog {kreplog.__version__}\n"

    def test_importing_kreplog_leaves_the_command_line_packages_alone(self) -> None:
        code = "import kreplog, sys; print({'typer', 'rich', 'click'} & set(sys.modules))"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout == "set()\n"

    def test_python_m_kreplog(self) -> None:
        found = subprocess.run(
            [sys.executable, "-m", "kreplog", "--version"], capture_output=True, text=True, check=True
        )
        assert found.stdout == f"kreplog {kreplog.__version__}\n"

    def test_options_show_types_that_say_something(self, run: Run) -> None:
        shown = run("append", "--help").out
        assert "--json-lines" in shown and "<FileBinaryRead>" not in shown

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_flags_take_no_value_in_help(self, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        shown = capsys.readouterr().out
        assert "--help" in shown and "bool" not in shown.lower()

    @pytest.mark.parametrize("command", ["info", "dump", "verify", "tail", "recover", "append"])
    @pytest.mark.parametrize("parent", ["data", "data-1"])
    def test_the_directory_above_partitions_names_them(
        self, run: Run, tmp_path: Path, command: str, parent: str
    ) -> None:
        for name in ("orders-0", "orders-1", "flights-10"):
            kreplog.Log.open(tmp_path / parent / name).close()
        (tmp_path / parent / "empty-0").mkdir()
        before = tree(tmp_path)
        outcome = run(command, tmp_path / parent)
        assert outcome.code == 2
        assert (
            "is not a partition directory, but contains flights-10, orders-0, orders-1: give one of them, as in"
            in outcome.err
        )
        assert tree(tmp_path) == before

    @pytest.mark.parametrize(
        "arguments", [["dump"], ["dump", "x-0", "--nonsense"], ["nonsense"], ["tail", "x-0", "-n-1"]]
    )
    def test_a_wrong_call_leaves_with_2(self, run: Run, arguments: Sequence[str]) -> None:
        assert run(*arguments).code == 2

    @pytest.mark.parametrize("name", ["flights-0", "nope"])
    @pytest.mark.parametrize("command", ["info", "dump", "verify", "recover", "tail"])
    def test_a_path_that_is_not_there_is_one_line_and_is_not_made(
        self, run: Run, tmp_path: Path, command: str, name: str
    ) -> None:
        outcome = run(command, tmp_path / name)
        assert outcome.code == 2
        assert outcome.out == ""
        assert outcome.err.count("\n") == 1
        assert f"{tmp_path / name} does not exist: " in outcome.err
        assert not any(tmp_path.iterdir())

    def test_a_path_that_is_no_partition_directory(self, run: Run, tmp_path: Path) -> None:
        outcome = run("append", tmp_path / "flights", stdin=b"x\n")
        assert outcome.code == 2
        assert "<topic>-<partition>" in outcome.err
        assert not any(tmp_path.iterdir())

    def test_a_log_open_elsewhere_names_its_holder(self, run: Run, flights: Path) -> None:
        with kreplog.Log.open(flights):
            outcome = run("append", flights, stdin=b"x\n")
        assert outcome.code == 1
        assert str(os.getpid()) in outcome.err

    @pytest.mark.parametrize("command", ["info", "dump", "dump --batches --log-end", "verify", "tail"])
    def test_looking_writes_nothing(self, run: Run, flights: Path, command: str) -> None:
        before = tree(flights.parent)
        name, *options = command.split()
        assert run(name, flights, *options).code == 0
        assert tree(flights.parent) == before

    def test_a_progress_bar_is_drawn_only_on_request_and_on_stderr(self, run: Run, flights: Path) -> None:
        quiet, drawn = run("verify", flights), run("verify", flights, "--progress")
        assert quiet.err == ""
        assert "verify" in drawn.err
        assert drawn.out == quiet.out


class TestInfo:
    def test_json(self, run: Run, flights: Path) -> None:
        facts = run("info", flights, "--json").json()
        assert (facts["topic"], facts["partition"]) == ("flights", 3)
        assert (facts["log_start_offset"], facts["high_watermark"], facts["log_end_offset"]) == (0, 100, 100)
        assert facts["recovery_point"] == 100
        assert (facts["first_timestamp_ms"], facts["max_timestamp_ms"]) == (FIRST_MS, FIRST_MS + 99_000)
        assert facts["bytes"] == sum(file.stat().st_size for file in log_files(flights))
        assert [segment["file"] for segment in facts["segments"]] == [str(file) for file in log_files(flights)]
        assert facts["segments"][0]["base_offset"] == 0
        assert facts["segments"][-1]["next_offset"] == 100

    def test_leader_epochs(self, run: Run, flights: Path) -> None:
        with kreplog.Log.open(flights) as log:
            before = log.leader_epoch
            log.assign_leader_epoch(before + 5)
            log.append(b"under the new leader")
        epochs = run("info", flights, "--json").json()["leader_epochs"]
        assert {"epoch": before + 5, "start_offset": 100} in epochs

    def test_text(self, run: Run, flights: Path) -> None:
        shown = run("info", flights).out
        assert "high watermark" in shown
        assert "2023-11-14T22:13:20.000Z" in shown
        assert "segments" in shown

    def test_an_empty_log(self, run: Run, tmp_path: Path) -> None:
        kreplog.Log.open(tmp_path / "flights-0").close()
        facts = run("info", tmp_path / "flights-0", "--json").json()
        assert (facts["log_end_offset"], facts["first_timestamp_ms"], facts["max_timestamp_ms"]) == (0, -1, -1)
        assert run("info", tmp_path / "flights-0").code == 0


class TestDump:
    def test_records_as_json_lines(self, run: Run, flights: Path) -> None:
        records = run("dump", flights, "--json").json_lines()
        assert [record["offset"] for record in records] == list(range(100))
        assert records[1] == {
            "offset": 1, "timestamp_ms": FIRST_MS + 1000, "key": "B6", "value": "value 1", "headers": [],
        }  # fmt: skip

    def test_range_and_limit(self, run: Run, flights: Path) -> None:
        def offsets(*options: str) -> list[int]:
            return [record["offset"] for record in run("dump", flights, "--json", *options).json_lines()]

        assert offsets("--from", "90") == list(range(90, 100))
        assert offsets("--to", "3") == [0, 1, 2]
        assert offsets("--from", "7", "--to", "1000", "--limit", "2") == [7, 8]
        assert offsets("--limit", "0") == []

    def test_an_offset_past_the_end_is_refused(self, run: Run, flights: Path) -> None:
        outcome = run("dump", flights, "--from", "101")
        assert outcome.code == 2
        assert "101" in outcome.err

    @pytest.mark.parametrize(
        ("encoding", "value"), [("text", "value 5"), ("hex", "76616c75652035"), ("base64", "dmFsdWUgNQ==")]
    )
    def test_encodings(self, run: Run, flights: Path, encoding: str, value: str) -> None:
        options = ("--from", "5", "--to", "6", "--encoding", encoding)
        assert run("dump", flights, *options, "--json").json()["value"] == value
        assert run("dump", flights, *options).out.split("  ")[3].strip() == value

    def test_text_neither_drives_the_terminal_nor_breaks_the_line(self, run: Run, tmp_path: Path) -> None:
        with kreplog.Log.open(tmp_path / "flights-0") as log:
            log.append(b"\x1b[2J\nred\xff", key=None, timestamp_ms=FIRST_MS, headers=[("h", None)])
        assert run("dump", tmp_path / "flights-0").out == (
            "0  2023-11-14T22:13:20.000Z  null  \\x1b[2J\\nred\\xff  h=null\n"
        )

    def test_batch_headers_cover_the_log(self, run: Run, flights: Path) -> None:
        batches = run("dump", flights, "--batches", "--json").json_lines()
        assert len(batches) > 3
        assert batches[0]["base_offset"] == 0
        assert [batch["base_offset"] for batch in batches[1:]] == [batch["last_offset"] + 1 for batch in batches[:-1]]
        assert sum(batch["records"] for batch in batches) == 100
        assert sum(batch["bytes"] for batch in batches) == sum(file.stat().st_size for file in log_files(flights))
        assert {batch["compression"] for batch in batches} == {"none"}
        assert len(run("dump", flights, "--batches").out.splitlines()) == len(batches)
        assert [b["base_offset"] for b in run("dump", flights, "--batches", "--json", "--limit", "1").json_lines()] == [
            0
        ]

    def test_uncommitted_records_are_shown_only_on_request(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "flights-0"
        with kreplog.Log.open(path, kreplog.LogConfig(replicated=True)) as log:
            for number in range(10):
                log.append(b"%d" % number)
            log.advance_high_watermark(4)
        assert [record["offset"] for record in run("dump", path, "--json").json_lines()] == [0, 1, 2, 3]
        everything = run("dump", path, "--json", "--log-end", "--from", "2").json_lines()
        assert [record["offset"] for record in everything] == list(range(2, 10))
        assert (
            sum(batch["records"] for batch in run("dump", path, "--json", "--log-end", "--batches").json_lines()) == 10
        )

    def test_damage_ends_the_dump_with_1(self, run: Run, flights: Path) -> None:
        flip_bit(log_files(flights)[0], 70)
        for options in ([], ["--batches"], ["--log-end"]):
            outcome = run("dump", flights, *options)
            assert outcome.code == 1
            assert outcome.err.count("\n") == 1
            assert str(flights) in outcome.err


class TestVerify:
    def test_sound(self, run: Run, flights: Path) -> None:
        outcome = run("verify", flights, "--json")
        report = outcome.json()
        assert outcome.code == 0
        assert report["ok"]
        assert (report["records"], report["damages"]) == (100, [])
        assert "sound" in run("verify", flights).out

    def test_damage_is_named_and_leaves_with_1(self, run: Run, flights: Path) -> None:
        file = log_files(flights)[0]
        flip_bit(file, 70)
        outcome = run("verify", flights, "--json")
        assert outcome.code == 1
        [damage] = outcome.json()["damages"]
        assert (damage["path"], damage["position"], damage["offset"]) == (str(file), 0, 0)
        text = run("verify", flights)
        assert text.code == 1
        assert f"{file}: position 0, offset 0: " in text.out

    def test_a_range_without_the_damage_is_sound(self, run: Run, flights: Path) -> None:
        flip_bit(log_files(flights)[0], 70)
        assert run("verify", flights, "--from", "60").code == 0


class TestCompact:
    def test_the_newest_record_of_each_key_stays(self, run: Run, flights: Path) -> None:
        assert "no segment is sealed" in run("compact", flights).out
        assert run("compact", flights, "--roll", "--json").json()["records_dropped"] == 98
        assert "0 records dropped" in run("compact", flights).out
        with kreplog.Log.open(flights, read_only=True) as log:
            assert [record.offset for record in log.read()] == [98, 99]

    def test_records_without_a_key_are_dropped_only_with_the_option(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "data" / "nokey-0"
        run("append", path, stdin=b"".join(b"%d\n" % number for number in range(20)))
        before = log_files(path)[0].read_bytes()
        outcome = run("compact", path, "--roll")
        assert outcome.code != 0 and "nokey-0: the record at offset 0 has no key" in outcome.err
        assert "--drop-keyless" in outcome.err and outcome.out == ""
        assert log_files(path)[0].read_bytes() == before
        with kreplog.Log.open(path, read_only=True) as log:
            assert len(list(log.read())) == 20
        assert run("compact", path, "--drop-keyless", "--json").json()["records_dropped"] == 20

    def test_a_missing_partition(self, run: Run, tmp_path: Path) -> None:
        outcome = run("compact", tmp_path / "flights-0")
        assert outcome.code != 0 and "nothing to compact" in outcome.err
        assert not (tmp_path / "flights-0").exists()


class TestRecover:
    def test_a_torn_tail_is_truncated_and_reported(self, run: Run, flights: Path) -> None:
        file = log_files(flights)[-1]
        size = file.stat().st_size
        with subprocess.Popen(
            [sys.executable, "-c", CRASH, str(flights), str(FIRST_MS)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            writer.kill()
        with kreplog.Log.open(flights, read_only=True) as log:
            intact = log.segments[-1].size
        with file.open("r+b") as torn:
            torn.seek(intact)
            torn.write(b"\x01" * 40)
        outcome = run("recover", flights, "--json")
        facts = outcome.json()
        assert outcome.code == 0
        assert size < intact
        assert (facts["log_end_offset"], facts["high_watermark"], facts["bytes_cut"]) == (101, 101, 40)
        assert [(cut["path"], cut["position"], cut["offset"], cut["bytes"]) for cut in facts["cuts"]] == [
            (str(file), intact, 101, 40)
        ]
        assert file.stat().st_size == intact
        assert any("40 bytes dropped" in warning for warning in facts["warnings"])
        assert values(flights)[-1] == b"the last one"
        assert "0 bytes truncated" in run("recover", flights).out

    def test_a_replica_keeps_its_high_watermark(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "flights-0"
        with kreplog.Log.open(path, kreplog.LogConfig(replicated=True)) as log:
            log.append_many([b"a", b"b", b"c"])
            log.advance_high_watermark(3)
            log.append_many([b"d", b"e"])
        facts = run("recover", path, "--replicated", "--json").json()
        assert (facts["high_watermark"], facts["log_end_offset"]) == (3, 5)


CRASH = """
import sys, kreplog
log = kreplog.Log.open(sys.argv[1])
log.append(b"the last one", timestamp_ms=int(sys.argv[2]))
print("appended", flush=True)
sys.stdin.read()
"""


class TestAppend:
    def test_lines_of_stdin(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "flights-0"
        facts = run("append", path, "--json", stdin=b"one\n\nthree \xff\nno newline").json()
        assert (facts["first_offset"], facts["next_offset"], facts["records"]) == (0, 4, 4)
        assert values(path) == [b"one", b"", b"three \xff", b"no newline"]
        assert "1 record appended, offset 4, 5 bytes read" in run("append", path, stdin=b"five\n").out
        assert "2 records appended, offsets 5 to 6, 4 bytes read" in run("append", path, stdin=b"6\n7\n").out
        assert "0 records appended, no offsets, 0 bytes read" in run("append", path).out

    def test_lines_of_a_file_with_keys_compressed(self, run: Run, tmp_path: Path) -> None:
        path, lines = tmp_path / "flights-0", tmp_path / "lines"
        lines.write_bytes(b"UA:a:b\n:c\n")
        assert run("append", path, "--file", lines, "--key-separator", ":", "--compression", "lz4").code == 0
        records = run("dump", path, "--json").json_lines()
        assert [(record["key"], record["value"]) for record in records] == [("UA", "a:b"), ("", "c")]
        assert run("dump", path, "--batches", "--json").json_lines()[0]["compression"] == "lz4"

    def test_a_dump_goes_back_in_unchanged(self, run: Run, tmp_path: Path) -> None:
        first, second = tmp_path / "flights-0", tmp_path / "copies-0"
        with kreplog.Log.open(first) as log:
            log.append(b'{"a": 1}', key=b"k", timestamp_ms=FIRST_MS)
            log.append(
                b"\xff\x00", key=None, timestamp_ms=FIRST_MS + 1, headers=[("h", b"\xfe"), ("h", None), ("i", b"x")]
            )
            log.append(None, key="clé".encode(), timestamp_ms=FIRST_MS + 2)
        dumped = run("dump", first, "--json").out
        assert run("append", second, "--json-lines", stdin=dumped.encode()).code == 0
        assert run("dump", second, "--json").out == dumped
        with kreplog.Log.open(first, read_only=True) as original, kreplog.Log.open(second, read_only=True) as copied:
            assert list(original.read()) == list(copied.read())

    @pytest.mark.parametrize(
        ("options", "bad", "reason"),
        [
            (["--key-separator", "="], b"no separator", "separator"),
            (["--json-lines"], b"not json", "JSON"),
            (["--json-lines"], b"[1]", '"value"'),
            (["--json-lines"], b'{"key": "x"}', '"value"'),
            (["--json-lines"], b'{"value": 1}', "must be a string"),
            (["--json-lines"], b'{"value": "x", "time": 1}', "unknown fields: time"),
            (["--json-lines"], b'{"value": {"base64": "?"}}', "not base64"),
            (["--json-lines"], b'{"value": "x", "headers": {"a": "b"}}', '"headers"'),
            (["--json-lines"], b'{"value": "x", "timestamp_ms": "now"}', "timestamp"),
        ],
    )
    def test_a_bad_line_is_named_and_those_before_it_are_kept(
        self, run: Run, tmp_path: Path, options: list[str], bad: bytes, reason: str
    ) -> None:
        path = tmp_path / "flights-0"
        good = b'{"value": "k=v"}\n' if "--json-lines" in options else b"k=v\n"
        outcome = run("append", path, *options, stdin=good + good + bad + b"\n" + good)
        assert outcome.code == 2
        assert "line 3" in outcome.err
        assert reason in outcome.err
        assert outcome.err.count("\n") == 1
        assert len(values(path)) == 2

    @pytest.mark.parametrize(
        ("options", "bad"),
        [
            (["--key-separator", "="], b"no separator"),
            (["--json-lines"], b"not json"),
            (["--json-lines"], b'{"value": "x", "timestamp_ms": "now"}'),
            (["--json-lines"], b'{"value": "x", "timestamp_ms": 99999999999999999999}'),
            (["--json-lines"], b'{"value": "x", "headers": [[1, "b"]]}'),
            (["--compression", "rar"], b"fine"),
            (["--compression", "snappy"], b"fine"),
        ],
    )
    def test_a_bad_codec_or_first_line_makes_no_directory(
        self, run: Run, tmp_path: Path, options: list[str], bad: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "cramjam", None)
        outcome = run("append", tmp_path / "flights-0", *options, stdin=bad + b"\n")
        assert outcome.code in (1, 2) and outcome.err
        assert not any(tmp_path.iterdir())

    def test_a_record_too_large_is_a_bad_line(self, run: Run, tmp_path: Path) -> None:
        outcome = run("append", tmp_path / "flights-0", stdin=b"small\n" + b"x" * 2_000_000 + b"\n")
        assert outcome.code == 2
        assert "line 2" in outcome.err
        assert values(tmp_path / "flights-0") == [b"small"]

    def test_options_that_exclude_each_other(self, run: Run, tmp_path: Path) -> None:
        assert run("append", tmp_path / "flights-0", "--json-lines", "-k", ":", stdin=b"x\n").code == 2
        assert run("append", tmp_path / "flights-0", "-k", "", stdin=b"x\n").code == 2
        assert not any(tmp_path.iterdir())

    def test_records_appended_before_an_interruption_are_reported(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "kreplog", "log", "append", str(tmp_path / "flights-0"), "--json"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
            assert writer.stdin is not None
            line = b"x" * 8192 + b"\n"  # so that those before the last are not held back by a buffer
            writer.stdin.write(line * 1000)  # more than a pipe holds: it has begun when this is taken
            writer.stdin.flush()
            writer.send_signal(signal.SIGINT)
            out, errors = writer.communicate(timeout=30)
        assert (writer.returncode, errors) == (130, b"")
        result = json.loads(out)
        with kreplog.Log.open(tmp_path / "flights-0", read_only=True) as log:
            assert 0 < result["records"] == result["next_offset"] == log.log_end_offset <= 1000


class TestTail:
    @pytest.mark.parametrize(("count", "expected"), [(0, []), (3, [97, 98, 99]), (1000, list(range(100)))])
    def test_last_records(self, run: Run, flights: Path, count: int, expected: list[int]) -> None:
        records = run("tail", flights, "--json", "--lines", str(count)).json_lines()
        assert [record["offset"] for record in records] == expected

    def test_follow_shows_new_records_until_it_is_interrupted(self, flights: Path) -> None:
        command = [sys.executable, "-m", "kreplog", "log", "tail", str(flights), "--follow", "--json", "-n", "1"]
        with (
            kreplog.Log.open(flights, kreplog.LogConfig(segment_bytes=512)) as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower,
        ):
            assert follower.stdout is not None
            assert json.loads(follower.stdout.readline())["offset"] == 99
            for number in range(100, 130):
                log.append(base64.b64encode(os.urandom(60)))
                assert json.loads(follower.stdout.readline())["offset"] == number
            follower.send_signal(signal.SIGINT)
            rest, errors = follower.communicate(timeout=30)
        assert (follower.returncode, rest, errors) == (0, "", "")

    def test_read_committed(self, run: Run, flights: Path) -> None:
        options = ["--json", "-n", "2", "--isolation", "read_committed"]
        command = [sys.executable, "-m", "kreplog", "log", "tail", str(flights), "--follow", *options]

        def send(sequence: int, committed: bool) -> None:
            log.append_batches(sent(7, sequence, b"%d" % sequence), transactional=True)
            assert [record["offset"] for record in run("tail", flights, *options).json_lines()] == shown
            log.append_transaction_marker(7, 0, committed=committed, coordinator_epoch=0)

        shown = [98, 99]
        with (
            kreplog.Log.open(flights) as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower,
        ):
            assert follower.stdout is not None
            try:
                assert [json.loads(follower.stdout.readline())["offset"] for _ in range(2)] == shown
                send(0, committed=False)
                send(1, committed=True)
                assert json.loads(follower.stdout.readline())["value"] == "1"
                shown = [99, 102]
                send(2, committed=True)
                assert json.loads(follower.stdout.readline())["value"] == "2"
                follower.send_signal(signal.SIGINT)
                rest, errors = follower.communicate(timeout=30)
            finally:
                follower.kill()  # where an assertion has failed, for it goes on
        assert (follower.returncode, rest, errors) == (0, "", "")
        assert run("tail", flights, "--isolation-level", "odd").code == 2

    def test_follow_goes_on_after_a_truncation_and_with_the_next_writer(self, flights: Path) -> None:
        command = [sys.executable, "-m", "kreplog", "log", "tail", str(flights), "--follow", "--json", "-n", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None and follower.stderr is not None

            def next_record() -> tuple[int, str]:
                record = json.loads(follower.stdout.readline())  # type: ignore[union-attr]
                return record["offset"], record["value"]

            assert next_record()[0] == 99
            with kreplog.Log.open(flights) as log:
                log.append(b"a")
                assert next_record() == (100, "a")
                end = log.truncate_to(50)
                assert f"truncated to offset {end}, below 101" in follower.stderr.readline()
                log.append(b"b")
                assert next_record() == (end, "b")
            with kreplog.Log.open(flights) as log:
                log.append(b"c")
                assert next_record() == (end + 1, "c")
            follower.send_signal(signal.SIGINT)
            rest, errors = follower.communicate(timeout=30)
        assert (follower.returncode, rest, errors) == (0, "", "")
