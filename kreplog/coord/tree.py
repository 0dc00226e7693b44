"""Transactions on the tree of nodes: the semantics of all operations, shared by `memory` and `embedded`.

A Transaction reads records through a function and collects its changes beside them; the store applies these atomically,
or drops them. An operation's errors are checked in ZooKeeper's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kreplog.coord.base import Result, parent_of
from kreplog.errors import BadVersionError, CoordinationError, NodeExistsError, NoNodeError, NotEmptyError, check
from kreplog.types import Create, Delete, Node, NodeStat, SetData, StoreOperation, WatchEvent


class NodeRecord:
    """A node as stored, immutable. Fields as in NodeStat, and two more.

    creates: children ever created under it. children_modified: the last transaction that changed its set of children.
    """

    __slots__ = ("_node", "children", "children_modified", "created", "creates", "data", "modified", "owner", "version")

    def __init__(
        self,
        data: bytes,
        version: int,
        created: int,
        modified: int,
        owner: int = 0,
        children: int = 0,
        creates: int = 0,
        children_modified: int = 0,
    ) -> None:
        self.data = data
        self.version = version
        self.created = created
        self.modified = modified
        self.owner = owner
        self.children = children
        self.creates = creates
        self.children_modified = children_modified
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        """The node as readers get it."""
        node = self._node
        if node is None:
            stat = NodeStat(self.version, self.created, self.modified, self.owner, self.children)
            node = self._node = Node(self.data, stat)
        return node

    def with_children(self, change: int, transaction: int) -> NodeRecord:
        """The record after a child was added (1) or removed (-1)."""
        return NodeRecord(
            self.data,
            self.version,
            self.created,
            self.modified,
            self.owner,
            self.children + change,
            self.creates + (change > 0),
            transaction,
        )


def no_node(path: str) -> NoNodeError:
    """The error of a read or write of a node that does not exist."""
    return NoNodeError(f"{path} does not exist; create it, or list its parent's children", path=path)


def same_failure(error: CoordinationError, index: int) -> CoordinationError:
    """The error of a multi whose operation `index` failed with `error`."""
    return type(error)(f"nothing of the multi was applied, operation {index}: {error}", path=error.path, index=index)


class Transaction:
    """An atomic change by one session, number `id`. Owned by one thread.

    changed: the new record of every touched path, None if deleted. events: for watches, in order.
    """

    def __init__(self, id: int, session: int, load: Callable[[str], NodeRecord | None]) -> None:
        self.id = id
        self.changed: dict[str, NodeRecord | None] = {}
        self.events: list[WatchEvent] = []
        self._session = session
        self._load = load

    def apply(self, operation: StoreOperation) -> Result:
        """Apply a checked operation. Raises CoordinationError, without any change by this operation."""
        if isinstance(operation, SetData):
            return self._set_data(operation)
        if isinstance(operation, Create):
            return self._create(operation)
        if isinstance(operation, Delete):
            self._delete(operation)
            return None
        self._at_version(operation.path, operation.version)  # a Check
        return None

    def apply_all(self, operations: Sequence[StoreOperation]) -> list[Result]:
        """Apply all in order. Raises the error of the first that fails, with its index; then the transaction is
        void."""
        results = []
        for index, operation in enumerate(operations):
            try:
                results.append(self.apply(operation))
            except CoordinationError as error:
                raise same_failure(error, index) from None
        return results

    def remove(self, paths: Iterable[str]) -> None:
        """Delete existing nodes without children: the ephemeral ones of a session that has ended."""
        for path in paths:
            self._delete(Delete(path))

    def touches_nothing(self) -> bool:
        """Whether the tree is unchanged, since only Checks were applied."""
        return not self.changed

    def _record(self, path: str) -> NodeRecord | None:
        return self.changed[path] if path in self.changed else self._load(path)

    def _at_version(self, path: str, version: int) -> NodeRecord:
        record = self._record(path)
        if record is None:
            raise no_node(path)
        if version not in (-1, record.version):
            raise BadVersionError(
                f"{path} is at version {record.version}, not {version}: it was written meanwhile; read it again",
                path=path,
            )
        return record

    def _set_data(self, operation: SetData) -> NodeStat:
        path = operation.path
        old = self._at_version(path, operation.version)
        new = NodeRecord(
            operation.data,
            old.version + 1,
            old.created,
            self.id,
            old.owner,
            old.children,
            old.creates,
            old.children_modified,
        )
        self.changed[path] = new
        self.events.append(WatchEvent(path, "changed"))
        return new.node.stat

    def _create(self, operation: Create) -> str:
        path = operation.path
        if path == "/":
            raise NodeExistsError("the root '/' always exists; create a node below it", path=path)
        above = parent_of(path)
        parent = self._record(above)
        if parent is None:
            raise NoNodeError(f"{path} cannot be created: create its parent {above} first", path=path)
        if operation.sequential:
            path += f"{parent.creates:010d}"
        if self._record(path) is not None:
            raise NodeExistsError(f"{path} exists already; read it, or write it with set_data", path=path)
        if parent.owner:
            raise ephemeral_parent(path, above)
        owner = self._session if operation.ephemeral else 0
        self.changed[path] = NodeRecord(operation.data, 0, self.id, self.id, owner, children_modified=self.id)
        self.changed[above] = parent.with_children(1, self.id)
        self.events += WatchEvent(path, "created"), WatchEvent(above, "children")
        return path

    def _delete(self, operation: Delete) -> None:
        path = operation.path
        record = self._at_version(path, operation.version)
        if record.children:
            raise NotEmptyError(
                f"{path} has {record.children} children: delete them first, in the same multi if need be", path=path
            )
        above = parent_of(path)
        parent = self._record(above)
        check(parent is not None, f"{path} has no parent {above}")
        assert parent is not None  # for mypy
        self.changed[path] = None
        self.changed[above] = parent.with_children(-1, self.id)
        self.events += WatchEvent(path, "deleted"), WatchEvent(above, "children")


def ephemeral_parent(path: str, parent: str) -> CoordinationError:
    """The error of a create below an ephemeral node."""
    return CoordinationError(
        f"{path} cannot be created: {parent} is ephemeral and cannot have children; create it elsewhere", path=path
    )
