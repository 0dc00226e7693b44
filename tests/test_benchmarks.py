"""The benchmarks cannot rot: every row runs tiny, the ceiling agrees with kreplog, and a wrong record is noticed."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

import kreplog
from benchmarks import bench_compaction, bench_fetcher, bench_follow, bench_queue, bench_tables, ceiling, harness, run
from benchmarks.data import Pool
from benchmarks.follow_peers import CHANNELS, Pipe, Send
from benchmarks.harness import BEST_PEER, CEILING, QUICK, WORKLOADS, Bench, Contestant, Goal, Role, Verdict, Workload
from benchmarks.peers import PEERS
from benchmarks.stores import Ceiling, Kreplog, StampedCeiling, Store
from kreplog import Log
from kreplog._native import batch, crc32c

ROOT = Path(__file__).parent.parent


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(QUICK, 1, tmp_path)


def python(*arguments: str) -> str:
    """Run this Python on the checkout; its output, which pytest shows when it fails."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_row_runs_and_reads_back_what_it_wrote(tmp_path: Path) -> None:
    python("-m", "benchmarks.run", "--quick", "--directory", str(tmp_path), "--out", str(tmp_path / "out"))
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["row"] for row in saved["rows"]] == [workload.row for workload in WORKLOADS]
    for row in saved["rows"]:
        assert row["failure"] == ""
        assert all(value > 0 for values in row["samples"].values() for value in values), row["row"]
    table = (tmp_path / "out" / "results.md").read_text()
    assert all(f"| {workload.row} |" in table for workload in WORKLOADS)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "scratch folders are removed"


def test_micro_benchmarks_run() -> None:
    python("-m", "pytest", "-q", "--benchmark-disable", "benchmarks/micro")


def test_ceiling_crc_matches(tmp_path: Path) -> None:
    source = random.Random(1)
    for _ in range(300):
        data = memoryview(source.randbytes(source.randrange(3000)))[source.randrange(64) :]
        assert ceiling.crc32c(data) == crc32c.crc32c_with("crcmod", data)


def test_ceiling_writes_kafka_batches(tmp_path: Path, bench: Bench) -> None:
    with Ceiling(tmp_path) as store:
        for chunk in bench.small.chunks(2500):
            store.append_many(chunk)
        store.append_visible(bench.small.slice(2500, 2))
        store.append(bench.small.slice(2502, 1))
        store.finish()
    records = batch.decode((tmp_path / "ceiling.log").read_bytes())
    assert [record.offset for record in records] == list(range(2503))
    bench.small.expect([record.value for record in records], 2503, "ceiling")
    with Ceiling(tmp_path) as store:
        assert store.scan() == 2503
        assert store.seek(2400, 1000) == bench.small.slice(2400, 103)


def test_a_stamped_ceiling_reads_the_clock_once_a_batch(tmp_path: Path, bench: Bench) -> None:
    with StampedCeiling(tmp_path) as store:
        for chunk in bench.small.chunks(2500):
            store.append(chunk)
            time.sleep(0.002)  # the clock passes a millisecond within a batch
        store.finish()
    with (tmp_path / "ceiling.log").open("rb") as file:
        content = file.read()
    stamps, at = [], 0
    while at < len(content):
        size = 12 + int.from_bytes(content[at + 8 : at + 12], "big")
        (stamp,) = {record.timestamp_ms for record in batch.decode(content[at : at + size])}
        stamps.append(stamp)
        at += size
    assert len(stamps) > len(set(stamps)) >= 3
    assert stamps == sorted(stamps)


def test_ceiling_reads_kreplogs_files(tmp_path: Path) -> None:
    path = tmp_path / "bench-0"
    with kreplog.Log.open(path) as log:
        log.append(b"value", key=b"key", headers=[("a", b"1"), ("b", None)])
        log.append(None, key=b"tombstone")
        log.append_many([b"x" * size for size in range(500)])
    reader = ceiling.Reader(next(path.glob("*.log")))
    assert list(reader.values()) == [b"value", None, *(b"x" * size for size in range(500))]
    assert reader.scan()[0] == 502
    assert reader.seek(1, 2) == [None, b""]


