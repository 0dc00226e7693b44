"""MultiRead: a request of ZooKeeper 3.6 and newer (ZOOKEEPER-3402) that kazoo lacks: many nodes in one response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS, NoNodeError
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, read_buffer, stat_struct
from kazoo.protocol.states import ZnodeStat

_ERROR = -1


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request of the nodes at `paths`, as kazoo's own are: for KazooClient._call."""

    type: ClassVar[int] = 22

    paths: tuple[str, ...]

    def serialize(self) -> bytes:
        header = MultiHeader(GetData.type, False, -1).serialize()
        operations = b"".join(header + GetData(path, None).serialize() for path in self.paths)
        return operations + bytes(MultiHeader(-1, True, -1).serialize())

    @staticmethod
    def deserialize(response: bytes, offset: int) -> list[tuple[bytes | None, Any] | Exception | None]:
        """The outcome for each path, in order: data and stat; None where there is no node; the error where it cannot be
        read."""
        found: list[tuple[bytes | None, Any] | Exception | None] = []
        while True:
            header, offset = MultiHeader.deserialize(response, offset)
            if header.done:
                return found
            if header.type == _ERROR:
                (code,) = int_struct.unpack_from(response, offset)
                offset += int_struct.size
                error = EXCEPTIONS[code]()
                found.append(None if isinstance(error, NoNodeError) else error)
            else:
                data, offset = read_buffer(response, offset)
                found.append((data, ZnodeStat._make(stat_struct.unpack_from(response, offset))))
                offset += stat_struct.size
