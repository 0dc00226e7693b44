"""BulkConnection: a connection to one broker whose requests are pipelined, on a plain socket and without a thread.

Requests are sent in order and responses arrive in that order; `receive` takes what has come without waiting, so that
one thread serves connections to many brokers. Every wait has a deadline (time.monotonic). Versions are negotiated with
ApiVersions when the connection is made.

A response is untrusted: its size is checked before memory is reserved, its correlation id before it is decoded.
Raises OSError (TimeoutError included) where the connection is of no further use but another may do, PeerProtocolError
where the peer breaks Kafka's protocol; either way it is closed.
"""

from __future__ import annotations

import itertools
import math
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of_package
from typing import TYPE_CHECKING, Any

from kreplog.client.broker_client import Address
from kreplog.client.bulk_errors import UnsupportedBrokerError
from kreplog.client.sasl_login import SESSION_SHARE, SaslLogin
from kreplog.client.security import PLAINTEXT, ClientSecurity, has_input
from kreplog.errors import ErrorCode, PeerProtocolError, check
from kreplog.tls import BlockedReadError
from kreplog.wire import generic
from kreplog.wire.frames import MAX_FRAME_BYTES, FrameReader, RequestHeader
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

SUPPORTED: dict[ApiKey, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 9),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.METADATA: (1, 12),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.FIND_COORDINATOR: (0, 3),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 3),
    ApiKey.END_TXN: (0, 3),
    ApiKey.TXN_OFFSET_COMMIT: (0, 3),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 7),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 0),
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}
"""By API: the first and last version that this client can send. The oldest broker with all of them is Kafka 0.11, but
for DeleteGroups, which Kafka 1.1 has, OffsetForLeaderEpoch, which 2.1 has, those of transactions (3.0), and
ConsumerGroupDescribe (4.0)."""

_API_VERSIONS = 3
_BUFFERS_PER_CALL = 64
_RECEIVE_BUFFER = 4 << 20

Encode = Callable[[RequestHeader], list[Any]]


