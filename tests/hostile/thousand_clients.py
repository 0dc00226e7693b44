"""A thousand clients at once: `python -m tests.hostile.thousand_clients HOST PORT SEED` prints how many requests they
sent and how many answers they had.

Each client's requests are drawn from a seeded mix: ordinary ones, one at a time or many in one piece, large and hostile
ones, and garbage. A process of its own, so that a broker in the caller's process is held up by its own work alone.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from random import Random

from kreplog._native.batch import build
from kreplog.wire.versions import ApiKey
from tests.hostile.floods import (
    Flood,
    array,
    bomb,
    bombs,
    compact_array,
    compact_text,
    fetch,
    fetched,
    floods,
    int32,
    list_offsets,
    produce,
    text,
)
from tests.hostile.victim import PATIENCE_S, receive

CLIENTS = 1000
ROUNDS = 3
LARGE = 0.02
"""The share of the requests that are floods and bombs: together they are some 20 MB at a time."""
GARBAGE = 0.08
PIPELINED = 0.05
PIPELINE = 20
"""Ordinary requests that a client sends in one piece, in so large a share of its turns."""
TOPIC = "small"
PARTITIONS = 4


def ordinary() -> Iterator[Flood]:
    """What well-behaved clients send, a batch that expands to 1 MiB among it."""
    key = ApiKey
    yield Flood("metadata", key.METADATA, 4, array([text(TOPIC)]) + b"\0")
    yield Flood("describe-configs", key.DESCRIBE_CONFIGS, 1, array([b"\2" + text(TOPIC) + int32(-1)]) + b"\1")
    coordinator = b"\0" + compact_array([compact_text("group")]) + b"\0"
    yield Flood("find-coordinator", key.FIND_COORDINATOR, 4, coordinator, True)
    compressed = bomb(1 << 20, "gzip")
    for number in range(PARTITIONS):
        yield Flood("list-offsets", key.LIST_OFFSETS, 1, list_offsets(TOPIC, [(number, 1)]))
        yield Flood("produce", key.PRODUCE, 3, produce(TOPIC, [(number, build([b"x"]))]))
        yield Flood("produce-compressed", key.PRODUCE, 3, produce(TOPIC, [(number, compressed)]))
        yield Flood("fetch", key.FETCH, 7, fetch(TOPIC, [fetched(number)], epoch=-1))
        yield Flood("fetch-session", key.FETCH, 7, fetch(TOPIC, [fetched(number)], epoch=0))


def garbage(random: Random) -> bytes:
    """Of any kind of request, or of none, and too short or too long for it."""
    body = struct.pack(">hhi", random.randrange(-5, 80), random.randrange(-1, 20), 1) + random.randbytes(200)
    return struct.pack(">i", len(body)) + body


class Mix:
    """What clients send in one piece is drawn from this."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ordinary = [flood.frame() for flood in ordinary()]
        self._large = [flood.frame() for flood in (*floods(TOPIC), *bombs(TOPIC))]

    def draw(self) -> list[bytes]:
        random = self._random
        chance = random.random()
        if chance < LARGE:
            return [random.choice(self._large)]
        if chance < LARGE + GARBAGE:
            return [garbage(random)]
        return random.choices(self._ordinary, k=PIPELINE if chance > 1 - PIPELINED else 1)


class Client:
    """Has the answers to what it sent before it sends more. A connection that the broker closes, as it does for
    garbage, is opened again."""

    def __init__(self, address: tuple[str, int], mix: Mix) -> None:
        self._address = address
        self._mix = mix
        self._awaited = 0
        self._connect()

    def _connect(self) -> None:
        self._sock = socket.create_connection(self._address, PATIENCE_S)
        self._open = True

    def send(self) -> int:
        if not self._open:
            self._connect()
        requests = self._mix.draw()
        self._awaited = len(requests)
        try:
            self._sock.sendall(b"".join(requests))
        except ConnectionError:
            self.close()
        return self._awaited

    def receive(self) -> int:
        answered = 0
        try:
            while self._open and answered < self._awaited:
                if receive(self._sock) is None:
                    self.close()
                else:
                    answered += 1
        except ConnectionError:
            self.close()
        return answered

    def close(self) -> None:
        self._open = False
        self._sock.close()


def main(host: str, port: int, seed: int) -> None:
    mix = Mix(Random(seed))
    clients = [Client((host, port), mix) for _ in range(CLIENTS)]
    sent = answered = 0
    for _ in range(ROUNDS):
        sent += sum(client.send() for client in clients)
        answered += sum(client.receive() for client in clients)
    for client in clients:
        client.close()
    print(sent, answered)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
