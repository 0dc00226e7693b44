"""Shared parts of sessions and of stores."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from kreplog.coord.base import Result, Session
from kreplog.types import Create, Delete, NodeStat, SetData, StoreOperation


class SingleWrites:
    """The calls of a Session that write a single node, by means of `_write_single`."""

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """As Session.create."""
        created = self._write_single(Create(path, data, ephemeral, sequential))
        assert isinstance(created, str)
        return created

    def set_data(self, path: str, data: bytes, version: int = -1) -> NodeStat:
        """As Session.set_data."""
        stat = self._write_single(SetData(path, data, version))
        assert isinstance(stat, NodeStat)
        return stat

    def delete(self, path: str, version: int = -1) -> None:
        """As Session.delete."""
        self._write_single(Delete(path, version))

    def _write_single(self, operation: StoreOperation) -> Result:
        """Check and apply the operation; return its result as in a multi."""
        raise NotImplementedError


AnySession = TypeVar("AnySession", bound=Session)


class OpenSessions(Generic[AnySession]):
    """The sessions of a store that may still be open. Thread-safe."""

    def __init__(self) -> None:
        self._sessions: set[AnySession] = set()
        self._lock = threading.Lock()

    def add(self, session: AnySession) -> AnySession:
        with self._lock:
            self._sessions = {known for known in self._sessions if not known.expired} | {session}
        return session

    def close(self) -> None:
        with self._lock:
            sessions, self._sessions = self._sessions, set()
        for session in sessions:
            session.close()
