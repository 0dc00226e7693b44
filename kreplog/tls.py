"""TLS by the standard library: contexts from PEM files under Kafka's names of settings, and sockets of it.

A context offers TLS 1.2 and 1.3, without compression, renegotiation and, on a server, sessions of TLS 1.3 to resume. In
TLS 1.2 a client may resume a session of the same context, whose certificates were verified then, since the ssl module
cannot switch that off. A TlsSocket has the calls of a plain non-blocking socket.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kreplog.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger("kreplog.tls")

PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

RECORD_BYTES = 16 << 10
"""Maximum of plaintext in a record of TLS (RFC 8446, section 5.1); OpenSSL writes one in each call."""

MAX_RECORDS = 64
"""Maximum of records that one call of TlsSocket.recv_into decrypts: clients may send ones of a few bytes."""

MAX_SEND_BYTES = 256 << 10
"""Maximum of bytes that one call of TlsSocket.sendmsg encrypts."""

_MAX_PEM_BYTES = 32 << 10
"""Of a key or a chain that is given as text; a pipe holds 64 KiB on Linux and macOS."""

_TLS_13_SUITES = {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
"""The suites of TLS 1.3 that OpenSSL enables; the ssl module cannot choose among them."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Kafka's settings of TLS. Files are PEM: neither JKS nor PKCS12.

    keystore: path of a file with the private key and the certificate with its chain. key_password: of that key, if it
    is encrypted.
    keystore_chain, keystore_key, truststore_certificates: PEM in place of the files' paths (KIP-651), for clients.
    keystore_type, truststore_type: the format of these files; PEM alone is known.
    truststore: path of the certificates of the CAs that the other end's certificate must come from; None: those of the
    system, for a client. client_auth: whether a listener wants certificates of clients. protocols: the versions that
    are offered. cipher_suites: by the names of the IANA; empty: those of OpenSSL. endpoint_identification: "https": the
    certificate of a server must name its host; "": it need not. principal_mapping_rules: make a principal's name from
    the subject of a client's certificate, the first that matches.
    """

    keystore: str | None = None
    key_password: str | None = field(default=None, repr=False)
    keystore_type: str = "PEM"
    keystore_chain: str | None = None
    keystore_key: str | None = field(default=None, repr=False)
    truststore: str | None = None
    truststore_certificates: str | None = None
    truststore_type: str = "PEM"
    client_auth: str = "none"
    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    cipher_suites: tuple[str, ...] = ()
    endpoint_identification: str = "https"
    principal_mapping_rules: str = "DEFAULT"

    @property
    def files(self) -> tuple[str, ...]:
        """The files that a context is made from."""
        return tuple(dict.fromkeys(path for path in (self.keystore, self.truststore) if path is not None))


TLS_NAMES = {
    "ssl.keystore.location": "keystore",
    "ssl.keystore.type": "keystore_type",
    "ssl.key.password": "key_password",
    "ssl.truststore.location": "truststore",
    "ssl.truststore.type": "truststore_type",
    "ssl.client.auth": "client_auth",
    "ssl.enabled.protocols": "protocols",
    "ssl.cipher.suites": "cipher_suites",
    "ssl.endpoint.identification.algorithm": "endpoint_identification",
    "ssl.principal.mapping.rules": "principal_mapping_rules",
}
"""Fields of TlsSettings by Kafka's names."""

CLIENT_TLS_NAMES = {
    **{name: field for name, field in TLS_NAMES.items() if field not in ("client_auth", "principal_mapping_rules")},
    "ssl.keystore.certificate.chain": "keystore_chain",
    "ssl.keystore.key": "keystore_key",
    "ssl.truststore.certificates": "truststore_certificates",
}
"""Those of clients."""

