"""BrokerClient: a connection to one broker, for requests that client libraries lack or send to another broker."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from kreplog.client.sasl_login import SESSION_SHARE, SaslLogin
from kreplog.client.security import PLAINTEXT, ClientSecurity
from kreplog.errors import PeerProtocolError
from kreplog.wire import generic
from kreplog.wire.frames import MAX_FRAME_BYTES, RequestHeader
from kreplog.wire.versions import ApiKey

_SASL_VERSION = 1
"""Of SaslHandshake and SaslAuthenticate, since Kafka 2.2."""

Address = tuple[str, int]
"""Host and port of a client listener."""


class BrokerClient:
    """Sends one request at a time to the broker at `address`; the first one connects, and authenticates, and one
    towards the end of a session authenticates again (KIP-368). timeout_s: of each request. connect: makes the
    connection in place of one to the address."""

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        security: ClientSecurity = PLAINTEXT,
        connect: Callable[[], Awaitable[socket.socket]] | None = None,
    ) -> None:
        self._connect = connect
        self._security = security
        self._address = address
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._session_ends = math.inf
        self._correlations = itertools.count(1)

    async def request(self, api: ApiKey, version: int, /, **fields: Any) -> Any:
        """The response to a request of kreplog.wire.generic. Raises OSError, TimeoutError, PeerProtocolError."""
        header = self.header(api, version)
        return generic.decode_response(await self.send(generic.encode_request(header, **fields)), header)

    async def send(self, request: list[Any]) -> bytes:
        """Send the frame of any request; return the frame of its response. Raises OSError, TimeoutError,
        PeerProtocolError, AuthenticationError; the connection is closed then."""
        login = self._security.login
        authenticates = login is not None and (self._streams is None or time.monotonic() > self._session_ends)
        try:
            if login is not None and authenticates and login.tokens is not None:
                await asyncio.to_thread(login.prepare)
            async with asyncio.timeout(self._timeout_s):
                if self._streams is None:
                    self._streams = await self._open()
                if login is not None and authenticates:
                    await self._authenticate(login, *self._streams)
                return await _exchange(request, *self._streams)
        except asyncio.IncompleteReadError as error:
            self.close()
            raise ConnectionResetError("the broker closed the connection") from error
        except BaseException:
            self.close()
            raise

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._connect is not None:
            return await asyncio.open_connection(sock=await self._connect())
        streams = await asyncio.open_connection(*self._address, ssl=self._security.context)
        self._security.check_peer(streams[1].get_extra_info("socket"))
        return streams

    async def _authenticate(self, login: SaslLogin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began, requests = time.monotonic(), login.requests()
        self._session_ends = math.inf
        api, fields = next(requests)
        try:
            while True:
                header = self.header(api, _SASL_VERSION)
                frame = await _exchange(generic.encode_request(header, **fields), reader, writer)
                api, fields = requests.send(generic.decode_response(frame, header))
        except StopIteration as end:
            if end.value:
                self._session_ends = began + end.value / 1000 * SESSION_SHARE

    async def live_brokers(self) -> set[int]:
        """Ids of the brokers that a controller has reported to this broker; empty if none has yet. Raises as
        `request`."""
        response = await self.request(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
        return set() if response.controller_id < 0 else {broker.broker_id for broker in response.brokers}

    def header(self, api: ApiKey, version: int) -> RequestHeader:
        """The header of the next request."""
        return RequestHeader(api, version, next(self._correlations), "kreplog")

    def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            with suppress(RuntimeError):  # the event loop is closed already
                streams[1].close()


async def _exchange(request: list[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.writelines(request)
    await writer.drain()
    size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
    if not 0 < size <= MAX_FRAME_BYTES:
        raise PeerProtocolError(f"a response of {size} bytes: allowed are 1 to {MAX_FRAME_BYTES}")
    return await reader.readexactly(size)
