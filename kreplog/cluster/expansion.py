"""Directories and settings of brokers that are added to a cluster on this host."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kreplog.cluster.files import (
    HOST,
    check_settings,
    create_cluster_key,
    free_ports,
    with_rack,
    write_broker,
    write_cluster,
)
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.tls_files import add_certificates, client_properties, with_keystore
from kreplog.errors import UsageError
from kreplog.server.settings_file import parse

_INDIVIDUAL = {
    *("broker.id", "listeners", "log.dirs", "broker.rack", "ssl.keystore.location", "inter.broker.listener"),
    *("inter.broker.listener.name", "security.inter.broker.protocol"),  # which name one of the listeners
}


def new_broker_settings(cluster: LocalCluster, brokers: Sequence[int], given: Sequence[str]) -> list[str]:
    """Lines of TOML for new brokers: the settings that all brokers of the cluster share, then `given`.

    Raises UsageError for settings that a broker would refuse."""
    lines = [*common_settings(cluster, given), *given]
    if brokers:
        check_settings(cluster.directory, brokers[0], lines)
    return lines


def rack_in(lines: Sequence[str]) -> str | None:
    """broker.rack in lines of TOML."""
    rack: str | None = parse("\n".join(lines)).get("broker.rack")
    return rack


def extend(
    cluster: LocalCluster,
    new: Sequence[int],
    first_port: int | None,
    settings: Sequence[str],
    racks: Mapping[int, str] = MappingProxyType({}),
) -> LocalCluster:
    """The cluster with directories for `new` brokers too; starts nothing. settings: lines of TOML for them. racks:
    broker.rack of brokers, by id, where `settings` have none.

    first_port: 0 for any free ports; None for those after the highest, if they are free. After a crash within this call
    the cluster is as before.
    """
    of_brokers = [with_rack(settings, racks.get(broker)) for broker in new]
    has_tls = client_properties(cluster.directory).exists()
    if has_tls:
        of_brokers = [
            with_keystore(cluster.directory, broker, lines) for broker, lines in zip(new, of_brokers, strict=True)
        ]
    for broker, lines in zip(new, of_brokers, strict=True):
        check_settings(cluster.directory, broker, lines)
    if has_tls:
        add_certificates(cluster.directory, new)
    for broker, port, lines in zip(new, _ports(cluster, len(new), first_port), of_brokers, strict=True):
        write_broker(cluster.directory, broker, port, lines)
    create_cluster_key(cluster.directory)
    write_cluster(cluster.directory, [*cluster.brokers, *new])
    return LocalCluster(cluster.directory)


def _ports(cluster: LocalCluster, count: int, first: int | None) -> Sequence[int]:
    if first:
        return range(first, first + count)
    highest = max(int(address.rpartition(":")[2]) for address in cluster.bootstrap().split(","))
    following = range(highest + 1, highest + 1 + count)
    return following if first is None and all(map(_is_free, following)) else free_ports(count)


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError):
        return False
    return True


def common_settings(cluster: LocalCluster, given: Iterable[str]) -> list[str]:
    """The settings that all brokers share, as lines of TOML, without those in `given`. Raises UsageError."""
    settings: list[dict[str, Any]] = []
    for broker in cluster.brokers:
        path = cluster.home(broker) / "broker.toml"
        try:
            settings.append(parse(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UsageError(f"the settings {path} cannot be read: {error}", path=str(path)) from error
    excluded = _INDIVIDUAL | {name for text in given for name in _names(text)}
    return [
        f"{json.dumps(name)} = {json.dumps(value)}"
        for name, value in settings[0].items()
        if name not in excluded and all(other.get(name) == value for other in settings)
    ]


def _names(text: str) -> Collection[str]:
    try:
        return parse(text).keys()
    except ValueError:
        return ()
