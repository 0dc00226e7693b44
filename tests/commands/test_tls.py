"""`kreplog cluster create --tls`, and commands and the bulk client over TLS."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")
pytest.importorskip("cryptography", reason="needs cryptography, the extra `tls`")

import pyarrow as pa

from kreplog.client import BrokersUnreachableError, Consumer, Producer
from kreplog.client.security import ClientSecurity
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import UsageError
from kreplog.tls import TlsSettings, server_context
from kreplog.types import SecurityProtocol, TopicPartition
from tests.certificates import Certificates
from tests.commands.conftest import Kreplog
from tests.integration import clusters
from tests.integration.clusters import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster.create(tmp_path_factory.mktemp("tls") / "c", [0], 0, tls=True)
    try:
        made.start()
        yield made
    finally:
        clusters.end(made)


def properties(cluster: LocalCluster) -> Path:
    return cluster.directory / "tls" / "client.properties"


def test_files_are_their_owners_and_clients_learn_of_theirs(kreplog: Kreplog, tmp_path: Path) -> None:
    created = kreplog("cluster", "create", tmp_path / "c", "--brokers", "0,1", "--port", 0, "--tls")
    assert str(tmp_path / "c" / "tls" / "client.properties") in created.out.decode()
    tls = tmp_path / "c" / "tls"
    names = {"ca.key", "ca.pem", "broker-0.pem", "broker-1.pem", "client.pem", "client.properties"}
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tls.iterdir()} == dict.fromkeys(names, 0o600)
    assert stat.S_IMODE(tls.stat().st_mode) == 0o700
    made = LocalCluster(tmp_path / "c")
    for broker in made.brokers:
        listener = made.settings(broker).listeners[0]
        assert (listener.name, listener.security_protocol) == ("SSL", SecurityProtocol.SSL)
        for name in (f"broker-{broker}.pem", "client.pem"):
            subprocess.run(
                ["openssl", "verify", "-CAfile", tls / "ca.pem", tls / name], check=True, capture_output=True
            )


def test_a_long_directory_name_and_a_host_name_beyond_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h\u00f6st")
    made = LocalCluster.create(tmp_path / ("c" * 100), [0], 0, tls=True)
    server_context(TlsSettings(keystore=str(made.directory / "tls" / "broker-0.pem")))


def test_commands_of_a_directory_with_tls_connect_with_its_certificates(
    kreplog: Kreplog, cluster: LocalCluster
) -> None:
    def run(*words: Any, **more: Any) -> str:
        outcome = kreplog(*words, "--cluster", cluster.directory, **more)
        assert outcome.code == 0, outcome.err
        return outcome.out.decode()

    run("topic", "create", "orders", "--partitions", 2)
    run("produce", "orders", "--partition", 0, stdin=b"first\nsecond\n")
    assert run("consume", "orders", "--from-beginning", "--max-messages", 2) == "first\nsecond\n"
    assert "orders-1" in run("topic", "describe", "orders")
    assert run("group", "list") == "there is no group\n"
    assert run("transaction", "list") == "there is no transactional id\n"
    assert json.loads(run("broker", "describe", "--id", 0, "--json"))


def test_commands_at_an_address_need_the_properties(kreplog: Kreplog, cluster: LocalCluster, tmp_path: Path) -> None:
    bootstrap = cluster.bootstrap()
    refused = kreplog("topic", "list", "-b", bootstrap)
    assert refused.code == 1
    assert "does its listener have another security.protocol?" in refused.err
    assert kreplog("topic", "list", "-b", bootstrap, "--command-config", properties(cluster)).code == 0
    stranger = Certificates(tmp_path, "another CA")
    wrong = tmp_path / "wrong.properties"
    wrong.write_text(f"# another CA\nsecurity.protocol: SSL\nssl.truststore.location = {stranger.truststore}\n")
    refused = kreplog("topic", "list", "-b", bootstrap, "--command-config", wrong)
    assert refused.code == 1
    assert "TLS fails: CERTIFICATE_VERIFY_FAILED" in refused.err
    assert "is ssl.truststore.location the CA of the broker's certificate?" in refused.err
    anonymous = f"security.protocol=SSL\nssl.truststore.location={cluster.directory}/tls/ca.pem\n"
    for own in ("", f"ssl.keystore.location={stranger.keystore('client')}\n"):
        wrong.write_text(anonymous + own)
        refused = kreplog("topic", "list", "-b", bootstrap, "--command-config", wrong)
        assert "is ssl.keystore.location a certificate of a CA that the broker trusts?" in refused.err


def test_a_broker_that_is_added_gets_a_certificate(kreplog: Kreplog, tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [0], 0, tls=True)
    try:
        made.start()
        added = kreplog("cluster", "add-brokers", "1", made.directory, "--execute", "--port", 0)
        assert added.code == 0, added.err
        assert (made.directory / "tls" / "broker-1.pem").stat().st_mode & 0o777 == 0o600
        status = json.loads(kreplog("cluster", "status", made.directory, "--json").out)
        assert [broker["state"] for broker in status["brokers"]] == ["serving", "serving"]
    finally:
        clusters.end(LocalCluster(made.directory))


def test_certificates_are_renewed_under_a_running_broker(kreplog: Kreplog, cluster: LocalCluster) -> None:
    """It shows the new one by itself; who has files from before the renewal is served, and the other way round."""
    tls = cluster.directory / "tls"
    before = {path.name: path.read_bytes() for path in tls.iterdir()}
    host, _, port = cluster.bootstrap().rpartition(":")
    shown = ssl.get_server_certificate((host, int(port)))
    renewed = kreplog("cluster", "renew-certificates", cluster.directory, "--json")
    assert renewed.code == 0, renewed.err
    valid = datetime.fromisoformat(json.loads(renewed.out)["expires"]) - datetime.now(UTC)
    assert timedelta(days=820) < valid < timedelta(days=830)
    after = {path.name: path.read_bytes() for path in tls.iterdir()}
    assert {name for name, content in before.items() if after[name] != content} == {
        "ca.pem",
        "broker-0.pem",
        "client.pem",
    }
    eventually(lambda: ssl.get_server_certificate((host, int(port))) != shown, "the old one is shown")
    for truststore, keystore in ((before, after), (after, before), (before, before)):
        (tls / "some-ca.pem").write_bytes(truststore["ca.pem"])
        (tls / "some-client.pem").write_bytes(keystore["client.pem"])
        security = {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(tls / "some-ca.pem"),
            "ssl.keystore.location": str(tls / "some-client.pem"),
        }
        with Consumer(cluster.bootstrap(), security=security) as consumer:
            consumer.topics()


def test_only_certificates_that_it_made_are_renewed(kreplog: Kreplog, tmp_path: Path) -> None:
    LocalCluster.create(tmp_path / "c", [0], 0)
    refused = kreplog("cluster", "renew-certificates", tmp_path / "c")
    assert refused.code == 2 and "not created with --tls" in refused.err
    made = LocalCluster.create(tmp_path / "d", [0], 0, tls=True)
    keystore = (made.directory / "tls" / "broker-0.pem").read_bytes()
    (made.directory / "tls" / "ca.key").write_bytes(b"?")
    refused = kreplog("cluster", "renew-certificates", made.directory)
    assert refused.code == 2 and "which new certificates need, cannot be read" in refused.err
    assert (made.directory / "tls" / "broker-0.pem").read_bytes() == keystore


def test_the_bulk_client_reads_and_writes_over_tls(kreplog: Kreplog, cluster: LocalCluster) -> None:
    assert kreplog("topic", "create", "bulk", "--cluster", cluster.directory).code == 0
    tls = cluster.directory / "tls"
    security = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(tls / "ca.pem"),
        "ssl.keystore.location": str(tls / "client.pem"),
    }
    rows = pa.table({"value": [b"%d" % number * 1000 for number in range(20_000)]})
    with Producer(cluster.bootstrap(), security=security, compression="none") as producer:
        assert producer.append_arrow("bulk", rows, partition=0)[0].records == len(rows)
    with Consumer(cluster.bootstrap(), ["value"], security=security) as consumer:
        pieces = consumer.read_arrow({TopicPartition("bulk", 0): (0, len(rows))})
        found = pa.Table.from_batches([piece.to_arrow() for piece in pieces])
    assert found["value"].to_pylist() == rows["value"].to_pylist()
    with Consumer(cluster.bootstrap(), retry_timeout_s=0.5) as consumer, pytest.raises(BrokersUnreachableError):
        consumer.topics()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("security.protocol=TLS", "security.protocol = TLS: this client offers PLAINTEXT, SSL"),
        ("security.protocol=SASL_SSL", "sasl.mechanism"),
        ("ssl.truststore.password=x", "ssl.truststore.password is not a setting of a client's security"),
        ("security.protocol=SSL\nssl.truststore.type=JKS", "ssl.truststore.type = JKS: allowed: PEM"),
        ("security.protocol=SSL\nssl.enabled.protocols=TLSv1.1,TLSv1.2", "ssl.enabled.protocols = TLSv1.1,TLSv1.2"),
        ("security.protocol=SSL\nssl.keystore.location=/no/such", "/no/such cannot be read"),
        ("security.protocol", "line 1 of the properties is not name=value"),
    ],
)
def test_properties_that_cannot_be_used_are_named(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        ClientSecurity.from_file(path)
    assert reason in str(error.value)


def test_properties_of_other_things_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("! a comment\n\ngroup.id=g\nbootstrap.servers=a:1,b:2\n")
    assert ClientSecurity.from_file(path).protocol is SecurityProtocol.PLAINTEXT
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        ClientSecurity.from_file(tmp_path / "missing")
