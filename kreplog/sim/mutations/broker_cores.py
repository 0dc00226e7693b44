"""Mutations of one broker's cores together: unclean mark, control channels, flush queue, shutdown."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from kreplog.core.broker import control_channel
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.broker.control_channel import ControlChannel
from kreplog.core.broker.flush_queue import FlushQueue
from kreplog.core.broker.shutdown import ControlledShutdown
from kreplog.core.effects import Deliver, Steps
from kreplog.core.events import ControlReplied
from kreplog.core.messages import ControlRequest, ControlResponse
from kreplog.core.replication.partition import Partition
from kreplog.sim.mutations.mutation import MutationGroup, Patch

MUTATIONS = MutationGroup()


@MUTATIONS.add("unclean-mark-cleared-early")
def _unclean_mark_cleared_early() -> list[Patch]:
    """The unclean mark is cleared at the registration, before a controller has handled it (F17)."""
    return [(BrokerCores, "_is_complete", lambda self, registered: True)]


@MUTATIONS.add("unclean-mark-cleared-unsynced")
def _unclean_mark_cleared_unsynced() -> list[Patch]:
    """The unclean mark is cleared, and the INIT answered, before the replicas that it created are durable (F17)."""
    return [(BrokerCores, "applied", BrokerCores.files_synced)]


@MUTATIONS.add("registration-not-delivered")
def _registration_not_delivered() -> list[Patch]:
    """The replication core does not get Registered, and refuses all control requests."""
    return [(BrokerCores, "_to_registered_cores", lambda self, event: [Deliver(self.controller, event)])]


@MUTATIONS.add("control-requests-reordered")
def _control_requests_reordered() -> list[Patch]:
    """A queued control request is coalesced with later ones of its kind, past requests of other kinds in between."""

    def overtakes(waiting: deque[ControlRequest]) -> ControlRequest:
        request = waiting.popleft()
        for later in list(waiting):
            both = control_channel.joined(request, later)
            if both is not None:
                request = both
                waiting.remove(later)
        return request

    return [(control_channel, "coalesce", overtakes)]


@MUTATIONS.add("control-request-sent-once")
def _control_request_sent_once() -> list[Patch]:
    """A control request whose response is lost is not resent."""
    replied = ControlChannel.replied

    def gives_up(self: ControlChannel, response: ControlResponse | None, now_ms: int) -> ControlReplied | None:
        if response is None:
            self._in_flight = None
        return replied(self, response, now_ms)

    return [(ControlChannel, "replied", gives_up)]


@MUTATIONS.add("flush-counts-later-appends")
def _flush_counts_later_appends() -> list[Patch]:
    """An fsync counts for records appended after it had begun."""
    flushed_to = Partition.flushed_to

    def claims(self: Partition, recovery_point: int) -> Steps[None]:
        return flushed_to(self, self.log.leo)

    return [(Partition, "flushed_to", claims)]


@MUTATIONS.add("flush-request-dropped")
def _flush_shared() -> list[Patch]:
    """A flush request is dropped while another is under way, although that covers no later records."""

    def request(self: FlushQueue, log: Hashable) -> bool:
        return log not in self and self._in_flight.setdefault(log, False) is False

    return [(FlushQueue, "request", request)]


@MUTATIONS.add("exits-before-its-leaders-moved")
def _exits_early() -> list[Patch]:
    """A stopping broker exits after the controller's first response, although it still leads partitions."""
    return [(ControlledShutdown, "_may_exit", lambda self, response: response is not None)]
