"""ReplicaFetchClient: sends the fetches of this broker's followers to their leaders, one request on a connection at a
time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kreplog.core.effects import Send
from kreplog.core.events import FetchReplied
from kreplog.core.messages import FetchResponse
from kreplog.errors import CoordinationError, PeerProtocolError
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer
from kreplog.wire import fetch
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger("kreplog.server")

VERSION = 17
"""Topic ids, and the follower's broker epoch (KIP-516, KIP-903)."""

TIMEOUT_MARGIN_S = 5.0
"""How much longer than its max_wait_ms a fetch may take."""

KnownAddress = Callable[[int], Address | None]
"""The internal endpoint of a broker by this broker's metadata; None if it is not in them."""

Resolve = Callable[[int], Awaitable[Address | None]]
"""The internal endpoint of a broker by the metadata or the store; None if it is in neither."""


class ReplicaFetchClient:
    """Carries out Send effects: each ends with a FetchReplied event, without a response if anything went wrong.

    It pools the connections to a leader, as many as that has fetchers. on_closed: called with the id of a leader that
    has closed a connection.
    """

    def __init__(
        self,
        client_id: str,
        max_frame_bytes: int,
        known_address: KnownAddress,
        resolve: Resolve,
        name_of: fetch.NameOf,
        put: Callable[[FetchReplied], None],
        on_closed: Callable[[int], None],
        connect: Connect,
    ) -> None:
        self._connect = connect
        self._on_closed = on_closed
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._known_address = known_address
        self._resolve = resolve
        self._name_of = name_of
        self._put = put
        self._idle: dict[int, list[Peer]] = {}
        self._topic_ids: dict[str, str] = {}  # of the last fetch; forgotten partitions of a session come without theirs
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, effect: Send) -> None:
        """Send a fetch, on an open connection before this returns, so that the leader works on it meanwhile."""
        request = effect.request
        for partition in request.partitions:
            self._topic_ids[partition.partition.topic] = partition.topic_id
        header = RequestHeader(ApiKey.FETCH, VERSION, effect.correlation & 0x7FFFFFFF, self._client_id)
        frame = fetch.encode_request(request, header, self._topic_ids.__getitem__)
        idle = self._idle.setdefault(effect.leader, [])
        on_closed = partial(self._on_closed, effect.leader)
        peer = idle.pop() if idle else Peer(self._max_frame_bytes, on_closed, self._connect)
        address = self._known_address(effect.leader)
        if address is not None:
            peer.begin(address, frame)
        task = asyncio.get_running_loop().create_task(self._fetch(effect, peer, address, header, frame))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, peer))

    def _ended(self, peer: Peer, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before its first step
            peer.close()

    async def _fetch(
        self, effect: Send, peer: Peer, address: Address | None, header: RequestHeader, frame: Sequence[Buffer]
    ) -> None:
        response: FetchResponse | None = None
        try:
            address = address or await self._resolve(effect.leader)
            if address is None:
                raise ConnectionError(f"no address of broker {effect.leader} is known")
            data = await peer.call(address, frame, effect.request.max_wait_ms / 1000 + TIMEOUT_MARGIN_S)
            response = fetch.decode_response(data, header, self._name_of)
        except (OSError, TimeoutError, PeerProtocolError, CoordinationError) as error:
            _log.info("fetch from broker %d failed: %s", effect.leader, str(error) or type(error).__name__)
            peer.close()
        self._idle[effect.leader].append(peer)
        self._put(FetchReplied(effect.leader, effect.correlation, response))

    def close(self) -> None:
        """Cancel the fetches, and close the connections."""
        for task in self._tasks:
            task.cancel()
        for idle in self._idle.values():
            for peer in idle:
                peer.close()
