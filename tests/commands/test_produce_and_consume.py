"""produce and consume: every byte of a line, the summary of acknowledgements, and how they end."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands import produce
from kreplog.commands.interruption import Interruption
from kreplog.commands.produce import Sending
from tests.commands.conftest import Kreplog
from tests.integration.clusters import WITHIN_S, eventually

confluent_kafka: Any = pytest.importorskip("confluent_kafka")

ODD = [b"", b"plain", b"\xff\x00\xfe", b"a\tb", "\N{SNOWMAN}".encode(), b"x" * 100_000, b"cr\r"]


def command(trio: LocalCluster, *words: str) -> list[str]:
    return [sys.executable, "-m", "kreplog", *words, "--cluster", str(trio.directory)]


def test_every_byte_of_a_line_is_kept(on_trio: Kreplog, tmp_path: Path) -> None:
    on_trio("topic", "create", "odd", "-r", 3)
    (tmp_path / "lines").write_bytes(b"\n".join(ODD))
    outcome = on_trio("produce", "odd", tmp_path / "lines", "--compression", "lz4")
    assert (outcome.code, outcome.out, outcome.err) == (0, b"", f"odd: {len(ODD)} records acknowledged\n")
    outcome = on_trio("consume", "odd", "--from-beginning", "-n", len(ODD))
    assert (outcome.code, outcome.out, outcome.err) == (0, b"\n".join(ODD) + b"\n", f"odd: {len(ODD)} records\n")
    rows = [json.loads(line) for line in on_trio("consume", "odd", "-o", 2, "-n", 3, "--json").out.splitlines()]
    assert [(row["offset"], row["partition"], row["key"]) for row in rows] == [(2, 0, None), (3, 0, None), (4, 0, None)]
    assert [row["value"] for row in rows] == [
        {"base64": base64.b64encode(ODD[2]).decode()},
        "a\tb",
        "\N{SNOWMAN}",
    ]


def test_keys_partitions_and_the_summary(on_trio: Kreplog) -> None:
    on_trio("topic", "create", "keyed", "-p", 2)
    lines = b"k1::v1\nk2::v::2\n::no key\n"
    outcome = on_trio("produce", "keyed", "-k", "::", "--partition", 1, "--acks", "1", "--json", stdin=lines)
    assert outcome.code == 0
    assert json.loads(outcome.out) == {
        "topic": "keyed",
        "acknowledged": 3,
        "unknown": 0,
        "failed": [],
        "partitions": {"1": {"first_offset": 0, "last_offset": 2}},
        "error": None,
    }
    outcome = on_trio("consume", "keyed", "--from-beginning", "--print-key", "--print-offset", "-k", "=", "-n", 3)
    assert outcome.out == b"1:0\tk1=v1\n1:1\tk2=v::2\n1:2\t=no key\n"
    outcome = on_trio("produce", "keyed", "-k", "::", "-p", 0, stdin=b"a::b\nnone\nc::d\n")
    assert outcome.code == 2
    assert outcome.err == (
        "keyed: 1 record acknowledged\n"
        "kreplog: line 2: no key separator '::' in it; no line from there on was produced\n"
    )
    assert on_trio("produce", "keyed", "--acks", "0", stdin=b"x").err == "keyed: 1 record sent\n"


def test_start_offsets_of_consume(on_trio: Kreplog) -> None:
    on_trio("topic", "create", "where")
    on_trio("produce", "where", stdin=b"0\n1\n")
    rows = on_trio("consume", "where", "--from-beginning", "-n", 2, "--json").out.splitlines()
    last_ms = json.loads(rows[1])["timestamp_ms"]
    later = last_ms + 1
    eventually(lambda: on_trio("consume", "where", "-t", later, "--timeout", 0).out == b"", "offsets by time")
    on_trio("produce", "where", stdin=b"2\n3\n")
    assert on_trio("consume", "where", "--offset", 1, "-n", 2).out == b"1\n2\n"
    assert on_trio("consume", "where", "-t", later, "-n", 2).out == b"2\n3\n"
    assert on_trio("consume", "where", "-t", "1970-01-01T00:00:01Z", "-n", 1).out == b"0\n"
    assert on_trio("consume", "where", "-t", "2100-01-01", "--timeout", 0).out == b""
    assert on_trio("consume", "where", "--timeout", 0).out == b""
    assert on_trio("consume", "where", "-o", 4, "--timeout", 0).out == b""


def test_consume_leaves_out_what_transactions_have_aborted(on_trio: Kreplog, trio: LocalCluster) -> None:
    on_trio("topic", "create", "decided")
    producer = confluent_kafka.Producer({"bootstrap.servers": trio.bootstrap(), "transactional.id": "decided"})
    producer.init_transactions(WITHIN_S)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("decided", value)
        producer.flush(WITHIN_S)
        end(WITHIN_S)
    everything = on_trio("consume", "decided", "--from-beginning", "-n", 2)
    assert everything.out == b"aborted\ncommitted\n"
    committed = on_trio("consume", "decided", "--from-beginning", "-n", 1, "--isolation-level", "read_committed")
    assert committed.out == b"committed\n"
    assert on_trio("consume", "decided", "--isolation-level", "odd").code == 2


def test_what_is_refused(on_trio: Kreplog) -> None:
    on_trio("topic", "create", "strict", "-p", 2)
    for words, expected in (
        (["produce", "nope"], "topic nope: there is no such topic"),
        (["consume", "nope"], "topic nope: there is no such topic"),
        (["produce", "a/b"], "'a/b' is no legal topic name"),
        (["produce", "strict", "-p", 2], "there is no partition strict-2: the topic has 2"),
        (["consume", "strict", "-p", 0, "-p", 7], "there is no partition strict-7: the topic has 2"),
        (["produce", "strict", "-k", ""], "--key-separator must not be empty"),
        (["produce", "strict", "/no/such/file"], "No such file"),
        (
            ["consume", "strict", "-o", 1],
            "--offset applies to one partition, not to 2 partitions: add --partition",
        ),
        (
            ["consume", "strict", "-o", 1, "-p", 0],
            "strict-0 is empty, its next record gets offset 0: there is no offset 1",
        ),
        (["consume", "strict", "-t", "noon"], "--timestamp 'noon': give a time as in"),
        (["consume", "strict", "-t", "1", "--from-beginning"], "exclude each other: give one of them"),
    ):
        answer = on_trio(*words)
        assert answer.code != 0
        assert expected in answer.err


def test_a_refused_record_is_reported_by_line_and_the_others_are_produced(on_trio: Kreplog) -> None:
    on_trio("topic", "create", "large")
    outcome = on_trio("produce", "large", stdin=b"1\n" + b"x" * (2 << 20) + b"\n3\n")
    assert outcome.code == 1
    first, last = outcome.err.splitlines()
    assert first.startswith("line 2: ") and "larg" in first
    assert last == "large: 2 records acknowledged, 1 failed"
    assert on_trio("consume", "large", "--from-beginning", "-n", 2).out == b"1\n3\n"


def test_unacknowledged_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that no broker acknowledges are not read further and further; one that is larger than all goes alone."""
    monkeypatch.setattr(produce, "MAX_UNACKNOWLEDGED_BYTES", 10)
    held: list[int] = []
    acknowledge: list[Callable[[int], None]] = []

    def send(key: bytes | None, value: bytes) -> Any:
        def add_callback(call: Callable[..., None], size: int) -> None:
            acknowledge.append(lambda offset: call(size, SimpleNamespace(partition=0, offset=offset)))

        held.append(sending.unacknowledged_bytes)
        return SimpleNamespace(add_callback=add_callback, add_errback=lambda call, *given: None)

    sending = Sending(send)
    with Interruption() as interruption:

        def write() -> None:
            for number, size in enumerate((20, 10, 1), 1):
                sending.send(number, None, b"x" * size, interruption)

        writer = threading.Thread(target=write)
        writer.start()
        for offset in range(3):
            eventually(lambda sent=offset: len(acknowledge) > sent, "it is not sent when there is room")  # type: ignore[misc]
            acknowledge[offset](offset)
        writer.join()
    assert held == [20, 10, 1]
    assert (sending.acknowledged, sending.offsets) == (3, {0: (0, 2)})


