"""TopicNames: the names of existing topics, beside which a new topic may not have every name.

Kafka's metrics write `_` for `.`, so that the metrics of a.b and a_b would have the same names: of such topics only the
first is created. Those that exist already stay. The internal topics count as existing before they are created, so that
no client can take their names away. Brokers create topics at the same time: each creation of such a name
writes the parent node of all topics, at the version at which the names were read. Source: Kafka, Topic.hasCollision,
ReplicationControlManager.validateNewTopicNames.
"""

from __future__ import annotations

from kreplog.core import nodes
from kreplog.core.effects import GetChildren, GetNodes, Nodes, Steps
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import InvalidTopicError
from kreplog.types import SetData


class TopicNames:
    """The names that new topics can collide with, read once for all topics of a request."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._by_metric_name: dict[str, set[str]] = {}

    def check(self, name: str) -> Steps[tuple[SetData, ...]]:
        """Check the name of a new topic; returns the operation to create it with, if its name could collide:
        BadVersionError where others have created such a topic since. Raises InvalidTopicError for a name that collides
        with another topic's; that of a topic which exists is not refused here."""
        if not _can_collide(name):
            return ()
        version = self._version
        if version is None:
            version = self._version = yield from self._read()
        others = self._by_metric_name.get(_metric_name(name), set())
        if others and name not in others:
            raise InvalidTopicError(
                f"topic {name} collides with topic {min(others)}: their metrics would have the same "
                "names, in which _ stands for each dot; choose a name that differs in other characters too"
            )
        return (SetData(nodes.TOPICS, b"", version),)

    def created(self, name: str, guard: SetData) -> None:
        """A topic has been created together with the operation of `check`."""
        self._version = guard.version + 1
        self.claim(name)

    def claim(self, name: str) -> None:
        """A topic of this name exists, or is to be validated as if it did."""
        if _can_collide(name):
            self._by_metric_name.setdefault(_metric_name(name), set()).add(name)

    def outdated(self) -> None:
        """Others have created topics since the names were read: the next check reads them again."""
        self._version = None

    def _read(self) -> Steps[int]:
        parents: Nodes = yield GetNodes((nodes.TOPICS,))
        found: list[str] | None = yield GetChildren(nodes.TOPICS)
        self._by_metric_name = {}
        for name in (*INTERNAL_TOPICS, *(found or ())):
            self.claim(name)
        return 0 if parents[0] is None else parents[0].stat.version


def _can_collide(name: str) -> bool:
    """Whether another name can have the same metrics."""
    return "." in name or "_" in name


def _metric_name(name: str) -> str:
    return name.replace(".", "_")
