"""Network links that delay, reorder and lose frames, in a process that copies between two TAP devices.

Linux's own `tc netem` is a module that many kernels lack.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import multiprocessing
import os
import random
import select
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import NamedTuple

_TUNSETIFF = 0x400454CA
_TAP, _NO_PACKET_INFORMATION = 0x0002, 0x1000
_LARGEST_FRAME = 1 << 16
_SEED = 20261129


class Link(NamedTuple):
    """Each frame, each way: it waits for delay_ms and up to jitter_ms more, so that frames overtake each other; `loss`
    of them, from 0 to 1, never arrive."""

    delay_ms: float
    jitter_ms: float
    loss: float


def tap(name: str) -> int:
    """A new network device in the namespace of this thread, which exists until the descriptor is closed."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_PACKET_INFORMATION))
    return descriptor


def start(ends: Mapping[int, int], link: Link) -> BaseProcess:
    """A process that copies frames between each two TAP devices, and closes them with its end. They are closed here."""
    process = multiprocessing.get_context("fork").Process(target=_copy, args=({**ends}, link), daemon=True)
    process.start()
    for descriptor in (*ends, *ends.values()):
        os.close(descriptor)
    return process


def _copy(ends: dict[int, int], link: Link) -> None:
    ends |= {outer: inner for inner, outer in ends.items()}
    chance, numbers = random.Random(_SEED), itertools.count()
    on_the_way: list[tuple[float, int, int, bytes]] = []
    arrivals = select.poll()
    for descriptor in ends:
        arrivals.register(descriptor, select.POLLIN)
    while True:
        wait_ms = max(0.0, (on_the_way[0][0] - time.monotonic()) * 1000) if on_the_way else None
        for descriptor, _ in arrivals.poll(wait_ms):
            with suppress(OSError):  # the device is down
                frame = os.read(descriptor, _LARGEST_FRAME)
                if chance.random() >= link.loss:
                    due = time.monotonic() + (link.delay_ms + chance.uniform(0, link.jitter_ms)) / 1000
                    heapq.heappush(on_the_way, (due, next(numbers), ends[descriptor], frame))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(on_the_way)
            with suppress(OSError):
                os.write(target, frame)
