"""TokenValidator: JSON Web Tokens that clients send by OAUTHBEARER: signature, times, audience, issuer, principal.

Rules are those of Kafka's OAuthBearerValidatorCallbackHandler (KIP-768): `exp`, `iat` and the claim of the name are
required, a token with an audience needs sasl.oauthbearer.expected.audience. Keys in a token's own header, or where it
says that they are, are never used (RFC 8725).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from joserfc import jwt
from joserfc.jwk import GuestProtocol
from joserfc.jws import JWSRegistry
from joserfc.jwt import Claims, ClaimsOption, JWTClaimsRegistry

from kreplog.config import SaslConfig
from kreplog.core.security.oauthbearer import MAX_TOKEN_MESSAGE_BYTES, AcceptedToken
from kreplog.errors import AuthenticationError
from kreplog.server.security.json_web_keys import ALGORITHMS, JsonWebKeys, PublicKey

MAX_NAME_CHARACTERS = 1024
"""Maximum of a principal's name."""

MAX_LIFETIME_MS = 2**53
"""Of a session, whatever a token says."""


class TokenValidator:
    """Validates tokens with the keys of their issuer. now: seconds since 1970."""

    def __init__(self, config: SaslConfig, keys: JsonWebKeys, now: Callable[[], float] = time.time) -> None:
        self._config = config
        self._keys = keys
        self._now = now
        self._registry = JWSRegistry(algorithms=tuple(ALGORITHMS), strict_check_header=False)
        self._registry.max_header_length = self._registry.max_payload_length = MAX_TOKEN_MESSAGE_BYTES
        self._required: dict[str, ClaimsOption] = {"exp": {"essential": True}, "iat": {"essential": True}}
        if config.sasl_oauthbearer_expected_issuer is not None:
            self._required["iss"] = {"essential": True, "value": config.sasl_oauthbearer_expected_issuer}
        if config.audiences:
            self._required["aud"] = {"essential": True, "values": list(config.audiences)}

    def validate(self, token: str) -> AcceptedToken:
        """Raises AuthenticationError with the reason, which is for the broker's log."""
        try:
            claims = jwt.decode(token, self._key_of, registry=self._registry).claims
            return self._accepted(claims, self._now())
        except AuthenticationError as error:
            raise AuthenticationError(f"the token is not valid: {error}") from error
        except Exception as error:  # whatever a token makes of the library refuses that token
            raise AuthenticationError(f"the token is not valid: {str(error)[:200]}") from error

    def _key_of(self, signed: GuestProtocol) -> PublicKey:
        header = signed.headers()
        return self._keys.find(header.get("kid"), header["alg"])

    def _accepted(self, claims: Claims, now: float) -> AcceptedToken:
        """Raises AuthenticationError, JoseError."""
        config = self._config
        skew_s = config.sasl_oauthbearer_clock_skew_seconds
        JWTClaimsRegistry(int(now), skew_s, **self._required).validate(claims)
        if "aud" in claims and not config.audiences:
            raise AuthenticationError("it has an audience, and sasl.oauthbearer.expected.audience is not set")
        scope = claims.get(config.sasl_oauthbearer_scope_claim_name, "")
        if not all(isinstance(text, str) for text in (scope if isinstance(scope, list) else [scope])):
            raise AuthenticationError(
                f"its claim {config.sasl_oauthbearer_scope_claim_name} is no text or list of texts"
            )
        name = claims.get(config.sasl_oauthbearer_sub_claim_name)
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_CHARACTERS or "\0" in name:
            raise AuthenticationError(
                f"its {config.sasl_oauthbearer_sub_claim_name} is no name of 1 to {MAX_NAME_CHARACTERS} characters"
            )
        left_ms = (claims["exp"] + skew_s - now) * 1000
        return AcceptedToken(name, int(min(max(1, left_ms), MAX_LIFETIME_MS)))
