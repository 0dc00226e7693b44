"""The leader's fetch sessions (KIP-227): which partitions are read and sent, evictions, and what a round costs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from dataclasses import replace

import pytest

from kreplog.core.messages import CONSUMER, FetchedPartition, FetchPartition, FetchRequest, PartitionState
from kreplog.core.messages import UpdateMetadataRequest as Update
from kreplog.core.replication import sessions
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.sessions import FetchContext, FetchSessions, without_unknown_topics
from kreplog.errors import ErrorCode
from kreplog.types import BrokerRegistration, EpochEndOffset, LeaderAndIsr, TopicPartition

FOLLOWER = 2


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def position(number: int, offset: int = 0, epoch: int = 1, topic_id: str = "id") -> FetchPartition:
    return FetchPartition(tp(number), topic_id, epoch, offset)


def request(
    listed: Iterable[FetchPartition] = (),
    session: tuple[int, int] = (0, 0),
    forgotten: Iterable[int] = (),
    replica: int = FOLLOWER,
    max_bytes: int = 1000,
) -> FetchRequest:
    return FetchRequest(replica, 1, 500, 1, max_bytes, tuple(listed), tuple(map(tp, forgotten)), *session)


def fetched(number: int, high_watermark: int = 0, records: bytes = b"", log_start: int = 0) -> FetchedPartition:
    return FetchedPartition(tp(number), ErrorCode.NONE, high_watermark, log_start, records=records)


def cache(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, itertools.count(7))


def begin(fetches: FetchSessions, fetch_request: FetchRequest, now_ms: int = 0) -> FetchContext:
    context = fetches.begin(fetch_request, now_ms)
    assert isinstance(context, FetchContext)
    context.evaluate()
    return context


def to_read(context: FetchContext) -> list[int]:
    return [listed.partition.partition for listed in context.evaluate()]


def sent(context: FetchContext, results: Iterable[FetchedPartition]) -> list[int]:
    response = context.finish(results)
    assert response.session_id == context.session_id
    return [response_partition.partition.partition for response_partition in response.partitions]


def test_without_a_session_every_partition_is_read_and_sent() -> None:
    fetches = cache()
    context = begin(fetches, request([position(1), position(0)], (0, -1)))
    assert (context.session_id, to_read(context)) == (0, [1, 0])
    assert sent(context, [fetched(1), fetched(0)]) == [1, 0]
    assert len(fetches) == 0
    assert fetches.mark(tp(1)) == ()


def test_a_session_from_beginning_to_end() -> None:
    fetches = cache()
    full = begin(fetches, request([position(0), position(1), position(2)]))
    assert (full.session_id, to_read(full)) == (7, [0, 1, 2])
    assert sent(full, [fetched(0), fetched(1), fetched(2, 5, b"xx")]) == [0, 1, 2]

    second = begin(fetches, request([position(2, 5)], (7, 1)))
    assert to_read(second) == [2]  # it moved on; the others have not changed
    assert sent(second, [fetched(2, 5)]) == []

    third = begin(fetches, request((), (7, 2)))
    assert to_read(third) == []
    assert list(fetches.mark(tp(1))) == [7]  # while it is parked
    assert list(fetches.mark(tp(9))) == []
    assert to_read(third) == [1]
    assert sent(third, [fetched(1, 0, b"x")]) == [1]

    fourth = begin(fetches, request([position(1, 1), position(3)], (7, 3), forgotten=[0, 8]))
    assert to_read(fourth) == [1, 3]
    assert [listed.partition.partition for listed in fetches.partitions(7) or ()] == [1, 2, 3]
    assert list(fetches.mark(tp(0))) == []
    assert sent(fourth, [fetched(1, 1), fetched(3, -1, b"", 0)]) == [1, 3]

    final = begin(fetches, request([position(5)], (7, -1)))
    assert (final.session_id, to_read(final), sent(final, [fetched(5)])) == (0, [5], [5])
    assert fetches.partitions(7) is None
    assert list(fetches.mark(tp(1))) == []
    assert fetches.begin(request((), (7, 4)), 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("reason", "session", "replica", "error"),
    [
        ("the next", (7, 1), FOLLOWER, None),
        ("one already used", (7, 0), FOLLOWER, None),  # 0 begins a new one
        ("one too far", (7, 2), FOLLOWER, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ("below all that mean anything", (7, -2), FOLLOWER, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ("unknown", (8, 1), FOLLOWER, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("no session, but an epoch", (0, 1), FOLLOWER, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("another broker's", (7, 1), 3, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("a broker's, by a consumer", (7, 1), CONSUMER, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_session_epochs(reason: str, session: tuple[int, int], replica: int, error: ErrorCode | None) -> None:
    fetches = cache()
    begin(fetches, request([position(0)]))
    got = fetches.begin(request([position(1)], session, replica=replica), 0)
    assert (got if isinstance(got, ErrorCode) else None) is error, reason
    if error is not None:  # it changed nothing
        assert to_read(begin(fetches, request((), (7, 1)))) == [0]


def test_an_epoch_is_used_once() -> None:
    fetches = cache()
    begin(fetches, request([position(0)]))
    begin(fetches, request((), (7, 1)))
    assert fetches.begin(request((), (7, 1)), 0) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    begin(fetches, request((), (7, 2)))


def test_epochs_go_on_at_one_after_the_last() -> None:
    assert sessions.next_epoch(0) == 1
    assert sessions.next_epoch(2**31 - 2) == 2**31 - 1
    assert sessions.next_epoch(2**31 - 1) == 1
    fetches = cache()
    begin(fetches, request([position(0)]))
    fetches._followers[7].epoch = 2**31 - 1
    begin(fetches, request((), (7, 2**31 - 1)))
    begin(fetches, request((), (7, 1)))


def test_a_new_session_ends_the_old_one_of_the_same_fetcher_alone() -> None:
    fetches = cache()
    begin(fetches, request([position(0)]))
    begin(fetches, request([position(1)], (7, 0), replica=3))
    assert len(fetches) == 2
    assert begin(fetches, request([position(2)], (7, 0))).session_id == 9
    assert len(fetches) == 2
    assert fetches.partitions(7) is None
    assert [listed.partition for listed in fetches.partitions(9) or ()] == [tp(2)]


@pytest.mark.parametrize(
    ("reason", "data", "has_changed"),
    [
        ("nothing", fetched(0, 3, log_start=1), False),
        ("records", fetched(0, 3, b"x", 1), True),
        ("the high watermark moved", fetched(0, 4, log_start=1), True),
        ("it may fall, after an unclean election", fetched(0, 2, log_start=1), True),
        ("the log start moved", fetched(0, 3, log_start=2), True),
        ("an error", FetchedPartition(tp(0), ErrorCode.NOT_LEADER_OR_FOLLOWER, 3, 1), True),
        ("divergence", FetchedPartition(tp(0), ErrorCode.NONE, 3, 1, EpochEndOffset(1, 2)), True),
    ],
)
def test_which_data_has_changed(reason: str, data: FetchedPartition, has_changed: bool) -> None:
    assert sessions.has_changed(3, 1, data) is has_changed, reason


@pytest.mark.parametrize(
    "refusal",
    [
        FetchedPartition(tp(0), ErrorCode.FENCED_LEADER_EPOCH),
        FetchedPartition(tp(0), ErrorCode.NONE, 9, 0, EpochEndOffset(1, 0)),
    ],
)
def test_a_refused_partition_stays_dirty_and_is_sent_in_full_afterwards(refusal: FetchedPartition) -> None:
    fetches = cache()
    assert sent(begin(fetches, request([position(0), position(1)])), [fetched(0, 9), fetched(1)]) == [0, 1]
    fetches.mark(tp(0))
    assert sent(begin(fetches, request((), (7, 1))), [refusal]) == [0]
    again = begin(fetches, request((), (7, 2)))
    assert to_read(again) == [0]
    assert sent(again, [fetched(0, 9)]) == [0]  # although these offsets were sent before
    assert to_read(begin(fetches, request((), (7, 3)))) == []


@pytest.mark.parametrize(
    ("reason", "listed", "is_sent"),
    [
        ("it moved on", position(0, 6), False),
        ("it was added again where it stood", position(0, 5), True),
        ("it was cut", position(0, 4), True),
        ("in a new leader epoch", position(0, 6, epoch=2), True),
        ("of another topic of that name", position(0, 6, topic_id="other"), True),
    ],
)
def test_what_is_sent_for_a_relisted_partition(reason: str, listed: FetchPartition, is_sent: bool) -> None:
    fetches = cache()
    sent(begin(fetches, request([position(0, 5)])), [fetched(0, 9)])
    context = begin(fetches, request([listed], (7, 1)))
    assert to_read(context) == [0]
    assert sent(context, [fetched(0, 9)]) == ([0] if is_sent else []), reason


def test_a_partition_with_records_is_read_until_it_has_no_more() -> None:
    """Its fetcher may have dropped them; it need not list what has not changed for it."""
    fetches = cache()
    sent(begin(fetches, request([position(0)])), [fetched(0, 0, b"x")])
    again = begin(fetches, request((), (7, 1)))
    assert to_read(again) == [0]
    assert sent(again, [fetched(0, 0, b"x")]) == [0]
    assert sent(begin(fetches, request([position(0, 1)], (7, 2))), [fetched(0, 0)]) == []
    assert to_read(begin(fetches, request((), (7, 3)))) == []


@pytest.mark.parametrize("left_out", [False, True])
def test_partitions_take_turns_when_a_response_is_too_small_for_all(left_out: bool) -> None:
    """Those without room come first for the next answer, those that were served last."""
    fetches = cache()
    results = [fetched(0, 1, b"xxx"), fetched(1, 1, b"xx"), fetched(2, 1), fetched(3, 1)]
    context = begin(fetches, request([position(number) for number in range(4)], max_bytes=5))
    to_read(context)
    sent(context, results[:2] if left_out else results)
    orders = [to_read(begin(fetches, request([position(0, 1), position(1, 1)], (7, 1), max_bytes=5)))]
    assert orders == [[2, 3, 0, 1]]


def test_a_session_in_which_all_is_read_is_as_small_as_a_new_one() -> None:
    """A dict keeps the places of what was in it, and whoever goes through it goes through these."""
    fetches = cache()
    context = begin(fetches, request(map(position, range(1000))))
    assert context._session is not None
    assert sys.getsizeof(context._session.dirty) > sys.getsizeof({})
    sent(context, map(fetched, range(1000)))
    assert sys.getsizeof(context._session.dirty) == sys.getsizeof({})


def test_a_mark_between_looking_and_answering_stands() -> None:
    fetches = cache()
    sent(begin(fetches, request([position(0)])), [fetched(0, 1)])
    context = begin(fetches, request([position(0, 1)], (7, 1)))
    to_read(context)
    fetches.mark(tp(0))
    assert sent(context, [fetched(0, 1)]) == []
    assert to_read(begin(fetches, request((), (7, 2)))) == [0]


def test_a_partition_that_was_not_requested_is_not_sent() -> None:
    assert sent(begin(cache(), request([position(0)])), [fetched(0), fetched(1, 0, b"x")]) == [0]


def test_slots_are_never_exceeded_and_followers_go_before_consumers() -> None:
    fetches = cache(2)
    consumers = [begin(fetches, request([position(0)], replica=CONSUMER), 0).session_id for _ in range(3)]
    assert consumers == [7, 8, 0]  # a third is served, but not remembered
    begin(fetches, request((), (7, 1), replica=CONSUMER), 1)
    assert begin(fetches, request([position(1)]), 2).session_id == 9  # takes the place of 8, the least recently used
    assert fetches.partitions(8) is None
    assert list(fetches.mark(tp(0))) == [7]
    assert begin(fetches, request([position(1)], replica=3), 3).session_id == 10  # and of 7
    assert fetches.closed == [8, 7]
    assert begin(fetches, request([position(1)], replica=CONSUMER), 4).session_id == 0
    assert begin(fetches, request([position(1)], replica=4), 5).session_id == 0  # not one of a follower in use
    assert begin(fetches, request((), (9, 1)), 6).session_id == 9
    assert len(fetches) == 2


def test_an_idle_follower_gives_way_to_another() -> None:
    fetches = cache(1)
    begin(fetches, request([position(0)], replica=3), 0)
    last = sessions.EVICTION_MS - 1
    assert begin(fetches, request([position(0)], replica=4), last).session_id == 0
    assert begin(fetches, request([position(0)], replica=4), last + 1).session_id == 8
    assert list(fetches.of_followers()) == [(8, 4, last + 1)]


def test_an_idle_consumer_gives_way_to_another() -> None:
    fetches = cache(1)
    begin(fetches, request([position(0)], replica=CONSUMER), 0)
    last = sessions.EVICTION_MS - 1
    assert begin(fetches, request([position(0)], replica=CONSUMER), last).session_id == 0
    assert begin(fetches, request([position(0)], replica=CONSUMER), last + 1).session_id == 8
    assert len(fetches) == 1


def test_an_idle_follower_gives_way_to_a_consumer() -> None:
    """It has fewer fetchers by then, and has left the sessions of the others."""
    fetches = cache(2)
    begin(fetches, request([position(0)], replica=3), 0)
    begin(fetches, request([position(0)], replica=3), 1)
    last = sessions.EVICTION_MS - 1
    assert begin(fetches, request([position(0)], replica=CONSUMER), last).session_id == 0
    assert begin(fetches, request([position(0)], replica=CONSUMER), last + 1).session_id == 9
    assert begin(fetches, request([position(0)], replica=CONSUMER), last + 1).session_id == 0
    assert fetches.partitions(7) is None and fetches.partitions(8) is not None


def test_no_slots_no_sessions() -> None:
    fetches = cache(0)
    context = begin(fetches, request([position(0)]))
    assert (context.session_id, sent(context, [fetched(0)]), len(fetches)) == (0, [0], 0)


def test_a_delayed_fetch_of_an_evicted_session_gets_a_response() -> None:
    fetches = cache(1)
    parked = begin(fetches, request([position(0)], replica=CONSUMER))
    begin(fetches, request([position(0)], replica=3))
    assert fetches.closed == [parked.session_id]
    assert sent(parked, [fetched(0, 1)]) == [0]


def test_ids_in_use_are_passed_over() -> None:
    fetches = FetchSessions(3, iter([5, 5, 6]))
    assert [begin(fetches, request([position(0)])).session_id for _ in range(2)] == [5, 6]


def test_ten_thousand_idle_partitions_cost_nothing_per_round() -> None:
    """What is looked at in a round is what changed or was marked, whatever the session holds."""
    fetches = cache()
    context = begin(fetches, request(map(position, range(10_000))))
    sent(context, [fetched(listed.partition.partition) for listed in context.evaluate()])
    looks, positions = 0, {0: 0}
    for epoch in range(1, 101):
        if epoch % 2:
            fetches.mark(tp(epoch))  # a record is appended to it
        context = begin(fetches, request([position(*at) for at in positions.items()], (7, epoch)))
        found = to_read(context)
        looks += len(found)
        new = epoch if epoch % 2 else -1
        sent(context, [fetched(number, epoch, b"x" if number == new else b"") for number in found])
        positions = {new: 1} if epoch % 2 else {}
    assert looks == 101  # each of the fifty when it got its record and when it fetched the next; the first once
    assert len(fetches.partitions(7) or ()) == 10_000


# --- the metadata cache ---------------------------------------------------------------------------------------------


def state(number: int, leader: int, epochs: tuple[int, int], topic_id: str = "id") -> PartitionState:
    return PartitionState(
        tp(number), topic_id, LeaderAndIsr(leader, epochs[0], (1, 2), partition_epoch=epochs[1]), (1, 2)
    )


BROKERS = (BrokerRegistration(1, 10), BrokerRegistration(2, 11), BrokerRegistration(3, 12, stopping=True))


def test_update_metadata() -> None:
    metadata = MetadataCache()
    assert (metadata.controller_id, metadata.controller_epoch, metadata.brokers) == (-1, -1, {})
    first = Update(1, 4, 10, BROKERS, (state(0, 1, (1, 0)), state(1, 2, (1, 0))))
    assert metadata.apply(first) is ErrorCode.NONE
    assert metadata.brokers == {1: BROKERS[0], 2: BROKERS[1], 3: BROKERS[2]}
    assert metadata.partitions == {tp(0): state(0, 1, (1, 0)), tp(1): state(1, 2, (1, 0))}
    assert metadata.apply(Update(2, 5, 10, BROKERS[:1], (state(0, 2, (2, 1)),), (tp(1),))) is ErrorCode.NONE
    assert (metadata.controller_id, metadata.controller_epoch) == (2, 5)
    assert metadata.brokers == {1: BROKERS[0]}
    assert metadata.partitions == {tp(0): state(0, 2, (2, 1))}


def test_f26_a_stale_controller_changes_nothing() -> None:
    metadata = MetadataCache()
    metadata.apply(Update(1, 4, 10, BROKERS, (state(0, 1, (1, 0)),)))
    assert metadata.apply(Update(2, 3, 10, (), (state(0, 2, (9, 9)),), (tp(0),))) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert (metadata.controller_id, metadata.controller_epoch, len(metadata.brokers)) == (1, 4, 3)
    assert metadata.partitions == {tp(0): state(0, 1, (1, 0))}


@pytest.mark.parametrize(
    ("reason", "entry", "taken"),
    [
        ("the same again", state(0, 2, (3, 5)), True),
        ("a newer leader epoch", state(0, 2, (4, 6)), True),
        ("a newer partition epoch", state(0, 2, (3, 6)), True),
        ("an older leader epoch", state(0, 2, (2, 5)), False),
        ("an older leader epoch with a newer partition epoch", state(0, 2, (2, 9)), False),
        ("an older partition epoch", state(0, 2, (3, 4)), False),
        ("KIP-516: another topic of that name", state(0, 2, (0, 0), "other"), True),
    ],
)
def test_older_entries_are_ignored(reason: str, entry: PartitionState, taken: bool) -> None:
    metadata = MetadataCache()
    held = state(0, 1, (3, 5))
    metadata.apply(Update(1, 4, 10, BROKERS, (held,)))
    assert metadata.apply(Update(1, 4, 10, BROKERS, (entry,))) is ErrorCode.NONE
    assert metadata.partitions[tp(0)] is (entry if taken else held), reason


def test_deleted_and_made_again_in_one_request() -> None:
    metadata = MetadataCache()
    metadata.apply(Update(1, 4, 10, BROKERS, (state(0, 1, (3, 5)),)))
    made = state(0, 2, (0, 0), "other")
    metadata.apply(Update(1, 4, 10, BROKERS, (made,), (tp(0),)))
    assert metadata.partitions == {tp(0): made}


@pytest.mark.parametrize(
    ("reason", "broker", "eligible"),
    [
        ("registered", (1, 10), True),
        ("F16: an earlier registration", (1, 9), False),
        ("a registration not known yet", (1, 11), False),
        ("F15: stopping", (3, 12), False),
        ("unknown", (4, 1), False),
    ],
)
def test_f15_f16_which_brokers_can_join_an_isr(reason: str, broker: tuple[int, int], eligible: bool) -> None:
    metadata = MetadataCache()
    metadata.apply(Update(1, 4, 10, BROKERS))
    assert metadata.can_join_isr(*broker) is eligible, reason
    metadata.apply(Update(1, 4, 10, tuple(replace(registration, stopping=True) for registration in BROKERS)))
    assert not metadata.can_join_isr(*broker)


def test_the_first_metadata_of_a_new_controller_is_complete() -> None:
    """A topic whose deletion the old one died before announcing is gone nevertheless."""
    metadata = MetadataCache()
    metadata.apply(Update(1, 4, 10, BROKERS, (state(0, 1, (1, 0)), state(1, 2, (1, 0)))))
    metadata.apply(Update(2, 5, 10, BROKERS, (state(1, 2, (1, 0)),)))
    assert list(metadata.partitions) == [tp(1)]


def test_an_incremental_fetch_that_names_an_unknown_topic_has_to_begin_a_new_session() -> None:
    """It has only a part of the session, which may hold that topic under the name that it had."""
    for listed in (True, False):
        for epoch in (1, sessions.LAST_EPOCH):
            continued = request([position(0)], (7, epoch), forgotten=(1,), replica=CONSUMER)
            served, error = without_unknown_topics(continued, listed)
            assert error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert served == replace(continued, session_epoch=-1, partitions=(), forgotten=(), max_wait_ms=0)


def test_a_full_fetch_of_an_unknown_topic_is_served_at_once_without_a_session() -> None:
    """A session would lack that topic, which its fetcher does not list again."""
    for session in ((0, 0), (7, 0), (7, -1), (0, -1)):
        full = request([position(0)], session, replica=CONSUMER)
        served = without_unknown_topics(full, listed=True)
        assert served == (replace(full, session_epoch=-1, max_wait_ms=0), ErrorCode.NONE)
        assert without_unknown_topics(full, listed=False) == (full, ErrorCode.NONE), "what it forgets is in no session"


@pytest.mark.parametrize("epoch", [1, 0])
def test_a_fetch_that_names_an_unknown_topic_leaves_no_session_behind(epoch: int) -> None:
    fetches = cache()
    begun = begin(fetches, request([position(0), position(1)], replica=CONSUMER))
    assert begun.session_id == 7
    served, _ = without_unknown_topics(request([position(0)], (7, epoch), replica=CONSUMER), listed=True)
    assert begin(fetches, served).session_id == 0
    assert (len(fetches), fetches.partitions(7)) == (0, None)
    assert list(fetches.charges()) == []


def test_what_was_not_sent_is_new_in_the_next_response() -> None:
    """A high watermark alone, too, with which a throttled response comes no more."""
    fetches = cache()
    full = begin(fetches, request([position(0), position(1), position(2)], replica=CONSUMER))
    full.finish([fetched(0), fetched(1), fetched(2)])
    fetches.mark(tp(0))
    fetches.mark(tp(1))
    throttled = request(session=(7, 1), replica=CONSUMER)
    response = begin(fetches, throttled).finish([fetched(0, 5, b"xx"), fetched(1, 3)])
    assert len(response.partitions) == 2
    assert fetches.not_sent(throttled, response) == 7
    following = begin(fetches, request(session=(7, 2), replica=CONSUMER))
    assert sorted(to_read(following)) == [0, 1]
    assert sent(following, [fetched(0, 5, b"xx"), fetched(1, 3)]) == [0, 1]


def test_a_session_whose_first_response_was_not_sent_ends() -> None:
    fetches = cache()
    throttled = request([position(0)], replica=CONSUMER)
    response = begin(fetches, throttled).finish([fetched(0, 5, b"xx")])
    assert fetches.not_sent(throttled, response) == 0
    assert len(fetches) == 0
    sessionless = request([position(0)], (0, -1), replica=CONSUMER)
    assert fetches.not_sent(sessionless, begin(fetches, sessionless).finish([fetched(0, 5, b"xx")])) == 0
