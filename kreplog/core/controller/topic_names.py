"""TopicNames: the names of existing topics, beside which a new topic may not have every name.

Kafka's metrics write `_` for `.`, so that the metrics of a.b and a_b would have the same names: of such topics only the
first is created. Those that exist already stay. The internal topics count as existing before they are created, so that
no client can take their names away. Brokers create topics at the same time: each creation of such a name writes one of
GUARDS nodes, at the version that was read before the names. Colliding names have the same node; others seldom do, so
that a broker which creates many topics does not hold up those of other brokers. Source: Kafka, Topic.hasCollision,
ReplicationControlManager.validateNewTopicNames.
"""

from __future__ import annotations

from kreplog.core import nodes
from kreplog.core.effects import GetChildren, GetNodes, Nodes, Steps
from kreplog.core.group_messages import java_hash
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import InvalidTopicError
from kreplog.types import Create, SetData, StoreOperation

GUARDS = 64
"""Number of the nodes, each of which the first creation that needs it creates. Brokers of one cluster agree on it."""


class TopicNames:
    """The names that new topics can collide with, read once for all topics of a request."""

    def __init__(self) -> None:
        self._versions: list[int | None] = []  # of the guards; empty: to be read
        self._by_metric_name: dict[str, set[str]] = {}

    def check(self, name: str) -> Steps[tuple[StoreOperation, ...]]:
        """Check the name of a new topic; returns the operation to create it with, if its name can collide:
        BadVersionError or NodeExistsError where others have written that guard since. Raises InvalidTopicError for a
        name that collides with another topic's; that of a topic which exists is not refused here."""
        if not can_collide(name):
            return ()
        if not self._versions:
            yield from self._read()
        others = self._by_metric_name.get(_metric_name(name), set())
        if others and name not in others:
            raise InvalidTopicError(
                f"topic {name} collides with topic {min(others)}: their metrics would have the same "
                "names, in which _ stands for each dot; choose a name that differs in other characters too"
            )
        number = _guard(name)
        version, path = self._versions[number], nodes.topic_names(number)
        return (Create(path) if version is None else SetData(path, b"", version),)

    def created(self, name: str) -> None:
        """A topic has been created together with the operation of `check`."""
        if can_collide(name):
            version = self._versions[_guard(name)]
            self._versions[_guard(name)] = 0 if version is None else version + 1
            self.claim(name)

    def claim(self, name: str) -> None:
        """A topic of this name exists, or is to be validated as if it did."""
        if can_collide(name):
            self._by_metric_name.setdefault(_metric_name(name), set()).add(name)

    def outdated(self) -> None:
        """Others have created topics since the names were read: the next check reads them again."""
        self._versions = []

    def _read(self) -> Steps[None]:
        guards: Nodes = yield GetNodes(tuple(map(nodes.topic_names, range(GUARDS))))
        found: list[str] | None = yield GetChildren(nodes.TOPICS)
        self._by_metric_name = {}
        for name in (*INTERNAL_TOPICS, *(found or ())):
            self.claim(name)
        self._versions = [None if guard is None else guard.stat.version for guard in guards]


def can_collide(name: str) -> bool:
    """Whether another name can have the same metrics."""
    return "." in name or "_" in name


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _guard(name: str) -> int:
    return java_hash(_metric_name(name)) % GUARDS
