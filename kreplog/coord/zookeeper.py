"""ZooKeeperStore: the coordination store on a ZooKeeper ensemble, by kazoo; its sessions are in `ensemble`.

kazoo is imported when a store is created: pip install 'kreplog[zookeeper]'.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from kreplog.coord.base import check_path, check_timeout
from kreplog.coord.sessions import OpenSessions
from kreplog.coord.zookeeper_security import NO_SECURITY, ZooKeeperSecurity
from kreplog.errors import UsageError

if TYPE_CHECKING:
    from kreplog.coord.ensemble import ZooKeeperSession

JUTE_MAX_BYTES = 0xFFFFF
"""The default of jute.maxbuffer, the maximum packet size of ZooKeeper servers."""


class ZooKeeperStore:
    """A CoordinationStore on the ensemble at `hosts`, as in 'zk1:2181,zk2:2181,zk3:2181/kreplog'. Thread-safe.

    The path after the hosts, here '/kreplog', is created if missing, and is the root '/' of sessions; without it the
    root has ZooKeeper's own '/zookeeper' among its children.

    connect_timeout_ms: how long connect() waits for the ensemble. max_multi_bytes: the jute.maxbuffer of the
    servers. A larger multi is refused, never split: with the default about 7,000 partition states go into one.
    Raises UsageError, of `security` too.
    """

    def __init__(
        self,
        hosts: str,
        *,
        security: ZooKeeperSecurity = NO_SECURITY,
        connect_timeout_ms: int = 15_000,
        max_multi_bytes: int = JUTE_MAX_BYTES,
    ) -> None:
        if importlib.util.find_spec("kazoo") is None:
            raise UsageError("coordination by ZooKeeper needs kazoo: pip install 'kreplog[zookeeper]'")
        self.hosts, slash, root = hosts.partition("/")
        if not self.hosts:
            raise UsageError(f"{hosts!r} names no ZooKeeper server: write 'host:port,host:port/kreplog'")
        self.root = check_path(slash + root) if root else "/"
        security.check()
        self._security = security
        self._tls = security.context()
        self._connect_timeout_ms = connect_timeout_ms
        self._max_multi_bytes = max_multi_bytes
        self._sessions: OpenSessions[ZooKeeperSession] = OpenSessions()

    def connect(self, timeout_ms: int, on_expired: Callable[[], None] | None = None) -> ZooKeeperSession:
        """As CoordinationStore.connect. The servers bound the timeout; session.timeout_ms is the negotiated one.

        on_expired is called on a thread of the session. Raises ConnectionLossError when no server answers in time, and
        CoordinationError when they refuse the user or access to the root.
        """
        from kreplog.coord.ensemble import ZooKeeperSession

        check_timeout(timeout_ms)
        session = ZooKeeperSession(
            self.hosts,
            self.root,
            timeout_ms,
            on_expired,
            self._connect_timeout_ms,
            self._max_multi_bytes,
            self._security,
            self._tls,
        )
        return self._sessions.add(session)

    def close(self) -> None:
        """Close all sessions of this object."""
        self._sessions.close()
