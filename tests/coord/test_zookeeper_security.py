"""TLS and authentication to a real ZooKeeper, ACLs of nodes, and what is said of wrong passwords and certificates."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kazoo", reason="needs kazoo, the extra `zookeeper`")

from kreplog.cluster.files import free_ports
from kreplog.coord.zookeeper import ZooKeeperStore
from kreplog.coord.zookeeper_security import NO_SECURITY, ZooKeeperSecurity
from kreplog.errors import ConnectionLossError, CoordinationError, UsageError
from kreplog.types import Create
from tests.certificates import HOSTS, Certificates
from tests.coord.servers import MISSING, Proxy, ZooKeeperServer, until

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SECRET = "not-for-logs"
DIGEST = ZooKeeperSecurity(set_acl=True, authentication="digest", user="kreplog", password=SECRET)
SASL = replace(DIGEST, authentication="sasl")
JAAS = f'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_kreplog="{SECRET}"; }};\n'
NODE = "/brokers"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.keystore("server", HOSTS)
    return made


@pytest.fixture(scope="module")
def secure(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server: where it speaks TLS with clients that have certificates, and where plaintext."""
    (port,) = free_ports(1)
    config = f"""\
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={certificates.folder}/server.pem
ssl.trustStore.location={certificates.truststore}
ssl.protocol=TLSv1.3
ssl.enabledProtocols=TLSv1.2,TLSv1.3
ssl.ciphersuites=TLS_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
"""
    server = ZooKeeperServer(tmp_path_factory.mktemp("secure"), config=config)
    yield f"127.0.0.1:{port}", server.hosts
    server.kill()


def tls(certificates: Certificates, **changes: Any) -> ZooKeeperSecurity:
    settings = ZooKeeperSecurity(
        ssl_client_enable=True,
        ssl_keystore_location=certificates.keystore("client"),
        ssl_truststore_location=certificates.truststore,
    )
    return replace(settings, **changes)


def opened(hosts: str, security: ZooKeeperSecurity, connect_timeout_ms: int = 10_000) -> ZooKeeperStore:
    return ZooKeeperStore(hosts, security=security, connect_timeout_ms=connect_timeout_ms)


def refused(hosts: str, security: ZooKeeperSecurity, error: type[CoordinationError] = CoordinationError) -> str:
    """The message of the error of a connection."""
    with closing(opened(hosts, security, 3000)) as store, pytest.raises(error) as raised:
        store.connect(5000)
    assert SECRET not in str(raised.value)
    return str(raised.value)


# Digest, and ACLs


def test_nodes_belong_to_the_user_that_creates_them(zookeeper: ZooKeeperServer) -> None:
    hosts = zookeeper.hosts + "/owned"
    with closing(opened(hosts, DIGEST)) as own, closing(opened(zookeeper.hosts, NO_SECURITY)) as other:
        session = own.connect(5000)
        session.create(NODE, b"ours")
        session.multi([Create(f"{NODE}/ids", b"ours"), Create(f"{NODE}/ids/0", b"ours", ephemeral=True)])
        stranger = other.connect(5000)
        for path in ("/owned", f"/owned{NODE}", f"/owned{NODE}/ids", f"/owned{NODE}/ids/0"):
            with pytest.raises(CoordinationError, match="check zookeeper"):
                stranger.get(path)
            with pytest.raises(CoordinationError, match="check zookeeper"):
                stranger.set_data(path, b"theirs")
        assert session.get(NODE).data == b"ours"


@pytest.mark.parametrize("change", [{"password": "wrong"}, {"user": "other"}, {"authentication": "none"}])
def test_another_user_or_password_is_refused_when_it_connects(zookeeper: ZooKeeperServer, change: Any) -> None:
    hosts = zookeeper.hosts + "/refused"
    security = replace(DIGEST, **change)
    if security.authentication == "none":
        security = NO_SECURITY
    with closing(opened(hosts, DIGEST)) as own:
        own.connect(5000).create(f"/of-{len(str(change))}")
        assert "check zookeeper.user and zookeeper.password" in refused(hosts, security)


