"""Requests that are accepted while the topic that they are about is being deleted."""

from __future__ import annotations

import pytest

from kreplog.core import nodes
from kreplog.core.effects import Effect, Multi
from kreplog.types import Create, Delete
from tests.core.controller.controlled import Box, Cluster


@pytest.mark.parametrize(
    ("under", "number", "data"), [(nodes.REASSIGNED, 0, b"[3,1]"), (nodes.ADDED, 2, b"[3,1]"), (nodes.REMOVED, 1, b"")]
)
@pytest.mark.parametrize("failover", [False, True])
def test_a_request_for_a_deleted_topic_is_not_carried_out_on_a_later_one(
    under: str, number: int, data: bytes, failover: bool
) -> None:
    """It is accepted after the controller has deleted the topic's requests, and before it deletes the topic."""
    cluster = Cluster((1, 2, 3))
    cluster.start_controller()
    cluster.run()
    assignment = {0: (1, 2), 1: (2, 3)}
    cluster.create_topic("t", assignment, topic_id="old")
    cluster.run()

    def is_last(effect: Effect) -> bool:
        return isinstance(effect, Multi) and Delete(nodes.topic("t")) in effect.operations

    def request(box: Box, effect: Effect) -> bool:
        if is_last(effect):
            cluster.write(Create(f"{under}/t"), Create(f"{under}/t/{number}", data))
        return False

    def create_again(box: Box, effect: Effect) -> bool:
        if not is_last(effect):
            return False
        cluster.create_topic("t", assignment, topic_id="new")
        return failover

    cluster.before, cluster.after = request, create_again
    cluster.delete_topic("t")
    cluster.run()
    if failover:
        cluster.start_controller()
        cluster.run()
    assert cluster.topic("t").topic_id == "new"
    assert cluster.topic("t").partitions == {n: nodes.Assignment(replicas) for n, replicas in assignment.items()}
    assert not cluster.admin.children(under)
    assert "for an earlier topic of that name" in cluster.errors()[-1]
    cluster.check()
    cluster.write(Create(f"{under}/t"), Create(f"{under}/t/{number}", data))
    cluster.settle()
    partitions = cluster.topic("t").partitions
    assert partitions.get(number) == (nodes.Assignment((3, 1)) if data else None), "the same request for the later one"
    cluster.check()
