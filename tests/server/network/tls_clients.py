"""A listener of TLS that answers each request with itself, and clients of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kreplog.core.memory import MemoryAccount
from kreplog.core.security.principal_mapping import PrincipalMapping
from kreplog.server.listeners import Listener
from kreplog.server.network.connections import Frame
from kreplog.server.network.serving import Limits, RequestContext, Server
from kreplog.server.network.tls_listeners import TlsListener
from kreplog.tls import ReloadedContext, TlsSettings, client_context, server_context
from kreplog.types import SecurityProtocol
from kreplog.wire.frames import RequestHeader, encode_request_header
from kreplog.wire.versions import ApiKey
from tests.certificates import HOSTS, Certificates

ANYWHERE = Listener("127.0.0.1", 0, name="SSL", security_protocol=SecurityProtocol.SSL)


class Echo:
    """A server that answers each request with its own frame."""

    def __init__(self, certificates: Certificates, limits: Limits | None = None, **settings: Any) -> None:
        self.settings = TlsSettings(
            **{"keystore": certificates.keystore("broker", HOSTS), "truststore": certificates.truststore, **settings}
        )
        rules = PrincipalMapping(self.settings.principal_mapping_rules)
        self.tls = TlsListener(ReloadedContext(server_context, self.settings), rules)
        self.account = MemoryAccount(1 << 30)
        self.server = Server(limits or Limits(64 << 20, 100, 64 << 20), self.account)
        self.server.serve(self.take)
        address = self.server.listen(ANYWHERE, self.tls)
        self.address = address.host, address.port
        self.contexts: list[RequestContext] = []
        self.answers = True

    def take(self, context: RequestContext, frame: Frame) -> None:
        self.contexts.append(context)
        if self.answers:
            context.respond([len(frame).to_bytes(4, "big"), frame])


class Client:
    """A TLS client on the event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, echo: Echo, context: ssl.SSLContext) -> Client:
        return cls(*await asyncio.open_connection(*echo.address, ssl=context, server_hostname="localhost"))

    async def response(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)


def request(content: bytes) -> bytes:
    """A frame of a request whose body is `content`."""
    header = bytes(encode_request_header(RequestHeader(ApiKey.METADATA, 1, 1, "test")))
    return (len(header) + len(content)).to_bytes(4, "big") + header + content


def trusting(certificates: Certificates, **more: Any) -> ssl.SSLContext:
    context = client_context(TlsSettings(truststore=certificates.truststore, **more))
    context.sslsocket_class = ssl.SSLSocket
    return context


class Ciphertext:
    """A TLS client whose bytes to the server a test cuts, holds back and changes. sock: blocks."""

    def __init__(self, echo: Echo, context: ssl.SSLContext, receive_bytes: int | None = None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.sock = socket.socket()
        if receive_bytes is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(20)
        self.sock.connect(echo.address)

    def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.sock.sendall(self.outgoing.read())
                self.incoming.write(self.sock.recv(65536))
        self.sock.sendall(self.outgoing.read())

    def encrypted(self, content: bytes) -> bytes:
        self.tls.write(content)
        return self.outgoing.read()

    def received(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                found += self.tls.read(size - len(found))
            except ssl.SSLWantReadError:
                data = self.sock.recv(65536)
                assert data, "the server closed the connection"
                self.incoming.write(data)
        return bytes(found)


async def aside(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def own(certificates: Certificates) -> ssl.SSLContext:
    """The context of a client with a certificate."""
    return trusting(certificates, keystore=certificates.keystore("alice"))


async def exchange(echo: Echo, context: ssl.SSLContext) -> None:
    """A request and its response. In TLS 1.3 a client learns with these that its certificate is refused."""
    client = await Client.connect(echo, context)
    try:
        client.writer.write(request(b""))
        await client.response()
    finally:
        client.writer.close()
