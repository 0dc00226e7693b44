"""Failed logins in the log: by listener, mechanism and address, so that no flood hides another, or fills it."""

from __future__ import annotations

import logging

import pytest

from kreplog.server.monitoring import repeated_failures
from kreplog.server.monitoring.repeated_failures import LINES_PER_SECOND
from kreplog.server.network.failed_logins import FailedLogins, Origin

FLOOD = Origin("SASL_SSL", "SCRAM-SHA-256", "10.0.0.66")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_a_flood_from_an_address_hides_no_other_attempt(caplog: pytest.LogCaptureFixture) -> None:
    logins = FailedLogins(lambda: 0)
    for _ in range(1000):
        logins.record(FLOOD, "10.0.0.66:1", "wrong password")
    assert len(lines(caplog)) == 10  # 1, 2, 4 to 512
    others = [FLOOD._replace(address="10.0.0.7"), FLOOD._replace(mechanism="PLAIN"), FLOOD._replace(listener="OTHER")]
    for other in others:
        logins.record(other, f"{other.address}:2", "wrong password")
    assert lines(caplog) == [
        "10.0.0.7:2: failed authentication at SASL_SSL by SCRAM-SHA-256: wrong password; from this address there: 1, "
        "failed ones since the start: 1001",
        "10.0.0.66:2: failed authentication at SASL_SSL by PLAIN: wrong password; from this address there: 1, "
        "failed ones since the start: 1002",
        "10.0.0.66:2: failed authentication at OTHER by SCRAM-SHA-256: wrong password; from this address there: 1, "
        "failed ones since the start: 1003",
    ]


def test_a_flood_from_many_addresses_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(repeated_failures, "MAX_REMEMBERED", 300)
    now = [0]
    logins = FailedLogins(lambda: now[0])
    for number in range(1000):
        logins.record(FLOOD._replace(address=f"fe80::{number:x}"), "peer", "no handshake")
    assert len(lines(caplog)) == LINES_PER_SECOND
    assert len(logins._failures._counts) == 300
    now[0] = 1000
    logins.record(FLOOD, "peer", "wrong password")
    omitted, logged = lines(caplog)
    assert omitted == "900 failed authentications were not logged: more than 100 lines in a second"
    assert "failed ones since the start: 1001" in logged
