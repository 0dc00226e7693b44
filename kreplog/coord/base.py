"""The interface of all coordination stores, with ZooKeeper's semantics, and the argument checks that they share.

A store holds a tree of small nodes, each with data, a version and, if ephemeral, a session. `memory` is the reference
and the simulator's store, `embedded` serves the processes of one host, `zookeeper` uses an ensemble. The tests in
tests/coord hold all three to this module. Source: ZooKeeper Programmer's Guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from kreplog.errors import ArgumentTypeError, ConnectionLossError, StorageError, UsageError
from kreplog.types import Check, Create, Delete, Node, NodeStat, SetData, StoreOperation, WatchEvent

MAX_DATA_BYTES = 1_000_000
"""Maximum of data in a node: it must fit into ZooKeeper's packet (jute.maxbuffer, 1,048,575 bytes) with its path."""

MAX_PATH_CHARS = 1024
"""Maximum length of a path."""

Watch = Callable[[WatchEvent], None]
"""Hashable. Called once, for the first event that it waits for; passed twice to the same read, it is called once."""

Result = str | NodeStat | None
"""The result of an operation of a multi: the path of a Create, the new stat of a SetData, None otherwise."""


class StoreFailedError(ConnectionLossError, StorageError):
    """The store's own files could not be read or written: disk full, read-only, damaged; the message says which.

    As after any ConnectionLossError: read before a retry. No operation is half applied.
    """


class Session(Protocol):
    """A client's session: its ephemeral nodes are deleted when it ends, by close() or after its timeout without a
    heartbeat. An ended session never reads or writes again: every call raises SessionExpiredError, forever.

    Watches. A read may leave a watch, called once with a WatchEvent and then dropped. One left by get or exists fires
    when
    the node is created ("created"), written ("changed") or deleted ("deleted"); one left by children when a child is
    created or deleted ("children"), or the node is deleted ("deleted"). A read that raises leaves none. No change
    after the read is missed; changes before it do not fire. Events are delivered in the order of the changes, one at a
    time, and never while a lock of the session is held, so a watch may call the session. The same
    callable left twice on a node is called once per event. When the session ends its watches are dropped, uncalled.
    After a time without connection to the store, several events of a node may be merged into the last of them.

    All calls may be made from any thread, unless the store says otherwise. They raise UsageError for a bad argument
    (nothing was changed), SessionExpiredError, and ConnectionLossError when the store did not respond: then a write may
    or may not have been applied.
    """

    @property
    def id(self) -> int:
        """Not 0, and never reused by the same store; NodeStat.ephemeral_owner of its ephemeral nodes."""

    @property
    def expired(self) -> bool:
        """True forever once the session has ended, or must be considered ended."""

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node and return its path, which differs from `path` when sequential.

        sequential: appends the number of children ever created under its parent, in ten digits: unique and rising, with
        gaps. Raises NoNodeError (no parent), NodeExistsError, or CoordinationError when the parent is ephemeral, since
        such a node has no children.
        """

    def get(self, path: str, watch: Watch | None = None) -> Node:
        """Data and stat. Raises NoNodeError."""

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """The stat, None if the node does not exist; then the watch fires when it is created."""

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names (not paths) of the children, sorted. Raises NoNodeError."""

    def set_data(self, path: str, data: bytes, version: int = -1) -> NodeStat:
        """Replace the data if the node is at `version` (-1: any); return the new stat. Raises NoNodeError,
        BadVersionError."""

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a childless node at `version` (-1: any). Raises NoNodeError, BadVersionError, then NotEmptyError."""

    def multi(self, operations: Sequence[StoreOperation]) -> list[Result]:
        """Apply all operations in order, each seeing those before it, or none.

        Raises the CoordinationError of the first that fails, with its `index`. No reader sees a multi half applied.
        """

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at `paths`, None for those that do not exist. Whether they are one snapshot depends on the
        store."""

    def close(self) -> None:
        """End the session and delete its ephemeral nodes; on_expired is not called. Idempotent. Never raises."""


class CoordinationStore(Protocol):
    """A factory of sessions."""

    def connect(self, timeout_ms: int, on_expired: Callable[[], None] | None = None) -> Session:
        """Begin a session that expires after `timeout_ms` without a heartbeat.

        on_expired: called once when it ends other than by close(). Raises UsageError, ConnectionLossError.
        """

    def close(self) -> None:
        """Close all sessions of this object."""


# As ZooKeeper's PathUtils.validatePath: control characters, surrogates and characters that a UTF-16 client cannot write
# are refused.
_FORBIDDEN = "\\x00-\\x1f\\x7f-\\x9f\ud800-\uf8ff\ufff0-\U0010ffff"
_PATH = re.compile(rf"(?:/(?!\.\.?(?:/|\Z))[^/{_FORBIDDEN}]+)+|/")


@lru_cache(maxsize=65536)
def check_path(path: str) -> str:
    """Return `path` if it is absolute and plain, as in '/brokers/ids/1', else raise UsageError."""
    if not isinstance(path, str):
        raise ArgumentTypeError(f"a path is a str, not {type(path).__name__}")
    if len(path) > MAX_PATH_CHARS:
        raise UsageError(f"a path of {len(path)} characters is too long: {MAX_PATH_CHARS} are allowed")
    if not _PATH.fullmatch(path):
        raise UsageError(
            f"{path!r} is not a path of the coordination store: write '/' and names joined by '/', without an empty "
            "name, '.', '..', a '/' at the end, or control characters"
        )
    return path


def parent_of(path: str) -> str:
    """The path of the node that has `path` among its children; '/' for '/' itself."""
    return path[: path.rindex("/")] or "/"


def name_of(path: str) -> str:
    """The last name of `path`."""
    return path[path.rindex("/") + 1 :]


def check_operation(operation: StoreOperation) -> None:
    """Raise UsageError unless every argument of `operation` is valid."""
    if not isinstance(operation, SetData | Create | Delete | Check):
        raise ArgumentTypeError(f"{operation!r} is not an operation: use Create, SetData, Delete or Check")
    check_path(operation.path)
    if isinstance(operation, SetData | Create):
        data = operation.data
        if not isinstance(data, bytes):
            raise ArgumentTypeError(f"{operation.path}: data is bytes, not {type(data).__name__}")
        if len(data) > MAX_DATA_BYTES:
            raise UsageError(
                f"{operation.path}: {len(data)} bytes are too many for a node: at most {MAX_DATA_BYTES} are allowed"
            )
    if isinstance(operation, Create):
        return
    if type(operation.version) is not int:
        raise ArgumentTypeError(f"{operation.path}: a version is an int, not {operation.version!r}")
    if not -1 <= operation.version < 2**31:
        raise UsageError(
            f"{operation.path}: {operation.version} is not a version: use one that was read, or -1 for any"
        )
    if isinstance(operation, Delete) and operation.path == "/":
        raise UsageError("the root '/' cannot be deleted")


def check_operations(operations: Sequence[StoreOperation]) -> None:
    """check_operation for each of a multi."""
    for operation in operations:
        check_operation(operation)


def check_timeout(timeout_ms: int) -> None:
    """Raise UsageError unless `timeout_ms` can be a session's timeout."""
    if type(timeout_ms) is not int:
        raise ArgumentTypeError(f"a session timeout is an int of milliseconds, not {timeout_ms!r}")
    if not 1 <= timeout_ms < 2**31:
        raise UsageError(f"a session timeout of {timeout_ms!r} ms is invalid: give a positive number of milliseconds")
