"""TokenProvider: a TokenSource for kafka-python's clients, which some of kreplog's commands use."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.net.sasl.oauth import AbstractTokenProvider

from kreplog.client.oauth_token import TokenSource


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, tokens: TokenSource, extensions: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._extensions = dict(extensions)

    def token(self) -> str:
        return self._tokens.token()

    def extensions(self) -> dict[str, str]:
        return self._extensions
