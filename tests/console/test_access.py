"""Requests that the console refuses: without a session, from other sites, under foreign names, oversized ones."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from kreplog.console.access import HEADERS, LOGIN, MAX_SESSIONS, ConsoleAccess
from kreplog.console.page_connections import BACKLOG, MAX_STRANGERS
from kreplog.console.web_server import MAX_BODY_BYTES, listen
from kreplog.errors import UsageError
from tests.console.served import WITHIN_S, Console, FakeSource, serving

PATHS = ("/", "/static/app.js", "/api/records", "/api/record-field", "/live", "/nowhere")
BEARER = "b" * 40


@pytest.fixture
def console() -> Iterator[Console]:
    with serving(FakeSource(), origin="https://kafka.example.com", bearer=BEARER) as made:
        yield made


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_a_session(console: Console, path: str) -> None:
    for cookie in ("", f"kreplog-console-{console.port}=", f"kreplog-console-{console.port}={'x' * 43}"):
        console.cookie = cookie
        answer = console.request(path)
        assert answer.status == 401
        assert b"kreplog console` printed" in answer.body


def test_a_token_makes_one_session(console: Console) -> None:
    first = console.tokens[-1]
    answer = console.request(f"{LOGIN}?token={first}")
    cookie = str(answer.headers["Set-Cookie"])
    assert answer.status == 303 and answer.headers["Location"] == "/"
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    console.cookie = cookie.partition(";")[0]
    assert console.request("/").status == 200
    assert console.request(f"{LOGIN}?token={first}").status == 303  # the same browser opens the address again
    console.cookie = ""
    assert console.request(f"{LOGIN}?token={first}").status == 401
    console.log_in()  # by the next token
    assert len(set(console.tokens)) == 3


def test_the_cookie_of_an_https_origin_is_secure(console: Console) -> None:
    for host, secure in (("kafka.example.com", True), (f"127.0.0.1:{console.port}", False)):
        answer = console.request(f"{LOGIN}?token={console.tokens[-1]}", Host=host)
        assert ("Secure" in str(answer.headers["Set-Cookie"])) is secure


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%00%ff", "?token=ä"])
def test_a_wrong_token_makes_none(console: Console, query: str) -> None:
    answer = console.request(LOGIN + query.replace("ä", "%C3%A4"))
    assert answer.status == 401
    assert "Set-Cookie" not in answer.headers


def test_a_token_that_is_good_makes_no_session_for_another_site(console: Console) -> None:
    address = f"{LOGIN}?token={console.tokens[-1]}"
    assert console.request(address, Origin="http://evil.example").status == 403
    assert console.request(address, Host="evil.example").status == 421
    assert console.request(address).status == 303


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost", "", "0.0.0.0:{port}"]
)
def test_other_hosts_are_refused(console: Console, host: str) -> None:
    """DNS rebinding: a name of somebody else that resolves to 127.0.0.1."""
    console.log_in()
    for path in PATHS:
        assert console.request(path, Host=host.format(port=console.port)).status == 421


def test_hosts_of_the_console(console: Console) -> None:
    console.log_in()
    for host in (f"localhost:{console.port}", f"[::1]:{console.port}", "kafka.example.com"):
        assert console.request("/", Host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://kafka.example.com"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_other_sites_are_refused(console: Console, headers: dict[str, Any]) -> None:
    console.log_in()
    for path in PATHS:
        for method in ("GET", "POST"):
            assert console.request(path, method, **headers).status == 403


def test_own_requests_are_answered(console: Console) -> None:
    console.log_in()
    for origin in (console.origin, f"http://localhost:{console.port}", "https://kafka.example.com"):
        answer = console.request("/api/groups", Origin=origin, Sec_Fetch_Site="same-origin")
        assert (answer.status, answer.json) == (200, {"name": "groups", "sizes": {}})


def test_a_change_and_a_websocket_need_an_origin(console: Console) -> None:
    console.log_in()
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert console.request("/", method).status == 403
    upgrade: dict[str, Any] = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert (
        console.request("/live", **upgrade, Sec_WebSocket_Version="13", Sec_WebSocket_Key="A" * 22 + "==").status == 403
    )


def test_the_bearer_token_of_a_proxy(console: Console) -> None:
    assert console.request("/", Host="kafka.example.com", Authorization=f"Bearer {BEARER}").status == 200
    for given in (f"Bearer {BEARER}x", "Bearer ", "Bearer", f"Basic {BEARER}", "Bearer \xe4"):
        assert console.request("/", Authorization=given).status == 401
    with serving(FakeSource()) as other:
        assert other.request("/", Authorization="Bearer ").status == 401


def test_connections_without_a_session_are_limited(console: Console) -> None:
    """Others of this host open any number of them: those that belong to a page stay, and new ones are answered."""
    console.log_in()
    page = http.client.HTTPConnection("127.0.0.1", console.port, timeout=WITHIN_S)
    headers = {"Host": f"127.0.0.1:{console.port}", "Cookie": console.cookie}
    with contextlib.ExitStack() as opened:
        opened.callback(page.close)
        for _ in range(2):
            page.request("GET", "/api/groups", headers=headers)
            assert page.getresponse().read()
            idle = [opened.enter_context(socket.create_connection(("127.0.0.1", console.port))) for _ in range(150)]
            for each in idle[: len(idle) - MAX_STRANGERS - BACKLOG]:
                each.settimeout(WITHIN_S)
                assert each.recv(1) == b""
            idle[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % console.port)
            assert idle[-1].recv(1 << 16).startswith(b"HTTP/1.1 401 ")
            assert console.request("/").status == 200


def test_every_response_has_the_policy(console: Console) -> None:
    for path in (*PATHS[:4], "/nowhere", LOGIN):
        for cookie in ("", "log in"):
            console.cookie = ""
            if cookie:
                console.log_in()
            answer = console.request(path)
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
    assert (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
        in (HEADERS["Content-Security-Policy"])
    )


def test_oversized_requests(console: Console) -> None:
    console.log_in()
    assert console.request("/", X_Long="x" * 100_000).status == 400
    assert console.request("/?" + "x" * 100_000).status == 400
    answer = console.request("/api/groups", "POST", b"x" * (MAX_BODY_BYTES + 1), Origin=console.origin)
    assert answer.status in (405, 413)
    assert console.request("/").status == 200


def test_what_a_record_holds_is_no_page(console: Console) -> None:
    console.log_in()
    answer = console.request("/api/record-field?offset=1")
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == "attachment"
    assert answer.body == b"<script>alert(1)</script>"


def test_errors_have_a_status_and_a_message(console: Console) -> None:
    console.log_in()
    answer = console.request("/api/nothing")
    assert (answer.status, answer.json) == (400, {"error": "there is nothing"})
    assert console.request("/static/..%2faccess.py").status == 404
    assert console.request("/static/../access.py").status == 404


def test_sessions_are_limited() -> None:
    access = ConsoleAccess(1, lambda token: None)
    access._sessions = {str(number): None for number in range(MAX_SESSIONS + 5)}
    access._trim()
    assert next(iter(access._sessions)) == "5" and len(access._sessions) == MAX_SESSIONS


@pytest.mark.parametrize("origin", ["kafka.example.com", "https://", "https://a/b", "ftp://a", "https://a/"])
def test_an_origin_that_is_none(origin: str) -> None:
    with pytest.raises(UsageError, match="--origin"):
        ConsoleAccess(1, lambda token: None, origin)


def test_a_port_in_use() -> None:
    with listen(0) as used, pytest.raises(UsageError, match=r"port \d+ is in use"):
        listen(used.getsockname()[1])
