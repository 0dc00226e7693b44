"""Acts: only with --allow-writes, only as pages send them, only once confirmed by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kreplog.console.acts import ACTS
from tests.console.served import Answer, Console, FakeSource, serving


def post(console: Console, name: str, content: Any, **headers: str | None) -> Answer:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return console.request(f"/api/acts/{name}", "POST", body, **{"Origin": console.origin, **headers})


REQUEST = {"parameters": {"topic": "t"}, "confirm": "t"}


def test_nothing_is_changed_without_the_flag() -> None:
    source = FakeSource()
    with serving(source) as console:
        console.log_in()
        for name in (*ACTS, "other"):
            for content in (REQUEST, {**REQUEST, "confirm": None}, b"", b"{"):
                answer = post(console, name, content)
                assert answer.status == 403 and b"--allow-writes" in answer.body
        for method in ("PUT", "DELETE", "PATCH"):
            assert console.request("/api/acts/produce", method, b"", Origin=console.origin).status == 405
    assert source.acts == []


def test_with_the_flag_acts_still_need_a_session_and_an_origin() -> None:
    source = FakeSource()
    with serving(source, allow_writes=True) as console:
        assert post(console, "produce", REQUEST).status == 401
        console.log_in()
        assert post(console, "produce", REQUEST, Origin=None).status == 403
        assert post(console, "produce", REQUEST, Origin="http://evil.example").status == 403
        assert post(console, "produce", REQUEST, Host="evil.example").status == 421
        assert source.acts == []
        assert post(console, "produce", REQUEST).json == {"done": "produce"}
        assert console.request("/api/acts/produce").status == 405
    assert source.acts == [("produce", {"topic": "t"}, "t")]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        [],
        {"parameters": {}},
        {"parameters": [], "confirm": None},
        {"parameters": {"a": 1}, "confirm": None},
        {"parameters": {"value": "\ud800"}, "confirm": None},  # half of a character
        {"parameters": {}, "confirm": 1},
    ],
)
def test_a_request_that_is_none(content: Any) -> None:
    source = FakeSource()
    with serving(source, allow_writes=True) as console:
        console.log_in()
        assert post(console, "produce", content).status == 400
        assert post(console, "produce", b"x" * (3 << 20)).status == 413
    assert source.acts == []
