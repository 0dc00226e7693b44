"""One record batch in memory: built, decoded and validated, against aiokafka's Cython. 1,000 records of 100 B."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from benchmarks.harness import BEST_PEER, Bench, Contestant, Goal, quiet, workload
from benchmarks.peers import AiokafkaFile, new_builder, read_batch
from benchmarks.stores import Kreplog, available
from kreplog._native import batch

RECORDS = 1000
TIMESTAMP_MS = 1_760_000_000_000


@workload("Cb", "build a batch of 1,000 records of 100 B in memory", "rec/s", Goal(BEST_PEER, 4.0, 8.0))
def build(bench: Bench) -> Sequence[Contestant]:
    values = bench.small.slice(0, RECORDS)
    timestamps = [TIMESTAMP_MS] * RECORDS

    def ours() -> bytes:
        return batch.build(values, timestamps_ms=timestamps)

    def theirs() -> bytes:
        builder = new_builder(1 << 20)
        append = builder.append
        for number, value in enumerate(values):
            append(number, TIMESTAMP_MS, None, value, [])
        return bytes(builder.build())

    if batch.decode_values(theirs()) != values or [record.value for record in read_batch(ours())] != values:
        raise AssertionError("kreplog and aiokafka do not read each other's batches")
    return _contest(bench, ours, theirs)


@workload("Cd", "decode a batch to bytes, CRC checked", "rec/s", Goal(BEST_PEER, 2.5, 3.0))
def decode(bench: Bench) -> Sequence[Contestant]:
    values, encoded = _encoded(bench)

    def ours() -> list[bytes | None]:
        return batch.decode_values(encoded)

    def theirs() -> list[bytes | None]:
        reader = read_batch(encoded)
        return [record.value for record in reader] if reader.validate_crc() else []

    if not values == ours() == theirs():
        raise AssertionError("decoded values differ from those encoded")
    return _contest(bench, ours, theirs)


@workload("Cr", "decode a batch to records, CRC checked", "rec/s", Goal(BEST_PEER))
def decode_records(bench: Bench) -> Sequence[Contestant]:
    values, encoded = _encoded(bench)

    def ours() -> list[batch.Record]:
        return batch.decode(encoded)

    def theirs() -> list[object]:
        reader = read_batch(encoded)
        return list(reader) if reader.validate_crc() else []

    if [record.value for record in ours()] != values:
        raise AssertionError("decoded records differ from those encoded")
    return _contest(bench, ours, theirs)


@workload("Cv", "validate a batch: header and CRC", "rec/s", Goal(BEST_PEER, 8.0, 20.0))
def validate(bench: Bench) -> Sequence[Contestant]:
    _, encoded = _encoded(bench)
    return _contest(bench, lambda: batch.validate(encoded), lambda: read_batch(encoded).validate_crc())


def _encoded(bench: Bench) -> tuple[list[bytes], bytes]:
    values = bench.small.slice(0, RECORDS)
    return values, batch.build(values, timestamps_ms=[TIMESTAMP_MS] * RECORDS)


def _contest(bench: Bench, ours: Callable[[], object], theirs: Callable[[], object]) -> list[Contestant]:
    calls = {Kreplog: ours, AiokafkaFile: theirs}
    return [Contestant(kind.name, kind.role, partial(_rate, bench, calls[kind])) for kind in available(bench, *calls)]


def _rate(bench: Bench, call: Callable[[], object]) -> float:
    """Records a second over as many calls as fill `codec_s` seconds."""
    calls = 0
    with quiet():
        start = perf_counter()
        while (seconds := perf_counter() - start) < bench.scale.codec_s:
            for _ in range(10):
                call()
            calls += 10
    return calls * RECORDS / seconds