def test_clusters_of_several_users_have_their_roots_below_one_node(zookeeper: ZooKeeperServer) -> None:
    with (
        closing(opened(zookeeper.hosts + "/shared/a", DIGEST)) as first,
        closing(opened(zookeeper.hosts + "/shared/b", replace(DIGEST, user="other"))) as second,
    ):
        first.connect(5000).create(NODE)
        second.connect(5000).create(NODE)
        assert "check zookeeper" in refused(zookeeper.hosts + "/shared/a", replace(DIGEST, user="other"))
    assert "check zookeeper" in refused(zookeeper.hosts + "/shared/a/below", replace(DIGEST, user="other"))


def test_without_set_acl_nodes_are_open_as_before(zookeeper: ZooKeeperServer) -> None:
    hosts = zookeeper.hosts + "/open"
    with closing(opened(hosts, replace(DIGEST, set_acl=False))) as own, closing(opened(hosts, NO_SECURITY)) as other:
        own.connect(5000).create(NODE)
        other.connect(5000).set_data(NODE, b"theirs")


def test_nodes_made_without_acls_are_warned_of_and_secured(
    zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = zookeeper.hosts + "/migrated"
    with closing(opened(hosts, NO_SECURITY)) as store, closing(opened(hosts, DIGEST)) as secured:
        before = store.connect(5000)
        before.create(NODE)
        before.create(f"{NODE}/0", ephemeral=True)
        session = secured.connect(5000)
        assert "kreplog cluster zookeeper-acl secure" in caplog.text
        assert session.set_acls(True) == 3
        for path in ("/", NODE, f"{NODE}/0"):
            with pytest.raises(CoordinationError, match="check zookeeper"):
                before.get(path)
        caplog.clear()
        secured.connect(5000)
        assert not caplog.text
        assert session.set_acls(False) == 3
        before.set_data(f"{NODE}/0", b"again")


def test_an_open_root_of_zookeeper_itself_is_warned_of(
    zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may delete its children may delete the controller's node."""
    with closing(opened(zookeeper.hosts, DIGEST)) as store:
        store.connect(5000)
    assert "the node / in ZooKeeper was created without" in caplog.text


def test_the_password_is_in_no_log(zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), closing(opened(zookeeper.hosts + "/logged", DIGEST)) as store:
        store.connect(5000).create(NODE)
    assert SECRET not in caplog.text
    assert SECRET not in repr(DIGEST)


# SASL


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that requires SASL."""
    pytest.importorskip("puresasl", reason="SASL to ZooKeeper needs pure-sasl")
    folder = tmp_path_factory.mktemp("sasl")
    (folder / "jaas.conf").write_text(JAAS)
    server = ZooKeeperServer(
        folder,
        f"-Djava.security.auth.login.config={folder}/jaas.conf",
        config="authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
        "sessionRequireClientSASLAuth=true\n",
    )
    yield server.hosts
    server.kill()


def test_sasl_authenticates_and_owns_nodes(sasl_server: str) -> None:
    with closing(opened(sasl_server + "/sasl", SASL)) as store:
        session = store.connect(5000)
        session.create(NODE, b"ours")
        assert store.connect(5000).get(NODE).data == b"ours"


def test_sasl_refuses_a_wrong_password_at_once(sasl_server: str) -> None:
    message = refused(sasl_server + "/sasl", replace(SASL, password="wrong"))
    assert "refuses user kreplog: check zookeeper.authentication, zookeeper.user" in message


def test_a_connection_that_breaks_during_sasl_is_made_again(sasl_server: str) -> None:
    """A server that stops; others break the connections of clients that they refuse."""
    proxy = Proxy(int(sasl_server.partition(":")[2]))
    login = b"zk-sasl-md5"  # of the response to the challenge
    with closing(opened(proxy.hosts + "/broken", SASL)) as store:
        proxy.break_at(login, 1)
        session = store.connect(20_000)
        session.create(NODE, b"ours")
        proxy.break_at(login, 3)
        until(lambda: not proxy.to_break, "three logins")

        def is_read() -> bool:
            try:
                return session.get(NODE).data == b"ours"
            except ConnectionLossError:
                return False

        until(is_read, "a login")
    proxy.break_at(login, 1000)
    assert "refuses user kreplog" in refused(proxy.hosts + "/broken", SASL)
    assert proxy.to_break == 998  # each server twice
    proxy.close()


@pytest.mark.parametrize("security", [NO_SECURITY, DIGEST], ids=["none", "digest"])
def test_a_server_that_requires_sasl_refuses_others(sasl_server: str, security: ZooKeeperSecurity) -> None:
    assert "refuses clients without SASL" in refused(sasl_server + "/sasl", security)


# TLS


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_session_by_tls_reads_writes_and_watches(
    secure: tuple[str, str], certificates: Certificates, version: str
) -> None:
    """Also much at once: what OpenSSL has decrypted is seen although the socket has nothing."""
    security = tls(certificates, ssl_enabled_protocols=(version,))
    with closing(opened(secure[0] + f"/{version}", security)) as store:
        session = store.connect(5000)
        session.multi([Create(NODE), *(Create(f"{NODE}/{number}", b"x" * 300) for number in range(1000))])
        found = session.get_many([f"{NODE}/{number}" for number in range(1000)])
        assert [node and node.data for node in found] == [b"x" * 300] * 1000
        events: list[Any] = []
        session.get(NODE, events.append)
        store.connect(5000).set_data(NODE, b"changed")
        until(lambda: events, "the watch is not called")


def test_with_acls_the_certificate_owns_nodes(secure: tuple[str, str], certificates: Certificates) -> None:
    hosts, plain = secure
    with closing(opened(hosts + "/certified", tls(certificates, set_acl=True))) as store:
        store.connect(5000).create(NODE)
        assert "ACL" in refused(plain + "/certified", NO_SECURITY)
        other = tls(certificates, ssl_keystore_location=certificates.keystore("other"))
        assert "ACL" in refused(hosts + "/certified", other)


def test_a_server_of_another_ca_is_refused_with_the_reason(
    secure: tuple[str, str], certificates: Certificates, tmp_path: Path
) -> None:
    others = Certificates(tmp_path, "another CA")
    security = tls(certificates, ssl_truststore_location=others.truststore)
    assert "certificate verify failed" in refused(secure[0], security, ConnectionLossError)


def test_a_client_of_another_ca_is_refused(secure: tuple[str, str], certificates: Certificates, tmp_path: Path) -> None:
    others = Certificates(tmp_path, "another CA")
    security = tls(certificates, ssl_keystore_location=others.keystore("client"))
    assert "no ZooKeeper server" in refused(secure[0], security, ConnectionLossError)


def test_a_certificate_of_another_host_is_refused(certificates: Certificates) -> None:
    """Without a server of ZooKeeper: its handshake is all that counts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.keystore("elsewhere", ["elsewhere.example"]))
    with socket.create_server(("127.0.0.1", 0)) as plain, context.wrap_socket(plain, server_side=True) as listener:
        hosts = f"127.0.0.1:{listener.getsockname()[1]}"
        assert "127.0.0.1" in accepted_and_refused(listener, hosts, tls(certificates))


def accepted_and_refused(listener: ssl.SSLSocket, hosts: str, security: ZooKeeperSecurity) -> str:
    def accept() -> None:
        while True:
            try:
                listener.accept()[0].close()
            except ssl.SSLError:
                continue
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    return refused(hosts, security, ConnectionLossError)


def test_plaintext_to_a_port_of_tls_says_what_to_check(secure: tuple[str, str]) -> None:
    assert "zookeeper.ssl.client.enable" in refused(secure[0], NO_SECURITY, ConnectionLossError)


def test_tls_to_a_port_of_plaintext_says_what_to_check(secure: tuple[str, str], certificates: Certificates) -> None:
    assert "secureClientPort" in refused(secure[1], tls(certificates), ConnectionLossError)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"set_acl": True}, "zookeeper.set.acl"),
        ({"user": "a"}, "no effect without zookeeper.authentication"),
        ({"authentication": "digest", "user": "a"}, "needs zookeeper.user and zookeeper.password"),
        ({"authentication": "digest", "user": "a:b", "password": "c"}, "no colon"),
        ({"ssl_truststore_location": "ca.pem"}, "zookeeper.ssl.client.enable"),
        ({"ssl_client_enable": True, "ssl_truststore_location": "/missing/ca.pem"}, "/missing/ca.pem"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ZooKeeperStore("localhost:1", security=ZooKeeperSecurity(**settings))
