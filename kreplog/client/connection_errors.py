"""Why a connection to a broker failed, in words for its user."""

from __future__ import annotations

import ssl

NO_RESPONSE = "no response in time"

_TRUST = "is ssl.truststore.location the CA of the broker's certificate?"
_IDENTITY = "is ssl.keystore.location a certificate of a CA that the broker trusts?"
_IDENTITY_ALERTS = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE")
"""Ends of OpenSSL's reasons: the alerts of a broker that refuses a client's certificate, or its lack."""


def connection_failure(error: Exception) -> str:
    """The reason, with advice where a setting of the client is the likely cause."""
    if isinstance(error, TimeoutError):
        return NO_RESPONSE
    if isinstance(error, ssl.SSLCertVerificationError):
        name_differs = "mismatch" in error.verify_message
        return f"TLS fails: {error.reason}: {error.verify_message}{'' if name_differs else f': {_TRUST}'}"
    if isinstance(error, ssl.SSLEOFError):  # also where a broker's alert is lost with its end of the connection
        return f"TLS fails: the broker closed the connection: does its listener have SSL or SASL_SSL, and {_IDENTITY}"
    if isinstance(error, ssl.SSLError):
        advice = f": {_IDENTITY}" if (error.reason or "").endswith(_IDENTITY_ALERTS) else ""
        return f"TLS fails: {error.reason or error}{advice}"
    if isinstance(error, ConnectionResetError):
        return "connection closed: is the broker stopping, or does its listener have another security.protocol?"
    return (getattr(error, "strerror", None) or str(error)).lower()
