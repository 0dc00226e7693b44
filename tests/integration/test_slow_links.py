"""Links of network namespaces that are slow and lose frames."""

from __future__ import annotations

import socket
import time

import pytest

from tests.integration import namespaces
from tests.integration.slow_links import Link

CANNOT = namespaces.cannot_cut()
pytestmark = pytest.mark.skipif(bool(CANNOT), reason=CANNOT)


def echoes(link: Link, count: int) -> list[float]:
    """Round trips in ms of datagrams to a broker's namespace and back; of those that came back."""
    net = namespaces.Net((0,), link)
    try:
        net.make()
        with namespaces.inside(net.space(0)):
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            server.bind((net.address(0), 9))
            trips = []
            for number in range(count):
                sent, content = time.monotonic(), b"%d" % number
                client.sendto(content, (net.address(0), 9))
                try:
                    server.settimeout(0.5)
                    _, asker = server.recvfrom(100)
                    server.sendto(content, asker)
                    client.settimeout(0.5)
                    assert client.recv(100) == content
                except TimeoutError:
                    continue
                trips.append((time.monotonic() - sent) * 1000)
        return trips
    finally:
        net.remove()


def test_frames_wait_both_ways() -> None:
    trips = echoes(Link(delay_ms=20, jitter_ms=10, loss=0), 20)
    assert len(trips) == 20
    assert min(trips) >= 40


def test_frames_are_lost() -> None:
    assert 0 < len(echoes(Link(delay_ms=0, jitter_ms=0, loss=0.3), 20)) < 20
