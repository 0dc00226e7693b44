"""What Kafka's dump-log tool prints, taken apart. A line that it does not print of a sound file is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_BATCH = re.compile(
    r"baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) baseSequence: (?P<sequence>-?\d+) "
    r"lastSequence: -?\d+ producerId: (?P<producer>-?\d+) producerEpoch: (?P<producer_epoch>-?\d+) "
    r"partitionLeaderEpoch: (?P<epoch>-?\d+) isTransactional: (?:true|false) isControl: (?P<control>true|false) "
    r"deleteHorizonMs: OptionalLong\S+ position: (?P<position>\d+) (?P<kind>CreateTime|LogAppendTime): "
    r"(?P<timestamp>-?\d+) size: (?P<size>\d+) magic: 2 compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: true"
)
_RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?:CreateTime|LogAppendTime): (?P<timestamp>-?\d+) keySize: (?P<key_size>-?\d+) "
    r"valueSize: (?P<value_size>-?\d+) sequence: (?P<sequence>-?\d+) headerKeys: \[(?P<headers>[^\]]*)\]"
    r"(?: key: (?P<key>.*?))?(?: payload: (?P<value>.*))?"
)
_OFFSET_ENTRY = re.compile(r"offset: (\d+) position: (\d+)")
_TIME_ENTRY = re.compile(r"timestamp: (-?\d+) offset: (\d+)")
_PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+) "
    r"lastTimestamp: (-?\d+) firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (-?\d+) "
    r"offsetDelta: (-?\d+) timestamp: (-?\d+)"
)


@dataclass(frozen=True)
class DumpedBatch:
    """As in the batch's header; timestamp: its largest."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    control: bool
    position: int
    log_append_time: bool
    timestamp: int
    size: int
    codec: str
    crc: int


@dataclass(frozen=True)
class DumpedRecord:
    """A record in the output of the tool. headers: their names, the tool shows no more of them."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[str, ...]


@dataclass(frozen=True)
class DumpedProducer:
    """An entry of a producer snapshot; the sequences are of its last batch."""

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    last_offset: int
    timestamp: int


@dataclass
class Dumped:
    """What the tool printed of one file. sane: it passed the check that a broker makes at start-up."""

    batches: list[DumpedBatch] = field(default_factory=list)
    records: list[DumpedRecord] = field(default_factory=list)
    entries: list[tuple[int, int]] = field(default_factory=list)
    producers: list[DumpedProducer] = field(default_factory=list)
    sane: bool = False


def parse(output: str) -> dict[Path, Dumped]:
    """By file. Fails on any line of complaint: a bad CRC, a mismatch between index and log, offsets that jump."""
    found: dict[Path, Dumped] = {}
    now = Dumped()
    path = Path()
    for line in output.splitlines():
        if line.startswith("Dumping "):
            path, now = Path(line.removeprefix("Dumping ")), Dumped()
            found[path] = now
        elif batch := _BATCH.fullmatch(line):
            now.batches.append(
                DumpedBatch(
                    int(batch["base"]),
                    int(batch["last"]),
                    int(batch["count"]),
                    int(batch["sequence"]),
                    int(batch["producer"]),
                    int(batch["producer_epoch"]),
                    int(batch["epoch"]),
                    batch["control"] == "true",
                    int(batch["position"]),
                    batch["kind"] == "LogAppendTime",
                    int(batch["timestamp"]),
                    int(batch["size"]),
                    batch["codec"],
                    int(batch["crc"]),
                )
            )
        elif record := _RECORD.fullmatch(line):
            names = tuple(filter(None, record["headers"].split(",")))
            key, value = _bytes(record, "key"), _bytes(record, "value")
            now.records.append(DumpedRecord(int(record["offset"]), int(record["timestamp"]), key, value, names))
        elif producer := _PRODUCER.fullmatch(line):
            identity, epoch, _, _, _, first, last, offset, _, timestamp = producer.groups()
            now.producers.append(
                DumpedProducer(int(identity), int(epoch), int(first), int(last), int(offset), int(timestamp))
            )
        elif entry := _OFFSET_ENTRY.fullmatch(line) or _TIME_ENTRY.fullmatch(line):
            now.entries.append((int(entry[1]), int(entry[2])))
        elif line == f"{path} passed sanity check.":
            now.sane = True
        else:
            harmless = not line or line.startswith("Log starting offset: ") or line == f"{path} is empty."
            assert harmless, f"{path}: the dump-log tool says: {line}"
    return found


def _bytes(record: re.Match[str], name: str) -> bytes | None:
    """A key or a value: as long as the tool says it is, or null."""
    text = record[name]
    data = None if text is None else text.encode()
    assert int(record[f"{name}_size"]) == (-1 if data is None else len(data)), record[0]
    return data
