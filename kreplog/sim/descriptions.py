"""Events, effects, messages and the clients' history in words, for the lines of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kreplog.core import effects, events
from kreplog.core import messages as m
from kreplog.sim import history as h
from kreplog.types import (
    NO_LEADER,
    AppendInfo,
    Check,
    Create,
    Delete,
    LeaderAndIsr,
    SetData,
    StoreOperation,
)


def describe_event(event: events.Event) -> str:
    """An event that a core receives, in words."""
    match event:
        case events.Received(request=request):
            return f"receives {describe(request)}"
        case events.FetchReplied(leader=leader, response=None):
            return f"gets no response to its fetch from broker {leader}"
        case events.FetchReplied(leader=leader, response=response):
            return f"gets from broker {leader}: {describe(response)}"
        case events.Flushed(partition=partition, recovery_point=point):
            return f"has fsynced {partition} below {point}"
        case events.OffsetFound(offset=offset, timestamp=timestamp):
            return f"has found offset {offset} of time {timestamp}"
        case events.RetentionDue(partition=partition):
            return f"is due to enforce the retention of {partition}"
        case events.CopyCaughtUp(partition=partition):
            return f"has a copy of {partition} in another log directory that has caught up"
        case events.LogFailed(partition=partition):
            return f"loses the log of {partition}"
        case events.StoreReplied(tag=tag, error=None):
            return f"gets the store's reply ({tag}): done"
        case events.StoreReplied(tag=tag, error=error):
            return f"gets the store's reply ({tag}): {type(error).__name__}"
        case events.Registered(broker_epoch=epoch):
            return f"is registered, broker epoch {epoch}"
        case events.SessionLost():
            return "has lost its session"
        case events.WatchFired(event=fired):
            return f"sees {fired.path} {fired.kind}"
        case events.ControlledShutdownReplied(response=None):
            return "gets no response to its ControlledShutdown"
        case events.ControlledShutdownReplied(response=response):
            return f"gets {describe(response)}"
        case events.SessionStarted():
            return "has a session"
        case events.Stopping():
            return "is requested to stop"
        case events.PeersChanged(brokers=brokers):
            return f"gets the live brokers {sorted(brokers)}"
        case events.PeerConnected(broker=broker):
            return f"is connected to broker {broker}"
        case events.PeerDisconnected(broker=broker):
            return f"finds its connection closed by broker {broker}"
        case events.PeerUnreachable(broker=broker, refused=refused):
            return f"cannot connect to broker {broker}: {'refused' if refused else 'time-out'}"
        case events.ControlReplied(broker=broker, response=response):
            return f"gets from broker {broker}: {describe(response)}"
        case events.LeadershipChanged(partition=partition, leader_epoch=epoch, end=end):
            return f"{'no longer coordinates' if epoch is None else f'coordinates from {end} on'} by {partition}"
        case events.PartitionsDeleted(partitions=partitions):
            return f"learns of the deletion of {', '.join(map(str, sorted(partitions)))}"
        case events.MarkerCommitted(partition=partition, producer_id=producer_id, committed=committed, offset=offset):
            decided = "commits" if committed else "aborts"
            return f"learns that the marker at {offset} of {partition} {decided} producer {producer_id}"
        case events.GroupRecordsAppended(tag=tag, error=error, base_offset=offset):
            return f"learns of its append {tag}: {error.name} at {offset}"
        case events.GroupRecordsRead(partition=partition, records=records, next_offset=offset, failure=failure):
            return f"has read {len(records)} records of {partition} up to {offset} {failure}".rstrip()
        case _:
            return "gets a tick"


def describe_effect(effect: effects.Effect, answer: Any = None, error: BaseException | None = None) -> str:
    """An effect of a core and its result, in words."""
    failed = f", which fails: {type(error).__name__}" if error is not None else ""
    return (_log_effect(effect, answer) or _store_effect(effect) or _other_effect(effect)) + failed


def _result(answer: Any, show: Callable[[Any], str] = str) -> str:
    return "" if answer is None else f": {show(answer)}"


def _log_effect(effect: effects.Effect, answer: Any) -> str | None:
    match effect:
        case effects.OpenLog(partition=partition):
            state = f": {_log(answer.state)}, high watermark {answer.high_watermark}" if answer is not None else ""
            return f"opens {partition}{state}"
        case effects.AppendAsLeader(partition=partition, leader_epoch=epoch):
            if answer is None:
                return f"appends to {partition} in epoch {epoch}"
            info: AppendInfo = answer[0]
            repeated = " (a repeated batch, nothing written)" if info.duplicate else ""
            offsets = f"[{info.first_offset}, {info.last_offset + 1})"
            return f"appends {offsets} to {partition} as leader in epoch {epoch}{repeated}"
        case effects.AppendAsFollower(partition=partition):
            return f"appends to {partition} as follower" + _result(answer, _log)
        case effects.EndOfRecords(partition=partition):
            return f"reads the end of the records for {partition}" + _result(answer)
        case effects.AssignLeaderEpoch(partition=partition, leader_epoch=epoch):
            return f"begins epoch {epoch} of {partition}" + (f" at offset {answer.leo}" if answer is not None else "")
        case effects.TruncateTo(partition=partition, offset=offset):
            return f"truncates {partition} to {offset}" + _result(answer, _log)
        case effects.TruncateFullyAndStartAt(partition=partition, offset=offset):
            return f"truncates {partition} fully and starts it at {offset}"
        case effects.DeleteRecordsBefore(partition=partition, offset=offset):
            return f"deletes records of {partition} before {offset}"
        case effects.EnforceRetention(partition=partition):
            return f"enforces the retention of {partition}" + _result(answer, _log)
        case effects.ReplaceLog(partition=partition):
            return f"lets the copy of {partition} take over" + _result(answer, _log)
        case effects.SyncReplacement(partition=partition):
            return f"fsyncs that the copy of {partition} has taken over"
        case effects.ConfigureLog(partition=partition, config=config):
            return f"applies new settings to {partition}: {config}"
        case (
            effects.ReadLog(partition=partition, offset=offset, limit=limit)
            | effects.ReadStable(partition=partition, offset=offset, limit=limit)
        ):
            return f"reads {partition} from {offset}, below {limit}"
        case effects.SizeFrom(partition=partition, offset=offset):
            return f"reads how many bytes {partition} has from {offset}" + _result(answer)
        case effects.AdvanceHighWatermark(partition=partition, offset=offset):
            return f"moves the high watermark of {partition} to {offset}"
        case effects.Flush(partition=partition):
            return f"begins to fsync {partition}"
        case effects.SetAsideStray(partition=partition):
            return f"sets {partition} aside as a stray"
        case effects.RestoreStray(partition=partition):
            return f"restores the stray {partition}: {answer}"
        case effects.DeleteStrays(partition=partition):
            return f"deletes the stray {partition}"
        case effects.DeleteLog(partition=partition):
            return f"deletes {partition}"
        case _:
            return None


def _store_effect(effect: effects.Effect) -> str | None:
    match effect:
        case effects.SubmitMulti(tag=tag, operations=operations):
            return f"sends the store ({tag}): {_operations(operations)}"
        case effects.Multi(operations=operations):
            return f"writes to the store: {_operations(operations)}"
        case effects.SubmitRead(tag=tag, paths=paths):
            return f"requests of the store ({tag}): {', '.join(paths)}"
        case effects.GetNodes(paths=paths):
            return f"reads {', '.join(paths)}"
        case effects.GetChildren(path=path):
            return f"lists {path}"
        case _:
            return None


def _other_effect(effect: effects.Effect) -> str:
    match effect:
        case effects.Send(leader=leader, request=request):
            return f"sends broker {leader} {describe(request)}"
        case effects.SendControl(broker=broker, request=request):
            return f"queues for broker {broker}: {describe(request)}"
        case effects.DrainControlChannels(max_ms=max_ms, rest_ms=rest_ms):
            return f"waits at most {max_ms} ms for responses, and {rest_ms} ms more"
        case effects.ConnectPeer(broker=broker):
            return f"connects to broker {broker.id}"
        case effects.DisconnectPeer(broker=broker):
            return f"disconnects from broker {broker}"
        case effects.Reply(response=response) | effects.LeaderAndIsrApplied(response=response):
            return f"replies {describe(response)}"
        case effects.SendShutdown(controller=controller, request=request):
            return f"sends broker {controller} {describe(request)}"
        case effects.Exit(all_moved=all_moved):
            return "exits" + ("" if all_moved else ", with leaders that were not moved")
        case effects.StateChange(level=level, text=text):
            return f"{level}: {text}"
        case effects.UncleanElection(partition=partition, leader=leader, leader_epoch=epoch):
            return f"elects broker {leader} for {partition} uncleanly, epoch {epoch}"
        case effects.ConfigureBroker(configs=configs):
            return f"applies dynamic configs: {dict(configs.own)} of its own, {dict(configs.default)} of all brokers"
        case _:
            return type(effect).__name__


def describe(message: Any) -> str:
    """A request or response."""
    match message:
        case m.LeaderAndIsrRequest(
            controller_id=controller, controller_epoch=epoch, partitions=partitions, is_init=is_init
        ):
            items = "; ".join(f"{partition.partition} {_state(partition.state)}" for partition in partitions)
            return f"LeaderAndIsr{' INIT' if is_init else ''} of controller {controller}, epoch {epoch}: {items}"
        case m.StopReplicaRequest(controller_id=controller, controller_epoch=epoch, partitions=partitions):
            items = "; ".join(
                f"{'delete' if partition.delete else 'stop'} {partition.partition}" for partition in partitions
            )
            return f"StopReplica of controller {controller}, epoch {epoch}: {items}"
        case m.UpdateMetadataRequest(controller_id=controller, controller_epoch=epoch, brokers=brokers):
            return (
                f"UpdateMetadata of controller {controller}, epoch {epoch}: brokers {[broker.id for broker in brokers]}"
            )
        case m.ControlledShutdownRequest(broker_id=broker):
            return f"ControlledShutdown of broker {broker}"
        case m.ControlledShutdownResponse(error=error, remaining=remaining):
            return f"ControlledShutdown {error.name}, still leads {list(map(str, remaining))}"
        case m.FetchRequest(replica_id=replica, partitions=partitions):
            items = "; ".join(
                f"{partition.partition} from {partition.fetch_offset} (epoch {partition.current_leader_epoch}, "
                f"last fetched {partition.last_fetched_epoch})"
                for partition in partitions
            )
            return f"a fetch by {'a consumer' if replica == m.CONSUMER else f'broker {replica}'}: {items}"
        case m.FetchResponse(error=error, partitions=partitions):
            return f"fetched {error.name}: " + "; ".join(_fetched(partition) for partition in partitions)
        case m.ProduceRequest(acks=acks, partitions=partitions):
            items = "; ".join(f"{partition.partition}, {len(partition.records)} bytes" for partition in partitions)
            return f"a produce with acks={'all' if acks == -1 else acks}: {items}"
        case m.ProduceResponse(partitions=partitions):
            items = "; ".join(
                f"{partition.partition} {partition.error.name} at {partition.base_offset}" for partition in partitions
            )
            return f"produced: {items}"
        case m.OffsetsForLeaderEpochRequest(partitions=partitions):
            items = "; ".join(
                f"{partition.partition}: end of epoch {partition.leader_epoch}" for partition in partitions
            )
            return f"requests {items}"
        case m.DeleteRecordsRequest(partitions=partitions):
            return "DeleteRecords " + "; ".join(
                f"{partition.partition} below {partition.offset}" for partition in partitions
            )
        case m.DeleteRecordsResponse(partitions=partitions):
            items = "; ".join(
                f"{partition.partition} {partition.error.name}, low {partition.low_watermark}"
                for partition in partitions
            )
            return f"deleted: {items}"
        case m.LeaderAndIsrResponse() | m.StopReplicaResponse() | m.UpdateMetadataResponse():
            errors = [f"{partition} {error.name}" for partition, error in getattr(message, "partitions", ()) if error]
            return f"{type(message).__name__.removesuffix('Response')} {message.error.name} {', '.join(errors)}".strip()
        case _:
            return type(message).__name__


def describe_history(event: h.Event) -> str:
    """An action or observation of a client, or a declared event, in words."""
    match event:
        case h.Invoke(partition=partition, acks=acks, producer_id=producer, sequence=sequence, values=values):
            wanted = "all" if acks == -1 else acks
            return f"writes {list(values)} to {partition} as producer {producer}, sequence {sequence}, acks={wanted}"
        case h.Ok(partition=partition, base_offset=offset, values=values):
            return f"gets {list(values)} acknowledged at {offset} of {partition}"
        case h.Fail(partition=partition, error=error, values=values):
            return f"is refused {list(values)} for {partition}: {error}"
        case h.Unknown(partition=partition, reason=reason, values=values):
            return f"gives up {list(values)} for {partition}: {reason}"
        case h.Read(partition=partition, offset=offset, value=value, broker=broker):
            return f"reads {value} at {offset} of {partition} from broker {broker}"
        case h.Position(partition=partition, offset=offset, reason=reason):
            return f"continues at {offset} of {partition} ({reason})"
        case h.Watermark(partition=partition, high_watermark=offset, broker=broker):
            return f"gets high watermark {offset} of {partition} from broker {broker}"
        case h.Misdirected(partition=partition, offset=offset, broker=broker):
            return f"is sent to broker {broker}, which refuses {offset} of {partition}: out of range"
        case h.UnrequestedPartition(partition=partition, reason=reason):
            return f"gets {partition}, which is {reason}"
        case h.DeletionRequested(partition=partition, offset=offset):
            return f"an operator requests DeleteRecords of {partition} below {offset}"
        case h.DeletionDone(partition=partition, offset=offset, low_watermark=low):
            return f"an operator gets low watermark {low} of {partition}, requested was {offset}"
        case h.GroupAssigned(generation=generation, owner=owner, numbers=numbers):
            return f"has partitions {list(numbers)} in generation {generation} as {owner}"
        case h.OffsetCommitInvoked(generation=generation, number=number, text=text):
            return f"commits {text} for partition {number} in generation {generation}"
        case h.OffsetCommitted(text=text, error=error):
            return f"gets for its commit {text}: {error or 'no response'}"
        case h.PartitionsOwned(member_id=name, epoch=epoch, owned=owned, until_ms=until, broker=broker):
            return f"owns {list(owned)} as {name}, epoch {epoch}, until {until} ms, by broker {broker}"
        case h.MemberFenced(member_id=name, epoch=epoch, error=error, broker=broker):
            return f"is refused as {name}, epoch {epoch}, by broker {broker}: {error}"
        case h.EpochCommitted(member_id=name, epoch=epoch, error=error, committed=committed):
            return f"gets for its commit of {committed} as {name}, epoch {epoch}: {error}"
        case h.ProducerBeginning(transactional_id=name, late=late):
            return f"may become the producer of {name} once more" if late else f"begins as a producer of {name}"
        case h.ProducerBegun(transactional_id=name, producer_id=producer, producer_epoch=epoch):
            return f"is the producer of {name}: {producer}, epoch {epoch}"
        case h.ProducerRefused(transactional_id=name, error=error):
            return f"is refused as the producer of {name}: {error}"
        case h.TransactionalCommit(transactional_id=name, generation=generation, error=error):
            return f"gets for its commit of offsets in generation {generation}, as the producer of {name}: {error}"
        case h.TransactionRecordSent(target=partition, value=value):
            return f"writes {value} to {partition}"
        case h.TransactionRecordWritten(value=value):
            return f"gets {value} acknowledged"
        case h.TransactionEnding(transaction=name, committed=committed):
            return f"{'commits' if committed else 'aborts'} {name}"
        case h.TransactionEnded(transaction=name, error=error):
            return f"gets for the end of {name}: {error}"
        case h.StableRead(partition=partition, offset=offset, value=value):
            return f"reads {value} at {offset} of {partition}"
        case h.StableEnd(partition=partition, last_stable_offset=offset):
            return f"gets last stable offset {offset} of {partition}"
        case h.OffsetFetched(number=number, text=text, offset=offset):
            return f"reads {text or 'no commit'}, offset {offset}, of partition {number}"
        case _:
            return f"{type(event).__name__} {event.partition}"


def _fetched(response: m.FetchedPartition) -> str:
    if response.diverging is not None:
        epoch, end = response.diverging.leader_epoch, response.diverging.end_offset
        return f"{response.partition} diverges: epoch {epoch} ends at {end}"
    if response.error:
        return f"{response.partition} {response.error.name}"
    return f"{response.partition} {len(response.records)} bytes, high watermark {response.high_watermark}"


def _state(state: LeaderAndIsr) -> str:
    leader = "none" if state.leader == NO_LEADER else str(state.leader)
    elr = f", elr {list(state.elr)}" if state.elr else ""
    return (
        f"leader {leader}, epoch {state.leader_epoch}, isr {list(state.isr)}{elr}, "
        f"partition epoch {state.partition_epoch}"
    )


def _log(state: effects.LogState) -> str:
    return f"log [{state.log_start}, {state.leo}), epochs {dict(state.epochs)}"


def _operations(operations: Iterable[StoreOperation]) -> str:
    return "; ".join(_operation(operation) for operation in operations)


def _operation(operation: StoreOperation) -> str:
    match operation:
        case Create(path=path, data=data):
            return f"create {path} {_data(data)}"
        case SetData(path=path, data=data, version=version):
            return f"set {path} {_data(data)} at version {version}"
        case Delete(path=path):
            return f"delete {path}"
        case Check(path=path, version=version):
            return f"check {path} at version {version}"


def _data(data: bytes) -> str:
    text = data.decode(errors="backslashreplace")
    return text if len(text) <= 200 else text[:200] + "..."
