"""A session with a ZooKeeper ensemble: kazoo's client, and three things that it leaves to its user.

**Fencing.** kazoo reports a lost session only when it reaches a server again, so a session without connection would
seem alive for as long as that lasts. Here a session records when it sent the last request that got a response. A
timeout later it has ended, forever, whatever kazoo reports later; no new session takes its place. A keeper thread reads
'/' five times per timeout as a heartbeat. Safety does not depend on that clock: writes are conditional on versions and
epochs.

**Watches.** kazoo drops all watches when it loses a connection. The keeper leaves them again on the next connection,
and calls those whose node has changed.

**Errors.** Each result of a multi is checked: kazoo's commit() does not raise.

**TLS.** Contexts are those of kreplog.tls, and follow their files. kazoo waits for sockets alone, so what OpenSSL has
decrypted already is said to be readable here.

A write under way when the connection breaks raises ConnectionLossError; calls without a connection wait for one, until
the session has ended.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from kreplog.coord.base import Result, Watch, check_operation, check_operations, check_path, parent_of
from kreplog.coord.delivery import Deliveries, run_logged
from kreplog.coord.multi_read import MultiRead
from kreplog.coord.tree import ephemeral_parent, no_node, same_failure
from kreplog.coord.zookeeper_security import ZooKeeperSecurity
from kreplog.errors import (
    BadVersionError,
    ConnectionLossError,
    CoordinationError,
    NodeExistsError,
    NotEmptyError,
    SessionExpiredError,
    UsageError,
)
from kreplog.errors import NoNodeError as NoNode
from kreplog.tls import ReloadedContext
from kreplog.types import Create, Delete, Node, NodeStat, SetData, StoreOperation, WatchEvent

_log = logging.getLogger(__name__)

_kazoo_log = logging.getLogger("kazoo.client.of_kreplog")
_kazoo_log.addFilter(lambda record: record.levelno > logging.DEBUG)  # there kazoo logs requests, with passwords

_HEARTBEATS_PER_TIMEOUT = 5
_SHORTEST_PATIENCE_S = 0.5
_PIPELINED = 500
"""Maximum of requests in flight, so that a heartbeat behind them still gets its response in time."""

_READ_AT_ONCE = 250
"""Nodes per request of get_many: the longest paths of so many are below the default of jute.maxbuffer."""

_READS_IN_FLIGHT = 20
"""Maximum of such requests in flight, as _PIPELINED for those of one node."""

_CREATE_BYTES, _OTHER_BYTES = 64, 32
"""Maximum size of an operation in a packet without path and data."""

_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}
"""kazoo's default doubles the delay without limit: sessions would expire although the servers are back."""

_OWN = "zookeeper"
"""ZooKeeper's own node in its root."""

_SPEAKS = {
    False: "that its port is not for TLS, or else set zookeeper.ssl.client.enable",
    True: "that its port is its secureClientPort",
}
"""What to check, by zookeeper.ssl.client.enable."""

_KINDS = {
    EventType.CREATED: "created",
    EventType.CHANGED: "changed",
    EventType.DELETED: "deleted",
    EventType.CHILD: "children",
}


