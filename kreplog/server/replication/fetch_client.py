"""Fetches: what this broker's followers ask of their leaders, each on a connection of its own while it is under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from typing_extensions import Buffer

from kreplog.core.effects import Send
from kreplog.core.events import Fetched
from kreplog.core.messages import FetchResponse
from kreplog.errors import CoordinationError, PeerProtocolError
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer
from kreplog.wire import fetch
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

_log = logging.getLogger("kreplog.server")

VERSION = 17
"""Topic ids, and the follower's broker epoch (KIP-516, KIP-903)."""

SLACK_S = 5.0
"""What an answer may take beyond the wait that was asked for."""

Known = Callable[[int], Address | None]
"""Where this broker knows the internal endpoint of another to be; None when it does not know."""

Resolve = Callable[[int], Awaitable[Address | None]]
"""Where a broker is, as others say who are asked; None when they do not know either."""


class Fetches:
    """Carries out Send effects: every one is ended by a Fetched event, without a response when anything went wrong.

    Connections to a leader are kept and used again; there are as many as it has fetchers. on_hung_up: told of a leader
    that has closed one of them.
    """

    def __init__(
        self,
        client_id: str,
        max_frame_bytes: int,
        known: Known,
        resolve: Resolve,
        name_of: fetch.NameOf,
        put: Callable[[Fetched], None],
        on_hung_up: Callable[[int], None],
        connect: Connect,
    ) -> None:
        self._connect = connect
        self._on_hung_up = on_hung_up
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._known = known
        self._resolve = resolve
        self._name_of = name_of
        self._put = put
        self._idle: dict[int, list[Peer]] = {}
        self._ids: dict[str, str] = {}  # as they were last fetched with; those that are forgotten come without
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, effect: Send) -> None:
        """Over a connection that is open the request has gone when this returns: the leader works on it meanwhile."""
        request = effect.request
        for partition in request.partitions:
            self._ids[partition.partition.topic] = partition.topic_id
        header = RequestHeader(ApiKey.FETCH, VERSION, effect.correlation & 0x7FFFFFFF, self._client_id)
        frame = fetch.encode_request(request, header, self._ids.__getitem__)
        idle = self._idle.setdefault(effect.leader, [])
        hung_up = partial(self._on_hung_up, effect.leader)
        peer = idle.pop() if idle else Peer(self._max_frame_bytes, hung_up, self._connect)
        address = self._known(effect.leader)
        if address is not None:
            peer.begin(address, frame)
        task = asyncio.get_running_loop().create_task(self._fetch(effect, peer, address, header, frame))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, peer))

    def _ended(self, peer: Peer, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # before its first step, perhaps
            peer.close()

    async def _fetch(
        self, effect: Send, peer: Peer, address: Address | None, header: RequestHeader, frame: Sequence[Buffer]
    ) -> None:
        response: FetchResponse | None = None
        try:
            address = address or await self._resolve(effect.leader)
            if address is None:
                raise ConnectionError(f"no address of broker {effect.leader} is known")
            answer = await peer.call(address, frame, effect.request.max_wait_ms / 1000 + SLACK_S)
            response = fetch.decode_response(answer, header, self._name_of)
        except (OSError, TimeoutError, PeerProtocolError, CoordinationError) as error:
            _log.info("fetch from broker %d failed: %s", effect.leader, str(error) or type(error).__name__)
            peer.close()
        self._idle[effect.leader].append(peer)
        self._put(Fetched(effect.leader, effect.correlation, response))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for idle in self._idle.values():
            for peer in idle:
                peer.close()
