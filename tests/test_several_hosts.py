"""The files of docs/several-hosts.md: settings of a broker, a unit of systemd, a file for containers, certificates."""

from __future__ import annotations

import configparser
import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from typer.testing import CliRunner

from kreplog.cli import app
from kreplog.server.settings import check
from kreplog.server.settings_file import parse
from kreplog.tls import TlsSettings, client_context, server_context
from tests.test_docs import blocks

PAGE = Path(__file__).parent.parent / "docs" / "several-hosts.md"
SECRET = {"KREPLOG_ZOOKEEPER_PASSWORD": "secret"}


def block(kind: str, beginning: str) -> str:
    """The only block of the kind that begins so."""
    (found,) = [each.code for each in blocks(PAGE.read_text()) if each.kind == kind and each.code.startswith(beginning)]
    return found


def test_a_broker_accepts_the_settings() -> None:
    settings = check(parse(block("toml", "")), str(PAGE), SECRET, {})
    assert [listener.security_protocol.name for listener in settings.listeners] == ["SSL", "SASL_SSL", "PLAINTEXT"]
    assert settings.zookeeper.password == "secret"
    assert settings.zookeeper.tls is not None


def test_the_page_names_the_ports_of_the_settings() -> None:
    settings = check(parse(block("toml", "")), str(PAGE), SECRET, {})
    assert settings.metrics_listener is not None
    ports = [*(each.port for each in settings.listeners if each.host), settings.internal.port]
    named = re.findall(r"^\| ([\d, ]+) \|", PAGE.read_text(), re.MULTILINE)
    assert named[:4] == list(map(str, [*ports, settings.metrics_listener.port]))
    zookeeper = block("ini", "dataDir")
    assert f"secureClientPort={named[4]}\n" in zookeeper and settings.coordination.count(f":{named[4]}") == 3
    assert zookeeper.count(":" + named[5].replace(", ", ":")) == 3


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """The command and its account are of no host that runs tests."""
    unit = block("ini", "[Unit]")
    parsed = configparser.ConfigParser(strict=True, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's names have cases
    parsed.read_string(unit)
    assert parsed["Service"]["Type"] == "notify"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the unit is only parsed")
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.MULTILINE)
    (tmp_path / "kreplog.service").write_text(text.replace("User=kreplog", "User=root"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "kreplog.service")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "kreplog.service" not in verified.stderr, verified.stderr


def test_the_file_for_containers_has_known_instructions() -> None:
    """Nothing here builds it."""
    known = {"FROM", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"}
    lines = block("dockerfile", "FROM").splitlines()
    assert {line.split(" ")[0] for line in lines} == known
    assert lines[-1].endswith('"broker", "start", "--config", "/etc/kreplog/broker.toml"]')


def test_the_certificates_are_good_for_servers_and_clients(tmp_path: Path) -> None:
    """By the strictest rules that OpenSSL has, which are Python's own from 3.13 on."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(["bash", "-euc", block("sh", "umask")], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    made = {name: TlsSettings(f"{tmp_path}/{name}.pem", truststore=f"{tmp_path}/ca.pem") for name in ("db1", "admin")}
    server, client = server_context(made["db1"]), client_context(made["admin"])
    for context in (server, client):
        context.sslsocket_class = ssl.SSLSocket
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    server.verify_mode = ssl.CERT_REQUIRED
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(incoming, outgoing, server_side=True),
        client.wrap_bio(outgoing, incoming, server_hostname="db1.example.com"),
    ]
    for _ in range(4):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = ends[0].getpeercert()
    assert certificate is not None and certificate["subject"] == ((("commonName", "admin"),),)


def test_the_commands_have_their_options() -> None:
    lines = [
        line.split() for each in blocks(PAGE.read_text()) for line in each.code.splitlines() if line[:8] == "kreplog "
    ]
    assert len(lines) == 3
    for _, group, command, *words in lines:
        shown = CliRunner().invoke(app, [group, command, "--help"], env={"COLUMNS": "200"})
        assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", shown.output))