class BulkConnection:
    """Connected, negotiated and authenticated by the constructor, within `timeout_s`.

    Where a session has a lifetime (KIP-368), `send` authenticates again once most of it has passed.
    """

    def __init__(
        self, address: Address, client_id: str, timeout_s: float, security: ClientSecurity = PLAINTEXT
    ) -> None:
        self.address = address
        self._login = security.login
        self._session_ends = math.inf
        self._early: list[tuple[RequestHeader, Buffer]] = []  # responses that came before an authentication
        self._client_id = client_id
        self._correlations = itertools.count(1)
        self._reader = FrameReader(MAX_FRAME_BYTES, trusting=True)
        self._in_flight: deque[RequestHeader] = deque()
        if security.login is not None:
            security.login.prepare()
        deadline = time.monotonic() + timeout_s
        self._socket = security.secure(socket.create_connection(address, timeout_s), address[0], deadline)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._offered = self._negotiate(deadline)
            if security.login is not None:
                self._authenticate(security.login, deadline)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_input(self) -> bool:
        """Whether `receive` has something although the socket is not readable."""
        return bool(self._early) or has_input(self._socket)

    @property
    def in_flight(self) -> int:
        """Requests without a response that `receive` has returned."""
        return len(self._in_flight) + len(self._early)

    def version(self, api: ApiKey) -> int:
        """The newest version that both sides know. Raises UnsupportedBrokerError."""
        first, last = SUPPORTED[api]
        offered = self._offered.get(api, (0, -1))
        version = min(last, offered[1])
        if version < max(first, offered[0]):
            raise UnsupportedBrokerError(
                f"the broker at {self.address[0]}:{self.address[1]} offers {api.name} in versions {offered[0]} to "
                f"{offered[1]}, this client sends {first} to {last}"
            )
        return version

    def send(self, api: ApiKey, encode: Encode, deadline: float, *, answered: bool = True) -> RequestHeader:
        """Send a request in the version negotiated; return its header, by which `receive` names the response."""
        if self._login is not None and time.monotonic() > self._session_ends:
            self._login.prepare()
            self._authenticate(self._login, deadline)
        return self._send(api, self.version(api), encode, deadline, answered)

    def receive(self) -> list[tuple[RequestHeader, Buffer]]:
        """Responses that are whole now, oldest first; waits for nothing."""
        responses, self._early = self._early, []
        try:
            while not responses:
                try:
                    count = self._socket.recv_into(self._reader.buffer())
                except (BlockingIOError, BlockedReadError):
                    break
                if count == 0:
                    raise ConnectionResetError("the broker closed the connection")
                for frame in self._reader.received(count):
                    if not self._in_flight:
                        raise PeerProtocolError("the broker sent a response to no request")
                    responses.append((self._in_flight.popleft(), frame))
        except BaseException:
            self.close()
            raise
        return responses

    def call(self, api: ApiKey, deadline: float, **fields: Any) -> Any:
        """The response to a request of kreplog.wire.generic; no other may be in flight."""
        header = self.send(api, lambda header: generic.encode_request(header, **fields), deadline)
        return self.decode(self.wait(header, deadline), header)

    def wait(self, header: RequestHeader, deadline: float) -> Buffer:
        """The response to the only request in flight."""
        check(list(self._in_flight) == [header], "a call shares its connection with other requests")
        while True:
            for _, frame in self._await(deadline):
                return frame

    def _await(self, deadline: float) -> list[tuple[RequestHeader, Buffer]]:
        """Responses, which may take until `deadline`."""
        wait_for([self], deadline)
        responses = self.receive()
        if not responses and time.monotonic() >= deadline:
            self.close()
            raise TimeoutError("no response in time")
        return responses

    def decode(self, frame: Buffer, header: RequestHeader) -> Any:
        try:
            return generic.decode_response(frame, header)
        except PeerProtocolError:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def _authenticate(self, login: SaslLogin, deadline: float) -> None:
        """Authenticate, perhaps again. Raises AuthenticationError, OSError, PeerProtocolError."""
        early, self._early = self._early, []
        while self._in_flight:
            early += self._await(deadline)
        began, requests = time.monotonic(), login.requests()
        self._session_ends = math.inf
        try:
            api, fields = next(requests)
            while True:
                api, fields = requests.send(self.call(api, deadline, **fields))
        except StopIteration as end:
            if end.value:
                self._session_ends = began + end.value / 1000 * SESSION_SHARE
        except BaseException:
            self.close()
            raise
        self._early = early

    def _send(self, api: ApiKey, version: int, encode: Encode, deadline: float, answered: bool = True) -> RequestHeader:
        header = RequestHeader(api, version, next(self._correlations) & 0x7FFFFFFF, self._client_id)
        try:
            self._send_all([memoryview(part).cast("B") for part in encode(header)], deadline)
        except OSError:
            self.close()
            raise
        if answered:
            self._in_flight.append(header)
        return header

    def _send_all(self, parts: Sequence[memoryview], deadline: float) -> None:
        waiting = deque(part for part in parts if part.nbytes)
        while waiting:
            try:
                sent = self._socket.sendmsg(list(itertools.islice(waiting, _BUFFERS_PER_CALL)))
            except BlockingIOError:
                poller = select.poll()
                poller.register(self._socket, select.POLLOUT)
                if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError("the broker does not take the request") from None
                continue
            while waiting and sent >= waiting[0].nbytes:
                sent -= waiting.popleft().nbytes
            if sent:
                waiting[0] = waiting[0][sent:]

    def _negotiate(self, deadline: float) -> dict[int, tuple[int, int]]:
        """The API versions that the broker offers. One that does not know our ApiVersions answers with version 0
        (KIP-511), or hangs up if it is older than that: a connection to such a broker fails with
        ConnectionResetError."""
        for version in (_API_VERSIONS, 0):

            def encode(header: RequestHeader) -> list[Any]:
                fields = {"client_software_name": "kreplog", "client_software_version": _own_version()}
                return generic.encode_request(header, **(fields if header.api_version >= _API_VERSIONS else {}))

            header = self._send(ApiKey.API_VERSIONS, version, encode, deadline)
            response = self.decode(self.wait(header, deadline), header)
            if response.error_code == ErrorCode.NONE:
                return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
        raise PeerProtocolError(f"the broker refuses ApiVersions with error {response.error_code}")


@cache
def _own_version() -> str:
    try:
        return version_of_package("kreplog")
    except PackageNotFoundError:  # imported from a folder that was never installed
        return "unknown"


def wait_for(connections: Sequence[BulkConnection], deadline: float) -> list[BulkConnection]:
    """Wait until connections have something to receive, and return these; none if the deadline passes first."""
    poller = select.poll()
    by_fd = {connection.fileno(): connection for connection in connections}
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    ready = {fd for fd, connection in by_fd.items() if connection.has_input}
    events = poller.poll(0 if ready else max(0.0, deadline - time.monotonic()) * 1000)
    return [by_fd[fd] for fd in ready.union(fd for fd, _ in events)]


def close_quietly(connection: BulkConnection | None) -> None:
    if connection is not None:
        with suppress(OSError):
            connection.close()
