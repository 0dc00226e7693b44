"""Fetches that a leader delays until min_bytes, a change or their time; a change retries those that it may complete."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kreplog.core.effects import Reply
from kreplog.core.events import Tick
from kreplog.core.messages import CONSUMER, FetchResponse
from kreplog.core.replication.sessions import FetchContext
from kreplog.errors import ErrorCode
from tests.core.replication.test_leader import confirm, fetch, leader, produce
from tests.core.shell import only, values


def test_a_fetch_waits_for_min_bytes_or_max_wait() -> None:
    shell = leader(isr=(1,))
    effects = shell.request(fetch(-1, 0, max_wait_ms=500), "reader")
    assert not [reply for reply in effects if isinstance(reply, Reply)]
    effects = shell.request(produce("a"))
    assert {reply.reply_to for reply in effects if isinstance(reply, Reply)} == {"reader", "client"}
    shell.request(fetch(-1, 1, max_wait_ms=500, min_bytes=10**6), "reader")
    assert not [
        reply for reply in shell.request(produce("b")) if isinstance(reply, Reply) and reply.reply_to == "reader"
    ]
    shell.now_ms = 500
    late = only([reply for reply in shell.step(Tick()) if isinstance(reply, Reply)], Reply)
    assert values(late.response.partitions[0].records) == ["b"]


def test_a_delayed_fetch_completes_when_leadership_ends() -> None:
    shell = leader()
    shell.request(fetch(-1, 0, max_wait_ms=500), "reader")
    shell.leader_and_isr(2, 2)
    reply = only([reply for reply in shell.effects if isinstance(reply, Reply) and reply.reply_to == "reader"], Reply)
    assert reply.response.partitions[0].error is ErrorCode.FENCED_LEADER_EPOCH


def test_an_isr_change_alone_retries_no_delayed_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may change at once, each waking a fetch that has thousands of partitions to read."""
    shell = leader(isr=(1, 2))
    looks: list[int] = []
    evaluate = FetchContext.evaluate

    def noted(context: FetchContext) -> Any:
        looks.append(context.request.replica_id)
        return evaluate(context)

    shell.request(fetch(2, 0, max_wait_ms=500))
    monkeypatch.setattr(FetchContext, "evaluate", noted)
    shell.request(fetch(3, 0, max_wait_ms=500))
    confirm(shell, 1)
    assert shell.partition.isr == (1, 2, 3) and set(looks) == {3}
    shell.request(produce("a"))
    assert set(looks) == {2, 3}


def test_a_new_high_watermark_alone_retries_no_followers_delayed_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads up to the log end, so that there is nothing new for it: with each commit that would be so for all but
    the last follower. It learns of the high watermark with the next records."""
    shell = leader()
    shell.request(produce("a"))
    looks: list[int] = []
    evaluate = FetchContext.evaluate

    def noted(context: FetchContext) -> Any:
        looks.append(context.request.replica_id)
        return evaluate(context)

    session = replace(fetch(2, 0, max_wait_ms=500), session_epoch=0)
    session_id = shell.response_to(session).session_id
    listed = (replace(session.partitions[0], fetch_offset=1, last_fetched_epoch=1),)
    shell.request(replace(session, session_id=session_id, session_epoch=1, partitions=listed), "follower")
    shell.request(fetch(CONSUMER, 0, max_wait_ms=500), "reader")
    monkeypatch.setattr(FetchContext, "evaluate", noted)
    effects = shell.request(fetch(3, 1, last_epoch=1, max_wait_ms=500))
    assert shell.partition.high_watermark == 1 and set(looks) == {3, CONSUMER}
    assert [reply.reply_to for reply in effects if isinstance(reply, Reply)] == ["client", "reader"]
    effects = shell.request(produce("b"))
    (response,) = [reply.response for reply in effects if isinstance(reply, Reply) and reply.reply_to == "follower"]
    assert isinstance(response, FetchResponse)
    assert [(values(data.records), data.high_watermark) for data in response.partitions] == [(["b"], 1)]
