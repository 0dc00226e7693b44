"""Hosts on this machine: each has a network namespace with an address, a name, and a disk of its own.

    <scratch>/local/       on each host its own disk, which no other host can see
    <scratch>/shared/      the same files on every host, as a network file system has

Other files, such as the virtual environment, are on all hosts at the same path, as in an image. All of it lives
in namespaces that `isolate` makes: whatever ends this process, the kernel ends the processes on the hosts, and takes
the links, addresses and mounts back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which

from tests.integration.namespaces import Net

INSIDE = "KREPLOG_INSIDE_NAMESPACES"
_ENTER = """
hostname "$1"
mount --bind "$2/$1" "$3"
mount -t tmpfs -o ro,size=4k none "$2"
mount --bind "$4" /etc/hosts
cd "$3"
shift 4
exec "$@"
"""


def cannot_isolate() -> str:
    """Why there can be no hosts here; empty where there can."""
    if sys.platform != "linux":
        return "network namespaces are of Linux"
    if os.geteuid() != 0:
        return "network and mount namespaces need root"
    for command, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount")):
        if which(command) is None:
            return f"`{command}` is missing: apt-get install {package}"
    probe = subprocess.run(
        [*_UNSHARE, "ip", "link", "add", "kl-probe", "type", "bridge"], capture_output=True, text=True
    )
    return f"this root may not make namespaces: {probe.stderr.strip()}" if probe.returncode else ""


_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def isolate(module: str, arguments: Sequence[str]) -> None:
    """Run the module again in namespaces, in place of this process. Returns only there."""
    if os.environ.get(INSIDE):
        signal.signal(
            signal.SIGTERM, lambda *_: sys.exit("terminated")
        )  # the first process of a namespace has no default
        return
    os.environ[INSIDE] = "1"
    os.execvp(_UNSHARE[0], [*_UNSHARE, sys.executable, "-m", module, *arguments])


class Host:
    """One host. Its processes see its own disk at `local`."""

    def __init__(self, name: str, number: int, network: Network) -> None:
        self.name = name
        self.address = network.net.address(number)
        self._space = network.net.space(number)
        self._network = network

    def command(self, *words: object) -> list[str]:
        """What runs the command on this host."""
        network = self._network
        enter = ("unshare", "--uts", "sh", "-ec", _ENTER, "sh", self.name, network.disks, network.local, network.names)
        return [str(word) for word in ("ip", "netns", "exec", self._space, *enter, *words)]

    def start(self, words: Sequence[object], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to the end of `log`."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, "PATH": os.environ["PATH"]},
            )

    def kill(self, spare: int) -> int:
        """kill -9 of all processes of this host at once, but that with the id `spare`. Returns their number."""
        mine = os.stat(f"/run/netns/{self._space}").st_ino
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) not in (spare, os.getpid()):
                try:
                    if os.stat(entry / "ns" / "net").st_ino == mine:
                        found.append(int(entry.name))
                except (FileNotFoundError, ProcessLookupError):
                    continue
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)


class Network:
    """The hosts by name, below the directory `scratch`. Makes nothing by itself: see `hosts`."""

    def __init__(self, names: Sequence[str], scratch: Path) -> None:
        self.net = Net(range(len(names)))
        self.disks = scratch / "disks"
        self.local = scratch / "local"
        self.shared = scratch / "shared"
        self.names = scratch / "hosts"
        self.hosts = {name: Host(name, number, self) for number, name in enumerate(names)}

    def make(self) -> None:
        for folder in (self.local, self.shared, *(self.disks / name for name in self.hosts)):
            folder.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in self.hosts.values())]
        self.names.write_text("\n".join([*lines, ""]))
        self.net.make()


@contextmanager
def hosts(names: Sequence[str], scratch: Path) -> Iterator[Network]:
    """Hosts on one network, which this process can reach too, their files in memory. Needs `isolate` before."""
    scratch.mkdir(parents=True, exist_ok=True)
    namespaces = Path("/run/netns")
    namespaces.mkdir(exist_ok=True)
    for folder in (scratch, namespaces):
        subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    network = Network(names, scratch)
    network.make()
    yield network
