"""ClientThreads: threads that send requests to a cluster, each with clients of its own, since these block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import UnreachableError
from kreplog.client.bulk_errors import BrokersUnreachableError
from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.security import ClientSecurity

REQUEST_TIMEOUT_S = 10.0

Connect = Callable[[], tuple[list[str], ClientSecurity]]
"""Finds host:port of brokers that respond now, and how to connect to them. Raises UnreachableError."""

T = TypeVar("T")


class ThreadClients:
    """Clients for one thread. admin: for any broker, or several at once. connections: for leaders and coordinators.
    persistent: `admin` leaves its connections open between requests."""

    def __init__(self, servers: list[str], security: ClientSecurity, persistent: bool) -> None:
        self._runner = asyncio.Runner()
        self.servers = servers
        self.security = security
        self.admin = AdminClient(self._runner, servers, security, persistent=persistent)
        self.connections = ClusterConnections(servers, "kreplog-console", REQUEST_TIMEOUT_S, security)

    def close(self) -> None:
        self.admin.close()
        self.connections.close()
        self._runner.close()


class ClientThreads:
    """Threads with clients. connect: is called before the first call, and after one that reached no broker: a cluster
    that is started again may have other addresses. persistent: each thread's connections stay open, for those who call
    every moment; else each call has its own, since a broker closes idle ones."""

    def __init__(self, connect: Connect, threads: int, name: str, *, persistent: bool = False) -> None:
        self._connect = connect
        self._persistent = persistent
        self._found: tuple[list[str], ClientSecurity] | None = None
        self._local = threading.local()
        self._open: set[ThreadClients] = set()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, function: Callable[[ThreadClients], T]) -> T:
        """The result of `function` in one of the threads. Raises as `function`, and UnreachableError."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, function)

    def _call(self, function: Callable[[ThreadClients], T]) -> T:
        clients: ThreadClients | None = getattr(self._local, "clients", None)
        if clients is None:
            found = self._found or self._connect()
            self._found = found
            clients = ThreadClients(*found, self._persistent)
            self._open.add(clients)
        self._local.clients = clients
        done = False
        try:
            result = function(clients)
            done = True
            return result
        except (UnreachableError, BrokersUnreachableError):
            self._found = None
            raise
        finally:
            if not (done and self._persistent):
                self._local.clients = None
                self._open.discard(clients)
                clients.close()

    def close(self) -> None:
        """Wait for the calls that are running, and close all connections. Not in a thread with a running event loop."""
        self._pool.shutdown(cancel_futures=True)
        while self._open:
            self._open.pop().close()
