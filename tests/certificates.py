"""Certificates for tests: a CA, keystores that it issues, and settings of a broker and of clients with them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from kreplog.cluster.certificates import VALIDITY, Authority

HOSTS = ("localhost", "127.0.0.1", "::1")


class Certificates:
    """Files in `folder`: ca.pem, and what `keystore` makes."""

    def __init__(self, folder: Path, name: str = "test CA") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority.create(name)
        self.truststore = self.write("ca.pem", self.authority.pem())

    def keystore(self, name: str, hosts: Sequence[str] = (), validity: timedelta = VALIDITY) -> str:
        """The path of a new keystore of the subject CN=`name`; hosts: of a server."""
        return self.write(f"{name}.pem", self.authority.issue(name, hosts, validity))

    def broker_settings(self, **more: Any) -> dict[str, Any]:
        """Of a broker with one listener, over TLS."""
        return {
            "listeners": "SSL://127.0.0.1:0",
            "ssl_keystore_location": self.keystore("broker", HOSTS),
            "ssl_truststore_location": self.truststore,
            **more,
        }

    def write(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.write_bytes(content)
        return str(path)
