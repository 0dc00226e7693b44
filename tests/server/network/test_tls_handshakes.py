"""Handshakes of TLS: who is refused, time-outs and bounds, hostile bytes, principals, certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import socket
import ssl
import threading
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from kreplog.errors import UsageError
from kreplog.server.listeners import Listener
from kreplog.server.network.serving import Limits, Server
from kreplog.server.network.tls_handshakes import TlsHandshakes
from kreplog.tls import TlsSettings, TlsSocket, server_context
from tests.certificates import HOSTS, Certificates
from tests.faults.forked import result_of
from tests.server.loop import run, until
from tests.server.network.tls_clients import Ciphertext, Client, Echo, aside, exchange, own, request, trusting

NOBODY = 65534


def refusal(certificates: Certificates, client: Callable[[Echo], Awaitable[None]], **settings: Any) -> None:
    """A client whose handshake fails: it raises OSError, and the listener serves the next one."""

    async def scenario() -> None:
        echo = Echo(certificates, **settings)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await client(echo)
        await until(lambda: echo.server.tls_handshakes.failed == 1)
        assert echo.server.connections == 0
        good = Client(*await asyncio.open_connection(*echo.address, ssl=own(certificates), server_hostname="localhost"))
        good.writer.write(request(b""))
        await good.response()
        good.writer.close()
        echo.server.close()

    run(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("which", ["none", "another CA", "expired"])
def test_clients_without_a_valid_certificate_are_refused_where_it_is_required(
    certificates: Certificates, tmp_path: Path, which: str, version: ssl.TLSVersion
) -> None:
    stranger = Certificates(tmp_path, "another CA")
    keystores = {
        "none": None,
        "another CA": stranger.keystore("alice"),
        "expired": certificates.keystore("alice", validity=timedelta(seconds=-1)),
    }
    context = trusting(certificates, keystore=keystores[which])
    context.minimum_version = context.maximum_version = version
    refusal(certificates, lambda echo: exchange(echo, context), client_auth="required")


def test_a_requested_certificate_may_be_missing_but_not_invalid(certificates: Certificates, tmp_path: Path) -> None:
    async def scenario() -> None:
        echo = Echo(certificates, client_auth="requested", principal_mapping_rules="RULE:CN=(.*)/$1@test/U,DEFAULT")
        await exchange(echo, trusting(certificates))
        await exchange(echo, own(certificates))
        assert [str(context.principal) for context in echo.contexts] == ["User:ANONYMOUS", "User:ALICE@TEST"]
        echo.server.close()

    run(scenario)
    stranger = Certificates(tmp_path, "another CA")
    context = trusting(certificates, keystore=stranger.keystore("alice"))
    refusal(certificates, lambda echo: exchange(echo, context), client_auth="requested")


def test_a_certificate_that_no_rule_names_is_refused(certificates: Certificates, caplog: Any) -> None:
    async def scenario() -> None:
        echo = Echo(certificates, client_auth="required", principal_mapping_rules="RULE:CN=bob/bob/")
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await exchange(echo, own(certificates))
        await until(lambda: echo.server.tls_handshakes.failed == 1)
        echo.server.close()

    run(scenario)
    assert "no rule of ssl.principal.mapping.rules applies to the certificate of 'CN=alice'" in caplog.text


def test_servers_that_a_client_does_not_trust_are_refused_by_it(certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path, "another CA")
    refusal(certificates, lambda echo: exchange(echo, trusting(stranger)))


@pytest.mark.filterwarnings("ignore:.*TLSv1(_1)? is deprecated:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_older_versions_of_tls_are_refused(certificates: Certificates, version: str) -> None:
    context = trusting(certificates)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    refusal(certificates, lambda echo: exchange(echo, context))


async def send_plaintext(echo: Echo) -> None:
    reader, writer = await asyncio.open_connection(*echo.address)
    try:
        writer.write(request(b"hello"))
        answer = await reader.read()
        assert answer[:1] in (b"", b"\x15"), "an alert at most"
        raise ConnectionResetError
    finally:
        writer.close()


def test_a_request_in_plaintext_is_refused_with_advice(certificates: Certificates, caplog: Any) -> None:
    refusal(certificates, send_plaintext)
    assert "does the client use security.protocol = PLAINTEXT?" in caplog.text


def test_tls_to_a_listener_without_it_is_refused_with_advice(certificates: Certificates, caplog: Any) -> None:
    async def scenario() -> None:
        server = Server(Limits(1 << 20, 100, 1 << 20))
        address = server.listen(Listener("127.0.0.1", 0))
        with pytest.raises(OSError):
            await asyncio.open_connection(address.host, address.port, ssl=trusting(certificates), server_hostname="x")
        await until(lambda: server.connections == 0)
        server.close()

    run(scenario)
    assert "does the client use TLS here?" in caplog.text


def test_half_a_handshake_ends_at_its_timeout(certificates: Certificates, caplog: Any) -> None:
    async def scenario() -> None:
        limits = Limits(1 << 20, 100, 1 << 20, handshake_timeout_ms=50)
        echo = Echo(certificates, limits)
        silent, half = Ciphertext(echo, trusting(certificates)), Ciphertext(echo, trusting(certificates))
        with pytest.raises(ssl.SSLWantReadError):
            half.tls.do_handshake()
        half.sock.sendall(half.outgoing.read()[:100])
        assert await aside(lambda: silent.sock.recv(1)) == b""
        assert await aside(lambda: half.sock.recv(1)) == b""
        assert echo.server.tls_handshakes.in_flight == 0
        echo.server.close()

    run(scenario)
    assert "it took longer than ssl.handshake.timeout.ms = 50" in caplog.text


def all_wait(handshakes: TlsHandshakes) -> bool:
    """Whether all clients have sent something, and the server waits for more."""
    return all(isinstance(each.sock, TlsSocket) and not each.is_worked_on for each in handshakes._handshakes.values())


def test_half_handshakes_are_bounded_and_a_whole_one_passes_among_them(certificates: Certificates) -> None:
    async def scenario() -> None:
        echo = Echo(certificates, Limits(1 << 20, 100, 1 << 20, max_connections=32))
        waiting = [socket.create_connection(echo.address) for _ in range(40)]
        for sock in waiting:
            sock.sendall(b"\x16\x03\x01\x02\x00")
        handshakes = echo.server.tls_handshakes
        await until(lambda: handshakes.failed == 32)
        await until(partial(all_wait, handshakes))
        assert echo.server.tls_handshakes.in_flight == 8
        await exchange(echo, trusting(certificates))
        assert echo.server.tls_handshakes.in_flight == 7
        for sock in waiting:
            sock.close()
        echo.server.close()

    run(scenario)


def test_silent_connections_end_no_handshake_that_waits_for_its_client(certificates: Certificates) -> None:
    async def scenario() -> None:
        echo = Echo(certificates)
        handshakes = echo.server.tls_handshakes
        handshakes._most = 8
        client = Ciphertext(echo, trusting(certificates))
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        client.sock.sendall(client.outgoing.read())  # ClientHello
        client.incoming.write(await aside(lambda: client.sock.recv(65536)))
        await until(partial(all_wait, handshakes))
        silent = [socket.create_connection(echo.address) for _ in range(40)]
        await until(lambda: handshakes.failed == 33)
        await aside(client.shake_hands)
        client.sock.sendall(client.encrypted(request(b"x")))
        await until(lambda: len(echo.contexts) == 1)
        for sock in [*silent, client.sock]:
            sock.close()
        echo.server.close()

    run(scenario)


def test_handshakes_run_outside_of_the_event_loop(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    original = TlsSocket.do_handshake

    def recorded(sock: TlsSocket, block: bool = False) -> None:
        threads.add(threading.current_thread().name.partition("_")[0])
        original(sock, block)

    monkeypatch.setattr(TlsSocket, "do_handshake", recorded)

    async def scenario() -> None:
        echo = Echo(certificates)
        await exchange(echo, trusting(certificates))
        echo.server.close()

    run(scenario)
    assert threads == {"kreplog-handshakes"}


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_in_a_handshake_end_their_connection_alone(certificates: Certificates, seed: int) -> None:
    """Bytes of both flights of a client are flipped, cut, doubled and replaced."""

    async def scenario() -> None:
        echo = Echo(certificates, Limits(1 << 20, 100, 1 << 20, handshake_timeout_ms=100), client_auth="required")
        draw = random.Random(seed)
        context = own(certificates)
        for attempt in range(10):
            await aside(partial(_damaged, echo, context, draw, attempt % 2))
        await until(lambda: echo.server.tls_handshakes.in_flight == 0)
        for _ in range(50):  # on a busy machine a sound handshake may take longer than the limit, too
            with contextlib.suppress(OSError, EOFError):
                await exchange(echo, context)
                break
        assert len(echo.contexts) == 1
        echo.server.close()

    run(scenario)


def _damaged(echo: Echo, context: ssl.SSLContext, draw: random.Random, flight: int) -> None:
    client = Ciphertext(echo, context)
    try:
        for number in range(flight + 1):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.tls.do_handshake()
            data = bytearray(client.outgoing.read())
            if number == flight:
                kind = draw.randrange(4)
                at = draw.randrange(len(data))
                if kind == 0:
                    data[at] ^= 1 << draw.randrange(8)
                elif kind == 1:
                    del data[at:]
                elif kind == 2:
                    data[at:at] = data[: draw.randrange(1, len(data))]
                else:
                    data[at:] = draw.randbytes(len(data) - at)
            client.sock.sendall(data)
            if number < flight:
                client.incoming.write(client.sock.recv(65536))
        client.sock.settimeout(5)
        while client.sock.recv(65536):  # the server's flight, an alert, the end
            pass
    except OSError:
        pass  # a reset in place of the end
    finally:
        client.sock.close()


# Certificates that change


def test_a_certificate_whose_ca_is_no_longer_trusted_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    """So are certificates revoked: their CA is taken out of the truststore, and the other clients get new ones."""

    async def scenario() -> None:
        trusted = tmp_path / "trusted.pem"
        shutil.copy(certificates.truststore, trusted)
        echo = Echo(certificates, client_auth="required", truststore=str(trusted))
        await exchange(echo, own(certificates))
        standing = await Client.connect(echo, own(certificates))
        trusted.write_bytes(Path(Certificates(tmp_path / "new", "new CA").truststore).read_bytes())
        assert echo.tls.context.reload() == ""
        with pytest.raises((OSError, EOFError)):
            await exchange(echo, own(certificates))
        standing.writer.write(request(b"still here"))  # until it is closed, as SECURITY.md says
        await standing.response()
        standing.writer.close()
        echo.server.close()

    run(scenario)


def test_certificates_are_reloaded_and_half_written_ones_are_not(certificates: Certificates, tmp_path: Path) -> None:
    async def scenario() -> None:
        files = Certificates(tmp_path, "own")
        echo = Echo(files)

        async def serial(context: ssl.SSLContext) -> str:
            client = await Client.connect(echo, context)
            found = client.writer.get_extra_info("peercert")["serialNumber"]
            client.writer.close()
            return str(found)

        standing = await Client.connect(echo, trusting(files))
        first = await serial(trusting(files))
        keystore = Path(tmp_path, "broker.pem")
        former = keystore.read_bytes()
        new = files.authority.issue("broker", HOSTS)
        assert echo.tls.context.reload() is None
        key = new[: new.index(b"-----BEGIN CERTIFICATE")]
        for damaged in (b"", new[:100], key, new[:-100], key + former[former.index(b"-----BEGIN CERTIFICATE") :]):
            keystore.write_bytes(damaged)
            refused = echo.tls.context.reload()
            assert refused is not None and "ssl.keystore.location" in refused
            assert echo.tls.context.reload() is None  # said once
            assert await serial(trusting(files)) == first
        keystore.unlink()
        assert "cannot be read" in (echo.tls.context.reload() or "")
        keystore.mkdir()
        assert f"{keystore}: is a directory" in (echo.tls.context.reload() or "")
        keystore.rmdir()
        truststore = Path(files.truststore)
        authorities = truststore.read_bytes()
        truststore.unlink()
        truststore.mkdir()
        keystore.write_bytes(new)
        assert "ssl.truststore.location" in (echo.tls.context.reload() or "")
        truststore.rmdir()
        truststore.write_bytes(authorities)
        assert echo.tls.context.reload() == ""
        assert echo.tls.context.reload() is None
        assert await serial(trusting(files)) != first
        standing.writer.write(request(b"still here"))
        await standing.response()
        standing.writer.close()
        echo.server.close()

    run(scenario)


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_key_that_every_user_can_read_is_named(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    keystore = tmp_path / "broker.pem"
    keystore.write_bytes(certificates.authority.issue("broker", HOSTS))
    keystore.chmod(mode)
    server_context(TlsSettings(keystore=str(keystore)))
    assert [str(keystore) in text and "has mode 0644" in text for text in caplog.messages] == [True] * warns


def test_a_key_that_its_user_may_not_read_is_named(certificates: Certificates, tmp_path: Path) -> None:
    keystore = tmp_path / "broker.pem"
    keystore.write_bytes(certificates.authority.issue("broker", HOSTS))
    tmp_path.chmod(0o755)
    keystore.chmod(0)
    settings = TlsSettings(keystore=str(keystore))

    def reason() -> str:
        if os.geteuid() == 0:  # root reads it all the same
            os.setuid(NOBODY)
        try:
            server_context(settings)
        except UsageError as error:
            return str(error)
        return ""

    for folder in tmp_path.parents[:3]:  # of this test run, which are its user's alone
        folder.chmod(folder.stat().st_mode | 0o011)
    assert result_of(reason) == f"ssl.keystore.location = {keystore} cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"keystore": None}, "needs ssl.keystore.location"),
        ({"keystore": "/no/such.pem"}, "ssl.keystore.location = /no/such.pem cannot be read: No such file"),
        ({"truststore": "/no/such.pem"}, "ssl.truststore.location = /no/such.pem cannot be read"),
        ({"truststore": None, "client_auth": "required"}, "required needs ssl.truststore.location"),
        ({"cipher_suites": ("TLS_AES_128_GCM_SHA256",)}, "of TLS 1.3 all of TLS_AES_128_GCM_SHA256, TLS_AES_256"),
        ({"cipher_suites": ("TLS_RSA_WITH_NOTHING",)}, "TLS_RSA_WITH_NOTHING: not in OpenSSL"),
        (
            {"cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",), "protocols": ("TLSv1.3",)},
            "has no suite of ssl.enabled.protocols",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    certificates: Certificates, given: dict[str, Any], expected: str
) -> None:
    usable = {"keystore": certificates.keystore("broker", HOSTS), "truststore": certificates.truststore}
    with pytest.raises(UsageError) as error:
        server_context(TlsSettings(**{**usable, **given}))
    assert expected in str(error.value)


def test_encrypted_keys_need_their_password(certificates: Certificates, tmp_path: Path) -> None:
    """No password is read from the terminal."""
    plain = certificates.authority.issue("broker", HOSTS)
    key = load_pem_private_key(plain, None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    keystore = tmp_path / "encrypted.pem"
    keystore.write_bytes(encrypted + plain[plain.index(b"-----BEGIN CERTIFICATE") :])
    server_context(TlsSettings(keystore=str(keystore), key_password="secret"))
    for wrong in (None, "", "Secret"):
        with pytest.raises(UsageError, match=r"ssl\.key\.password decrypts the key"):
            server_context(TlsSettings(keystore=str(keystore), key_password=wrong))


@pytest.mark.parametrize(
    ("suites", "version", "offered"),
    [
        (("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",), "TLSv1.2", {"ECDHE-ECDSA-AES256-GCM-SHA384"}),
        (("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",), "TLSv1.2", {"ECDHE-ECDSA-CHACHA20-POLY1305"}),
        (
            ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"),
            "TLSv1.3",
            {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"},
        ),
    ],
)
def test_only_the_cipher_suites_that_are_named_are_offered(
    certificates: Certificates, suites: tuple[str, ...], version: str, offered: set[str]
) -> None:
    async def scenario() -> None:
        echo = Echo(certificates, cipher_suites=suites)
        client = await Client.connect(echo, trusting(certificates))
        name, _, _ = client.writer.get_extra_info("cipher")
        assert name in offered
        assert client.writer.get_extra_info("ssl_object").version() == version
        client.writer.close()
        echo.server.close()

    run(scenario)


async def openssl_client(
    echo: Echo, certificates: Certificates, version: str
) -> tuple[Process, StreamWriter, StreamReader]:
    """OpenSSL's own client, connected; its commands and its output. Skips the test where there is none."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the command openssl")
    host, port = echo.address
    client = await asyncio.create_subprocess_exec(
        *(openssl, "s_client", "-connect", f"{host}:{port}", version, "-CAfile", certificates.truststore),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert client.stdin is not None and client.stdout is not None
    await client.stdout.readuntil(b"Verify return code: 0")
    return client, client.stdin, client.stdout


def test_renegotiation_is_refused(certificates: Certificates) -> None:
    """A client could have the server make signatures without end. Python's client cannot request it; OpenSSL's can."""

    async def scenario() -> None:
        echo = Echo(certificates)
        client, commands, output = await openssl_client(echo, certificates, "-tls1_2")
        commands.write(b"R\n")
        assert b"no renegotiation" in await output.read()
        await client.wait()
        await until(lambda: not echo.server.connections)
        echo.server.close()

    run(scenario)


def test_new_keys_are_taken_while_nothing_is_read(certificates: Certificates) -> None:
    """TLS 1.3: the client changes its keys, and has the server change its own."""

    async def scenario() -> None:
        echo = Echo(certificates)
        client, commands, output = await openssl_client(echo, certificates, "-tls1_3")
        for _ in range(3):
            commands.write(b"K\n")
            await output.readuntil(b"KEYUPDATE")
        frame = request(b"content")
        assert b"\n" not in frame
        commands.write(frame)
        await until(lambda: len(echo.contexts) == 1)
        assert await output.readuntil(frame[4:])
        commands.close()
        await client.wait()
        echo.server.close()

    run(scenario)


def test_descriptors_that_run_out_delay_handshakes(certificates: Certificates) -> None:
    async def scenario() -> None:
        echo = Echo(certificates)
        await exchange(echo, trusting(certificates))
        context = trusting(certificates)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting: list[socket.socket] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    waiting.append(socket.create_connection(echo.address))
                    await asyncio.sleep(0)  # the listener has its turn
            await asyncio.sleep(0.01)  # the listener meets the limit, too
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await exchange(echo, context)
        for sock in waiting:
            sock.close()
        echo.server.close()

    run(scenario)