def test_ceiling_fills_columns(tmp_path: Path, bench: Bench) -> None:
    with Ceiling(tmp_path) as store:
        for chunk in bench.small.chunks(100_000):
            store.append_many(chunk)
    found: list[tuple[int, bytes]] = []

    def take(offsets: bytes, timestamps: bytes, ends: bytes, values: bytes) -> None:
        numbers, times, places = (
            memoryview(offsets).cast("q"),
            memoryview(timestamps).cast("q"),
            memoryview(ends).cast("i"),
        )
        assert len(numbers) == len(times) == len(places) - 1
        assert all(abs(at / 1000 - time.time()) < 3600 for at in times)
        found.extend((number, values[places[i] : places[i + 1]]) for i, number in enumerate(numbers))

    reader = ceiling.Reader(tmp_path / "ceiling.log")
    assert reader.columns(take) == reader.columns() == 100_000
    assert [offset for offset, _ in found] == list(range(100_000))
    bench.small.expect((value for _, value in found), 100_000, "ceiling")


def test_ceiling_refuses_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "flipped"
    data = bytearray(batch.build([b"value"] * 10))
    data[70] ^= 1
    path.write_bytes(data)
    for read in (ceiling.Reader(path).check, ceiling.Reader(path).scan, lambda: list(ceiling.Reader(path).values())):
        with pytest.raises(ValueError, match="CRC"):
            read()


@pytest.mark.parametrize("kind", [Kreplog, *PEERS], ids=lambda kind: kind.name)
def test_every_store_gives_back_what_it_took(kind: type[Store], tmp_path: Path, bench: Bench) -> None:
    if kind.requires:
        pytest.importorskip(kind.requires)
    verbs = [verb for verb in ("append", "append_many", "append_visible", "commit") if verb in _verbs(kind)]
    with kind(tmp_path, durable=True) as store:
        for number, verb in enumerate(verbs):
            getattr(store, verb)(bench.small.slice(number * 100, 100))
            store.finish()
    with kind(tmp_path) as store:
        bench.small.expect(store.values(), 100 * len(verbs), kind.name)
        assert store.seek(150, 40) == bench.small.slice(150, 40)
        if "scan" in _verbs(kind):
            assert store.scan() == 100 * len(verbs)
    assert store.disk_bytes() > 100 * 100 * len(verbs) / 3


def _verbs(kind: type[Store]) -> set[str]:
    return {name for ancestor in kind.__mro__ if ancestor not in (Store, object) for name in vars(ancestor)}


@pytest.mark.parametrize("wrong", ["missing", "extra", "changed", "swapped", "null"])
def test_a_wrong_record_is_noticed(wrong: str) -> None:
    pool = Pool(100, 1000, seed=1)
    values: list[bytes | None] = [*pool.first(1500)]
    assert pool.expect(values, 1500, "reader")
    if wrong == "missing":
        del values[700]
    elif wrong == "extra":
        values.append(b"")
    elif wrong == "changed":
        values[700] = b"x" * 100
    elif wrong == "swapped":
        values[700], values[701] = values[701], values[700]
    else:
        values[700] = None
    with pytest.raises(AssertionError, match="reader"):
        pool.expect(values, 1500, "reader")


def test_records_are_alike_for_one_seed_and_of_one_size() -> None:
    assert Pool(100, 1000, 7).slice(0, 1000) == Pool(100, 1000, 7).slice(0, 1000)
    assert Pool(100, 1000, 7).slice(0, 1000) != Pool(100, 1000, 8).slice(0, 1000)
    for size in (100, 1024):
        records = Pool(size, 1000, 7).slice(0, 1000)
        assert {len(record) for record in records} == {size}
        assert all(isinstance(json.loads(record), dict) for record in records)


def contest(less: bool, *goals: Goal, **numbers: list[float]) -> Workload:
    """A workload whose contestants, named after their roles and a digit, give these numbers, the warm-up's first."""
    roles: dict[str, Role] = {"kreplog": "kreplog", "ceiling": "ceiling"}

    def contestants(_: Bench) -> list[Contestant]:
        def measure(values: Iterator[float]) -> Callable[[], float]:
            return lambda: next(values)

        return [Contestant(name, roles.get(name, "peer"), measure(iter(values))) for name, values in numbers.items()]

    return Workload("T", "test", "rec/s", goals, contestants, less, lambda scale: 3)