def test_consume_follows_and_ends_with_ctrl_c(trio: LocalCluster, on_trio: Kreplog) -> None:
    on_trio("topic", "create", "followed")
    on_trio("produce", "followed", stdin=b"old\n")
    consuming = subprocess.Popen(
        command(trio, "consume", "followed", "--from-beginning"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert consuming.stdout is not None
    assert consuming.stdout.readline() == b"old\n"
    on_trio("produce", "followed", stdin=b"new\n")
    assert consuming.stdout.readline() == b"new\n"
    consuming.send_signal(signal.SIGINT)
    out, err = consuming.communicate(timeout=WITHIN_S)
    assert (consuming.returncode, out, err) == (0, b"", b"followed: 2 records\n")


def test_consume_ends_with_its_reader(trio: LocalCluster, on_trio: Kreplog) -> None:
    on_trio("topic", "create", "piped")
    on_trio("produce", "piped", stdin=(b"x" * 999 + b"\n") * 300)
    consuming = subprocess.Popen(
        command(trio, "consume", "piped", "--from-beginning"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert consuming.stdout is not None and consuming.stderr is not None
    assert consuming.stdout.readline() == b"x" * 999 + b"\n"
    consuming.stdout.close()
    assert consuming.wait(WITHIN_S) == 0
    err = consuming.stderr.read()
    assert b"roken" not in err and err.startswith(b"piped: ")


def test_an_interrupted_produce_finishes_the_lines_it_has_read(trio: LocalCluster, on_trio: Kreplog) -> None:
    on_trio("topic", "create", "interrupted")
    producing = subprocess.Popen(command(trio, "produce", "interrupted"), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert producing.stdin is not None and producing.stderr is not None
    producing.stdin.write(b"1\n2\n")
    producing.stdin.flush()
    assert on_trio("consume", "interrupted", "--from-beginning", "-n", 2).out == b"1\n2\n"
    producing.send_signal(signal.SIGINT)
    assert producing.wait(WITHIN_S) == 130
    assert producing.stderr.read() == b"interrupted: 2 records acknowledged\n"
    producing.stdin.close()
