"""ClientSecurity: Kafka's names in properties, and the client's end of SASL against the server's."""

from __future__ import annotations

import fcntl
import os
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.sasl_login import SaslLogin
from kreplog.client.security import PLAINTEXT, ClientSecurity
from kreplog.core.security.credentials import UserCredentials
from kreplog.core.security.plain import PlainServer
from kreplog.core.security.sasl import SaslConnection, SaslMechanism
from kreplog.core.security.scram import SCRAM_SHA_256, SCRAM_SHA_512, ScramServer
from kreplog.errors import AuthenticationError, ErrorCode, UsageError
from kreplog.tls import TlsSettings
from kreplog.types import SecurityProtocol
from kreplog.wire.versions import ApiKey

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": "pencil",
}
SECURITY = ClientSecurity(SecurityProtocol.SASL_PLAINTEXT, None, SaslLogin("SCRAM-SHA-256", "alice", "pencil"))
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_settings_by_kafkas_names() -> None:
    assert ClientSecurity.of({}) == ClientSecurity.of(None) == PLAINTEXT
    assert ClientSecurity.of({"security.protocol": "SASL_PLAINTEXT", "acks": "all", **LOGIN}) == SECURITY
    assert "pencil" not in repr(SECURITY)
    assert SECURITY.of_kafka_python() == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "pencil",
    }


def test_sasl_over_tls() -> None:
    security = ClientSecurity.of(
        {**LOGIN, "security.protocol": "SASL_SSL", "ssl.endpoint.identification.algorithm": ""}
    )
    assert security.login == SECURITY.login
    assert security.context is not None
    assert security.of_kafka_python().keys() >= {"ssl_context", "sasl_mechanism"}


