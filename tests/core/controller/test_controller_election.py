"""Who is the controller: elections, lost replies, lost sessions, two at a time, and a store that fails."""

from __future__ import annotations

import json

import pytest

from kreplog.config import ReplicationConfig
from kreplog.core import nodes
from kreplog.core.controller.controller import RETRY_MS, Controller
from kreplog.core.effects import Effect, GetNodes, Multi, SendControl, StateChange
from kreplog.core.events import ControlReplied, Received, Registered, SessionLost, Tick
from kreplog.core.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from kreplog.errors import ConnectionLossError, ErrorCode, SessionExpiredError
from kreplog.types import Create, SetData, TopicPartition
from tests.core.controller.controlled import Box, Cluster

T0 = TopicPartition("t", 0)


def test_the_first_is_elected_and_founds_the_cluster() -> None:
    cluster = Cluster(())
    for path in [*reversed(nodes.PERSISTENT), nodes.CONTROLLER_EPOCH]:
        cluster.admin.delete(path)
    first, second = cluster.start_controller(), cluster.start_controller()
    cluster.run()
    assert first.acts()
    assert not second.acts()
    assert all(cluster.exists(path) for path in nodes.PERSISTENT)
    assert json.loads(cluster.node(nodes.CONTROLLER).data) == {"broker_id": 101}
    assert cluster.node(nodes.CONTROLLER).stat.ephemeral_owner == first.session.id
    assert cluster.node(nodes.CONTROLLER_EPOCH).data == b"1"
    assert first.core.epoch == 1


def test_when_it_dies_another_takes_over_under_a_higher_epoch() -> None:
    cluster = Cluster()
    first, second = cluster.start_controller(), cluster.start_controller()
    cluster.run()
    first.die()
    cluster.run()
    assert second.acts()
    assert second.core.epoch == 2
    cluster.check()


def test_a_lost_session_makes_it_resign_and_registering_makes_it_stand_again() -> None:
    cluster = Cluster()
    box = cluster.start_controller()
    cluster.run()
    cluster.store.expire(box.session.id)
    box.queue.append(SessionLost())
    cluster.run()
    assert not box.acts()
    assert box.core.context.topics == {}
    box.session = cluster.store.connect(6000)
    box.queue.append(Registered(0, box.session.id))
    cluster.run()
    assert box.acts()
    assert box.core.epoch == 2


def test_an_expired_session_found_out_by_a_write_makes_it_resign() -> None:
    cluster = Cluster()
    box = cluster.start_controller()
    cluster.run()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.store.expire(box.session.id)
    box.run_next()
    assert not box.acts()
    assert box.core.next_wakeup(0) is None


@pytest.mark.parametrize("applied", [True, False])
def test_f28_elected_with_the_reply_lost(applied: bool) -> None:
    """KAFKA-13407: the node names this broker; it must act, under an epoch that is surely its own."""
    cluster = Cluster()
    first, second = cluster.start_controller(), cluster.start_controller()

    def lose(box: Box, effect: Effect) -> bool:
        if isinstance(effect, Multi) and any(
            isinstance(operation, Create) and operation.ephemeral for operation in effect.operations
        ):
            cluster.after = lambda box, effect: False
            cluster.lost = ConnectionLossError("lost")
        return False

    if applied:
        cluster.after = lose
    else:
        cluster.lost = ConnectionLossError("the first read is lost")
    cluster.settle()
    assert cluster.controller is (first.core if applied else second.core)
    assert cluster.controller.epoch == (2 if applied else 1)
    cluster.check()


def test_f27_a_controller_that_was_paused_writes_nothing() -> None:
    """KAFKA-532, KAFKA-6082: the session expires while it is paused; what it had in hand is refused."""
    cluster = Cluster()
    first, second = cluster.start_controller(), cluster.start_controller()
    cluster.create_topic("t", {0: (1, 2, 3)})
    cluster.run()
    first.paused = True
    cluster.brokers[1].stop()  # for both to see
    cluster.store.expire(first.session.id)
    cluster.run()
    assert second.acts()
    before = cluster.store.dump()
    first.paused = False
    while first.queue:
        first.run_next()
    assert cluster.store.dump() == before
    assert not first.acts()


def test_f27_a_deposed_controller_whose_session_lives_is_refused_by_the_epoch() -> None:
    """The check of the epoch alone must stop it: here its session is still good, and /controller was taken away."""
    cluster = Cluster()
    first, second = cluster.start_controller(), cluster.start_controller()
    cluster.create_topic("t", {0: (1, 2, 3)})
    cluster.run()
    first.paused = True
    cluster.admin.delete(nodes.CONTROLLER)
    cluster.run()
    assert second.acts()
    assert first.acts()
    cluster.brokers[1].stop()
    cluster.run()
    epoch = cluster.state(T0).leader_epoch
    writes: list[Effect] = []
    first.queue.rotate(-1)  # the death of broker 1 before that of /controller

    def note(box: Box, effect: Effect) -> bool:
        if box is first and isinstance(effect, Multi):
            writes.append(effect)
        return False

    cluster.before = note
    first.run_next()
    assert len(writes) == 1
    assert not first.acts()
    assert cluster.state(T0).leader_epoch == epoch
    first.paused = False
    cluster.settle()
    assert cluster.controller is second.core
    cluster.check()


