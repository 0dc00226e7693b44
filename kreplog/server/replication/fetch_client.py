"""ReplicaFetchClient: sends the fetches of this broker's followers to their leaders, one request on a connection at a
time.

Each connection has a thread, which is one for each source broker and fetcher. Where a follower catches up, it receives
the responses that are long, decodes them and checks their batches, with the GIL released but for the decoding, while
the event loop serves others and appends the response before. What a follower gets that keeps up is received by the
event loop: two threads that hand over to each other took a quarter more CPU, and produces waited for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kreplog.core.effects import Send
from kreplog.core.events import FetchReplied
from kreplog.core.messages import FetchedPartition, FetchResponse
from kreplog.errors import KreplogError
from kreplog.managed_log import CheckedBatches
from kreplog.server.network.connections import THREAD_BYTES, Frame
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer, PeerReply, log_lost
from kreplog.wire import fetch
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

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

    It pools the connections to a leader, as many as that has fetchers. names: returns the names of topics by id, a
    mapping that does not change. on_closed: called with the id of a leader that has closed a connection.
    """

    def __init__(
        self,
        client_id: str,
        max_frame_bytes: int,
        known_address: KnownAddress,
        resolve: Resolve,
        names: Callable[[], Mapping[str, str]],
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
        self._names = names
        self._put = put
        self._idle: dict[int, list[Peer]] = {}
        self._topic_ids: dict[str, str] = {}  # of the last fetch; forgotten partitions of a session come without theirs
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: list[Peer] = []
        self._threads: list[ThreadPoolExecutor] = []
        self._is_closed = False

    def send(self, effect: Send) -> None:
        """Send a fetch, on an open connection before this returns, so that the leader works on it meanwhile."""
        request = effect.request
        for partition in request.partitions:
            self._topic_ids[partition.partition.topic] = partition.topic_id
        header = RequestHeader(ApiKey.FETCH, VERSION, effect.correlation & 0x7FFFFFFF, self._client_id)
        frame = fetch.encode_request(request, header, self._topic_ids.__getitem__)
        decode = partial(_decode, header, self._names(), checks=effect.catches_up)
        idle = self._idle.setdefault(effect.leader, [])
        peer = idle.pop() if idle else self._new_peer(effect.leader)
        peer.uses_thread = effect.catches_up
        address, timeout_s = self._known_address(effect.leader), request.max_wait_ms / 1000 + TIMEOUT_MARGIN_S
        if address is None or not peer.begin(address, frame, timeout_s, decode, partial(self._ended, effect, peer)):
            task = asyncio.get_running_loop().create_task(self._fetch(effect, peer, frame, timeout_s, decode))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _new_peer(self, leader: int) -> Peer:
        thread = ThreadPoolExecutor(1, f"kreplog-fetcher-{leader}")
        self._threads.append(thread)
        peer = Peer(self._max_frame_bytes, partial(self._on_closed, leader), self._connect, thread)
        self._peers.append(peer)
        return peer

    async def _fetch(
        self,
        effect: Send,
        peer: Peer,
        frame: Sequence[Buffer],
        timeout_s: float,
        decode: Callable[[Frame], FetchResponse],
    ) -> None:
        """Connect, and send a fetch."""
        outcome: PeerReply[FetchResponse]
        try:
            address = self._known_address(effect.leader) or await self._resolve(effect.leader)
            if address is None:
                raise ConnectionError(f"no address of broker {effect.leader} is known")
            outcome = PeerReply(await peer.decoded(address, frame, timeout_s, decode))
        except Exception as error:  # without an outcome the fetcher would wait for ever
            outcome = PeerReply(error=error)
        self._ended(effect, peer, outcome)

    def _ended(self, effect: Send, peer: Peer, outcome: PeerReply[FetchResponse]) -> None:
        error = outcome.error
        if self._is_closed:
            return
        if error is not None:
            log_lost(f"Fetch to broker {effect.leader}", error)
            peer.close()
        self._idle[effect.leader].append(peer)
        self._put(FetchReplied(effect.leader, effect.correlation, outcome.value))

    def close(self) -> None:
        """Cancel the fetches, and close the connections."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for peer in self._peers:
            peer.close()
        for thread in self._threads:
            thread.shutdown(wait=False)


def _decode(header: RequestHeader, names: Mapping[str, str], frame: Frame, *, checks: bool) -> FetchResponse:
    """The response to the request `header`. checks: makes CheckedBatches of the batches of a long one.

    Raises PeerProtocolError."""
    response = fetch.decode_response(frame, header, names.get)
    if not checks or len(frame) < THREAD_BYTES:
        return response
    return replace(response, partitions=tuple(map(_checked, response.partitions)))


def _checked(fetched: FetchedPartition) -> FetchedPartition:
    """With CheckedBatches, unless there is something wrong with them: the append of this partition reports it then."""
    if not len(fetched.records):
        return fetched
    try:
        return replace(fetched, records=CheckedBatches(fetched.records))
    except KreplogError:
        return fetched