class ZooKeeperSession:
    """A Session of a ZooKeeperStore; made by its connect(). Thread-safe. get_many is not a snapshot.

    timeout_ms: as negotiated with the ensemble.
    """

    def __init__(
        self,
        hosts: str,
        root: str,
        timeout_ms: int,
        on_expired: Callable[[], None] | None,
        connect_timeout_ms: int,
        max_multi_bytes: int,
        security: ZooKeeperSecurity,
        tls: ReloadedContext | None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._hosts = hosts
        self._root = "" if root == "/" else root
        self._on_expired = on_expired
        self._max_multi_bytes = max_multi_bytes
        self._ended = self._closed = False
        self._begun = False
        self._last_response = time.monotonic()
        self._connected = threading.Event()
        self._negotiated = threading.Event()
        self._wake = threading.Event()
        self._heartbeat: Any = None
        self._watch_lock = threading.Lock()
        self._orphans: deque[_Watch] = deque()
        self._event: Any = None
        self._called: set[Watch] = set()
        self._refused = False
        self._broken_logins = 0
        self._handler = _Handler(self, tls)
        self._client = KazooClient(
            hosts=hosts,
            timeout=timeout_ms / 1000,
            handler=self._handler,
            connection_retry=_RECONNECT,
            logger=_kazoo_log,
            default_acl=CREATOR_ALL_ACL if security.set_acl else None,
            **_credentials(security),
        )
        self._client.add_listener(self._on_state)
        self._listen_for_timeout()
        try:
            self._client.start(timeout=connect_timeout_ms / 1000)
            if not self._negotiated.wait(connect_timeout_ms / 1000):
                raise zk.ConnectionLoss
            if self._refused:
                raise zk.AuthFailedError
            names = self._root.split("/")
            for depth in range(2, len(names) + 1):
                # Nodes above the root are not this cluster's: other clusters may have theirs below them.
                acl = OPEN_ACL_UNSAFE if depth < len(names) else None
                with suppress(zk.NodeExistsError, zk.NoAuthError):
                    self._client.create_async("/".join(names[:depth]), acl=acl).get(timeout=connect_timeout_ms / 1000)
            self._check_access(security, connect_timeout_ms / 1000)
        except (zk.NoAuthError, zk.NoNodeError) as error:
            self._ended = True
            self._stop_client()
            raise _no_access(root) from error
        except (
            SequentialThreadingHandler.timeout_exception,
            zk.AuthFailedError,
            zk.SessionClosedRequireSaslError,
            zk.ConnectionLoss,
            zk.SessionExpiredError,
        ) as error:
            self._ended = True
            self._stop_client()
            if self._refused or isinstance(error, zk.SessionClosedRequireSaslError):
                refused = "clients without SASL" if security.authentication != "sasl" else f"user {security.user}"
                raise CoordinationError(
                    f"ZooKeeper at {hosts} refuses {refused}: check zookeeper.authentication, zookeeper.user and "
                    "zookeeper.password"
                ) from None
            cause = "" if self._handler.last_error is None else f"; the last attempt failed: {self._handler.last_error}"
            raise ConnectionLossError(
                f"no ZooKeeper server at {hosts} responded within {connect_timeout_ms} ms: check that it runs, and "
                f"{_SPEAKS[security.ssl_client_enable]}{cause}"
            ) from error
        self._begun = True
        known = self._client.client_id
        self.id: int = known[0] if known else 0
        if not known:
            self._ended = True
            self._stop_client()
            raise ConnectionLossError(f"the connection to {hosts} broke at once; retry")
        self._deliveries = Deliveries(f"kreplog-watches-{self.id:x}")
        self._keeper = threading.Thread(target=self._keep, name=f"kreplog-session-{self.id:x}", daemon=True)
        self._keeper.start()

    @property
    def expired(self) -> bool:
        """As Session.expired; by this host's monotonic clock, whether or not the ensemble is reachable."""
        if not self._ended and self._remaining() <= 0:
            self._ended = True
            self._wake.set()
        return self._ended

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """As Session.create."""
        operation = Create(path, data, ephemeral, sequential)
        check_operation(operation)
        if path == "/":
            raise _translate(zk.NodeExistsError(), operation)
        send = partial(self._client.create_async, self._full(path), data, ephemeral=ephemeral, sequence=sequential)
        return self._short(self._request(send, operation))

    def set_data(self, path: str, data: bytes, version: int = -1) -> NodeStat:
        """As Session.set_data."""
        operation = SetData(path, data, version)
        check_operation(operation)
        return _stat(self._request(partial(self._client.set_async, self._full(path), data, version), operation))

    def delete(self, path: str, version: int = -1) -> None:
        """As Session.delete."""
        operation = Delete(path, version)
        check_operation(operation)
        self._request(partial(self._client.delete_async, self._full(path), version), operation)

    def multi(self, operations: Sequence[StoreOperation]) -> list[Result]:
        """As Session.multi. UsageError when it exceeds the packet size of the servers."""
        check_operations(operations)
        if not operations:
            self._check_alive()
            return []
        size = sum(self._size(operation) for operation in operations)
        if size > self._max_multi_bytes:
            raise UsageError(
                f"{len(operations)} operations of about {size} bytes are too much for one multi: the servers accept "
                f"{self._max_multi_bytes}; split it, or raise their jute.maxbuffer and max_multi_bytes"
            )
        results = self._request(partial(self._send_multi, operations), operations[0])
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(result, zk.RolledBackError | zk.RuntimeInconsistency):
                raise same_failure(_translate(result, operation), index)
        if any(isinstance(result, Exception) for result in results):
            raise CoordinationError("ZooKeeper refused the multi without the failed operation; read, then retry")
        return [self._result(operation, result) for operation, result in zip(operations, results, strict=True)]

    def get(self, path: str, watch: Watch | None = None) -> Node:
        """As Session.get."""
        return _node(self._read("data", self._client.get_async, path, watch))

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """As Session.exists."""
        stat = self._read("data", self._client.exists_async, path, watch)
        return None if stat is None else _stat(stat)

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """As Session.children."""
        names, _ = self._read("children", partial(self._client.get_children_async, include_data=True), path, watch)
        return sorted(names)

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """As Session.get_many; requests of many nodes each are pipelined."""
        for path in paths:
            check_path(path)
        self._check_alive()
        chunks = [paths[start : start + _READ_AT_ONCE] for start in range(0, len(paths), _READ_AT_ONCE)]
        nodes: list[Node | None] = []
        for start in range(0, len(chunks), _READS_IN_FLIGHT):
            self._await_connection()
            sent = time.monotonic()
            requested = [(chunk, self._send_multi_read(chunk)) for chunk in chunks[start : start + _READS_IN_FLIGHT]]
            for chunk, result in requested:
                for path, found in zip(chunk, self._answer(result, sent, chunk[0]), strict=True):
                    if isinstance(found, Exception):
                        raise _translate(found, path)
                    nodes.append(None if found is None else _node(found))
        return nodes

    def close(self) -> None:
        """As Session.close. If no server is reachable the ephemeral nodes are deleted when the session times out
        there."""
        if self._closed:
            return
        self._closed = self._ended = True
        self._wake.set()
        if threading.current_thread() is not self._keeper:
            self._keeper.join(self.timeout_ms / 1000)  # kazoo takes long without a server

    def set_acls(self, secure: bool) -> int:
        """Set the ACL of all nodes, of ephemeral ones too: so that they belong to this session's user, or, if not
        `secure`, that everybody may read and change them. Returns their number. Raises CoordinationError, as where they
        belong to others."""
        count, acl = 0, CREATOR_ALL_ACL if secure else OPEN_ACL_UNSAFE
        waiting = ["/"]
        while waiting:
            path = waiting.pop()
            with suppress(NoNode):  # deleted meanwhile
                waiting += [f"{path.rstrip('/')}/{name}" for name in self.children(path) if path != "/" or name != _OWN]
                self._request(partial(self._client.set_acls_async, self._full(path), acl), path)
                count += 1
        return count

    # Requests

    def _check_access(self, security: ZooKeeperSecurity, timeout_s: float) -> None:
        """Warn of nodes that everybody may change although they are to have ACLs. Raises kazoo's NoAuthError where
        those that there are belong to others."""
        root = self._root or "/"
        self._client.get_children_async(root).get(timeout=timeout_s)
        if security.set_acl:
            acls, _ = self._client.get_acls_async(root).get(timeout=timeout_s)
            if any(acl.id.scheme == "world" for acl in acls):
                _log.warning(
                    "zookeeper.set.acl = true, and the node %s in ZooKeeper was created without: whoever reaches the "
                    "ensemble may change it; `kreplog cluster zookeeper-acl secure` gives all nodes ACLs",
                    root,
                )

    def _full(self, path: str) -> str:
        return path if not self._root else self._root if path == "/" else self._root + path

    def _short(self, path: str) -> str:
        return path[len(self._root) :] or "/"

    def _size(self, operation: StoreOperation) -> int:
        size = len(self._root) + len(operation.path.encode())
        if isinstance(operation, Create):
            return size + len(operation.data) + _CREATE_BYTES
        return size + _OTHER_BYTES + (len(operation.data) if isinstance(operation, SetData) else 0)

    def _send_multi(self, operations: Sequence[StoreOperation]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            path = self._full(operation.path)
            if isinstance(operation, SetData):
                transaction.set_data(path, operation.data, operation.version)
            elif isinstance(operation, Create):
                transaction.create(path, operation.data, ephemeral=operation.ephemeral, sequence=operation.sequential)
            elif isinstance(operation, Delete):
                transaction.delete(path, operation.version)
            else:
                transaction.check(path, operation.version)
        return transaction.commit_async()

    def _send_multi_read(self, paths: Sequence[str]) -> Any:
        result = self._client.handler.async_result()
        self._client._call(MultiRead(tuple(map(self._full, paths))), result)
        return result

    def _result(self, operation: StoreOperation, result: Any) -> Result:
        if isinstance(operation, Create):
            return self._short(result)
        return _stat(result) if isinstance(operation, SetData) else None

    def _request(self, send: Callable[[], Any], about: StoreOperation | str) -> Any:
        self._await_connection()
        sent = time.monotonic()
        return self._answer(send(), sent, about)

    def _answer(self, result: Any, sent: float, about: StoreOperation | str) -> Any:
        try:
            answer = result.get(timeout=self.timeout_ms / 1000)
        except (zk.KazooException, SequentialThreadingHandler.timeout_exception) as error:
            translated = _translate(error, about)
            if not isinstance(translated, ConnectionLossError | SessionExpiredError):
                self._on_response(sent)
            if isinstance(translated, SessionExpiredError):
                self._ended = True
                self._wake.set()
            raise translated from None
        self._on_response(sent)
        return answer

    def _read(self, kind: str, send: Callable[..., Any], path: str, watch: Watch | None) -> Any:
        check_path(path)
        if watch is None:
            return self._request(partial(send, self._full(path)), path)
        return self._request(partial(self._leave, _Watch(self, kind, path, watch), send), path)

    def _leave(self, left: _Watch, send: Callable[..., Any]) -> Any:
        with self._watch_lock:  # the watch may be called before this returns
            left.result = send(self._full(left.path), left)
        return left.result

    def _await_connection(self) -> None:
        while True:
            self._check_alive()
            if self._connected.wait(max(0.0, self._remaining())):
                self._check_alive()
                return

    def _check_alive(self) -> None:
        if self.expired:
            raise _expired(self.id)

    # Liveness

    def _remaining(self) -> float:
        """Seconds until the session must be considered ended."""
        timeout = self.timeout_ms / 1000
        return self._last_response + timeout - time.monotonic() if self._begun else timeout

    def _on_response(self, sent: float) -> None:
        """The ensemble responded to a request sent at `sent`."""
        if not self.expired:
            self._last_response = max(self._last_response, sent)

    def _on_state(self, state: str) -> None:  # on kazoo's connection thread, which must not block
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        if state == KazooState.LOST:
            self._ended = True
            if self._client.client_state == KeeperState.AUTH_FAILED:
                self._refused = True
                self._negotiated.set()
        self._wake.set()

    def patience(self, timeout: float | None) -> float | None:
        """For _Handler: the time-out of a connection attempt, given kazoo's, in seconds."""
        if timeout is None or not self._begun or self._connected.is_set():
            return timeout
        return min(timeout, max(_SHORTEST_PATIENCE_S, self.timeout_ms / 1000 / _HEARTBEATS_PER_TIMEOUT))

    def _listen_for_timeout(self) -> None:
        """Record the negotiated timeout, of which kazoo only reports two thirds."""
        connection = self._client._connection
        connect = connection._connect

        def connect_and_record(*arguments: Any) -> Any:
            sent = time.monotonic()
            try:
                read_timeout, connect_timeout = connect(*arguments)
            except zk.SessionClosedRequireSaslError as error:  # of which kazoo's thread would end
                raise zk.AuthFailedError from error
            except zk.AuthFailedError as error:
                if isinstance(error.__cause__, zk.ConnectionDropped) and self._may_reconnect():
                    raise zk.ConnectionDropped("the server closed the connection during SASL") from error
                raise
            self.timeout_ms = round(read_timeout * 3 / 2)
            self._last_response = max(self._last_response, sent)
            self._negotiated.set()
            return read_timeout, connect_timeout

        connection._connect = connect_and_record

    def _may_reconnect(self) -> bool:
        """Whether to connect again after a connection that broke during SASL, as that of a server that stops: a session
        that has begun does as long as it lives, a new one after each server's first. Servers that do not say that they
        refuse a client break its connections, too."""
        self._broken_logins += 1
        return self._begun or self._broken_logins <= len(self._client.hosts)

    def _keep(self) -> None:
        try:
            while not self.expired:
                pause = self.timeout_ms / 1000 / _HEARTBEATS_PER_TIMEOUT
                if self._connected.is_set():
                    self._beat()
                    if self._orphans:
                        self._leave_again()
                        self._wake.set()  # a heartbeat, then the next batch
                self._wake.wait(max(0.001, min(pause, self._remaining())))
                self._wake.clear()
        except Exception:
            _log.exception("coordination session %x cannot be kept alive", self.id)
        self._ended = True
        self._deliveries.stop()
        if not self._closed and self._on_expired is not None:
            run_logged(self._on_expired)
        self._stop_client()

    def _beat(self) -> None:
        if self._heartbeat is not None and not self._heartbeat.ready():
            return
        sent = time.monotonic()
        self._heartbeat = self._client.exists_async("/")
        self._heartbeat.rawlink(lambda result: self._on_response(sent) if result.successful() else None)

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            _log.warning("closing the connection to %s: %s", self._hosts, error)

    # Watches

    def on_event(self, left: _Watch, event: Any) -> None:
        """For _Watch: called by kazoo, on its thread for watches, in order."""
        with self._watch_lock:
            if left.done:
                return
            left.done = True
            if event.type == EventType.NONE:  # the connection broke
                self._orphans.append(left)
                self._wake.set()
                return
            if event is not self._event:
                self._event, self._called = event, set()
            if left.watch not in self._called:
                self._called.add(left.watch)
                self._deliver(left.watch, WatchEvent(left.path, _KINDS[event.type]))

    def _leave_again(self) -> None:
        """Leave orphaned watches again on the new connection; call those whose nodes have changed meanwhile."""
        left_again = []
        for _ in range(min(len(self._orphans), _PIPELINED)):
            old = self._orphans.popleft()
            new = _Watch(self, old.kind, old.path, old.watch)
            send = self._client.exists_async
            if old.kind == "children":
                send = partial(self._client.get_children_async, include_data=True)
            self._leave(new, send)
            left_again.append((old, new))
        called = set()
        for old, new in left_again:
            try:
                new.result.get(timeout=self.timeout_ms / 1000)
            except zk.NoNodeError:
                pass
            except (zk.KazooException, SequentialThreadingHandler.timeout_exception):
                self._orphans.append(old)
                continue
            with self._watch_lock:
                kind = None if new.done else _difference(old, new)
                if kind is not None:
                    new.done = True
                    event = WatchEvent(old.path, kind)
                    if (event, old.watch) not in called:
                        called.add((event, old.watch))
                        self._deliver(old.watch, event)

    def _deliver(self, watch: Watch, event: WatchEvent) -> None:
        self._deliveries.put(partial(self._call, watch, event))

    def _call(self, watch: Watch, event: WatchEvent) -> None:
        if not self.expired:
            watch(event)


class _Watch:
    """A watch as passed to kazoo: a new object for each read, which links it to the read's result.

    kind: "data" or "children". result: kazoo's, of the read. done: called, or orphaned. Both are guarded by the
    session's lock for
    watches.
    """

    __slots__ = ("done", "kind", "path", "result", "session", "watch")

    def __init__(self, session: ZooKeeperSession, kind: str, path: str, watch: Watch) -> None:
        self.session, self.kind, self.path, self.watch = session, kind, path, watch
        self.result: Any = None
        self.done = False

    def __call__(self, event: Any) -> None:
        self.session.on_event(self, event)

    def stat(self) -> Any:
        """ZooKeeper's stat of the node when it was read, None if it did not exist."""
        if self.result.exception is not None:
            return None
        value = self.result.value
        return value[1] if type(value) is tuple else value


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Refuses connections for a session that has ended, for which kazoo would begin a new session. And does not spend a
    whole session timeout on one server, which may be starting and never respond.

    tls: for connections by TLS. last_error: of the last attempt to connect, None after a connection.
    """

    def __init__(self, session: ZooKeeperSession, tls: ReloadedContext | None) -> None:
        super().__init__()
        self._session = session
        self._tls = tls
        self.last_error: Exception | None = None

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self._session.expired:
            raise ConnectionRefusedError("the session has ended")
        timeout = self._session.patience(kwargs["timeout"])
        try:
            if self._tls is None:
                connection = super().create_connection(*args, **{**kwargs, "timeout": timeout})
            else:
                connection = _connect(self._tls, kwargs["address"], kwargs["hostname"], timeout)
        except OSError as error:
            self.last_error = error
            raise
        self.last_error = None
        return connection

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        decrypted = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        if decrypted:
            timeout = 0.0
        readable, writable, failed = super().select(readers, writers, others, self._session.patience(timeout))
        return [*decrypted, *(each for each in readable if each not in decrypted)], writable, failed


def _connect(tls: ReloadedContext, address: tuple[str, int], hostname: str, timeout: float | None) -> ssl.SSLSocket:
    """Raises OSError, also for a refused handshake."""
    if refused := tls.reload():
        _log.warning("the former certificates stay in force for ZooKeeper: %s", refused)
    connection = socket.create_connection(address, timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tls.current.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise


def _credentials(security: ZooKeeperSecurity) -> dict[str, Any]:
    """Arguments of KazooClient."""
    if security.authentication == "digest":
        return {"auth_data": [("digest", f"{security.user}:{security.password}")]}
    if security.authentication == "sasl":
        login = {"mechanism": "DIGEST-MD5", "username": security.user, "password": security.password}
        return {"sasl_options": login}
    return {}


def _no_access(path: str) -> CoordinationError:
    return CoordinationError(
        f"{path}: ZooKeeper refuses access by the ACL of the node: check zookeeper.user and zookeeper.password, which "
        "must be those of the broker that created it",
        path=path,
    )


def _difference(old: _Watch, new: _Watch) -> str | None:
    """The kind of the event between the reads of `old` and `new`; None if the node has not changed."""
    before, after = old.stat(), new.stat()
    if after is None:
        return None if before is None else "deleted"
    if before is None:
        return "created"
    if old.kind == "children":
        return None if before.pzxid == after.pzxid else "children"
    return None if before.mzxid == after.mzxid else "changed"


def _stat(stat: Any) -> NodeStat:
    return NodeStat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner, stat.numChildren)


def _node(answer: Any) -> Node:
    data, stat = answer
    return Node(data or b"", _stat(stat))


def _expired(id: int) -> SessionExpiredError:
    return SessionExpiredError(
        f"session {id:x} has ended, its ephemeral nodes are deleted: connect again for a new session"
    )


def _translate(error: Exception, about: StoreOperation | str) -> CoordinationError:
    """Translate an error of kazoo; `about` is the operation, or the path that was read."""
    path = about if isinstance(about, str) else about.path
    if isinstance(error, zk.NoNodeError):
        if isinstance(about, Create):
            return NoNode(f"{path} cannot be created: create its parent {parent_of(path)} first", path=path)
        return no_node(path)
    if isinstance(error, zk.NodeExistsError):
        return NodeExistsError(f"{path} exists already; read it, or write it with set_data", path=path)
    if isinstance(error, zk.BadVersionError):
        version = getattr(about, "version", -1)
        return BadVersionError(
            f"{path} is not at version {version}: it was written meanwhile; read it again", path=path
        )
    if isinstance(error, zk.NotEmptyError):
        return NotEmptyError(f"{path} has children: delete them first, in the same multi if need be", path=path)
    if isinstance(error, zk.NoAuthError):
        return _no_access(path)
    if isinstance(error, zk.NoChildrenForEphemeralsError):
        return ephemeral_parent(path, parent_of(path))
    if isinstance(error, zk.SessionExpiredError):
        return SessionExpiredError(f"{path}: the session has ended; connect again for a new session", path=path)
    lost = zk.ConnectionLoss | zk.OperationTimeoutError | zk.RequestTimeoutError | zk.SessionMovedError
    if isinstance(error, lost | SequentialThreadingHandler.timeout_exception):
        return ConnectionLossError(
            f"{path}: the connection to ZooKeeper broke before the response ({type(error).__name__}); read it before "
            "a retry",
            path=path,
        )
    return CoordinationError(f"{path}: ZooKeeper refused ({type(error).__name__}: {error})", path=path)
