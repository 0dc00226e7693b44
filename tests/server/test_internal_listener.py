"""Kafka's settings of the listener between brokers: they work as they are, or say what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.files import free_ports
from kreplog.errors import UsageError
from kreplog.server.network.internal import create_key
from kreplog.server.network.tls_connections import TlsConnection
from kreplog.server.settings import BrokerSettings, given_value, load
from kreplog.types import SecurityProtocol
from tests.certificates import HOSTS, Certificates
from tests.server.brokers import serving, until_controlled
from tests.server.loop import run, until

LISTENERS = {
    "listeners": "INTERNAL://0.0.0.0:9094,EXTERNAL://0.0.0.0:9092",
    "advertised.listeners": "INTERNAL://broker1:9094,EXTERNAL://kafka.test:9092",
    "listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SASL_SSL",
    "inter.broker.listener.name": "INTERNAL",
    "inter.broker.key.file": "/etc/kreplog/cluster.key",
}


def settings(**changes: Any) -> BrokerSettings:
    """As from a server.properties. changes: with underscores; None leaves a setting out."""
    given = {"broker.id": 0, "log.dirs": "/tmp/d", "coordination": "zookeeper:zk:2181", **LISTENERS}
    given |= {name.replace("_", "."): value for name, value in changes.items()}
    return load(given, None, {})


def refusal(**changes: Any) -> str:
    with pytest.raises(UsageError) as refused:
        settings(**changes)
    return str(refused.value)


def test_the_named_listener_is_for_brokers_and_the_others_for_clients() -> None:
    found = settings()
    assert (found.internal.host, found.internal.port) == ("0.0.0.0", 9094)
    assert found.internal.security_protocol is SecurityProtocol.SSL
    assert found.internal_advertised is not None
    assert (found.internal_advertised.host, found.internal_advertised.port) == ("broker1", 9094)
    assert [str(listener) for listener in found.listeners] == ["EXTERNAL://0.0.0.0:9092"]
    assert [str(listener) for listener in found.advertised] == ["EXTERNAL://kafka.test:9092"]
    assert given_value(found, "inter.broker.listener.name") == "INTERNAL"
    assert settings(inter_broker_listener_name="internal").internal == found.internal


def test_a_protocol_names_the_listener_of_that_name() -> None:
    found = settings(
        listeners="PLAINTEXT://10.0.0.1:9094,SASL_SSL://10.0.0.1:9092",
        advertised_listeners=None,
        listener_security_protocol_map=None,
        inter_broker_listener_name=None,
        security_inter_broker_protocol="PLAINTEXT",
    )
    assert (found.internal.host, found.internal.port) == ("10.0.0.1", 9094)
    assert [listener.name for listener in found.listeners] == ["SASL_SSL"]


def test_without_kafkas_names_nothing_changes() -> None:
    plain = {"broker.id": 0, "log.dirs": "/tmp/d", "coordination": "embedded:/tmp/s", "listeners": "127.0.0.1:9092"}
    found = load(plain, None, {})
    assert (found.internal.path, found.internal_name) == ("/tmp/d.internal/broker.sock", None)


def test_what_contradicts_itself_is_refused() -> None:
    both = "only one of inter.broker.listener.name and"
    assert f"{both} security.inter.broker.protocol can be set" in refusal(security_inter_broker_protocol="SSL")
    assert f"{both} inter.broker.listener can be set" in refusal(inter_broker_listener="10.0.0.1:9095")
    assert f"{both} inter.broker.security.protocol can be set" in refusal(inter_broker_security_protocol="SSL")
    assert "0 of listeners have that name, not one: there are EXTERNAL, INTERNAL" in refusal(
        inter_broker_listener_name="REPLICATION"
    )


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        (
            {"listener_security_protocol_map": "INTERNAL:SASL_SSL,EXTERNAL:SASL_SSL"},
            "write INTERNAL:SSL in listener.security.protocol.map",
        ),
        (
            {"listener_security_protocol_map": "INTERNAL:SASL_PLAINTEXT,EXTERNAL:SASL_SSL"},
            "write INTERNAL:PLAINTEXT in listener.security.protocol.map",
        ),
        (
            {
                "listeners": "SSL://10.0.0.1:9093",
                "advertised_listeners": None,
                "listener_security_protocol_map": None,
                "inter_broker_listener_name": None,
                "security_inter_broker_protocol": "SSL",
            },
            "or brokers one: listeners = ...,INTERNAL://HOST:PORT",
        ),
        ({"inter_broker_key_file": None}, "needs inter.broker.key.file: the cluster's key"),
        (
            {"advertised_listeners": "EXTERNAL://kafka.test:9092"},
            "use that of the network between them, or set advertised",
        ),
        ({"sasl_mechanism_inter_broker_protocol": "PLAIN"}, "brokers prove the cluster's key (inter.broker.key.file)"),
        ({"control_plane_listener_name": "CONTROLLER"}, "take it out there"),
    ],
)
def test_what_does_not_work_here_is_refused_with_what_to_write_instead(changes: dict[str, Any], advice: str) -> None:
    assert advice in refusal(**changes)


def test_brokers_follow_over_the_named_listener(tmp_path: Path) -> None:
    """With the settings of TLS of that listener."""
    certificates, key = Certificates(tmp_path / "ca"), tmp_path / "cluster.key"
    create_key(key)
    own = {
        "listeners": "127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,INTERNAL:SSL",
        "inter_broker_listener_name": "INTERNAL",
        "inter_broker_key_file": str(key),
        "listener_name_internal_ssl_keystore_location": certificates.keystore("broker", HOSTS),
        "listener_name_internal_ssl_truststore_location": certificates.truststore,
    }

    async def work() -> None:
        async with serving(tmp_path, 0, 1, **own) as made:
            for broker in made:
                await until_controlled(broker)
                assert [endpoint.listener for endpoint in broker.endpoints] == ["PLAINTEXT"]
            peers = [client for broker in made for client in broker.server._brokers]
            assert peers
            assert all(isinstance(peer._connection, TlsConnection) for peer in peers)

    run(work)


def test_brokers_are_reached_at_the_advertised_address(tmp_path: Path) -> None:
    """The proof of the key names the address that the other broker intends to reach."""
    key = tmp_path / "cluster.key"
    create_key(key)
    ports = free_ports(2)
    own = {
        "listeners": "127.0.0.1:0,INTERNAL://127.0.0.1:{port}",
        "advertised_listeners": "INTERNAL://localhost:{port}",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
        "inter_broker_listener_name": "INTERNAL",
        "inter_broker_key_file": str(key),
    }

    async def work() -> None:
        async with serving(tmp_path, 0, **{name: text.format(port=ports[0]) for name, text in own.items()}) as (first,):
            second_settings = {name: text.format(port=ports[1]) for name, text in own.items()}
            async with serving(tmp_path, 1, **second_settings) as (second,):
                for broker in (first, second):
                    await until_controlled(broker)
                await until(lambda: bool(first.server._brokers and second.server._brokers))
                assert not first.server.refused_peers + second.server.refused_peers
                known = first.manager.metadata.brokers.values()
                assert {broker.internal for broker in known} == {("localhost", port) for port in ports}

    run(work)
