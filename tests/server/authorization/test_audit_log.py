"""The audit log: denials and administrative acts, in Kafka's format, bounded."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core.security.acls import Operation, ResourceType
from kreplog.core.security.authorizer import Access, AclIndex, Decision
from kreplog.server.authorization import audit_log
from kreplog.server.authorization.audit_log import AuditLog
from kreplog.server.authorization.checks import Decided
from kreplog.server.monitoring.logs import LogSettings, set_up
from kreplog.server.monitoring.metrics import render
from kreplog.wire.versions import ApiKey
from tests.server.authorization.clients import ADMIN, Client, allow, authorizing, set_acls

ALICE = Access(AclIndex(()), "User:alice", "10.0.0.7", is_super=False, allows_without_acl=False)
BOB = Access(AclIndex(()), "User:bob", "10.0.0.8", is_super=False, allows_without_acl=False)
LOGGERS = ("kreplog.authorizer", "kreplog.administration")
DENIED, ALLOWED = Decision(False, "DefaultDeny"), Decision(True, "SuperUser")


def read(name: str, decision: Decision = DENIED) -> Decided:
    return Decided(Operation.READ, ResourceType.TOPIC, name, decision, 2)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name in LOGGERS]


def test_a_line_is_kafkas(caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    log = AuditLog(lambda: 0)
    log.record(ALICE, "Fetch", [read("orders")])
    assert messages(caplog) == [
        "Principal = User:alice is Denied operation = READ from host = 10.0.0.7 on resource = Topic:LITERAL:orders "
        "for request = Fetch with resourceRefCount = 2 based on rule DefaultDeny"
    ]
    assert log.denied == 1


def test_a_repeated_denial_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    times = iter(range(0, 2 * audit_log.REPEATED_MS, 100))
    log = AuditLog(lambda: next(times))
    for _ in range(2 * audit_log.REPEATED_MS // 100):
        log.record(ALICE, "Fetch", [read("orders")])
    assert len(messages(caplog)) == 2
    assert log.denied == 2 * audit_log.REPEATED_MS // 100


def test_denials_of_other_requests_are_no_repetition(caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    log = AuditLog(lambda: 0)
    for request in ("Fetch", "ListOffsets", "Fetch"):
        log.record(ALICE, request, [read("orders")])
    assert len(messages(caplog)) == 2


def test_a_flood_of_denials_is_counted_and_hides_no_act(caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    now_ms = 0
    log = AuditLog(lambda: now_ms)
    log.record(ALICE, "Fetch", [read(f"t-{number}") for number in range(1000)])
    assert len(messages(caplog)) == audit_log.LINES_PER_SECOND
    log.record(ALICE, "DeleteTopics", [read("t", ALLOWED)])
    log.record_act(ALICE, "DeleteTopics", ["t"])
    assert messages(caplog)[-1] == "Principal = User:alice from host = 10.0.0.7 requests DeleteTopics: t"
    now_ms = 1000
    log.record(ALICE, "Fetch", [read("other")])
    assert "900 decisions were not logged" in messages(caplog)[-2]
    assert log.denied == 1001


def test_a_denial_that_a_flood_left_out_is_logged_when_it_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    now_ms = 0
    log = AuditLog(lambda: now_ms)
    log.record(ALICE, "Fetch", [read(f"t-{number}") for number in range(1000)])
    log.record(ALICE, "Fetch", [read("orders")])
    assert not any("Topic:LITERAL:orders" in line for line in messages(caplog))
    now_ms = 1000
    log.record(ALICE, "Fetch", [read("orders")])
    assert "Topic:LITERAL:orders" in messages(caplog)[-1]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_REMEMBERED", 10)
    log = AuditLog(lambda: 0)
    log.record(ALICE, "Fetch", [read(f"t-{number}") for number in range(1000)])
    assert len(log._repeated) <= 10


def test_names_of_clients_stay_in_their_line(caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    log = AuditLog(lambda: 0)
    log.record(ALICE, "JoinGroup", [read("a\nPrincipal = User:bob is Allowed"), read("x" * 10_000)])
    log.record_act(ALICE, "DeleteGroups", ["a\nb", *(f"g{number}" for number in range(100))])
    assert all("\n" not in line for line in messages(caplog))
    assert max(map(len, messages(caplog))) < 1000
    assert messages(caplog)[-1].endswith("g18, ...")


def test_a_broker_logs_denials_and_acts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await set_acls(admin, allow("alice", Operation.DELETE, "mine"))
            topics = [{"name": name, "topic_id": None} for name in ("mine", "other")]
            await alice.call(ApiKey.DELETE_TOPICS, topics=topics, timeout_ms=1000)
            request = {"topics": None, "allow_auto_topic_creation": False}
            await alice.call(ApiKey.METADATA, **request)
            assert b"\nkafka_server_authorizer_denied_total 1\n" in await render(broker)

    asyncio.run(scenario())
    of_alice = [line for line in messages(caplog) if line.startswith("Principal = User:alice ")]
    allowed, denied, act = of_alice
    assert allowed.startswith("Principal = User:alice is Allowed operation = DELETE from host = 127.0.0.1")
    assert "principal=User:alice, host=*, operation=DELETE, permissionType=ALLOW" in allowed
    assert denied.endswith(
        "is Denied operation = DELETE from host = 127.0.0.1 on resource = Topic:LITERAL:other "
        "for request = DeleteTopics with resourceRefCount = 1 based on rule DefaultDeny"
    )
    assert act == "Principal = User:alice from host = 127.0.0.1 requests DeleteTopics: mine"
    created = next(line for line in messages(caplog) if "requests CreateAcls" in line)
    assert "resource_name=mine" in created
    assert "principal=User:alice" in created


def test_a_flood_of_one_client_silences_no_other(caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    log = AuditLog(lambda: 0)
    log.record(ALICE, "Fetch", [read(f"t-{number}") for number in range(500)])
    log.record(BOB, "Fetch", [read("orders")])
    assert messages(caplog)[-1].startswith("Principal = User:bob is Denied")
    many = [
        Access(AclIndex(()), "User:x", f"10.0.1.{number}", is_super=False, allows_without_acl=False)
        for number in range(100)
    ]
    for each in many:
        log.record(each, "Fetch", [read(f"t-{number}") for number in range(50)])
    assert len(messages(caplog)) == audit_log.ALL_LINES_PER_SECOND
    log.record_act(BOB, "DeleteTopics", ["t"])
    assert messages(caplog)[-1] == "Principal = User:bob from host = 10.0.0.8 requests DeleteTopics: t"


def test_a_change_of_rights_is_logged_whole_whatever_precedes_it(caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    log = AuditLog(lambda: 0)
    for number in range(2 * audit_log.LINES_PER_SECOND):
        log.record_act(ALICE, "CreateTopics", [f"t-{number}"])
    assert len(messages(caplog)) == audit_log.LINES_PER_SECOND
    harmless = ["x" * 1000 for _ in range(21)]
    log.record_act(ALICE, "CreateAcls", [*harmless, f"resource_name={'y' * 1000}, principal=User:mallory"], whole=True)
    lines = messages(caplog)[audit_log.LINES_PER_SECOND :]
    assert len(lines) == 2
    assert lines[-1].endswith("y, principal=User:mallory")


def test_a_broker_logs_every_acl_of_a_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin = Client(broker, ADMIN)
            await set_acls(admin, *(allow("alice", Operation.READ, f"t-{number}") for number in range(50)))

    asyncio.run(scenario())
    created = " ".join(line for line in messages(caplog) if "requests CreateAcls" in line)
    assert all(f"resource_name=t-{number}," in created for number in range(50))


def test_denials_and_acts_have_files_of_their_own(tmp_path: Path) -> None:
    loggers = [logging.getLogger(name) for name in ("", *LOGGERS)]
    before = [(logger, logger.handlers[:], logger.propagate, logger.level) for logger in loggers]
    try:
        set_up(0, tmp_path, LogSettings(level="error"))
        denials, acts = tmp_path / "authorizer.log", tmp_path / "administration.log"
        assert not denials.exists()
        log = AuditLog(lambda: 0)
        log.record(ALICE, "Fetch", [read("orders")])
        assert not acts.exists()
        log.record_act(ALICE, "DeleteTopics", ["invoices"])
        assert "Topic:LITERAL:orders" in denials.read_text()
        assert "requests DeleteTopics: invoices" in acts.read_text()
        assert "invoices" not in denials.read_text()
        assert "orders" not in (tmp_path / "server.log").read_text()
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
