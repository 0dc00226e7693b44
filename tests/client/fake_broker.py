"""FakeBroker: one broker of one topic in a thread, which speaks Kafka's protocol and answers what a test wants.

`answers` maps an API to a function from the header and frame of a request to the buffers to send; it raises CLOSE to
hang up, SILENCE to answer nothing. A list of such functions is used up one after the other, the last one stays.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from kreplog.core.messages import (
    FetchedPartition,
    FetchResponse,
    ProducedPartition,
    ProduceResponse,
)
from kreplog.errors import ErrorCode
from kreplog.types import EpochEndOffset, TopicPartition
from kreplog.wire import fetch, generic, produce
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import TO_CLIENTS, ApiKey

TOPIC = "fake"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
PARTITION = TopicPartition(TOPIC, 0)


class CLOSE(Exception):
    """Hang up instead of answering."""


class SILENCE(Exception):
    """Answer nothing on this connection any more, and keep it open."""


HALF = b"half of a frame"
"""In an answer: hang up behind it."""

Answer = Callable[[RequestHeader, bytes], list[Any]]


class FakeBroker:
    def __init__(self, answers: Mapping[ApiKey, Answer | list[Answer]]) -> None:
        self._answers = dict(answers)
        self.requests: list[tuple[RequestHeader, bytes]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.close()

    def fetches(self) -> list[Any]:
        """The Fetch requests so far."""
        return [
            fetch.decode_request(frame, header, lambda topic_id: TOPIC if topic_id == TOPIC_ID else None)[0]
            for header, frame in self.requests
            if header.api_key == ApiKey.FETCH
        ]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, CLOSE), connection:
            while True:
                (size,) = struct.unpack(">i", _exactly(connection, 4))
                frame = _exactly(connection, size)
                header = decode_request_header(frame)
                with self._lock:
                    self.requests.append((header, frame))
                    answer = self._next(ApiKey(header.api_key))
                try:
                    parts = answer(header, frame)
                except SILENCE:
                    while connection.recv(1 << 16):
                        pass
                    return
                connection.sendall(b"".join(bytes(part) for part in parts if part is not HALF))
                if HALF in parts:
                    return

    def _next(self, api: ApiKey) -> Answer:
        answer = self._answers.get(api)
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer or getattr(self, f"_{api.name.lower()}")

    def _api_versions(self, header: RequestHeader, frame: bytes) -> list[Any]:
        return list(generic.api_versions(header, TO_CLIENTS, [], 0))

    def _metadata(self, header: RequestHeader, frame: bytes) -> list[Any]:
        return metadata(self.port)(header, frame)

    def _init_producer_id(self, header: RequestHeader, frame: bytes) -> list[Any]:
        return list(generic.encode_response(header, producer_id=7, producer_epoch=0))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise CLOSE
        data += more
    return data


def metadata(port: int, topic_id: str = TOPIC_ID, leader: int = 0) -> Answer:
    def answer(header: RequestHeader, frame: bytes) -> list[Any]:
        partition = {
            "partition_index": 0,
            "leader_id": leader,
            "leader_epoch": 3,
            "replica_nodes": [0],
            "isr_nodes": [0],
        }
        return list(
            generic.encode_response(
                header,
                brokers=[{"node_id": 0, "host": "127.0.0.1", "port": port}],
                topics=[{"name": TOPIC, "topic_id": topic_id, "partitions": [partition]}],
            )
        )

    return answer


def fetched(
    records: bytes = b"",
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = 0,
    whole: ErrorCode = ErrorCode.NONE,
    diverging: EpochEndOffset | None = None,
    topic_id: str = TOPIC_ID,
) -> Answer:
    """whole: the error of the whole response."""

    def answer(header: RequestHeader, frame: bytes) -> list[Any]:
        partitions = (FetchedPartition(PARTITION, error, 1 << 40, 0, diverging, records=records),)
        response = FetchResponse(whole, session_id, () if whole else partitions)
        return fetch.encode_response(response, header, lambda _: topic_id)

    return answer


def log_of(batches: Mapping[int, list[bytes]]) -> Answer:
    """By fetch offset the records; of several the next each time, the last one staying. Nothing at other offsets."""
    left = {offset: list(given) for offset, given in batches.items()}

    def answer(header: RequestHeader, frame: bytes) -> list[Any]:
        (request, _) = fetch.decode_request(frame, header, lambda _: TOPIC)
        given = left.get(request.partitions[0].fetch_offset, [b""])
        return fetched(given.pop(0) if len(given) > 1 else given[0])(header, frame)

    return answer


def produced(error: ErrorCode = ErrorCode.NONE, base_offset: int = 0) -> Answer:
    def answer(header: RequestHeader, frame: bytes) -> list[Any]:
        return list(
            produce.encode_response(ProduceResponse((ProducedPartition(PARTITION, error, base_offset),)), header)
        )

    return answer


def changed(answer: Answer, change: Callable[[bytes], bytes]) -> Answer:
    """With the bytes of the frame changed."""

    def changed_answer(header: RequestHeader, frame: bytes) -> list[Any]:
        return [change(b"".join(bytes(part) for part in answer(header, frame)))]

    return changed_answer


def half(answer: Answer) -> Answer:
    """The first half of it; then the connection is closed."""

    def half_answer(header: RequestHeader, frame: bytes) -> list[Any]:
        whole = b"".join(bytes(part) for part in answer(header, frame))
        return [whole[: len(whole) // 2], HALF]

    return half_answer


def hang_up(header: RequestHeader, frame: bytes) -> list[Any]:
    raise CLOSE


def silence(header: RequestHeader, frame: bytes) -> list[Any]:
    raise SILENCE