def test_a_controller_whose_node_is_deleted_stands_again() -> None:
    cluster = Cluster()
    box = cluster.start_controller()
    cluster.run()
    cluster.admin.delete(nodes.CONTROLLER)
    cluster.run()
    assert not box.acts()
    assert box.core.next_wakeup(cluster.now_ms) == cluster.now_ms
    cluster.settle()
    assert box.acts()
    assert box.core.epoch == 2


def test_a_broker_that_knows_a_later_controller_makes_it_look() -> None:
    """F26: STALE_CONTROLLER_EPOCH is believed only when the store says so too."""
    cluster = Cluster()
    box = cluster.start_controller()
    cluster.run()
    request = next(send.request for send in cluster.sent if isinstance(send.request, UpdateMetadataRequest))
    stale = ControlReplied(
        1, cluster.brokers[1].epoch, request, UpdateMetadataResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
    )
    box.queue.append(stale)
    cluster.run()
    assert box.acts()
    cluster.write(SetData(nodes.CONTROLLER_EPOCH, b"7"))
    box.queue.append(stale)
    cluster.run()
    assert not box.acts()
    cluster.settle()
    assert box.core.epoch == 8


def test_after_connection_loss_it_waits_and_takes_over_under_a_new_epoch() -> None:
    cluster = Cluster()
    box = cluster.start_controller()
    cluster.run()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.after = lambda box, effect: _lose_multis(cluster, effect)
    cluster.run()
    cluster.after = lambda box, effect: False
    assert not box.acts()
    assert box.core.next_wakeup(0) == RETRY_MS
    cluster.tick(RETRY_MS - 1)
    assert not box.acts()
    cluster.tick(1)
    assert box.core.epoch == 2
    assert cluster.leader_and_isr(T0) == (1, (1, 2))
    cluster.check()


def _lose_multis(cluster: Cluster, effect: Effect) -> bool:
    if isinstance(effect, Multi):
        cluster.lost = ConnectionLossError("lost")
    return False


def test_while_passive_it_answers_not_controller_and_ignores_the_rest() -> None:
    cluster = Cluster()
    cluster.start_controller()
    cluster.run()
    other = cluster.start_controller()
    cluster.run()
    cluster.create_topic("t", {0: (1, 2)})
    other.queue += [Tick(), Received("shutdown", ControlledShutdownRequest(1, cluster.brokers[1].epoch))]
    cluster.run()
    assert not other.acts()
    assert other.core.next_wakeup(0) is None
    assert other.core.context.topics == {}
    assert other.replies == [("shutdown", ControlledShutdownResponse(ErrorCode.NOT_CONTROLLER))]


def test_a_broken_node_stops_the_controller_rather_than_lose_replicas() -> None:
    """An unreadable topic must not look like one without replicas, which an INIT would have deleted."""
    cluster = Cluster()
    first = cluster.start_controller()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    good = cluster.node(nodes.topic("t")).data
    cluster.write(SetData(nodes.topic("t"), b"?"))
    first.die()
    second = cluster.start_controller()
    cluster.run()
    assert not second.acts()
    assert "correct or delete it" in cluster.errors()[-1]
    assert cluster.brokers[1].replicas
    cluster.write(SetData(nodes.topic("t"), good))
    cluster.settle()
    cluster.check()
    assert cluster.brokers[1].replicas


def test_the_core_without_a_session_requests_nothing() -> None:
    core = Controller(1, ReplicationConfig())
    assert list(core.step(Tick(), 0)) == []
    assert list(core.step(SessionLost(), 0)) == []
    steps = core.step(Registered(3, 9), 0)
    assert next(steps) == GetNodes((nodes.CONTROLLER,), watch=True)
    assert isinstance(steps.throw(SessionExpiredError("gone")), StateChange)
    assert list(steps) == []
    assert not core.active


def test_every_request_carries_the_epochs() -> None:
    """F26, KIP-380: controller epoch and broker epoch in each."""
    cluster = Cluster()
    cluster.start_controller()
    cluster.create_topic("t", {0: (1, 2, 3)})
    cluster.run()
    assert cluster.sent
    for send in cluster.sent:
        assert isinstance(send, SendControl)
        assert send.request.controller_epoch == 1
        assert send.request.broker_epoch == send.broker_epoch == cluster.brokers[send.broker].epoch
