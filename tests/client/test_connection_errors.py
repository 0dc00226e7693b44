"""Why a connection to a broker failed, in words."""

from __future__ import annotations

import ssl

import pytest

from kreplog.client.connection_errors import connection_failure


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), "ssl.keystore.location"),
        (ConnectionResetError(), "another security.protocol"),
        (TimeoutError(), "no response in time"),
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
    ],
)
def test_a_failure_has_its_likely_cause(error: Exception, expected: str) -> None:
    assert expected in connection_failure(error)