@pytest.mark.parametrize(
    ("config", "username", "password"),
    [
        (f'{JAAS} required username="alice" password="pencil";', "alice", "pencil"),
        (f'  {JAAS}  required\n password="a\\"b\\\\;= c"\n username="alice" user_bob="x" ; ', "alice", 'a"b\\;= c'),
        (f'{JAAS} required username="alice" password="pencil"', "alice", "pencil"),
    ],
)
def test_a_jaas_entry(config: str, username: str, password: str) -> None:
    given = {**LOGIN, "sasl.jaas.config": config}
    del given["sasl.username"], given["sasl.password"]
    login = SaslLogin.of(given)
    assert (login.username, login.password) == (username, password)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"security.protocol": "TLS"}, "security.protocol = TLS: this client offers PLAINTEXT, SSL"),
        ({"sasl.mechanism": ""}, "sasl.mechanism = nothing: it is one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism = GSSAPI"),
        ({"sasl.username": ""}, "SASL needs sasl.username and sasl.password"),
        ({"sasl.password": ""}, "SASL needs sasl.username and sasl.password"),
        ({"sasl.jaas.config": "secret"}, "sasl.jaas.config is not MODULE"),
        ({"sasl.jaas.config": f"{JAAS} required username=secret;"}, "sasl.jaas.config is not MODULE"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        ClientSecurity.of({**LOGIN, **changes})
    assert "secret" not in str(refused.value)
    assert "pencil" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"truststore.certificates": "secret"}, "ssl.truststore.certificates: "),
        ({"truststore.certificates": "secret", "truststore.location": "ca.pem"}, "not both"),
        ({"keystore.key": "secret"}, "ssl.keystore.key and ssl.keystore.certificate.chain belong together"),
        ({"keystore.key": "secret", "keystore.certificate.chain": "secret"}, "they are the private key and its"),
        ({"keystore.key": "secret" * 6000, "keystore.certificate.chain": "secret"}, "more than 32768 bytes"),
        ({"keystore.key": "secret", "keystore.certificate.chain": "x", "keystore.location": "k.pem"}, "k.pem"),
    ],
)
def test_pem_in_place_of_files_is_checked_and_never_quoted(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        ClientSecurity.of({"security.protocol": "SSL", **{f"ssl.{name}": value for name, value in given.items()}})
    assert "secret" not in "".join(traceback.format_exception(refused.value))
    assert "secret" not in repr(TlsSettings(keystore_key="secret"))


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="only Linux has pipes of a chosen size")
def test_pem_as_text_is_refused_where_pipes_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux has them for users of many: it did not return."""
    made = os.pipe

    def small() -> tuple[int, int]:
        reader, writer = made()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        return reader, writer

    monkeypatch.setattr(os, "pipe", small)
    given = {"ssl.keystore.key": "k" * 8192, "ssl.keystore.certificate.chain": "c"}
    with pytest.raises(UsageError, match="pipes hold"):
        ClientSecurity.of({"security.protocol": "SSL", **given})


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# alice\n" + "".join(f"{name} = {value}\n" for name, value in LOGIN.items()))
    assert ClientSecurity.from_file(file) == SECURITY
    entry = f'{JAAS} required \\\n  username="alice" \\\n  password="pencil";\n'
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={entry}")
    assert ClientSecurity.from_file(file) == SECURITY
    file.write_text("security.protocol=SASL_PLAINTEXT\npassword pencil\n")
    with pytest.raises(UsageError, match="line 2 of the properties") as refused:
        ClientSecurity.from_file(file)
    assert "pencil" not in str(refused.value)
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        ClientSecurity.from_file(file)


def test_no_password_is_sent_unencrypted() -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "pencil"}
    with pytest.raises(UsageError, match="would send the password unencrypted") as refused:
        ClientSecurity.of({"security.protocol": "SASL_PLAINTEXT", **login})
    assert "pencil" not in str(refused.value)
    assert ClientSecurity.of({"security.protocol": "SASL_SSL", **login}).login is not None


# The exchange

USERS = UserCredentials(b"secret")
USERS.put(
    "alice",
    {
        mechanism.name: mechanism.credential(mechanism.salted_password("pencil", b"s", 4096), b"s", 4096)
        for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)
    },
)


def server(lifetime_ms: int = 0) -> SaslConnection:
    mechanisms = {
        scram.name: SaslMechanism(partial(ScramServer, scram, partial(USERS.find, scram), "s"))
        for scram in (SCRAM_SHA_256, SCRAM_SHA_512)
    }
    return SaslConnection({**mechanisms, "PLAIN": SaslMechanism(lambda: PlainServer(USERS.is_password))}, lifetime_ms)


def logged_in(login: SaslLogin, at: SaslConnection) -> int:
    """The lifetime of the session."""
    requests = login.requests()
    response: Any = None
    try:
        while True:
            api, fields = requests.send(response)
            if api is ApiKey.SASL_HANDSHAKE:
                handshake = at.handshake(fields["mechanism"], 1, 0)
                response = SimpleNamespace(error_code=handshake.error, mechanisms=list(handshake.mechanisms))
            else:
                assert api is ApiKey.SASL_AUTHENTICATE
                reply = at.authenticate(fields["auth_bytes"], 0)
                response = SimpleNamespace(
                    error_code=reply.error,
                    error_message=reply.message,
                    auth_bytes=reply.auth_bytes,
                    session_lifetime_ms=reply.session_lifetime_ms,
                )
    except StopIteration as end:
        lifetime_ms: int = end.value
        return lifetime_ms


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_each_mechanism(mechanism: str) -> None:
    login = SaslLogin.of({**LOGIN, "sasl.mechanism": mechanism})
    at = server(5000)
    assert logged_in(login, at) == 5000
    assert at.principal.name == "alice"
    with pytest.raises(AuthenticationError, match=r"\(user alice\)"):
        logged_in(SaslLogin.of({**LOGIN, "sasl.mechanism": mechanism, "sasl.password": "pen"}), server())


def test_what_a_broker_refuses() -> None:
    requests = SaslLogin.of(LOGIN).requests()
    next(requests)
    with pytest.raises(AuthenticationError, match=r"does not offer SCRAM-SHA-256: set sasl.mechanism to PLAIN"):
        requests.send(SimpleNamespace(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["PLAIN"]))
    requests = SaslLogin.of(LOGIN).requests()
    next(requests)
    with pytest.raises(AuthenticationError, match="has its listener this"):
        requests.send(SimpleNamespace(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[]))
