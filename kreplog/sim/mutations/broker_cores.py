"""Mutations of one broker's cores together: unclean mark, control channels, flush queue, log directories, metadata.

One rule has none: a broker lists itself before any metadata have it. In the simulator it is registered by the time that
a request has waited for a controller and the store has been read. tests/core/replication/test_metadata.py has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from kreplog.core.broker import control_channel, log_directory_state, metadata_waits, request_parts, stray_retention
from kreplog.core.broker.advertised_brokers import AdvertisedBrokers
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.broker.control_channel import ControlChannel, ControlChannels
from kreplog.core.broker.file_syncs import FileSyncs
from kreplog.core.broker.flush_queue import FlushQueue
from kreplog.core.broker.log_directory_state import LogDirectoryState
from kreplog.core.broker.metadata_waits import MetadataWaits
from kreplog.core.broker.recently_failed import RecentlyFailedBrokers
from kreplog.core.broker.request_parts import PartResponses
from kreplog.core.broker.shutdown import ControlledShutdown
from kreplog.core.effects import ClearUncleanMark, Deliver, Effect, Steps
from kreplog.core.events import ControlReplied, Event, LogFailed, SessionLost
from kreplog.core.messages import ControlRequest, ControlResponse, LeaderAndIsrRequest, PartitionState
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.errors import KreplogError, is_exhaustion
from kreplog.sim.mutations.mutation import MutationGroup, Patch
from kreplog.types import NO_LEADER, BrokerRegistration, TopicPartition

MUTATIONS = MutationGroup()


@MUTATIONS.add("strays-expire-at-once")
def _strays_expire_at_once() -> list[Patch]:
    """A broker deletes strays before log.stray.retention.ms has passed, and one that is assigned again is gone."""
    return [(stray_retention, "is_expired", lambda since_ms, now_ms, retention_ms: True)]


@MUTATIONS.add("unclean-mark-cleared-early")
def _unclean_mark_cleared_early() -> list[Patch]:
    """The unclean mark is cleared at the registration, before a controller has handled it (F17)."""
    return [(BrokerCores, "_is_complete", lambda self, registered: True)]


@MUTATIONS.add("unclean-mark-cleared-unsynced")
def _unclean_mark_cleared_unsynced() -> list[Patch]:
    """The unclean mark is cleared, and the INIT answered, before the replicas that it created are durable (F17)."""
    return [(BrokerCores, "applied", BrokerCores.files_synced)]


@MUTATIONS.add("file-sync-done-before-earlier")
def _file_sync_done_before_earlier() -> list[Patch]:
    """A sync reports done before the earlier ones: a resent INIT is answered, and the unclean mark cleared, before the
    replicas that the first one created are durable (F17)."""
    return [(FileSyncs, "finished", lambda self, sync: [sync])]


@MUTATIONS.add("unclean-mark-cleared-before-init")
def _unclean_mark_cleared_before_init() -> list[Patch]:
    """The unclean mark is cleared after any LeaderAndIsr, before an INIT has named all replicas (F17)."""
    return [(BrokerCores, "_handles_losses", lambda self, applied: True)]


@MUTATIONS.add("unclean-mark-cleared-while-missing")
def _unclean_mark_cleared_while_missing() -> list[Patch]:
    """The unclean mark is cleared while a replica is missing, which the next process would create empty (F17)."""

    def clear(self: BrokerCores) -> Sequence[Effect]:
        self.registration.clear_unclean()
        return (ClearUncleanMark(),)

    return [(BrokerCores, "_clear_unclean", clear)]


@MUTATIONS.add("unclean-mark-never-cleared")
def _unclean_mark_never_cleared() -> list[Patch]:
    """The unclean mark stays, so that every later failure of the process counts as a power failure."""
    return [(BrokerCores, "_clear_unclean", lambda self: ())]


@MUTATIONS.add("failed-directory-stays-online")
def _failed_directory_stays_online() -> list[Patch]:
    """Only one replica of a failed log directory goes offline; the others accept writes after a failed fsync (F37)."""

    def fail(
        self: LogDirectoryState, error: KreplogError, replicas: Iterable[TopicPartition]
    ) -> list[LogFailed] | None:
        return right(self, error, list(replicas)[:1])

    right = LogDirectoryState.fail
    return [(LogDirectoryState, "fail", fail)]


@MUTATIONS.add("failed-directory-is-used")
def _failed_directory_is_used() -> list[Patch]:
    """Replicas are opened, set aside and deleted in a log directory that has failed (F37)."""
    return [(LogDirectoryState, "check_online", lambda self, partition, path: None)]


@MUTATIONS.add("unclean-mark-cleared-in-failed-directory")
def _unclean_mark_cleared_in_failed_directory() -> list[Patch]:
    """The unclean mark is cleared in a log directory that has failed, whose new replicas may not be durable (F17)."""
    return [(LogDirectoryState, "may_clear_unclean", lambda self: True)]


@MUTATIONS.add("exhaustion-fails-directories")
def _exhaustion_fails_directories() -> list[Patch]:
    """A log directory goes offline when an operation in it has no descriptors or memory, as if its disk had failed."""
    return [(log_directory_state, "is_exhaustion", lambda error: False)]


@MUTATIONS.add("registration-not-delivered")
def _registration_not_delivered() -> list[Patch]:
    """The replication core does not get Registered, and refuses all control requests."""
    return [(BrokerCores, "_to_registered_cores", lambda self, event: [Deliver(self.controller, event)])]


@MUTATIONS.add("leads-until-registration-ends")
def _leads_until_registration_ends() -> list[Patch]:
    """A broker whose session has ended leads on while its registration waits for the store."""
    return [(BrokerCores, "session_lost", lambda self: (Deliver(self.registration, SessionLost()),))]


@MUTATIONS.add("end-of-registration-not-delivered")
def _end_of_registration_not_delivered() -> list[Patch]:
    """A broker leads and controls on although another has deleted its registration (F26)."""
    right = BrokerCores._to_registered_cores

    def delivered(self: BrokerCores, event: Event) -> Sequence[Effect]:
        return () if isinstance(event, SessionLost) else right(self, event)

    return [(BrokerCores, "_to_registered_cores", delivered)]


@MUTATIONS.add("detector-without-peers")
def _detector_without_peers() -> list[Patch]:
    """The failure detector does not get the registered brokers, so that every failure waits for its session timeout."""
    right = BrokerCores._replicas_stepped

    def stepped(self: BrokerCores) -> Sequence[Effect]:
        return [effect for effect in right(self) if isinstance(effect, Deliver) and effect.core is not self.detector]

    return [(BrokerCores, "_replicas_stepped", stepped)]


@MUTATIONS.add("resigned-controller-sends")
def _resigned_controller_sends() -> list[Patch]:
    """A controller that has resigned sends the requests that it had queued (F26)."""
    right = BrokerCores._controller_stepped
    return [(BrokerCores, "_controller_stepped", lambda self: right(self) if self.controller.active else ())]


@MUTATIONS.add("ended-registration-keeps-its-channel")
def _ended_registration_keeps_its_channel() -> list[Patch]:
    """A controller sends queued requests to a broker after its registration has ended (F30)."""
    right = BrokerCores._controller_stepped
    return [(BrokerCores, "_controller_stepped", lambda self: () if self.controller.active else right(self))]


@MUTATIONS.add("ended-channel-goes-on")
def _ended_channel_goes_on() -> list[Patch]:
    """A control channel sends its queue, and its responses count, after the registration has ended (F30)."""
    return [(ControlChannels, "is_open", lambda self, channel: True)]


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


@MUTATIONS.add("init-is-split")
def _init_is_split() -> list[Patch]:
    """An INIT is applied in parts, each of which takes the replicas of the others for strays."""

    right = request_parts._slow_entries

    def slow(request: ControlRequest, open_replicas: Container[TopicPartition]) -> Sequence[bool]:
        if isinstance(request, LeaderAndIsrRequest):
            request = replace(request, is_init=False)
        return right(request, open_replicas)

    return [(request_parts, "_slow_entries", slow)]


@MUTATIONS.add("responses-not-waited-for")
def _responses_not_waited_for() -> list[Patch]:
    """A new controller sends the whole state before the brokers have responded to the elections, which clients wait
    for."""
    return [(ControlChannels, "idle", property(lambda self: True))]


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


@MUTATIONS.add("exhausted-fsync-not-retried")
def _exhausted_fsync_not_retried() -> list[Patch]:
    """An fsync that found no descriptors is not tried again, and later requests wait for it."""

    def failed(self: FlushQueue, log: Hashable, error: KreplogError) -> bool:
        return right(self, log, error) and not is_exhaustion(error)

    right = FlushQueue.failed
    return [(FlushQueue, "failed", failed)]


@MUTATIONS.add("failed-fsync-retried")
def _failed_fsync_retried() -> list[Patch]:
    """An fsync that failed is tried again, which counts for what the failed one has lost (F37)."""

    def failed(self: FlushQueue, log: Hashable, error: KreplogError) -> bool:
        self._in_flight[log] = False
        return True

    return [(FlushQueue, "failed", failed)]


@MUTATIONS.add("parts-but-the-last-unanswered")
def _parts_but_the_last_unanswered() -> list[Patch]:
    """The response to a control request in parts has the partitions of the last part alone."""

    def add(self: PartResponses, part: int, response: Any) -> Any:
        return None if right(self, part, response) is None else response

    right = PartResponses.add
    return [(PartResponses, "add", add)]


@MUTATIONS.add("answered-after-its-first-part")
def _answered_after_its_first_part() -> list[Patch]:
    """A control request in parts is answered after its first part."""

    def add(self: PartResponses, part: int, response: Any) -> Any:
        return None if part else response

    return [(PartResponses, "add", add)]


@MUTATIONS.add("failed-broker-unlisted")
def _failed_broker_unlisted() -> list[Patch]:
    """Metadata leave out a broker at once when it fails, and some clients notice the new leaders a second later."""
    return [(RecentlyFailedBrokers, "listed", lambda self, now_ms: iter(()))]


@MUTATIONS.add("suspected-leader-named")
def _suspected_leader_named() -> list[Patch]:
    """Metadata name a leader that has just closed its connections, and clients wait before they request them again."""
    return [(RecentlyFailedBrokers, "suspected", lambda self, now_ms: set())]


@MUTATIONS.add("ended-leader-named")
def _ended_leader_named() -> list[Patch]:
    """Metadata name a leader that is not registered any more, which clients look for in vain."""
    return [(AdvertisedBrokers, "leader_of", lambda self, state: state.state.leader)]


@MUTATIONS.add("no-topics-without-metadata")
def _no_topics_without_metadata() -> list[Patch]:
    """A broker that has no metadata lists no topics, and clients take the cluster for empty."""
    return [(MetadataWaits, "_is_answered", lambda self, need: True)]


@MUTATIONS.add("stored-metadata-never-read")
def _stored_metadata_never_read() -> list[Patch]:
    """A broker that no controller reaches refuses clients, although the store has the metadata."""
    return [(MetadataWaits, "is_fresh", lambda self, now_ms: True)]


@MUTATIONS.add("stored-metadata-read-by-each-request")
def _stored_metadata_read_by_each_request() -> list[Patch]:
    """A broker that no controller reaches reads the store as often as clients request metadata."""
    return [(MetadataWaits, "is_fresh", lambda self, now_ms: False)]


@MUTATIONS.add("stored-metadata-read-by-several")
def _stored_metadata_read_by_several() -> list[Patch]:
    """Each request reads the store by itself, also while a read is under way, and waits for a failure of its own."""

    def read_stored(self: MetadataWaits, resume: Callable[[], None], now_ms: int) -> bool:
        return right(self, resume, now_ms) or bool(self._readers)

    right = MetadataWaits.read_stored
    return [(MetadataWaits, "read_stored", read_stored)]


@MUTATIONS.add("leads-by-the-store")
def _leads_by_the_store() -> list[Patch]:
    """A broker names itself as a leader since the store does, before a controller has made it one."""
    right = MetadataCache.read

    def read(
        self: MetadataCache, brokers: Iterable[BrokerRegistration], states: Iterable[PartitionState], own_id: int
    ) -> None:
        right(self, brokers, states, NO_LEADER)

    return [(MetadataCache, "read", read)]


@MUTATIONS.add("own-broker-unlisted")
def _own_broker_unlisted() -> list[Patch]:
    """A broker that has read the store before it registered leaves itself out of the metadata, which clients have just
    got from it."""
    return [(MetadataCache, "listed_brokers", lambda self, own: self.brokers)]


@MUTATIONS.add("changes-wait-as-queries")
def _changes_wait_as_queries() -> list[Patch]:
    """A request that changes the cluster goes by the store soon, although a controller is about to be elected."""
    return [(metadata_waits, "CHANGE_WAIT_MS", metadata_waits.QUERY_WAIT_MS)]
