"""How clients here reach a cluster: as any Kafka client does, but they wait for no broker that is not there.

`answering` finds brokers that answer, and `succeed` says in our words what a broker refused. The client library's own
errors hold whole requests, and its patience with a dead address is half a minute.
"""

from __future__ import annotations

import logging
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
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
from kreplog.errors import ErrorCode, KreplogError, PeerProtocolError, UsageError
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

REACH_S = 2.0
"""How long a broker may take for its first answer."""

ADMIN_TIMEOUT_MS = 30_000
_MOST_BYTES = 1 << 20


class UnreachableError(KreplogError):
    """No broker answers at the addresses given; the message says what to start, or what is there instead."""


class TopicRequestError(KreplogError):
    """The cluster refused what was asked of it, or did not do it in time; the message says what and why."""


def answering(bootstrap: str, advice: str) -> list[str]:
    """Those brokers at `bootstrap` ("host:port,...") that answer now. advice: what to do where none does.

    Raises UnreachableError within about REACH_S, UsageError.
    """
    return _answering([_address(text) for text in bootstrap.split(",")], advice)


@contextmanager
def in_our_words() -> Iterator[None]:
    """What kafka-python raises is a TopicRequestError, without the requests that it shows; and it logs nothing."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        yield
    except (RequestTimedOutError, KafkaTimeoutError, KafkaConnectionError, NodeNotReadyError) as error:
        raise TopicRequestError(
            f"a broker did not answer ({type(error).__name__}); `kreplog cluster status` may tell which: "
            "try again, or restart it"
        ) from error
    except KafkaError as error:
        raise TopicRequestError(f"the cluster could not do it: {_description(type(error))}") from error


def succeed(kind: str, name: str, answer: Mapping[str, Any]) -> None:
    """Raise TopicRequestError if `answer`, one of a response's, holds an error code.

    kind, name: what it is about, such as "topic", "flights"; said where the broker's own words do not name it.
    """
    code = answer["error_code"]
    if code:
        text = answer.get("error_message") or _words(code)
        raise TopicRequestError(text if name in text.split() else f"{kind} {name}: {text}")


def _words(code: int) -> str:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "there is no such topic; `kreplog topic list` names those that there are"
    return _description(for_code(code))


def _description(error: type[KafkaError]) -> str:
    name = getattr(error, "message", None) or error.__name__
    text = getattr(error, "description", None)
    return f"{str(text).rstrip('.')} ({name})" if text else str(name)


# Who answers


def _address(text: str) -> Address:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--bootstrap {text!r}: write host:port, with commas between several")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _answering(addresses: list[Address], advice: str) -> list[str]:
    """Those that have answered once one has; by a thread for each, since some do not refuse, but are silent."""
    found: queue.SimpleQueue[tuple[Address, str | None]] = queue.SimpleQueue()
    for address in addresses:
        threading.Thread(target=lambda at: found.put((at, _ask(at))), args=(address,), daemon=True).start()
    failures = []
    for _ in addresses:
        address, failure = found.get()
        if failure is None:
            answered = [address]
            with suppress(queue.Empty):
                while True:
                    address, failure = found.get_nowait()
                    if failure is None:
                        answered.append(address)
            return [_text(one) for one in answered]
        failures.append(f"{_text(address)} ({failure})")
    raise UnreachableError(f"no broker answers at {', '.join(sorted(failures))}: {advice}")


def _text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ask(address: Address) -> str | None:
    """What is wrong with the broker there; None if nothing is."""
    header = RequestHeader(ApiKey.API_VERSIONS, 0, 1, "kreplog")
    deadline = time.monotonic() + REACH_S
    try:
        with socket.create_connection(address, REACH_S) as sock:
            sock.sendall(b"".join(bytes(part) for part in generic.encode_request(header)))
            (size,) = struct.unpack(">i", _receive(sock, 4, deadline))
            if not 0 < size <= _MOST_BYTES:
                return "something else than a broker listens there"
            generic.decode_response(_receive(sock, size, deadline), header)
    except TimeoutError:
        return f"no answer within {REACH_S:g} s"
    except PeerProtocolError:
        return "something else than a broker listens there"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionResetError("it closed the connection")
        data += more
    return data
