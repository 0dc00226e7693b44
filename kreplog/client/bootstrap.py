"""Bootstrap: finds the brokers that respond, and turns errors of brokers and of kafka-python into short messages.

kafka-python waits half a minute for a dead address, and its errors contain whole requests.
"""

from __future__ import annotations

import logging
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    RequestTimedOutError,
    for_code,
)

from kreplog.client.broker_client import Address
from kreplog.client.connection_errors import NO_RESPONSE, connection_failure
from kreplog.client.security import PLAINTEXT, ClientSecurity
from kreplog.errors import ErrorCode, KreplogError, PeerProtocolError, UsageError
from kreplog.types import address_text
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

CONNECT_TIMEOUT_S = 2.0
"""Time-out of the first response of a broker."""

ADMIN_TIMEOUT_MS = 30_000
_MAX_RESPONSE_BYTES = 1 << 20


class UnreachableError(KreplogError):
    """No broker responds at the given addresses; the message says what to start, or what listens there instead."""


class SilentBrokersError(UnreachableError):
    """At one of the addresses at least, a broker may be that is only slow: it did not respond in time."""


class TopicRequestError(KreplogError):
    """The cluster refused a request, or did not carry it out in time; the message says which and why."""


class ClusterDeniedError(TopicRequestError):
    """The principal lacks an ACL on the cluster that a request needs."""


def reachable_brokers(bootstrap: str, advice: str, security: ClientSecurity = PLAINTEXT) -> list[str]:
    """The brokers of `bootstrap` ("host:port,...") that respond now. advice: ends the message if none does.

    Raises UnreachableError within about CONNECT_TIMEOUT_S, UsageError.
    """
    return _reachable([_address(text) for text in bootstrap.split(",")], advice, security)


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Turn errors of kafka-python into TopicRequestErrors, without the requests that it prints, and silence its log."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        yield
    except (RequestTimedOutError, KafkaTimeoutError, KafkaConnectionError, NodeNotReadyError) as error:
        raise TopicRequestError(
            f"a broker did not respond ({type(error).__name__}): see `kreplog cluster status`, try again, or restart it"
        ) from error
    except KafkaError as error:
        raise TopicRequestError(f"the cluster refused the request: {_description(type(error))}") from error


def raise_for_error(kind: str, name: str, response: Any) -> None:
    """Raise TopicRequestError, of which ClusterDeniedError is one, if `response`, or a part of one, has an error code.

    kind, name: the subject of the request, such as "topic", "flights"; they begin the message unless the broker's own
    message names it.
    """
    code = response.error_code
    if code:
        text = getattr(response, "error_message", None) or _message(code)
        kind_of_error = ClusterDeniedError if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED else TopicRequestError
        raise kind_of_error(text if name in text.split() else f"{kind} {name}: {text}")


def _message(code: int) -> str:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "there is no such topic; `kreplog topic list` lists the topics"
    return _description(for_code(code))


def _description(error: type[KafkaError]) -> str:
    name = getattr(error, "message", None) or error.__name__
    text = getattr(error, "description", None)
    return f"{str(text).rstrip('.')} ({name})" if text else str(name)


# Probes


def _address(text: str) -> Address:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--bootstrap {text!r}: write host:port, with commas between several")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _reachable(addresses: list[Address], advice: str, security: ClientSecurity) -> list[str]:
    """The addresses that have responded by the time that the first does; each is probed in a thread, since an address
    may neither respond nor refuse."""
    results: queue.SimpleQueue[tuple[Address, str | None]] = queue.SimpleQueue()
    for address in addresses:
        threading.Thread(
            target=lambda at: results.put((at, _probe(at, security))), args=(address,), daemon=True
        ).start()
    failures, silent = [], False
    for _ in addresses:
        address, failure = results.get()
        if failure is None:
            reachable = [address]
            with suppress(queue.Empty):
                while True:
                    address, failure = results.get_nowait()
                    if failure is None:
                        reachable.append(address)
            return [address_text(*address) for address in reachable]
        failures.append(f"{address_text(*address)} ({failure})")
        silent = silent or failure == NO_RESPONSE
    kind = SilentBrokersError if silent else UnreachableError
    raise kind(f"no broker responds at {', '.join(sorted(failures))}: {advice}")


def _probe(address: Address, security: ClientSecurity) -> str | None:
    """Why no broker can be used at an address; None if one responds."""
    header = RequestHeader(ApiKey.API_VERSIONS, 0, 1, "kreplog")
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    try:
        with security.secure(socket.create_connection(address, CONNECT_TIMEOUT_S), address[0], deadline) as sock:
            sock.settimeout(CONNECT_TIMEOUT_S)
            sock.sendall(b"".join(bytes(part) for part in generic.encode_request(header)))
            (size,) = struct.unpack(">i", _receive(sock, 4, deadline))
            if not 0 < size <= _MAX_RESPONSE_BYTES:
                return "what listens there is not a Kafka broker"
            generic.decode_response(_receive(sock, size, deadline), header)
    except TimeoutError:
        return NO_RESPONSE
    except PeerProtocolError:
        return "what listens there is not a Kafka broker"
    except OSError as error:
        return connection_failure(error)
    return None


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionResetError("connection closed")
        data += more
    return data
