"""The smoke test of an installed kreplog: a script that needs neither pytest nor the checkout.

    python smoke.py             the embedded log, topics, the command, two other processes
    python smoke.py cluster     brokers and every codec too, which the extra `cluster` installs

Exits with status 1, and the reason, where anything fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import kreplog

NOT_BY_IMPORT = {"cramjam", "pandas", "pyarrow", "pyspark", "rich", "typer", "zstandard"}
CODECS = ("none", "gzip", "lz4", "snappy", "zstd")
OPTIONAL_CODECS = {"snappy", "zstd"}
COMMAND = Path(sysconfig.get_path("scripts"), "kreplog")
TIMEOUT_S = 300


def main(extras: set[str]) -> None:
    if imported := NOT_BY_IMPORT & set(sys.modules):
        fail(f"`import kreplog` imported {', '.join(sorted(imported))}")
    installed = Path(kreplog.__file__).parent
    if list(installed.glob("_native/*.pyx")):
        fail(f"{installed} is a checkout, not an installed wheel")
    checks: list[Callable[[Path], None]] = [one_log, followed, killed, topic]
    checks += [all_codecs, cluster] if "cluster" in extras else [missing_codecs]
    with tempfile.TemporaryDirectory() as folder:
        for check in checks:
            own = Path(folder, check.__name__)
            own.mkdir()
            check(own)
    print(command("--version").strip(), f"in {installed}: {', '.join(check.__name__ for check in checks)}")


def fail(reason: str) -> NoReturn:
    raise SystemExit(reason)


def expect(actual: object, expected: object, subject: str) -> None:
    if actual != expected:
        fail(f"{subject}: {actual!r}, not {expected!r}")


def command(*words: str | Path, lines: str = "") -> str:
    """Standard output of the `kreplog` that is installed beside this interpreter."""
    done = subprocess.run([COMMAND, *words], input=lines, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        fail(f"kreplog {' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def child(role: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, role, path], stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# One process


def one_log(folder: Path) -> None:
    path = folder / "events-0"
    with kreplog.Log.open(path) as log:
        first = log.append(b"one", key=b"k", timestamp_ms=1_000, headers=[("h", b"v")])
        more = log.append_many([b"two", b"three"])
        with log.appender(compression="lz4") as appender:
            for _ in range(1_000):
                appender.append(b"four")
        log.flush()
    expect((first, more), (0, range(1, 3)), "offsets")
    with kreplog.Log.open(path, read_only=True) as log:
        records = list(log.read())
        expect(log.verify().damages, (), "damages")
    expect([record.value for record in records], [b"one", b"two", b"three", *[b"four"] * 1_000], "values")
    expect((records[0].key, records[0].timestamp_ms, records[0].headers), (b"k", 1_000, (("h", b"v"),)), "record 0")
    expect(json.loads(command("log", "info", path, "--json"))["log_end_offset"], 1_003, "log end offset")


def topic(folder: Path) -> None:
    path = folder / "orders"
    with kreplog.Topic.open(path, partitions=4) as orders:
        placed = orders.append(b"1", key=b"alice")
        expect(orders.append(b"2", key=b"alice"), (placed.partition, 1), "place of the key's second record")
    with kreplog.Topic.open(path, read_only=True) as orders:
        expect([record.value for record in orders.read()], [b"1", b"2"], "records of the topic")


def all_codecs(folder: Path) -> None:
    values = [b"%d" % number for number in range(1_000)]
    for codec in CODECS:
        with kreplog.Log.open(folder / f"{codec}-0") as log:
            with log.appender(compression=codec) as appender:
                for value in values:
                    appender.append(value)
            expect([record.value for record in log.read()], values, f"values by {codec}")


def missing_codecs(folder: Path) -> None:
    """Without its package a codec is refused by name, with the extra to install."""
    for codec in OPTIONAL_CODECS:
        with kreplog.Log.open(folder / f"{codec}-0") as log:
            try:
                log.appender(compression=codec)
            except kreplog.errors.UnsupportedCompressionError as error:
                expect(f"kreplog[{codec}]" in str(error), True, f"the extra of {codec} is in: {error}")
            else:
                fail(f"{codec} was taken without its package")


# Two processes


def followed(folder: Path) -> None:
    """A reader in another process has each record before the next is appended."""
    path = folder / "events-0"
    with kreplog.Log.open(path) as log:
        log.append(b"0")
        reader = child("follow", path)
        for number in range(100):
            expect(line_of(reader), f"{number} {number}", "followed record")
            log.append(b"%d" % (number + 1))
        expect(line_of(reader), "100 100", "last followed record")
    expect((line_of(reader), reader.wait(TIMEOUT_S)), ("", 0), "end of the reader, whose writer has closed the log")


def follow(path: Path) -> None:
    with kreplog.Log.open(path, read_only=True) as log:
        for record in log.follow():
            print(record.offset, (record.value or b"").decode(), flush=True)


def killed(folder: Path) -> None:
    """A writer that is killed among appends has lost no record that it acknowledged."""
    path = folder / "events-0"
    acknowledged = 0
    for _ in range(3):
        writer = child("append", path)
        for _ in range(100):
            acknowledged = int(line_of(writer))
        os.kill(writer.pid, signal.SIGKILL)
        expect(writer.wait(TIMEOUT_S), -signal.SIGKILL, "status of the killed writer")
        assert writer.stdout is not None
        # Not by communicate, which with a timeout reads past what line_of has buffered, from the middle of a line.
        rest = writer.stdout.read().splitlines(keepends=True)
        acknowledged = max([acknowledged, *(int(line) for line in rest if line.endswith("\n"))])
        with kreplog.Log.open(path) as log:
            expect(log.log_end_offset > acknowledged, True, f"offset {acknowledged} is there after the kill")
            values = [record.value for record in log.read()]
            expect(values, [b"%d" % offset for offset in range(log.log_end_offset)], "values after the kill")
            expect(log.verify().damages, (), "damages after the kill")


def append(path: Path) -> None:
    with kreplog.Log.open(path) as log:
        while True:
            print(log.append(b"%d" % log.log_end_offset), flush=True)


# Brokers


def cluster(folder: Path) -> None:
    path = folder / "brokers"
    command("cluster", "create", "--brokers", "0,1,2", "--port", "0", path)
    command("cluster", "start", path)
    try:
        command("topic", "create", "events", "--replication-factor", "3", "--cluster", path)
        for codec in CODECS:
            command("produce", "events", "--compression", codec, "--cluster", path, lines=f"{codec}\n")
        reading = ("--from-beginning", "--max-messages", str(len(CODECS)), "--timeout", str(TIMEOUT_S))
        expect(command("consume", "events", *reading, "--cluster", path).split(), list(CODECS), "consumed")
    finally:
        command("cluster", "stop", path)


if __name__ == "__main__":
    roles = {"follow": follow, "append": append}
    if sys.argv[1:2] and sys.argv[1] in roles:
        roles[sys.argv[1]](Path(sys.argv[2]))
    else:
        main(set(sys.argv[1:]))
