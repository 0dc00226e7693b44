"""The records that every benchmark writes: JSON-like events of one exact size, made once from a seed.

A Pool repeats its distinct records as often as needed, in chunks of 1,000, so that a million records cost the memory
of a few; and it knows the digest that reading back any number of them must give.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import string
from collections.abc import Iterable, Iterator
from functools import lru_cache

CHUNK = 1000

_EVENTS = ("view", "click", "search", "order", "login", "logout")
_COUNTRIES = ("DE", "FR", "US", "JP", "BR", "IN", "ZA", "SE")
_PAGES = ("home", "item", "cart", "account", "help", "offers")
_LETTERS = string.ascii_letters + string.digits


def digest(values: Iterable[bytes | None]) -> tuple[int, str]:
    """The number of values, and the SHA-256 (12 hex digits) of all their bytes in order; None counts as empty."""
    count, sha = 0, hashlib.sha256()
    iterator = iter(values)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        count += len(chunk)
        sha.update(b"".join([value or b"" for value in chunk]))
    return count, sha.hexdigest()[:12]


class Pool:
    """`distinct` records (a multiple of 1,000) of `size` bytes each, repeated for ever; the same for the same seed."""

    def __init__(self, size: int, distinct: int, seed: int) -> None:
        if distinct <= 0 or distinct % CHUNK:
            raise ValueError(f"distinct = {distinct}: must be a positive multiple of {CHUNK}")
        source = random.Random(f"{seed}:{size}")
        records = [_record(source, number, size) for number in range(distinct)]
        self.size = size
        self._chunks = [records[start : start + CHUNK] for start in range(0, distinct, CHUNK)]
        self._digest = lru_cache(lambda count: digest(self.first(count)))

    def chunks(self, count: int) -> list[list[bytes]]:
        """The first `count` records as lists of 1,000, the last one shorter where it must be."""
        whole, rest = divmod(count, CHUNK)
        chunks = [self._chunks[number % len(self._chunks)] for number in range(whole)]
        return [*chunks, self._chunks[whole % len(self._chunks)][:rest]] if rest else chunks

    def first(self, count: int) -> Iterator[bytes]:
        """The first `count` records, one by one."""
        return itertools.chain.from_iterable(self.chunks(count))

    def slice(self, start: int, count: int) -> list[bytes]:
        """Records [start, start + count)."""
        chunks = self._chunks
        return [chunks[at // CHUNK % len(chunks)][at % CHUNK] for at in range(start, start + count)]

    def expect(self, values: Iterable[bytes | None], count: int, reader: str) -> str:
        """Return the digest of `values`. Raises AssertionError unless they are the first `count` records exactly."""
        found, expected = digest(values), self._digest(count)
        if found != expected:
            raise AssertionError(f"{reader}: read {found[0]} records, digest {found[1]}; written were {expected}")
        return found[1]


def _record(source: random.Random, number: int, size: int) -> bytes:
    """One event of exactly `size` bytes (100 or more): as many items as fit, then an id that fills what is left."""
    event: dict[str, object] = {
        "ts": 1_760_000_000_000 + number * 7 + source.randrange(7),
        "user": source.randrange(1_000_000),
        "event": source.choice(_EVENTS),
        "country": source.choice(_COUNTRIES),
        "v": "3.14",
    }
    items = (size - 100) // 84
    if items:
        event["items"] = [_item(source) for _ in range(items)]
    head = json.dumps(event, separators=(",", ":")).encode()[:-1] + b',"id":"'
    return head + "".join(source.choices(_LETTERS, k=size - len(head) - 2)).encode() + b'"}'


def _item(source: random.Random) -> dict[str, object]:
    return {
        "sku": source.randrange(10**9),
        "price": source.randrange(10_000) / 100,
        "page": source.choice(_PAGES),
        "currency": "EUR",
        "quantity": source.randrange(1, 100),
    }