@pytest.mark.parametrize(
    ("less", "goal", "ratios", "rival", "verdict"),
    [
        (False, Goal(CEILING, 0.8, 1.0), (0.5, 0.9, 1.2), CEILING, "must"),
        (True, Goal(CEILING, 0.8, 1.0), (2.0, 1 / 0.9, 1 / 1.2), CEILING, "stretch"),
        (False, Goal(BEST_PEER, 1.5), (2.5, 1.8, 1.2), "peer1", "must"),
        (False, Goal(BEST_PEER, 2.0), (2.5, 1.8, 1.2), "peer1", "short"),
        (True, Goal(None, 95.0, 80.0), (50.0, 90.0, 120.0), None, "must"),
        (False, Goal(None, 95.0), (50.0, 90.0, 120.0), None, "short"),
        (False, Goal(CEILING), (0.5, 0.9, 1.2), CEILING, ""),
    ],
)
def test_goals_are_judged_within_a_repetition(
    less: bool, goal: Goal, ratios: tuple[float, ...], rival: str | None, verdict: Verdict, bench: Bench
) -> None:
    workload = contest(
        less, goal, kreplog=[1, 50, 90, 120], ceiling=[9, 100, 100, 100], peer1=[9, 20, 50, 50], peer2=[9, 10, 20, 100]
    )
    outcome = harness.run(workload, bench, lambda name: None)
    (judgement,) = outcome.judgements
    assert outcome.samples["kreplog"] == [50, 90, 120], "the warm-up is not counted"
    assert judgement.ratios == pytest.approx(ratios)
    assert (judgement.rival, judgement.verdict) == (rival, verdict)


def test_contestants_take_turns_in_rotated_order(bench: Bench) -> None:
    order: list[str] = []
    harness.run(contest(False, kreplog=[1.0] * 4, ceiling=[1.0] * 4, peer1=[1.0] * 4), bench, order.append)
    rounds = [order[start : start + 3] for start in range(0, 12, 3)]
    assert all(sorted(names) == ["ceiling", "kreplog", "peer1"] for names in rounds)
    assert {names[0] for names in rounds} == {"ceiling", "kreplog", "peer1"}


