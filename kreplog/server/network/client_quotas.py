"""RequestCharge: what a request charges to the quotas of its client, and for how long that is throttled.

Bytes of a Produce are charged when it has arrived, those of a consumer's Fetch when its response is made, time when the
response is sent: CPU time of the event loop, and of threads that decode and encode for the request, so that a busy
machine makes no request more expensive. Requests of other brokers have no charge, nor has a login.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import thread_time_ns
from typing import Any, TypeVar

from kreplog.core.messages import FetchRequest, FetchResponse
from kreplog.core.quotas.entities import QuotaKey
from kreplog.core.quotas.quota_manager import ClientQuotaManager
from kreplog.core.security.principal import Principal
from kreplog.server.clock import monotonic_ms
from kreplog.wire.frames import RequestHeader
from kreplog.wire.throttling import with_throttle_time
from kreplog.wire.versions import ApiKey

STRICT_FROM: Mapping[int, int] = {ApiKey.CREATE_TOPICS: 6, ApiKey.CREATE_PARTITIONS: 3, ApiKey.DELETE_TOPICS: 5}
"""By API key: the first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

_OF_PRODUCE = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE)
_OF_FETCH = (QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE)
_OF_OLD_MUTATIONS = (QuotaKey.CONTROLLER_MUTATION_RATE, QuotaKey.REQUEST_PERCENTAGE)
_OF_OTHERS = (QuotaKey.REQUEST_PERCENTAGE,)

_PERCENT_SECONDS = 100 / 1e9
"""By nanosecond."""


T = TypeVar("T")


def begin_charge(
    manager: ClientQuotaManager, header: RequestHeader, principal: Principal, size: int
) -> tuple[RequestCharge | None, int]:
    """The charge of a request of `size` bytes, None for one that no quota holds for; and the time in ms for which it
    must wait first, since its client has exceeded quotas, on this or another connection: nothing is charged before."""
    user, client_id = principal.name, header.client_id or ""
    if not manager.has_quota(user, client_id):
        return None, 0
    now_ms = monotonic_ms()
    for key in _charged(header):
        remaining_ms = manager.remaining_ms(key, user, client_id, now_ms)
        if remaining_ms:
            return None, remaining_ms
    charge = RequestCharge(manager, header, user, client_id)
    if header.api_key == ApiKey.PRODUCE:
        charge.produced(size)
    return charge, 0


def _charged(header: RequestHeader) -> Sequence[QuotaKey]:
    """The quotas for which a request waits."""
    if header.api_key == ApiKey.PRODUCE:
        return _OF_PRODUCE
    if header.api_key == ApiKey.FETCH:
        return _OF_FETCH
    return _OF_OLD_MUTATIONS if header.api_version < STRICT_FROM.get(header.api_key, 0) else _OF_OTHERS


class RequestCharge:
    """The charge of one request. throttle_ms: for how long its client is throttled, as far as it is known. withhold:
    makes the response to a fetch that is throttled of the one that it must not have."""

    __slots__ = ("_client_id", "_entered_ns", "_header", "_manager", "_spent_ns", "_user", "throttle_ms", "withhold")

    def __init__(self, manager: ClientQuotaManager, header: RequestHeader, user: str, client_id: str) -> None:
        self._manager = manager
        self._header = header
        self._user = user
        self._client_id = client_id
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
        strict = self._header.api_version >= STRICT_FROM.get(self._header.api_key, 0)
        throttle_ms = self._manager.take_tokens(self._user, self._client_id, mutations, monotonic_ms(), strict=strict)
        self._throttle(throttle_ms)
        return not (strict and throttle_ms)

    def create_automatically(self, partitions: int) -> bool:
        """As `mutate`, of a topic that a request for metadata creates. Its client is not throttled: Kafka's controller
        throttles the broker's CreateTopics alone."""
        return not self._manager.take_tokens(self._user, self._client_id, partitions, monotonic_ms(), strict=True)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Charge the CPU time that the body takes on the event loop; once, if bodies are nested."""
        if self._entered_ns:
            yield
            return
        self._entered_ns = thread_time_ns()
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._entered_ns:
            self._spent_ns += thread_time_ns() - self._entered_ns
            self._entered_ns = 0

    def in_thread(self, call: Callable[..., T]) -> Callable[..., T]:
        """Charge the CPU time that a call takes in a thread."""

        def measured(*arguments: Any) -> T:
            began_ns = thread_time_ns()
            try:
                return call(*arguments)
            finally:
                self._spent_ns += thread_time_ns() - began_ns

        return measured

    def finish(self, frame: Sequence[Any]) -> Sequence[Any]:
        """Charge the time so far, and return the frame of the response with its throttle_time_ms. frame: empty where
        none is sent, such as after acks=0, whose time is charged here."""
        self._leave()
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
