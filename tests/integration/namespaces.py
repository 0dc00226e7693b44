"""A cluster whose brokers each have a network namespace of their own on one bridge, so that links can be cut.

A cut is silent, as of a network: one way, `source` sends what it has for `target` to an address that nobody has. The
clients are outside, at the bridge; the embedded store is in the file system, out of reach of any cut.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import slow_links
from tests.integration.clusters import START_S, end, set_line
from tests.integration.slow_links import Link

_NOBODY = "02:00:00:00:00:01"
_PORT = 9092
_NETWORK = 0x40000000  # CLONE_NEWNET
_numbers = itertools.count()


class Net:
    """The bridge, the namespaces, and a link between it and each: one that delays nothing, or `link`. Until `make`
    there is nothing."""

    def __init__(self, brokers: Sequence[int], link: Link | None = None) -> None:
        self.brokers = brokers
        self._link = link
        self._copying: BaseProcess | None = None
        self._name = f"kl{os.getpid() % 100_000}x{next(_numbers)}"
        self._subnet = _free_subnet()

    def space(self, broker: int) -> str:
        return f"{self._name}-{broker}"

    def address(self, broker: int) -> str:
        return f"{self._subnet}.{broker + 1}"

    def make(self) -> None:
        bridge = self._name
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._subnet}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        slow: dict[int, int] = {}
        for broker in self.brokers:
            space, outer = self.space(broker), f"{self._name}v{broker}"
            _ip("netns", "add", space)
            if self._link is None:
                _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            else:
                with inside(space):
                    end_inside = slow_links.tap("eth0")
                slow[end_inside] = slow_links.tap(outer)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(broker)}/24", "dev", "eth0")
            for inner in ("lo", "eth0"):
                _ip("-n", space, "link", "set", inner, "up")
        if self._link is not None:
            self._copying = slow_links.start(slow, self._link)

    def remove(self) -> None:
        if self._copying is not None:
            self._copying.kill()
            self._copying.join()
        for broker in self.brokers:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self.space(broker))
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._name)

    def cut(self, source: int, target: int) -> None:
        """From now on nothing that `source` sends reaches `target`."""
        neighbour = ("neigh", "replace", self.address(target), "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")
        _ip("-n", self.space(source), *neighbour)

    def cut_both(self, broker: int, other: int) -> None:
        self.cut(broker, other)
        self.cut(other, broker)

    def unplug(self, broker: int) -> None:
        """Cut the broker off from all other brokers and from its clients."""
        _ip("link", "set", f"{self._name}v{broker}", "down")

    @contextmanager
    def healed(self) -> Iterator[None]:
        """Whatever is cut meanwhile is healed at the end, even if the test fails: clients wait for it."""
        try:
            yield
        finally:
            self.heal()

    def heal(self) -> None:
        """End all cuts."""
        for broker in self.brokers:
            _ip("link", "set", f"{self._name}v{broker}", "up")
            for other in self.brokers:
                with suppress(subprocess.CalledProcessError):
                    _ip("-n", self.space(broker), "neigh", "del", self.address(other), "dev", "eth0")


class SpreadCluster(LocalCluster):
    """A LocalCluster that starts each broker in its namespace."""

    net: Net

    def _spawn(self, broker: int) -> subprocess.Popen[bytes]:
        with inside(self.net.space(broker)):
            return super()._spawn(broker)


def cannot_cut() -> str:
    """Why there can be no network namespaces here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"klp{os.getpid()}"  # each process of the tests makes one while it collects
    try:
        made = subprocess.run(["ip", "link", "add", probe, "type", "bridge"], capture_output=True, text=True)
    except FileNotFoundError:
        return "network namespaces need `ip`: apt-get install iproute2"
    if made.returncode != 0:
        return f"this root may not make network interfaces: {made.stderr.strip()}"
    _ip("link", "del", probe)
    return ""


@contextmanager
def spread(directory: Path, settings: Sequence[str]) -> Iterator[tuple[LocalCluster, Net]]:
    """Three brokers, running, and what cuts them off."""
    net = Net((0, 1, 2))
    try:
        net.make()
        made = SpreadCluster.create(directory, net.brokers, _PORT, [*settings, '"allow.plaintext.remote" = true'])
        made.net = net
        for broker in net.brokers:
            listeners = [f"{net.address(broker)}:{_PORT}", f"unix:{made.home(broker)}/broker.sock"]
            set_line(made, broker, "listeners", json.dumps(listeners))
            with (made.home(broker) / "broker.toml").open("a") as settings_file:  # no cut reaches a unix socket
                settings_file.write(f'"inter.broker.listener" = "{net.address(broker)}:{_PORT + 1}"\n')
        try:
            made.start(timeout_s=START_S)
            yield made, net
        finally:
            end(made)
    finally:
        net.remove()


@contextmanager
def inside(space: str) -> Iterator[None]:
    """This thread, and the processes that it starts, are in the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    home, target = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        assert libc.setns(target, _NETWORK) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(home, _NETWORK) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(home)
        os.close(target)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _free_subnet() -> str:
    """Three numbers of a /24 of those set apart for measurements (RFC 2544) that no interface has."""
    taken = subprocess.run(["ip", "-4", "addr"], check=True, capture_output=True, text=True).stdout
    return next(subnet for number in range(256) if f"{(subnet := f'198.18.{number}')}." not in taken)
