"""Listeners: their names, protocols and addresses in settings, and the addresses that clients of each get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kreplog.core import nodes
from kreplog.errors import ErrorCode, UsageError
from kreplog.server.broker import Broker
from kreplog.server.listeners import Listener, endpoints
from kreplog.server.network.peers import Peer
from kreplog.server.settings import STANDARD_AUTHORIZER, given_value, load, tls_settings
from kreplog.tls import TlsSettings
from kreplog.types import (
    BrokerRegistration,
    Endpoint,
    Node,
    NodeStat,
    SecurityProtocol,
    TopicPartition,
    named_endpoints,
)
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving, until_controlled

NEEDED = {"broker.id": 1, "log.dirs": "/data", "coordination": "embedded:/coordination"}
NAMES = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"}
PLAINTEXT = SecurityProtocol.PLAINTEXT


def loaded(**given: Any) -> Any:
    return load(NEEDED | {name.replace("_", "."): value for name, value in given.items()}, None, {})


def test_entries_have_names_and_addresses() -> None:
    settings = loaded(listeners="inside://127.0.0.1:1,OUTSIDE://[::1]:2,OUTSIDE://127.0.0.1:2,unix:/run/k", **NAMES)
    assert settings.listeners == (
        Listener("127.0.0.1", 1, name="INSIDE"),
        Listener("::1", 2, name="OUTSIDE"),
        Listener("127.0.0.1", 2, name="OUTSIDE"),
        Listener(path="/run/k"),
    )
    assert given_value(settings, "listeners") == (
        "INSIDE://127.0.0.1:1,OUTSIDE://[::1]:2,OUTSIDE://127.0.0.1:2,unix:/run/k"
    )
    assert given_value(settings, "listener.security.protocol.map").startswith("PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT")
    assert given_value(settings, "advertised.listeners") is None


def test_clients_get_the_address_that_is_advertised_for_a_name_or_else_its_own() -> None:
    settings = loaded(
        listeners="INSIDE://127.0.0.1:1,OUTSIDE://127.0.0.1:2,unix:/run/k",
        advertised_listeners="outside://db.example:9092",
        **NAMES,
    )
    assert endpoints(settings.listeners, settings.advertised) == (
        Endpoint("INSIDE", "127.0.0.1", 1, PLAINTEXT),
        Endpoint("OUTSIDE", "db.example", 9092, PLAINTEXT),
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"listeners": "EXTERNAL://127.0.0.1:1"}, "no security protocol for EXTERNAL: name it in listener.security"),
        ({"listeners": "-x://127.0.0.1:1"}, "the name of a listener is a letter"),
        ({"listeners": "SSL://[::1]"}, "neither host:port"),
        ({"listeners": "127.0.0.1:٣"}, "neither host:port"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "sasl.enabled.mechanisms": "PLAIN"}, "passwords unencrypted"),
        (
            {
                "listeners": "A://127.0.0.1:1",
                "listener.security.protocol.map": "A:SASL_PLAINTEXT",
                "listener.name.a.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            },
            "make A a SASL_SSL listener",
        ),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "a list of some of SCRAM-SHA-256"),
        ({"sasl.enabled.mechanisms": ["GSSAPI"]}, "a list of some of SCRAM-SHA-256"),
        ({"sasl.enabled.mechanisms": [3]}, "must be a list of texts"),
        ({"sasl.enabled.mechanisms": ""}, "not empty"),
        ({"sasl.enabled.mechanisms": "PLAIN,PLAIN"}, "each once"),
        ({"listeners": "INSIDE://127.0.0.1:1,INSIDE://127.0.0.1:2", **NAMES}, "each needs a name of its own"),
        ({"listeners": "INSIDE://127.0.0.1:1,INSIDE://[::1]:2", **NAMES}, "each needs a name of its own"),
        ({"listeners": "INSIDE://0.0.0.0:1", "allow.plaintext.remote": True, **NAMES}, "set advertised.listeners"),
        ({"listeners": "INSIDE://192.0.2.1:1", **NAMES}, "set allow.plaintext.remote = true"),
        ({"advertised.listeners": "OUTSIDE://db:1"}, "listeners have no address named OUTSIDE, but PLAINTEXT"),
        ({"advertised.listeners": "a:1,b:2"}, "advertised.listeners has PLAINTEXT twice"),
        ({"advertised.listeners": "unix:/run/k"}, "not an address that clients can connect to"),
        ({"listener.security.protocol.map": "A:TLS"}, "'A:TLS' is not NAME:PROTOCOL: protocols are PLAINTEXT, SSL"),
        ({"listener.security.protocol.map": "A:SSL,a:PLAINTEXT"}, "A has two protocols"),
        ({"metrics.listener": "A://127.0.0.1:1"}, "must be host:port"),
        ({"inter.broker.listener": "A://127.0.0.1:1"}, "must be host:port or unix:PATH"),
        ({"listener.name.x.ssl.client.auth": "none"}, "listener.name.x.ssl.client.auth: listeners have none named X"),
        ({"listener.name.x.log.dirs": "/a"}, "listener.name.x.log.dirs in the command line: a listener may have these"),
        ({"listener.name.plaintext.ssl.client.auth": "x"}, "must be one of none, requested, required"),
        ({"ssl.key.password": 7}, "ssl.key.password = (hidden) in the command line"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.1 is not one of TLSv1.2, TLSv1.3"),
        ({"ssl.keystore.type": "JKS"}, "must be one of PEM"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,SSL://unix:/a"}, "a unix socket has no TLS"),
        ({"max.connections.per.ip.overrides": "a:b"}, "must be an integer from 0"),
        ({"allow.remote": True}, "allow.remote in the command line is called allow.plaintext.remote"),
    ],
)
def test_listeners_that_clients_cannot_use_are_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as error:
        loaded(**given)
    assert expected in str(error.value)


def test_a_registration_carries_the_endpoints_and_one_without_them_is_that_of_plaintext() -> None:
    outside = Endpoint("OUTSIDE", "::1", 2, SecurityProtocol.SASL_SSL)
    registration = BrokerRegistration(
        1, 7, "a", 1, internal=("/run/x", 0), endpoints=(Endpoint("INSIDE", "a", 1, PLAINTEXT), outside)
    )
    stat = NodeStat(0, 0, 0)
    data = nodes.encode_broker(registration)
    read = nodes.decode_broker("/brokers/ids/1", Node(data, stat), 7)
    assert read == registration
    at = read.at("OUTSIDE")
    assert at is not None and (at.host, at.port) == ("::1", 2)
    assert read.at("PLAINTEXT") is None and read.at("INSIDE") is read
    former = BrokerRegistration(1, 7, "a", 1, endpoints=named_endpoints([Endpoint("PLAINTEXT", "a", 1, PLAINTEXT)]))
    assert b"endpoints" not in nodes.encode_broker(former)  # as versions without named listeners wrote it
    assert former.at("PLAINTEXT") is former and former.at("SSL") is None


async def response(peer: Peer, endpoint: Endpoint, api: ApiKey, version: int, **fields: Any) -> Any:
    header = RequestHeader(api, version, 1, "test")
    frame = await peer.call((endpoint.host, endpoint.port), generic.encode_request(header, **fields), 20)
    return generic.decode_response(frame, header)


def test_clients_get_the_brokers_that_have_their_listener_by_its_addresses(tmp_path: Path) -> None:
    async def scenario() -> None:
        protocols = "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,OUT1:PLAINTEXT,OUT2:PLAINTEXT"
        names = {
            "listeners": "INSIDE://127.0.0.1:0,OUT{id}://127.0.0.1:0",
            "listener_security_protocol_map": protocols,
            "offsets_topic_replication_factor": 1,
        }
        peer = Peer(1 << 20)
        async with serving(tmp_path, 1, 2, **names) as (first, second):
            await until_controlled(first)
            await eventually(lambda: _knows(first, 2))
            inside, outside = first.endpoints
            topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "configs": []}
            topic["assignments"] = [{"partition_index": 0, "broker_ids": [2]}]
            await response(
                peer, inside, ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False
            )
            await eventually(lambda: _leads(first, 2))

            async def metadata(at: Endpoint, version: int) -> Any:
                request = [{"name": "t"}]
                return await response(
                    peer, at, ApiKey.METADATA, version, topics=request, allow_auto_topic_creation=False
                )

            found = await metadata(inside, 5)
            assert _addresses(found.brokers) == {1: inside[1:3], 2: second.endpoints[0][1:3]}
            assert found.topics[0].partitions[0].error_code == ErrorCode.NONE
            found = await metadata(outside, 5)
            assert _addresses(found.brokers) == {1: outside[1:3]}
            assert found.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
            assert (await metadata(outside, 6)).topics[0].partitions[0].error_code == ErrorCode.LISTENER_NOT_FOUND
            cluster = await response(
                peer, outside, ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False
            )
            assert {broker.broker_id: (broker.host, broker.port) for broker in cluster.brokers} == {1: outside[1:3]}
            groups = {}
            for at in (inside, outside):
                found = await response(peer, at, ApiKey.FIND_COORDINATOR, 3, key="g", key_type=0)
                groups[at.listener] = found.error_code, found.node_id, (found.host, found.port)
            broker = groups["INSIDE"][1]
            assert groups["INSIDE"] == (0, broker, (first, second)[broker - 1].endpoints[0][1:3])
            absent = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, ("", -1))
            assert groups["OUT1"] == ((0, 1, outside[1:3]) if broker == 1 else absent)
            peer.close()

    asyncio.run(scenario())


def _addresses(brokers: Iterable[Any]) -> dict[int, tuple[str, int]]:
    return {broker.node_id: (broker.host, broker.port) for broker in brokers}


async def _knows(broker: Broker, other: int) -> bool:
    return other in broker.manager.metadata.brokers


async def _leads(broker: Broker, leader: int) -> bool:
    state = broker.manager.metadata.partitions.get(TopicPartition("t", 0))
    return state is not None and state.state.leader == leader


def test_listeners_have_settings_of_their_own_over_those_of_all(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        """
        broker.id = 1
        log.dirs = ["/a"]
        coordination = "embedded:/c"
        listeners = ["SSL://127.0.0.1:1", "MUTUAL_ONE://127.0.0.1:2"]
        listener.security.protocol.map = ["SSL:SSL", "MUTUAL_ONE:SSL"]
        ssl.keystore.location = "/all.pem"
        [listener.name.mutual_one]
        "ssl.client.auth" = "required"
        ssl.key.password = "secret"
        """
    )
    variables = {
        "KREPLOG_LISTENER_NAME_MUTUAL_ONE_SSL_KEYSTORE_LOCATION": "/own.pem",
        "KREPLOG_SSL_ENABLED_PROTOCOLS": "TLSv1.3",
    }
    settings = load({}, file, variables)
    assert tls_settings(settings, "SSL") == TlsSettings(keystore="/all.pem", protocols=("TLSv1.3",))
    assert tls_settings(settings, "MUTUAL_ONE") == TlsSettings(
        keystore="/own.pem", protocols=("TLSv1.3",), client_auth="required", key_password="secret"
    )
    assert "secret" not in repr(settings)


REMOTE_TLS: dict[str, Any] = {"listeners": "SSL://192.0.2.1:1", "ssl.truststore.location": "/ca.pem"}


@pytest.mark.parametrize("client_auth", ["none", "requested"])
def test_a_listener_with_tls_that_is_open_to_all_is_refused_on_other_addresses_than_loopback(client_auth: str) -> None:
    expected = r"192\.0\.2\.1 is not a loopback address.* set ssl\.client\.auth = required, or authorizer\.class"
    for name in ("ssl.client.auth", "listener.name.ssl.ssl.client.auth"):
        with pytest.raises(UsageError, match=expected):
            loaded(**REMOTE_TLS, **{name: client_auth})
    with pytest.raises(UsageError, match=expected):
        loaded(**REMOTE_TLS, **{"ssl.client.auth": "required", "listener.name.ssl.ssl.client.auth": client_auth})


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.client.auth": "required"},
        {"listener.name.ssl.ssl.client.auth": "required"},
        {"authorizer.class.name": STANDARD_AUTHORIZER},
        {"allow.plaintext.remote": True},
        {"listeners": "SASL_SSL://192.0.2.1:1"},
        {"listeners": "SSL://127.0.0.1:1"},
    ],
)
def test_a_listener_with_tls_may_be_on_other_addresses_than_loopback(given: dict[str, Any]) -> None:
    assert loaded(**{**REMOTE_TLS, **given}).listeners[0].security_protocol.encrypts
