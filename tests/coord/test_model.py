"""Random operations on the reference and on another store: the same results, errors, trees and events."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kreplog.coord.base import CoordinationStore, Session
from kreplog.coord.embedded import EmbeddedStore
from kreplog.coord.memory import MemoryStore
from kreplog.errors import CoordinationError
from kreplog.types import Check, Create, Delete, Node, NodeStat, SetData, StoreOperation, WatchEvent
from tests.coord.conftest import TIMEOUT_MS, Stores
from tests.coord.servers import until

PATHS = ["/m/a", "/m/b", "/m/a/a", "/m/a/b", "/m/b/a", "/m/a/a/a"]
VERSIONS = [-1, -1, -1, 0, 0, 1, 2]

Step = tuple[str, Any]
"""What is done: ("one", operation), ("multi", operations), ("watch", (kind, path)), or ("end", None): a new session."""

paths = st.sampled_from(PATHS)
versions = st.sampled_from(VERSIONS)
data = st.binary(max_size=2)
operations = st.one_of(
    st.builds(Create, paths, data, st.booleans(), st.sampled_from([False, False, True])),
    st.builds(SetData, paths, data, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("one"), operations),
        st.tuples(st.just("multi"), st.lists(operations, min_size=1, max_size=12)),
        st.tuples(st.just("watch"), st.tuples(st.sampled_from(["get", "exists", "children"]), paths)),
        st.tuples(st.just("end"), st.none()),
    ),
    max_size=30,
)


class Run:
    """One store under a sequence of steps, and all that came out of it, without ids and texts, which may differ."""

    def __init__(self, store: CoordinationStore) -> None:
        self.store = store
        self.watcher = store.connect(TIMEOUT_MS)
        self.session = store.connect(TIMEOUT_MS)
        self.events: list[WatchEvent] = []
        self.outcomes: list[object] = []
        self.session.create("/m")

    def step(self, action: str, argument: Any) -> None:
        try:
            outcome = self._do(action, argument)
        except CoordinationError as error:
            outcome = type(error).__name__, error.index
        self.outcomes.append((outcome, self.tree()))

    def finish(self) -> list[object]:
        """The outcomes, and the events in order: the last one is of a node that nothing else touches."""
        self.watcher.exists("/end", self.events.append)
        self.session.create("/end")
        until(lambda: WatchEvent("/end", "created") in self.events, "the last event")
        self.watcher.close()
        self.session.close()
        return [*self.outcomes, self.events]

    def tree(self) -> dict[str, object]:
        found: dict[str, object] = {}
        below = ["/m"]
        while below:
            path = below.pop()
            found[path] = self._plain(self.watcher.get(path))
            below += [f"{path}/{name}" for name in self.watcher.children(path)]
        assert self.watcher.get_many(list(found)) == [self.watcher.get(path) for path in found]
        return found

    def _do(self, action: str, argument: Any) -> object:
        if action == "one":
            return self._plain(self._apply(argument))
        if action == "multi":
            return [self._plain(result) for result in self.session.multi(argument)]
        if action == "watch":
            kind, path = argument
            return self._plain(getattr(self.watcher, kind)(path, self.events.append))
        self.session.close()
        self.session = self.store.connect(TIMEOUT_MS)
        return None

    def _apply(self, operation: StoreOperation) -> object:
        session: Session = self.session
        if isinstance(operation, Create):
            return session.create(
                operation.path, operation.data, ephemeral=operation.ephemeral, sequential=operation.sequential
            )
        if isinstance(operation, SetData):
            return session.set_data(operation.path, operation.data, operation.version)
        if isinstance(operation, Delete):
            return session.delete(operation.path, operation.version)  # type: ignore[func-returns-value]
        return session.exists(operation.path)

    def _plain(self, value: object) -> object:
        if isinstance(value, Node):
            return value.data, self._plain(value.stat)
        if isinstance(value, NodeStat):
            owner = bool(value.ephemeral_owner)
            return replace(value, created=0, modified=value.created == value.modified, ephemeral_owner=owner)
        return value


def compare(store: CoordinationStore, sequence: list[Step]) -> None:
    model, other = Run(MemoryStore()), Run(store)
    for step in sequence:
        model.step(*step)
        other.step(*step)
        assert other.outcomes[-1] == model.outcomes[-1], step
    assert other.finish() == model.finish()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_embedded_is_as_the_model(folder: Path, sequence: list[Step]) -> None:
    number = len(list(folder.iterdir()))
    compare(EmbeddedStore(folder / str(number)), sequence)


@pytest.mark.parametrize("seed", range(4))
def test_every_store_is_as_the_model(seed: int, stores: Stores) -> None:
    """Longer sequences, and the model against ZooKeeper itself."""
    source = random.Random(seed)

    def operation() -> StoreOperation:
        path, version = source.choice(PATHS), source.choice(VERSIONS)
        draw = source.randrange(8)
        if draw < 3:
            return Create(path, source.randbytes(2), source.random() < 0.2, source.random() < 0.1)
        if draw < 5:
            return SetData(path, source.randbytes(2), version)
        return Delete(path, version) if draw < 7 else Check(path, version)

    sequence: list[Step] = []
    for _ in range(120):
        draw = source.randrange(10)
        if draw < 3:
            sequence.append(("watch", (source.choice(["get", "exists", "children"]), source.choice(PATHS))))
        elif draw < 6:
            sequence.append(("multi", [operation() for _ in range(source.randrange(1, 5))]))
        else:
            sequence.append(("end", None) if draw == 9 and source.random() < 0.2 else ("one", operation()))
    compare(stores.store, sequence)
