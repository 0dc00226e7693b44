"""Files of a cluster on this host: checks the settings that a user gives, and writes each broker's broker.toml.

kreplog.cluster.local_cluster lists the files, and owns the processes.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from kreplog.config import GroupConfig, TransactionConfig
from kreplog.errors import UsageError
from kreplog.managed_log import atomic_write, group_number, make_directory
from kreplog.server.network.internal import create_key
from kreplog.server.settings import check
from kreplog.server.settings_file import parse

HOST = "127.0.0.1"
KEY_NAME = "cluster.key"

_OWN = {"broker.id", "listeners", "log.dirs"}
"""Settings that differ from broker to broker."""

_LONGEST_SOCKET_PATH = 100

_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10000
_TRIES = 100


def check_settings(root: Path, broker: int, settings: Sequence[str]) -> None:
    """Raise UsageError for settings that a broker would refuse."""
    for text in settings:
        try:
            given = parse(text)
        except ValueError as error:
            raise UsageError(f"--set {text}: not a line of TOML, as in '\"name\" = value': {error}") from error
        if own := given.keys() & _OWN:
            raise UsageError(f"--set {text}: {min(own)} differs from broker to broker: set it in each broker.toml")
    try:
        whole = parse(broker_toml(root, broker, 0, settings))
    except ValueError as error:
        raise UsageError(f"--set: these settings contradict each other: {', '.join(settings)}: {error}") from error
    check(whole, "--set", {}, {})


def with_offsets_replicas(settings: Sequence[str], brokers: int) -> Sequence[str]:
    """The settings with replication factors for the internal topics that so few brokers can have, unless they have
    them: a broker creates such a topic only with all its replicas."""
    wanted = {
        "offsets.topic.replication.factor": GroupConfig().offsets_topic_replication_factor,
        "transaction.state.log.replication.factor": TransactionConfig().transaction_state_log_replication_factor,
        "transaction.state.log.min.isr": TransactionConfig().transaction_state_log_min_isr,
    }
    try:
        given = {name for text in settings for name in parse(text)}
    except ValueError:  # reported by check_settings
        return settings
    missing = [name for name, factor in wanted.items() if brokers < factor and name not in given]
    return [*settings, *(f'"{name}" = {brokers}' for name in missing)]


def with_rack(settings: Sequence[str], rack: str | None) -> Sequence[str]:
    """The settings with this broker.rack, if it is not None."""
    return settings if rack is None else [*settings, f'"broker.rack" = {json.dumps(rack)}']


def broker_toml(root: Path, broker: int, port: int, settings: Sequence[str]) -> str:
    home = root / f"broker-{broker}"
    given = {name for text in settings for name in parse(text)}
    listeners = [f"SSL://{HOST}:{port}" if "ssl.keystore.location" in given else f"{HOST}:{port}"]
    if len(str(home / "broker.sock")) < _LONGEST_SOCKET_PATH:
        listeners.append(f"unix:{home}/broker.sock")
    lines = [
        f'"broker.id" = {broker}',
        f'"listeners" = {json.dumps(listeners)}',
        f'"log.dirs" = {json.dumps([str(home / "data")])}',
    ]
    if "coordination" not in given:
        lines.append(f'"coordination" = {json.dumps(f"embedded:{root}/coordination")}')
    if "inter.broker.key.file" not in given:
        lines.append(f'"inter.broker.key.file" = {json.dumps(str(root / KEY_NAME))}')
    return "\n".join([*lines, *settings, ""])


def write_broker(root: Path, broker: int, port: int, settings: Sequence[str]) -> None:
    """Create a broker's directory and settings, for its owner alone; the group of log.dir.group may pass through the
    directories that are created here."""
    home = root / f"broker-{broker}"
    created = [folder for folder in (root, home) if not folder.exists()]
    make_directory(str(home))
    given = {name: value for text in settings for name, value in parse(text).items()}
    group = given.get("log.dir.group")
    if group is not None:
        for folder in created:
            os.chown(folder, -1, group_number(group))
            folder.chmod(0o710)
    atomic_write(str(home / "broker.toml"), broker_toml(root, broker, port, settings).encode())


def write_cluster(root: Path, brokers: Sequence[int]) -> None:
    """Write cluster.json."""
    atomic_write(str(root / "cluster.json"), json.dumps({"brokers": list(brokers)}).encode() + b"\n")


def create_cluster_key(root: Path) -> None:
    """Create the cluster's key if it is missing, as in a directory that an older version created."""
    with suppress(FileExistsError):
        create_key(root / KEY_NAME)


def free_ports(count: int) -> list[int]:
    """Ports that are free now, and if possible none that the kernel may give to an outgoing connection while the broker
    is stopped; another process may still listen there first. Raises OSError."""
    with ExitStack() as stack:
        return [stack.enter_context(_listen()).getsockname()[1] for _ in range(count)]


def _listen() -> socket.socket:
    low, high = _outgoing_ports()
    candidates = [*range(_FIRST_PORT, low), *range(high + 1, 2**16)]
    for port in random.SystemRandom().sample(candidates, min(_TRIES, len(candidates))):
        with suppress(OSError):
            return socket.create_server((HOST, port))
    return socket.create_server((HOST, 0))


def _outgoing_ports() -> tuple[int, int]:
    """The first and the last, see man 7 ip; IANA's, where the kernel does not name its own (RFC 6335, section 6)."""
    try:
        low, high = map(int, _OUTGOING_PORTS.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return 49152, 65535
    return low, high