# Contexts


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a listener. Raises UsageError for a file that is missing, unreadable or damaged, a key that is not
    the certificate's, and settings that contradict each other."""
    if settings.keystore is None:
        raise UsageError("a listener with TLS needs ssl.keystore.location: a PEM file with its key and certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    _configure(context, settings)
    context.verify_mode = CLIENT_AUTH[settings.client_auth]
    if settings.truststore is None and context.verify_mode is not ssl.CERT_NONE:
        raise UsageError(
            f"ssl.client.auth = {settings.client_auth} needs ssl.truststore.location: the certificates of the CAs "
            "that clients' certificates come from"
        )
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a client, which verifies the server's certificate always. Raises UsageError as server_context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.endpoint_identification == "https"
    _configure(context, settings)
    if settings.truststore is None and settings.truststore_certificates is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _configure(context: ssl.SSLContext, settings: TlsSettings) -> None:
    context.sslsocket_class = TlsSocket
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _set_versions(context, settings)
    if settings.keystore is not None:
        _check_readable("ssl.keystore.location", settings.keystore)
        try:
            # Without a password OpenSSL would read one from the terminal.
            context.load_cert_chain(settings.keystore, password=settings.key_password or "")
            _warn_of_others(settings.keystore)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise UsageError(
                f"ssl.keystore.location = {settings.keystore}: {_reason(error)}: it must have the private key and then "
                "the certificate with its chain, in PEM; ssl.key.password decrypts the key",
                path=settings.keystore,
            ) from error
    if settings.keystore_chain is not None or settings.keystore_key is not None:
        _load_keystore_text(context, settings)
    if settings.truststore_certificates is not None:
        if settings.truststore is not None:
            raise UsageError("set ssl.truststore.location or ssl.truststore.certificates, not both")
        try:
            context.load_verify_locations(cadata=_lines(settings.truststore_certificates))
        except (OSError, ValueError) as error:
            raise UsageError(f"ssl.truststore.certificates: {_reason(error)}: they are certificates in PEM") from error
    if settings.truststore is not None:
        _check_readable("ssl.truststore.location", settings.truststore)
        try:
            context.load_verify_locations(settings.truststore)
        except OSError as error:
            raise UsageError(
                f"ssl.truststore.location = {settings.truststore}: {_reason(error)}: it must have certificates in PEM",
                path=settings.truststore,
            ) from error


def _load_keystore_text(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Raises UsageError, which quotes neither key nor chain."""
    if settings.keystore is not None:
        raise UsageError("set ssl.keystore.location or ssl.keystore.key and ssl.keystore.certificate.chain, not both")
    if settings.keystore_chain is None or settings.keystore_key is None:
        raise UsageError("ssl.keystore.key and ssl.keystore.certificate.chain belong together: one of them is missing")
    try:
        with _pipe(settings.keystore_chain) as chain, _pipe(settings.keystore_key) as key:
            context.load_cert_chain(chain, key, password=settings.key_password or "")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"ssl.keystore.key, ssl.keystore.certificate.chain: {_reason(error)}: they are the private key and its "
            "certificate with the chain, in PEM; ssl.key.password decrypts the key"
        ) from None


@contextmanager
def _pipe(text: str) -> Iterator[str]:
    """A path that `text` can be read from once, by this process alone: OpenSSL reads keys from files, and this one must
    not be on a disk. Raises ValueError where a pipe cannot hold it."""
    data = _lines(text).encode()
    if len(data) > _MAX_PEM_BYTES:
        raise ValueError(f"more than {_MAX_PEM_BYTES} bytes")
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with os.fdopen(writer, "wb", buffering=0) as file:
            if file.write(data) != len(data):
                raise ValueError("more than this system's pipes hold for a user who has many")
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


def _lines(pem: str) -> str:
    r"""PEM as a value of a properties file has it: on one line, with \n between its lines."""
    return pem.replace("\\n", "\n")


def _set_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Raises UsageError."""
    versions = {PROTOCOLS[protocol] for protocol in settings.protocols}
    suites = set(settings.cipher_suites)
    newer, older = suites & _TLS_13_SUITES, suites - _TLS_13_SUITES
    if suites:
        if newer and newer != _TLS_13_SUITES:
            raise UsageError(
                f"ssl.cipher.suites: of TLS 1.3 all of {', '.join(sorted(_TLS_13_SUITES))} or none can be enabled"
            )
        versions &= {*([PROTOCOLS["TLSv1.3"]] if newer else []), *([PROTOCOLS["TLSv1.2"]] if older else [])}
        if not versions:
            raise UsageError("ssl.cipher.suites has no suite of ssl.enabled.protocols")
        unknown = sorted(suite for suite in older if not _set_ciphers(context, [suite]))
        if unknown:
            raise UsageError(f"ssl.cipher.suites: {', '.join(unknown)}: not in {ssl.OPENSSL_VERSION}")
        if older:
            _set_ciphers(context, [suite for suite in settings.cipher_suites if suite in older])
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, suites: Iterable[str]) -> bool:
    """Whether OpenSSL knows them. Its names of suites are the IANA's without TLS_ and WITH_, AES_128 written AES128."""
    names = []
    for suite in suites:
        name = suite.removeprefix("TLS_").replace("_WITH_", "_")
        for short, long in (("AES128", "AES_128"), ("AES256", "AES_256"), ("-POLY1305", "_POLY1305_SHA256")):
            name = name.replace(long, short)
        names.append(name.replace("_", "-"))
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        return False
    return True


def _check_readable(name: str, path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise UsageError(f"{name} = {path} cannot be read: {error.strerror}", path=path) from error


def _warn_of_others(keystore: str) -> None:
    """Log that every user of this host can read a private key, and so pose as this broker or client. Raises OSError."""
    mode = stat.S_IMODE(os.stat(keystore).st_mode)
    if mode & stat.S_IROTH:
        _log.warning(
            "ssl.keystore.location = %s has mode %04o, so that all users of this host can read the private key: "
            "`chmod 600` it, or issue a new one if somebody may have read it",
            keystore,
            mode,
        )


def _reason(error: Exception) -> str:
    """OpenSSL's reason, without the place in its source, or the system's."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return str(reason).replace("_", " ").lower() or "it is not PEM"


class ReloadedContext:
    """A context that follows its files: made again when they change. Connections have that of their handshake.

    make: returns a context from the files; raises UsageError. Raises what it raises, of the first one.
    """

    def __init__(self, make: Callable[[TlsSettings], ssl.SSLContext], settings: TlsSettings) -> None:
        self._make = make
        self._settings = settings
        self._read = self._files()
        self._refused: object = None
        self._lock = threading.Lock()
        self.current = make(settings)

    def reload(self) -> str | None:
        """Make a new context if a file has changed; a thread may call it, since it reads files.

        Returns None if nothing changed, "" after a reload, and else, once for each state of the files, the reason why
        the former context stays in force: as where one of two files is written already."""
        with self._lock:
            files = self._files()
            if files == self._read:
                return None
            try:
                self.current = self._make(self._settings)
            except UsageError as error:
                known, self._refused = self._refused == files, files
                return None if known else str(error)
            self._read, self._refused = files, None
            return ""

    def _files(self) -> list[Any]:
        found: list[Any] = []
        for path in self._settings.files:
            try:
                status = os.stat(path)
                found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
            except OSError as error:
                found.append(error.errno)
        return found


# Sockets


class TlsSocket(ssl.SSLSocket):
    """A socket of TLS with the calls of a plain non-blocking one. Raises BlockingIOError where it would wait, and
    BlockedReadError where it has to write before it can read.

    has_input: it can be read although the system's socket has nothing: decrypted bytes, or the end of the stream.
    """

    def recv_into(self, buffer: Buffer, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive what has arrived, up to the size of the buffer; 0 at the end. Less than the buffer only if the socket
        will become readable for what is left, or has_input."""
        view = memoryview(buffer)
        size = 0
        tls: Any = self._sslobj  # type: ignore[attr-defined]  # by SSLSocket.recv_into 1 KB costs half as much again
        if tls is None:
            return super().recv_into(view)  # of a closed socket: raises
        try:
            for _ in range(MAX_RECORDS):
                if size == len(view):
                    break
                count = tls.read(len(view) - size, view[size:] if size else view)
                if not count:
                    self._ended = True
                    break
                size += count
        except ssl.SSLEOFError:  # without close_notify
            self._ended = True
        except ssl.SSLWantReadError:
            if not size:
                raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            if not size:
                raise BlockedReadError from None
        return size

    @property
    def has_input(self) -> bool:
        return self._ended or self.pending() > 0

    _ended = False

    def sendmsg(  # type: ignore[override]  # neither ancillary data nor an address: the stream has none
        self, buffers: Iterable[Buffer]
    ) -> int:
        """Encrypt and send bytes from the start of `buffers`, up to MAX_SEND_BYTES; return how many.

        After BlockingIOError the next call must begin with the same bytes: OpenSSL has encrypted some of them."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        sent = index = start = 0
        try:
            while index < len(views) and sent < MAX_SEND_BYTES:
                count = self.send(_record(views, index, start))
                sent += count
                start += count
                while index < len(views) and start >= len(views[index]):
                    start -= len(views[index])
                    index += 1
        except ssl.SSLWantWriteError:
            if not sent:
                raise BlockingIOError from None
        return sent

    def close(self) -> None:
        """Send close_notify if that does not wait, and close the socket."""
        with suppress(OSError, ValueError):
            self.unwrap()
        super().close()


class BlockedReadError(Exception):
    """A read has to wait until the socket is writable. No OSError: the connection is well."""


def _record(views: Sequence[memoryview], index: int, start: int) -> Buffer:
    """The next RECORD_BYTES from byte `start` of views[index] on, or all that there are; without a copy if they stand
    in one view."""
    first = views[index][start : start + RECORD_BYTES]
    missing = RECORD_BYTES - len(first)
    if not missing or index + 1 == len(views):
        return first
    parts = [first]
    while missing and index + 1 < len(views):
        index += 1
        parts.append(views[index][:missing])
        missing -= len(parts[-1])
    return b"".join(parts)


def connect_tls(sock: socket.socket, context: ssl.SSLContext, host: str) -> TlsSocket:
    """A client's end of TLS over a connected socket, which it owns, before the handshake. Raises OSError."""
    wrapped = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    assert isinstance(wrapped, TlsSocket)
    return wrapped


def accept_tls(sock: socket.socket, context: ssl.SSLContext) -> TlsSocket:
    """A server's end of TLS over an accepted socket, which it owns, before the handshake. Raises OSError."""
    wrapped = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    assert isinstance(wrapped, TlsSocket)
    return wrapped


def complete_handshake(sock: TlsSocket, timeout_s: float) -> None:
    """Run the handshake of a non-blocking socket to its end. Raises TimeoutError, OSError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            event = select.POLLIN
        except ssl.SSLWantWriteError:
            event = select.POLLOUT
        poller = select.poll()
        poller.register(sock, event)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError("the TLS handshake is not completed in time")
