"""RequestCharge: what a request charges to the quotas of its client, and for how long that is throttled.

Bytes of a Produce are charged when it has arrived, those of a consumer's Fetch when its response is made, time when the
response is sent: the event loop's, and that of threads that decode and encode for the request. Requests of other
brokers have no charge, nor have those of SASL.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic_ns, thread_time_ns
from typing import Any, TypeVar

from kreplog.core.messages import FetchRequest, FetchResponse
from kreplog.core.quotas.entities import QuotaKey
from kreplog.core.quotas.quota_manager import ClientQuotaManager
from kreplog.core.security.principal import Principal
from kreplog.server.clock import monotonic_ms
from kreplog.wire.frames import RequestHeader
from kreplog.wire.throttling import with_throttle_time
from kreplog.wire.versions import ApiKey

EXEMPT = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

STRICT_FROM = {ApiKey.CREATE_TOPICS: 6, ApiKey.CREATE_PARTITIONS: 3, ApiKey.DELETE_TOPICS: 5}
"""By API key: the first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

_BYTES = {ApiKey.PRODUCE: QuotaKey.PRODUCER_BYTE_RATE, ApiKey.FETCH: QuotaKey.CONSUMER_BYTE_RATE}

_PERCENT_SECONDS = 100 / 1e9
"""By nanosecond."""


T = TypeVar("T")


def remaining_ms(manager: ClientQuotaManager, header: RequestHeader, principal: Principal) -> int:
    """The time for which a request must wait, since its client has exceeded quotas, on this or another connection."""
    key = ApiKey(header.api_key)
    if key in EXEMPT:
        return 0
    charged = [QuotaKey.REQUEST_PERCENTAGE]
    if key in _BYTES:
        charged.append(_BYTES[key])
    elif header.api_version < STRICT_FROM.get(key, 0):
        charged.append(QuotaKey.CONTROLLER_MUTATION_RATE)
    user, client_id, now_ms = principal.name, header.client_id or "", monotonic_ms()
    return max(manager.remaining_ms(each, user, client_id, now_ms) for each in charged)


def begin_charge(
    manager: ClientQuotaManager, header: RequestHeader, principal: Principal, size: int
) -> RequestCharge | None:
    """The charge of a request of `size` bytes; None for one that is exempt."""
    if header.api_key in EXEMPT:
        return None
    charge = RequestCharge(manager, header, principal.name)
    if header.api_key == ApiKey.PRODUCE:
        charge.produced(size)
    return charge


class RequestCharge:
    """The charge of one request. throttle_ms: for how long its client is throttled, as far as it is known. withhold:
    makes the response to a fetch that is throttled of the one that it must not have."""

    __slots__ = ("_client_id", "_entered_ns", "_header", "_manager", "_spent_ns", "_user", "throttle_ms", "withhold")

    def __init__(self, manager: ClientQuotaManager, header: RequestHeader, user: str) -> None:
        self._manager = manager
        self._header = header
        self._user = user
        self._client_id = header.client_id or ""
        self._spent_ns = self._entered_ns = 0
        self.throttle_ms = 0
        self.withhold: Callable[[FetchResponse], FetchResponse] = lambda response: response

    def produced(self, size: int) -> None:
        self._throttle(self._record(QuotaKey.PRODUCER_BYTE_RATE, size))

    def within_quota(self, request: FetchRequest) -> FetchRequest:
        """A fetch that requests no more than its client may have at once: for more it would be throttled for ever."""
        most = self._manager.most_fetched(self._user, self._client_id)
        if most is None or most >= request.max_bytes:
            return request
        return replace(request, max_bytes=most, min_bytes=min(request.min_bytes, most))

    def fetched(self, response: FetchResponse) -> FetchResponse:
        """The response that a consumer may have now: without partitions where they exceed its quota."""
        size = sum(len(partition.records) for partition in response.partitions)
        sent, throttle_ms = self._manager.record_fetch(self._user, self._client_id, size, monotonic_ms())
        self._throttle(throttle_ms)
        return response if sent else self.withhold(response)

    def mutate(self, mutations: int) -> bool:
        """Whether partitions may be created or deleted, so many."""
        strict = self._header.api_version >= STRICT_FROM.get(ApiKey(self._header.api_key), 0)
        throttle_ms = self._manager.take_tokens(self._user, self._client_id, mutations, monotonic_ms(), strict=strict)
        self._throttle(throttle_ms)
        return not (strict and throttle_ms)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Charge the time that the body takes on the event loop; once, if bodies are nested."""
        if self._entered_ns:
            yield
            return
        self._entered_ns = monotonic_ns()
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._entered_ns:
            self._spent_ns += monotonic_ns() - self._entered_ns
            self._entered_ns = 0

    def in_thread(self, call: Callable[..., T]) -> Callable[..., T]:
        """Charge the time that a call takes in a thread."""

        def measured(*arguments: Any) -> T:
            began_ns = thread_time_ns()
            try:
                return call(*arguments)
            finally:
                self._spent_ns += thread_time_ns() - began_ns

        return measured

    def finish(self, frame: Sequence[Any]) -> Sequence[Any]:
        """Charge the time, and return the frame of the response with its throttle_time_ms. frame: empty where none is
        sent, after acks=0, whose time is not charged."""
        self._leave()
        if frame:
            self._throttle(self._record(QuotaKey.REQUEST_PERCENTAGE, self._spent_ns * _PERCENT_SECONDS))
            self._spent_ns = 0
        return with_throttle_time(frame, self._header, self.throttle_ms) if self.throttle_ms else frame

    def _record(self, key: QuotaKey, value: float) -> int:
        return self._manager.record(key, self._user, self._client_id, value, monotonic_ms())

    def _throttle(self, throttle_ms: int) -> None:
        self.throttle_ms = max(self.throttle_ms, throttle_ms)


class MeasuredWork:
    """Work of a request in a task, whose time on the event loop is charged to it."""

    def __init__(self, work: Coroutine[Any, Any, None], charge: RequestCharge) -> None:
        self._work = work
        self._charge = charge

    def __await__(self) -> Generator[Any, Any, None]:
        answer, error = None, None
        while True:
            with self._charge.timed():
                try:
                    awaited = self._work.send(answer) if error is None else self._work.throw(error)
                except StopIteration:
                    return
            answer = error = None
            try:
                answer = yield awaited
            except BaseException as thrown:
                error = thrown
