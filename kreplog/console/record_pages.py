"""Record batches as JSON: their fields, their records, and damaged ones as such.

Keys, values and headers are {"size": bytes, "base64": the first PREVIEW_BYTES}, or null. What they mean, the page
decides; the rest of a long one is fetched by itself.

The layout of a batch's first fields (Kafka's message format, magic 2), for damaged ones:

    int64 base offset, int32 length of what follows, int32 leader epoch, int8 magic, uint32 CRC, int16 attributes,
    int32 last offset delta
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kreplog.batches import BatchInfo, batch_facts, committed_of, decode, validate
from kreplog.console.parameters import Parameters, number_in
from kreplog.errors import CorruptBatchError, StorageError, UsageError

if TYPE_CHECKING:
    from kreplog.log import Record

PREVIEW_BYTES = 4096
MAX_HEADERS = 100
"""Headers of a record that are shown."""

DEFAULT_RECORDS = 50
MAX_RECORDS = 500
FETCH_BYTES = 1 << 20
SCAN_BYTES = 16 << 20
"""The most that a request reads where it looks for a key; the next one goes on behind that."""

_BATCH_START = struct.Struct(">qiibIhi")
_PREFIX_BYTES = 12
"""Base offset and length, which the length does not count."""

_TRANSACTIONAL = 0x10
_MARKERS = {True: "COMMIT", False: "ABORT", None: "control record of another type"}


def read_page(
    parameters: Parameters,
    low: int,
    high: int,
    offset_at: Callable[[int], int | None],
    fetch: Callable[[int], memoryview],
) -> dict[str, Any]:
    """Records of a log with the offsets [low, high): from `offset`, or from the first at or after `time_ms`, or the
    last `newest`; with `key` only those with this key. JSON of a RecordPage, with the bounds.

    offset_at: the offset for a time. fetch: batches from the one with an offset on. Raises UsageError, and as these."""
    if "time_ms" in parameters:
        found = offset_at(number_in(parameters, "time_ms"))
        offset = high if found is None else found
    elif "newest" in parameters:
        offset = high - number_in(parameters, "newest")
    else:
        offset = number_in(parameters, "offset", low)
    key = parameters.get("key")
    limit = number_in(parameters, "limit", DEFAULT_RECORDS)
    page = RecordPage(min(max(offset, low), high), limit, None if key is None else key.encode())
    budget = SCAN_BYTES
    while page.next_offset < high and not page.full and budget > 0:
        before = page.next_offset
        data = fetch(before)
        page.add(data)
        budget -= len(data)
        if page.next_offset == before:
            break
    return {"log_start_offset": low, "high_watermark": high, **page.to_json()}


@dataclass(slots=True)
class RecordPage:
    """Records from `start` on. limit: how many at most. key: only records with this key.

    next_offset: where the next page starts. full: whether the limit is reached, so that there may be more."""

    start: int
    limit: int
    key: bytes | None = None
    next_offset: int = 0
    full: bool = False
    batches: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_RECORDS:
            raise UsageError(f"limit = {self.limit}: 1 to {MAX_RECORDS} are possible")
        self.next_offset = self.start

    def add(self, data: memoryview) -> None:
        """Add the records of whole batches; what is left over of an incomplete one at the end is ignored."""
        while len(data) and not self.full:
            try:
                header = validate(data)
            except CorruptBatchError as error:
                size = self._add_damaged(data, error)
                if not size:
                    return
                data = data[size:]
                continue
            self._add_batch(header, data[: header.size])
            data = data[header.size :]

    def _add_batch(self, header: BatchInfo, data: memoryview) -> None:
        facts = {**batch_facts(header), "transactional": bool(header.attributes & _TRANSACTIONAL)}
        try:
            records = decode(data)
        except (StorageError, UsageError) as error:  # its codec is not installed, or a record in it is damaged
            facts["damage"] = str(error)
            records = []
        found = list(self._selected(records))
        if found or self.key is None:
            self.batches.append(facts)
        if header.is_control and self.key is None and header.base_offset >= self.start:
            if len(self.records) == self.limit:
                self.full = True
                self.next_offset = header.base_offset
            else:
                found = [_marker(header, data)]
        self.records += [{**record, "batch": header.base_offset} for record in found]
        if not self.full:
            self.next_offset = max(self.next_offset, header.last_offset + 1)

    def _selected(self, records: list[Record]) -> Iterator[dict[str, Any]]:
        room = self.limit - len(self.records)
        for record in records:
            if record.offset < self.start or (self.key is not None and record.key != self.key):
                continue
            if room == 0:
                self.full = True
                self.next_offset = record.offset
                return
            room -= 1
            yield _record(record)

    def _add_damaged(self, data: memoryview, error: CorruptBatchError) -> int:
        """Bytes to skip; 0 if the next batch cannot be found, or this one is only incomplete."""
        if len(data) < _BATCH_START.size:
            return 0
        base_offset, length, epoch, _, _, _, delta = _BATCH_START.unpack_from(data)
        size = length + _PREFIX_BYTES
        if size > len(data) and self.batches:
            return 0
        plausible = _BATCH_START.size <= size <= len(data) and 0 <= delta < 1 << 30
        last = base_offset + delta if plausible and base_offset >= self.next_offset else self.next_offset
        self.batches.append(
            {
                "base_offset": self.next_offset,
                "last_offset": last,
                "bytes": size if plausible else len(data),
                "leader_epoch": epoch,
                "damage": str(error),
            }
        )
        self.next_offset = last + 1
        return size if plausible else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "next_offset": self.next_offset,
            "full": self.full,
            "batches": self.batches,
            "records": self.records,
        }


def _record(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": preview(record.key),
        "value": preview(record.value),
        "headers": [[name, preview(value)] for name, value in record.headers[:MAX_HEADERS]],
        "more_headers": max(0, len(record.headers) - MAX_HEADERS),
        "marker": None,
    }


def _marker(header: BatchInfo, data: memoryview) -> dict[str, Any]:
    return {
        "offset": header.base_offset,
        "timestamp_ms": header.max_timestamp,
        "key": None,
        "value": None,
        "headers": [],
        "more_headers": 0,
        "marker": _MARKERS[committed_of(data)],
    }


def preview(data: bytes | None) -> dict[str, Any] | None:
    """The size of `data` and its first bytes."""
    if data is None:
        return None
    return {"size": len(data), "base64": base64.b64encode(data[:PREVIEW_BYTES]).decode()}


def field_of(data: memoryview, offset: int, name: str) -> bytes | None:
    """The whole "key" or "value" of the record at `offset`, in batches. Raises UsageError if it is not there."""
    while len(data):
        header = validate(data)
        if header.last_offset >= offset:
            for record in decode(data[: header.size]):
                if record.offset == offset:
                    return record.key if name == "key" else record.value
            break
        data = data[header.size :]
    raise UsageError(f"there is no record at offset {offset} now: it may have been compacted or deleted")
