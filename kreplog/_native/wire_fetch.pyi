from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Buffer

from kreplog.types import BrokerRegistration

class FetchCodec:
    def __init__(
        self, request: type[Any], request_partition: type[Any], response: type[Any], response_partition: type[Any]
    ) -> None: ...
    def decode_request(
        self,
        data: Buffer,
        start: int,
        version: int,
        name_of: Callable[[str], str | None] | None,
        budget: int = ...,
    ) -> tuple[Any, tuple[tuple[str, int], ...]]: ...
    def encode_request(
        self, header: bytes, request: object, version: int, id_of: Callable[[str], str] | None
    ) -> list[Any]: ...
    def decode_response(
        self, data: Buffer, start: int, version: int, name_of: Callable[[str], str | None] | None
    ) -> Any: ...
    def encode_response(
        self,
        header: bytes,
        response: object,
        version: int,
        id_of: Callable[[str], str] | None,
        unknown: Sequence[tuple[str, int]],
        nodes: Sequence[BrokerRegistration],
    ) -> list[Any]: ...
