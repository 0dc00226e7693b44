"""JsonWebKeys: the public keys of the issuer of tokens, read from a file or URL and read again while they rotate.

A daemon thread reads them, so that an endpoint that hangs holds up neither the event loop nor the end of the process.
While they cannot be read the last ones count. A token with an unknown key has them read sooner, but no sooner than
retry.backoff.max.ms after the last time: whoever sends many such tokens does not flood the issuer. Nothing is
remembered of unknown keys.
Source: RFC 7517; KIP-768; Kafka's RefreshingHttpsJwks.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from kreplog.config import SaslConfig
from kreplog.errors import AuthenticationError
from kreplog.server.monitoring.repeated_failures import is_power_of_two
from kreplog.web_request import fetch

_log = logging.getLogger("kreplog.server")

PublicKey = RSAKey | ECKey

ALGORITHMS: dict[str, type[PublicKey]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), RSAKey),
    **dict.fromkeys(("ES256", "ES384", "ES512"), ECKey),
}
"""Algorithms of signatures and their type of keys: those of public keys alone. Neither `none` nor those of a shared
secret, for which a public key could be taken (CVE-2015-9235, RFC 8725)."""

MAX_KEYS = 100
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
FILE_INTERVAL_S = 1.0
"""Interval at which a file is read again."""


class JsonWebKeys:
    """The keys of sasl.oauthbearer.jwks.endpoint.url. attempted: called in the thread each time they have been read, or
    could not be."""

    def __init__(self, config: SaslConfig, attempted: Callable[[], None]) -> None:
        self.url = str(config.sasl_oauthbearer_jwks_endpoint_url)
        self._keys: tuple[PublicKey, ...] = ()
        self._document = b""
        self._attempted = attempted
        self._retry_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000
        self._max_retry_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._refresh_s = min(refresh_s, FILE_INTERVAL_S) if self.url.startswith("file:") else refresh_s
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kreplog-jwks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The thread ends after what it reads now."""
        self._closed.set()
        self._wanted.set()

    def find(self, key_id: object, algorithm: str) -> PublicKey:
        """The key by which a token is signed, for any thread; without an id the only one that fits the algorithm, which
        is one of ALGORITHMS. Raises AuthenticationError; for an unknown key the keys are read again."""
        kind, keys = ALGORITHMS[algorithm], self._keys
        if not keys:
            raise AuthenticationError(f"no keys have been read from {self.url} yet")
        fitting = [key for key in keys if isinstance(key, kind) and key.alg in (None, algorithm)]
        found = fitting if key_id is None else [key for key in fitting if key.kid == key_id]
        if not found:
            self._wanted.set()
            raise AuthenticationError(f"there is no key {str(key_id)[:100]!r} for {algorithm}: it is read again soon")
        if len(found) > 1:
            raise AuthenticationError(f"{len(found)} keys fit {algorithm} and the key id {str(key_id)[:100]!r}")
        return found[0]

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            self._wanted.clear()
            pause_s = self._refresh_s
            try:
                self._read()
                failures = 0
            except Exception as error:  # whatever the endpoint sends: the last keys count
                failures += 1
                pause_s = min(self._retry_s * 2.0 ** min(failures - 1, 30), self._max_retry_s)
                if is_power_of_two(failures):
                    text = "keys of tokens cannot be read from %s, the last %d count: %s; attempts that failed: %d"
                    _log.warning(text, self.url, len(self._keys), error, failures)
            self._attempted()
            if not self._closed.wait(min(pause_s, self._max_retry_s)) and pause_s > self._max_retry_s:
                self._wanted.wait(pause_s - self._max_retry_s)

    def _read(self) -> None:
        """Raises OSError, ValueError."""
        document = fetch(self.url)
        if document != self._document:
            self._keys = parse_keys(document)
            self._document = document
            _log.info("keys of tokens are read from %s: %s", self.url, ", ".join(str(key.kid) for key in self._keys))


def parse_keys(document: bytes) -> tuple[PublicKey, ...]:
    """The keys of a JWK set that verify signatures of ALGORITHMS; others are left out (RFC 7517). Raises ValueError."""
    try:
        entries = json.loads(document)["keys"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ValueError("it is no JWK set, a JSON object with the list `keys`") from error
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"`keys` is no list of at most {MAX_KEYS} keys")
    found = tuple(key for entry in entries if (key := _public_key(entry)) is not None)
    if not found:
        raise ValueError(f"it has no key for {', '.join(ALGORITHMS)}")
    return found


def _public_key(entry: Any) -> PublicKey | None:
    kinds: dict[str, type[PublicKey]] = {"RSA": RSAKey, "EC": ECKey}
    if not isinstance(entry, dict) or entry.get("kty") not in kinds or entry.get("use", "sig") != "sig":
        return None
    try:
        key = kinds[entry["kty"]].import_key(entry)
        key.check_key_op("verify")
        if isinstance(key, RSAKey) and not MIN_RSA_BITS <= key.public_key.key_size <= MAX_RSA_BITS:
            raise ValueError(f"an RSA key has {MIN_RSA_BITS} to {MAX_RSA_BITS} bits")
    except (JoseError, ValueError, TypeError, KeyError) as error:
        _log.warning("the key of tokens %s is left out: %s", str(entry.get("kid"))[:100], error)
        return None
    return key