def test_a_failing_workload_is_reported_and_leaves_nothing(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    def contestants(bench: Bench) -> list[Contestant]:
        (bench.directory / "left over").touch()
        raise AssertionError("read 2 records")

    workload = Workload("T", "test", "rec/s", (), contestants, False, lambda scale: 1)
    outcome = run.run_one(Console(), workload, bench, lambda name: None)
    assert outcome.failure == "AssertionError: read 2 records"
    assert "read 2 records" in capsys.readouterr().out
    assert not list(bench.parent.iterdir())


def test_an_unknown_row_is_named_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--only", "W1,W99"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "W99" in done.stderr and "W5r" in done.stderr


class Lossy(Pipe):
    """Loses the fourth message."""

    name = "lossy"

    @contextmanager
    def sender(self) -> Iterator[Send]:
        number = 0
        with super().sender() as send:

            def lossy(data: bytes) -> None:
                nonlocal number
                number += 1
                if number != 4:
                    send(data)

            yield lossy


def test_following_runs(tmp_path: Path) -> None:
    printed = python("-m", "benchmarks.bench_follow", "--quick", "--directory", str(tmp_path))
    assert all(channel.name in printed for channel in CHANNELS), "each takes part, or the reason why not is printed"
    assert list(tmp_path.iterdir()) == []


def test_tls_is_measured_beside_plaintext(tmp_path: Path) -> None:
    command = ("benchmarks.bench_tls", "--quick", "--no-kafka", "--repetitions", "1", "--directory", str(tmp_path))
    printed = python("-m", *command)
    for row in ("produce", "consume", "connect"):
        for protocol in ("PLAINTEXT", "SSL", "SASL_SSL"):
            assert re.search(rf"{row}, .* {protocol} .* \d+\.\d\d \(", printed)


def test_what_cores_cost_by_partitions_is_measured() -> None:
    printed = python("-m", "benchmarks.bench_cores", "--quick")
    for row in ("controller: failover of a third", "controller: memory", "broker: idle round", "broker: memory"):
        assert re.search(rf"{row} .*[1-9][\d,]*\.\d .*[1-9][\d,]*\.\d .* \d\.\d\d ", printed)


@pytest.mark.long
def test_what_watching_costs_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs the extra `console`")
    printed = python("-m", "benchmarks.bench_console", "--quick", "--repetitions", "1", "--directory", str(tmp_path))
    assert re.search(r"the page has all 8 partitions after [\d.]+ s", printed)
    for watcher in ("nobody", "console", "top"):
        assert re.search(rf"{watcher}: brokers [\d.]+ % of a core each; .*; produce p50 [\d.]+ ms ", printed)


@pytest.mark.long
def test_groups_and_transactions_are_measured(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="the clients are librdkafka's")
    from benchmarks.bench_groups import MEASURES

    options = ("--quick", "--no-kafka", "--repetitions", "1")
    printed = python("-m", "benchmarks.bench_groups", *options, "--directory", str(tmp_path))
    for measure in MEASURES:
        assert re.search(rf"^{re.escape(measure.title)}: [\d.,e+]+ {measure.unit}$", printed, re.MULTILINE), measure
    assert list(tmp_path.iterdir()) == []


def test_quotas_are_measured(tmp_path: Path) -> None:
    printed = python("-m", "benchmarks.bench_quotas", "--quick", "--repetitions", "1", "--directory", str(tmp_path))
    for row in (
        "produce, quotas own",
        "fetch, quotas of others",
        "alone",
        "beside a noisy one",
        "beside one at its quota",
    ):
        assert re.search(rf"{row}.*: [\d.,]+ (ms|requests/s), [\d.]+ ", printed)
    assert "sizes: 50 requests of one record of 100 B each" in printed and "1 repetition\n" in printed
    for fact in ("processor", "system", "load at the start", "python"):
        assert re.search(rf"^{fact}: .", printed, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_queues_run(tmp_path: Path) -> None:
    printed = python("-m", "benchmarks.bench_queue", "--quick", "--directory", str(tmp_path))
    assert all(queue.name in printed for queue in bench_queue.QUEUES), "each takes part, or is said to be missing"
    assert list(tmp_path.iterdir()) == []


def test_topics_are_opened_and_members_die(tmp_path: Path) -> None:
    printed = python("-m", "benchmarks.bench_topics", "--quick", "--directory", str(tmp_path))
    assert "20 partitions, created in" in printed and "its partitions are read" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_is_another_is_noticed(tmp_path: Path) -> None:
    class Wrong(bench_queue.Kreplog):
        def take(self) -> bytes:
            return super().take()[:-1] + b"?"

    with pytest.raises(ValueError, match="another job came than"):
        bench_queue.rates(Wrong, tmp_path, False, 3)


def test_tables_load(tmp_path: Path) -> None:
    printed = python("-m", "benchmarks.bench_tables", "--quick", "--directory", str(tmp_path))
    assert all(store.name in printed for store in bench_tables.STORES), "each takes part, or is said to be missing"
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_is_another_is_noticed(tmp_path: Path) -> None:
    class Wrong(bench_tables.InMemory):
        def get(self, key: bytes) -> bytes | None:
            return (super().get(key) or b"")[:-1]

    made = bench_tables.make(tmp_path, 3, 3, 1)
    with made.topic, pytest.raises(ValueError, match="another value than that of the newest record"):
        bench_tables.rate(Wrong, made, tmp_path)


def test_compactors_compact(tmp_path: Path) -> None:
    printed = python("-m", "benchmarks.bench_compaction", "--quick", "--no-kafka", "--directory", str(tmp_path))
    assert bench_compaction.Kreplog.name in printed
    assert bench_compaction.RocksDB.name in printed, "takes part, or is said to be missing"
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_is_left_is_noticed(tmp_path: Path) -> None:
    made = bench_compaction.make(tmp_path / "prices-0", 1000, 10, 1)
    with (
        Log.open(made.path) as log,
        pytest.raises(ValueError, match="1000 records are left"),
    ):
        bench_compaction.check("nobody", made, log)


def test_a_lost_message_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lossy: message 4 came, not 3"):
        bench_follow.latencies(Lossy(tmp_path), 10, 0)


def test_a_fetchers_thread_is_measured(tmp_path: Path) -> None:
    printed = python("-m", "benchmarks.bench_fetcher", "--quick", "--repetitions", "1", "--directory", str(tmp_path))
    assert len(re.findall(r"CPU of the event loop's thread.* [\d.]+ ", printed)) == len(bench_fetcher.SHAPES)
    assert list(tmp_path.iterdir()) == []
