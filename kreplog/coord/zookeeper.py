"""The coordination store on a ZooKeeper ensemble, through kazoo; the sessions are in `ensemble`.

kazoo is imported when a store is made: pip install 'kreplog[zookeeper]'.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from kreplog.coord.base import check_path, check_timeout
from kreplog.coord.sessions import OpenSessions
from kreplog.errors import UsageError

if TYPE_CHECKING:
    from kreplog.coord.ensemble import ZooKeeperSession

JUTE_MAX_BYTES = 0xFFFFF
"""The largest packet that a ZooKeeper server takes unless its jute.maxbuffer says otherwise."""


class ZooKeeperStore:
    """A CoordinationStore on the ensemble at `hosts`, as in 'zk1:2181,zk2:2181,zk3:2181/kreplog'. Thread-safe.

    What follows the hosts, '/kreplog' here, is made when it is not there, and is the '/' that sessions see; without it
    they see ZooKeeper's own '/zookeeper' among its children.

    connect_timeout_ms: how long connect() waits for the ensemble. max_multi_bytes: what the servers' jute.maxbuffer is
    set to. A larger multi is refused, never split: with the default about 7,000 partition states go into one.
    """

    def __init__(self, hosts: str, *, connect_timeout_ms: int = 15_000, max_multi_bytes: int = JUTE_MAX_BYTES) -> None:
        if importlib.util.find_spec("kazoo") is None:
            raise UsageError("coordination by ZooKeeper needs kazoo: pip install 'kreplog[zookeeper]'")
        self.hosts, slash, root = hosts.partition("/")
        if not self.hosts:
            raise UsageError(f"{hosts!r} names no ZooKeeper server: write 'host:port,host:port/kreplog'")
        self.root = check_path(slash + root) if root else "/"
        self._connect_timeout_ms = connect_timeout_ms
        self._max_multi_bytes = max_multi_bytes
        self._sessions: OpenSessions[ZooKeeperSession] = OpenSessions()

    def connect(self, timeout_ms: int, on_expired: Callable[[], None] | None = None) -> ZooKeeperSession:
        """As CoordinationStore.connect. The servers bound the timeout; session.timeout_ms is what they agreed to.

        on_expired is called on a thread of the session. Raises ConnectionLossError when no server answers in time.
        """
        from kreplog.coord.ensemble import ZooKeeperSession

        check_timeout(timeout_ms)
        session = ZooKeeperSession(
            self.hosts, self.root, timeout_ms, on_expired, self._connect_timeout_ms, self._max_multi_bytes
        )
        return self._sessions.add(session)

    def close(self) -> None:
        """Close the sessions made here."""
        self._sessions.close()
