"""Internal endpoints, where brokers reach each other: the cluster's key, peer credentials, authenticated connections.

An internal endpoint is an Address. For TCP it is host and port; both ends prove that they have the cluster's key
(kreplog.wire.handshake). For a unix socket the host is a path, which begins with a slash as in libpq, and the port is
0; each end checks that the peer process runs as its own user or root (SO_PEERCRED, Linux). Elsewhere only the modes of
the socket (0600) and of its directory (0700) keep other users out.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kreplog.errors import PeerProtocolError, UsageError
from kreplog.server.network import tls_streams
from kreplog.tls import ReloadedContext, TlsSocket, connect_tls
from kreplog.wire.handshake import ClientHandshake, Handshake

Address = tuple[str, int]

HANDSHAKE_S = 5.0
"""Maximum duration of a handshake."""

_KEY_BYTES = 32
_MIN_KEY_TEXT = 32
_MAX_KEY_TEXT = 4096
_PRIVATE = 0o077
_LONGEST_SOCKET_PATH = 100
_CREDENTIALS = struct.Struct("3i")


# The key


def create_key(path: Path) -> None:
    """Write a new key, 256 random bits in hexadecimal, for its owner alone. Raises FileExistsError, OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, secrets.token_hex(_KEY_BYTES).encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def load_key(path: str) -> bytes:
    """Read the cluster's key. Raises UsageError for a file that is missing, too short, not regular, another user's, or
    open to its group or others."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(
            f"the cluster's key {path} (inter.broker.key.file) cannot be read: {error.strerror}; copy that of the "
            f"cluster's other brokers there, or make one with `(umask 077; openssl rand -hex 32 > {path})`",
            path=path,
        ) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"the cluster's key {path} is not a regular file", path=path)
        if found.st_uid not in (os.geteuid(), 0):
            raise UsageError(
                f"the cluster's key {path} belongs to user {found.st_uid}: `chown` it to user {os.geteuid()}", path=path
            )
        if found.st_mode & _PRIVATE:
            mode = stat.S_IMODE(found.st_mode)
            raise UsageError(
                f"the cluster's key {path} has mode {mode:04o}, so others may have read it: make a new one with mode "
                "0600 for all brokers, or `chmod 600` it if nobody has",
                path=path,
            )
        text = os.read(fd, _MAX_KEY_TEXT + 1).strip()
    finally:
        os.close(fd)
    if not _MIN_KEY_TEXT <= len(text) <= _MAX_KEY_TEXT:
        raise UsageError(
            f"the cluster's key {path} has {len(text)} characters: {_MIN_KEY_TEXT} to {_MAX_KEY_TEXT} are allowed, and "
            "64 hexadecimal digits are usual",
            path=path,
        )
    return text


# Unix sockets


@contextmanager
def socket_name(path: str) -> Iterator[str]:
    """A name of the socket `path` short enough for bind and connect, valid inside the `with` block. Raises OSError.

    sockaddr_un has room for 107 bytes; a longer path is named through a descriptor of its directory."""
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        yield path
        return
    folder, name = os.path.split(path)
    fd = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def make_private_directory(path: Path) -> None:
    """Make the directory of an internal socket, mode 0700. Raises UsageError if another user owns it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UsageError(
            f"{path} is not a directory owned by this user, as inter.broker.listener needs for its socket: remove it, "
            "or set inter.broker.listener to unix:PATH in another directory",
            path=str(path),
        )
    path.chmod(0o700)


def check_peer_user(sock: socket.socket) -> None:
    """Raises PeerProtocolError unless the process at the other end is of this process's user, or of root."""
    if sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid not in (os.geteuid(), 0):
        raise PeerProtocolError(f"the peer of an internal socket runs as user {uid}, not as {os.geteuid()} or root")


# Connections


async def authenticate(sock: socket.socket, handshake: Handshake) -> None:
    """Run a handshake by the cluster's key on a socket. Raises PeerProtocolError, OSError, TimeoutError: the caller
    closes the socket."""
    if isinstance(sock, TlsSocket):
        send, receive = partial(tls_streams.send_all, sock), partial(tls_streams.receive, sock)
    else:
        loop = asyncio.get_running_loop()
        send, receive = partial(loop.sock_sendall, sock), partial(loop.sock_recv, sock)
    async with asyncio.timeout(HANDSHAKE_S):
        if handshake.greeting:
            await send(handshake.greeting)
        while handshake.missing:
            data = await receive(handshake.missing)
            if not data:
                raise PeerProtocolError("the peer closed the connection within the handshake: does its key differ?")
            answer = handshake.receive(data)
            if answer:
                await send(answer)


async def connect(address: Address) -> socket.socket:
    """Connect to a client listener. Raises OSError."""
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, resolved = (await loop.getaddrinfo(*address, type=socket.SOCK_STREAM))[0]
    return await _connected(socket.socket(family, kind, protocol), resolved)


class Dialer:
    """Connects to internal endpoints. key: the cluster's key; None if all internal endpoints are unix sockets. tls: of
    connections to TCP endpoints; None where they have none."""

    def __init__(self, key: bytes | None, tls: ReloadedContext | None = None) -> None:
        self._key = key
        self._tls = tls

    async def connect(self, address: Address) -> socket.socket:
        """An authenticated connection. Raises OSError, TimeoutError, PeerProtocolError."""
        host, port = address
        if host.startswith("/"):
            with socket_name(host) as name:
                sock = await _connected(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), name)
        elif self._key is None:
            raise ConnectionError(
                f"{host}:{port} needs the cluster's key: set inter.broker.key.file of this broker too"
            )
        else:
            sock = await connect(address)
        try:
            check_peer_user(sock)
            if self._tls is not None and not host.startswith("/"):
                sock = secured = connect_tls(sock, self._tls.current, host)
                async with asyncio.timeout(HANDSHAKE_S):
                    await tls_streams.complete_handshake(secured)
            if self._key is not None and not host.startswith("/"):
                await authenticate(sock, ClientHandshake(self._key, endpoint_name(address), channel_binding(sock)))
        except BaseException:
            sock.close()
            raise
        return sock


def channel_binding(sock: socket.socket) -> bytes:
    """The channel binding of a connection: bytes that both its ends know and no other connection has; b"" without TLS.

    It is the client's Finished message: a MAC of the whole handshake, under a key that came out of it. RFC 9266 has
    another for TLS 1.3, since this is not unique where a session is resumed, which is never done here; the ssl module
    lacks that. Source: RFC 5929, tls-unique."""
    if not isinstance(sock, TlsSocket):
        return b""
    binding = sock.get_channel_binding("tls-unique")
    if not binding:
        raise PeerProtocolError("this connection of TLS has no channel binding")
    return binding


def endpoint_name(address: Address) -> str:
    """The server's endpoint as both ends name it in the handshake."""
    return f"{address[0]}:{address[1]}"


async def _connected(sock: socket.socket, target: object) -> socket.socket:
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, target)  # type: ignore[arg-type]
    except BaseException:
        sock.close()
        raise
    return sock
