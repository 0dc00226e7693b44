"""An issuer of JSON Web Tokens for tests: its keys, the JWK set of their public halves, and tokens that it signs."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey

AUDIENCE = "kreplog"
ISSUER = "https://issuer.test"

_RSA = [RSAKey.generate_key(2048, {"kid": f"rsa-{number}"}) for number in range(2)]
_EC = ECKey.generate_key("P-256", {"kid": "ec"})


class Issuer:
    """Signs with `key`, whose public half is in the JWK set at `path` as soon as `publish` writes it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "jwks.json"
        self.url = self.path.as_uri()
        self.key: RSAKey | ECKey = _RSA[0]
        self.other: RSAKey | ECKey = _RSA[1]
        self.ec = _EC

    def document(self, *keys: RSAKey | ECKey | OctKey, **more: str) -> bytes:
        """The JWK set of the public halves of keys, by default that of the issuer; more: parameters of each."""
        parts = [{**key.as_dict(private=isinstance(key, OctKey)), **more} for key in keys or (self.key,)]
        return json.dumps({"keys": parts}).encode()

    def publish(self, *keys: RSAKey | ECKey) -> None:
        """Replace the JWK set at once."""
        new = self.path.with_suffix(".new")
        new.write_bytes(self.document(*keys))
        new.replace(self.path)

    def settings(self, **more: Any) -> dict[str, Any]:
        """The settings of a broker that accepts the tokens, with underscores."""
        return {
            "sasl_enabled_mechanisms": "OAUTHBEARER",
            "sasl_oauthbearer_jwks_endpoint_url": self.url,
            "sasl_oauthbearer_expected_audience": AUDIENCE,
            "sasl_oauthbearer_expected_issuer": ISSUER,
            **more,
        }

    def token(
        self,
        name: str = "alice",
        *,
        lifetime_s: float = 300,
        key: RSAKey | ECKey | bytes | None = None,
        header: dict[str, Any] | None = None,
        without: str = "",
        **claims: Any,
    ) -> str:
        """A token of a principal. key: bytes are a shared secret. header: fields of it. without: a claim, or a field of
        the header, to leave out."""
        now = time.time()
        found = {"sub": name, "iss": ISSUER, "aud": [AUDIENCE], "iat": int(now), "exp": now + lifetime_s, **claims}
        found.pop(without, None)
        key = self.key if key is None else key
        fields = {
            "alg": "ES256" if isinstance(key, ECKey) else "RS256",
            "kid": (self.key if isinstance(key, bytes) else key).kid,
            **(header or {}),
        }
        fields.pop(without, None)
        signed = f"{encoded(fields)}.{encoded(found)}"
        if isinstance(key, bytes):
            signature = hmac.digest(key, signed.encode(), f"sha{fields['alg'][2:]}")
        else:
            algorithm = jws.JWSRegistry(algorithms=[fields["alg"]]).get_alg(fields["alg"])
            signature = algorithm.sign(signed.encode(), key)
        return f"{signed}.{urlsafe_b64encode(signature).decode().rstrip('=')}"


def encoded(part: Any) -> str:
    """A part of a token; any object, whatever a library would refuse to sign."""
    return urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
