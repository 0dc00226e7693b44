"""TracedBroker: a broker process that reports the actions of its cores as short lines, for scenario files.

The lines cover roles and leader epochs, appends, truncations, high watermarks, refusals, and writes to the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kreplog.config import ReplicationConfig
from kreplog.core import effects, events, nodes
from kreplog.core import messages as m
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.errors import CoordinationError, ErrorCode, KreplogError, NodeExistsError
from kreplog.sim.brokers.broker import BrokerProcess, Machine
from kreplog.sim.brokers.core_runner import AWAITED, CoreRunner
from kreplog.sim.descriptions import describe
from kreplog.types import NO_LEADER, Create, Delete, LeaderAndIsr, Node, NodeStat, SetData, StoreOperation
from kreplog.types import TopicPartition as Tp

if TYPE_CHECKING:
    from kreplog.sim.scenarios.scenario_cluster import ScenarioCluster

_CHANGES = (effects.AppendAsLeader, effects.AppendAsFollower, effects.TruncateTo, effects.TruncateFullyAndStartAt)


class TracedBroker(BrokerProcess):
    """A broker process that reports the actions of its cores; a repeated refusal only once."""

    cluster: ScenarioCluster

    def __init__(self, cluster: ScenarioCluster, machine: Machine, config: ReplicationConfig) -> None:
        self.cluster = cluster
        self._acting: CoreRunner | None = None
        self._roles: dict[Tp, tuple[Role, int, int]] = {}
        self._was_registered: events.Registered | None = None
        self._was_active = False
        self._refused: dict[tuple[Tp, int], ErrorCode] = {}
        super().__init__(cluster, machine, config)

    def report(self, *texts: str) -> None:
        if self.alive:
            self.cluster.report(*(f"b{self.id} {text}" for text in texts))

    # The shell

    def apply(self, runner: CoreRunner, effect: effects.Effect) -> Any:
        self._acting = runner
        end = self._end_of(effect)
        try:
            answer = super().apply(runner, effect)
        except KreplogError as error:
            self.report(f"fails to {_verb(effect)}: {type(error).__name__}")
            raise
        if answer is not AWAITED:
            self._report_effect(runner, effect, answer, end)
        return answer

    def count_effect(self) -> None:
        """Count effects of the controller only."""
        if self._acting is self.control:
            super().count_effect()

    def stepped(self, runner: CoreRunner) -> None:
        super().stepped(runner)
        if runner is self.replicas:
            if not _is_data(runner.event):
                self._report_roles()
        elif runner is self.register:
            registered = self.registration.registered
            if registered is not None and registered is not self._was_registered:
                self.report(f"is registered, broker epoch {registered.broker_epoch}")
            self._was_registered = registered
        elif self._was_active != self.controller.active:
            self._was_active = self.controller.active
            if not self._was_active:
                self.report("is no longer the controller")

    def _session_lost(self) -> None:
        if self.alive:
            self.report("has lost its session")
        super()._session_lost()

    def _transition(self, changed: object, old: str, new: str) -> None:
        super()._transition(changed, old, new)
        if self.cluster.states and not old.startswith("NonExistent"):
            self.report(f"moves {_name(changed)} from {old} to {new}")

    def _multi(self, runner: CoreRunner, effect: effects.Multi) -> Any:
        def answered(results: Any, error: CoordinationError | None) -> None:
            if self.alive:
                self._report_written(effect.operations, error)
            self.resume_step(runner, results, error)

        self.link.multi(effect.operations, answered)
        return AWAITED

    def _submit_multi(self, runner: CoreRunner, effect: effects.SubmitMulti) -> None:
        def answered(results: Any, error: CoordinationError | None) -> None:
            if self.alive:
                outcome = "is written" if error is None else f"is refused: {_refusal(error)}"
                for written in _written(effect.operations):
                    self.report(f"store reply: {written} {outcome}")
            self._store_replied(runner, effect.tag, results, error)

        for written in _written(effect.operations):
            self.report(f"sends the store {written}")
        self.submissions.multi(effect.operations, answered)

    def _connect_peer(self, runner: CoreRunner, effect: effects.ConnectPeer) -> None:
        if self.cluster.detects_failures:
            super()._connect_peer(runner, effect)

    def _unclean_election(self, runner: CoreRunner, effect: effects.UncleanElection) -> None:
        self.report(f"elects {effect.leader} for {effect.partition} uncleanly")
        super()._unclean_election(runner, effect)

    # The lines

    def _end_of(self, effect: effects.Effect) -> int:
        log = self.disk.log(effect.partition) if isinstance(effect, _CHANGES) else None
        return -1 if log is None else log.state().leo

    def _report_effect(self, runner: CoreRunner, effect: effects.Effect, answer: Any, end: int) -> None:
        match effect:
            case effects.AppendAsLeader(partition=partition):
                info = answer[0]
                if info.duplicate:
                    self.report(f"has {partition} [{info.first_offset}, {info.last_offset + 1}) already")
                else:
                    self._report_records("appends", partition, end)
            case effects.AppendAsFollower(partition=partition):
                self._report_records("copies", partition, end)
            case effects.TruncateTo(partition=partition) if answer.leo < end:
                self.report(f"truncates {partition} from {end} to {answer.leo}")
            case effects.TruncateFullyAndStartAt(partition=partition, offset=offset):
                self.report(f"truncates {partition} fully from {end} and starts it at {offset}")
            case effects.DeleteRecordsBefore(partition=partition):
                self.report(f"deletes {partition} below {answer.log_start}")
            case effects.EnforceRetention(partition=partition):
                self.report(f"retains {partition} from {answer.log_start}")
            case effects.ConfigureLog(partition=partition):
                self.report(f"applies new settings to {partition}")
            case effects.AdvanceHighWatermark(partition=partition, offset=offset):
                self.report(f"moves the high watermark of {partition} to {offset}")
            case effects.DeleteStrays(partition=partition):
                self.report(f"deletes the stray {partition}")
            case effects.DeleteLog(partition=partition):
                self.report(f"deletes {partition}")
            case effects.StateChange(level=level, text=text) if level != "info":
                self.report(f"{level}: {text}")
            case effects.SendControl(broker=broker, request=request):
                if self.cluster.messages:
                    self.report(f"queues for b{broker}: {describe(request)}")
            case effects.Reply(reply_to=reply_to, response=response):
                event = runner.event
                if isinstance(event, events.Received) and event.reply_to == reply_to:
                    self._report_refusals(event.request, response)
            case _:
                pass

    def _report_records(self, verb: str, partition: Tp, start: int) -> None:
        log = self.disk.log(partition)
        assert log is not None
        end = log.state().leo
        values = " ".join(self.cluster.values(log.read(start, end, 1 << 30)))
        self.report(f"{verb} {partition} [{start}, {end}): {values}")

    def _report_refusals(self, request: object, response: Any) -> None:
        match request, response:
            case m.FetchRequest(replica_id=replica), m.FetchResponse(partitions=partitions) if replica >= 0:
                for partition in partitions:
                    if partition.diverging is not None:
                        epoch, offset = partition.diverging.leader_epoch, partition.diverging.end_offset
                        self.report(
                            f"answers b{replica}: {partition.partition} diverges, epoch {epoch} ends at {offset}"
                        )
                    elif partition.error is not self._refused.get((partition.partition, replica), ErrorCode.NONE):
                        self._refused[partition.partition, replica] = partition.error
                        if partition.error is not ErrorCode.NONE:
                            self.report(
                                f"refuses the fetch of {partition.partition} by b{replica}: {partition.error.name}"
                            )
            case m.LeaderAndIsrRequest() | m.StopReplicaRequest() | m.UpdateMetadataRequest(), _:
                refused = [response.error, *(error for _, error in getattr(response, "partitions", ()))]
                for error in dict.fromkeys(error for error in refused if error is not ErrorCode.NONE):
                    name = type(request).__name__.removesuffix("Request")
                    self.report(f"refuses {name} of controller b{request.controller_id}: {error.name}")
            case _:
                pass

    def _report_roles(self) -> None:
        for partition, replica in self.manager.partitions.items():
            role = replica.role, replica.leader, replica.leader_epoch
            if self._roles.get(partition) != role:
                known = partition in self._roles
                self._roles[partition] = role
                self._refused = {key: error for key, error in self._refused.items() if key[0] != partition}
                if known or replica.role is not Role.IDLE:
                    self.report(_role(partition, replica))
        for partition in [partition for partition in self._roles if partition not in self.manager.partitions]:
            del self._roles[partition]

    def _report_written(self, operations: Sequence[StoreOperation], error: CoordinationError | None) -> None:
        if isinstance(error, NodeExistsError):
            return  # another broker has been elected
        if error is None:
            self.report(*(f"writes {written}" for written in _written(operations)))
        else:
            refused = list(_written(operations)) or ["a write"]
            self.report(*(f"is refused {written}: {_refusal(error)}" for written in refused))


def _is_data(event: events.Event | None) -> bool:
    """Whether the event is a frequent one that changes no role."""
    return isinstance(event, events.FetchReplied | events.Tick) or (
        isinstance(event, events.Received) and isinstance(event.request, m.FetchRequest)
    )


def _verb(effect: effects.Effect) -> str:
    return f"{type(effect).__name__} {getattr(effect, 'partition', '')}".strip()


def _name(replica_or_partition: object) -> str:
    broker = getattr(replica_or_partition, "broker", None)
    if broker is None:
        return str(replica_or_partition)
    return f"{getattr(replica_or_partition, 'partition', replica_or_partition)} on b{broker}"


def _refusal(error: CoordinationError) -> str:
    return type(error).__name__.removesuffix("Error")


def _role(partition: Tp, replica: Partition) -> str:
    match replica.role:
        case Role.LEADER:
            isr = numbers(replica.isr)
            return f"leads {partition} in epoch {replica.leader_epoch} from offset {replica.log.leo}, isr {isr}"
        case Role.FOLLOWER:
            return f"follows b{replica.leader} on {partition} in epoch {replica.leader_epoch}"
        case Role.OFFLINE:
            return f"has lost the log of {partition}"
        case _:
            return f"neither leads nor follows {partition}"


def numbers(values: Iterable[int]) -> str:
    return " ".join(map(str, values)) or "none"


def describe_state(state: LeaderAndIsr) -> str:
    """A leaderAndISR node in words."""
    leader = "none" if state.leader == NO_LEADER else str(state.leader)
    elr = f", elr {numbers(state.elr)}" if state.elr else ""
    return f"leader {leader}, epoch {state.leader_epoch}, isr {numbers(state.isr)}{elr}"


def describe_assignment(assigned: nodes.Assignment) -> str:
    """The assigned replicas of a partition in words."""
    adding = f", adding {numbers(assigned.adding)}" if assigned.adding else ""
    removing = f", removing {numbers(assigned.removing)}" if assigned.removing else ""
    return f"on {numbers(assigned.replicas)}{adding}{removing}"


def _written(operations: Iterable[StoreOperation]) -> Iterable[str]:
    """The relevant writes of a multi: a text for each partition, topic or request."""
    for operation in operations:
        names = operation.path.split("/")[1:]
        match operation, names:
            case SetData(), ["controller_epoch"]:
                yield f"itself as the controller, epoch {operation.data.decode()}"
            case Create() | SetData(), ["brokers", "topics", name, number, "leaderAndISR"]:
                state = nodes.decode_leader_and_isr(operation.path, _node(operation.data))
                yield f"{name}-{number}: {describe_state(state)}"
            case SetData(), ["brokers", "topics", name]:
                topic = nodes.decode_topic(operation.path, _node(operation.data))
                for index, assigned in sorted(topic.partitions.items()):
                    yield f"{name}-{index} {describe_assignment(assigned)}"
            case Delete(), ["brokers", "topics", name]:
                yield f"the deletion of topic {name}"
            case Delete(), ["admin", request, *of] if len(of) == 2 or not request.startswith("partitions_"):
                yield f"the completion of request {' '.join([request, '-'.join(of)]).strip()}"
            case Create(), ["log_dir_event_notification", _]:
                yield "a log dir event: its disk has failed"
            case _:
                pass


def _node(data: bytes) -> Node:
    return Node(data, NodeStat(0, 0, 0))
