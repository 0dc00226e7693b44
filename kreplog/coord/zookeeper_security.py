"""ZooKeeperSecurity: how brokers authenticate to a ZooKeeper ensemble, by TLS and passwords; ACLs of their nodes.

With ACLs a node belongs to whoever created it, by the identities of that session: nobody else may read or change it.
So all brokers of a cluster have the same user, or certificates that ZooKeeper takes for the same.
"""

from __future__ import annotations

import importlib.util
import ssl
from dataclasses import dataclass, field

from kreplog.errors import UsageError
from kreplog.tls import PROTOCOLS, ReloadedContext, TlsSettings, client_context

AUTHENTICATION = ("none", "digest", "sasl")


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """Settings of the connection to ZooKeeper, most with Kafka's names after `zookeeper.`.

    set_acl: create nodes that the user or certificate of the brokers alone may read and change.
    authentication: `digest`: user and password by ZooKeeper's own scheme, which identifies whoever creates a node;
    `sasl`: by DIGEST-MD5, which servers can require, and refuse others; `none`.
    user, password: for that. The password is best in a file that only the broker's user reads, or in the environment.
    ssl_client_enable: connect by TLS, to the secureClientPort of the servers.
    ssl_keystore_location: path of a PEM file with private key and certificate, where the servers want one.
    ssl_keystore_password: of that key, if it is encrypted.
    ssl_truststore_location: path of the certificates, in PEM, of the CAs that the servers' come from; none: those of
    the system.
    ssl_enabled_protocols, ssl_cipher_suites, ssl_endpoint_identification_algorithm: as ssl.* without zookeeper.
    """

    set_acl: bool = False
    authentication: str = "none"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl_client_enable: bool = False
    ssl_keystore_location: str | None = None
    ssl_keystore_password: str | None = field(default=None, repr=False)
    ssl_truststore_location: str | None = None
    ssl_enabled_protocols: tuple[str, ...] = tuple(PROTOCOLS)
    ssl_cipher_suites: tuple[str, ...] = ()
    ssl_endpoint_identification_algorithm: str = "https"

    @property
    def tls(self) -> TlsSettings | None:
        """None for plaintext."""
        if not self.ssl_client_enable:
            return None
        return TlsSettings(
            keystore=self.ssl_keystore_location,
            key_password=self.ssl_keystore_password,
            truststore=self.ssl_truststore_location,
            protocols=self.ssl_enabled_protocols,
            cipher_suites=self.ssl_cipher_suites,
            endpoint_identification=self.ssl_endpoint_identification_algorithm,
        )

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other, and for what is missing for SASL."""
        if self.authentication == "none":
            for name in ("user", "password"):
                if getattr(self, name) is not None:
                    raise UsageError(f"zookeeper.{name} has no effect without zookeeper.authentication")
        elif not self.user or not self.password:
            raise UsageError(
                f"zookeeper.authentication = {self.authentication} needs zookeeper.user and zookeeper.password"
            )
        elif ":" in self.user:
            raise UsageError(f"zookeeper.user = {self.user}: ZooKeeper's names of users have no colon")
        certified = self.ssl_client_enable and self.ssl_keystore_location is not None
        if self.set_acl and self.authentication == "none" and not certified:
            raise UsageError(
                "zookeeper.set.acl = true needs somebody to whom nodes belong: set zookeeper.authentication, or "
                "zookeeper.ssl.keystore.location for servers that identify clients by certificates"
            )
        if self.authentication == "sasl" and importlib.util.find_spec("puresasl") is None:
            raise UsageError("zookeeper.authentication = sasl needs pure-sasl: pip install 'kazoo[sasl]'")
        for name in ("keystore", "truststore"):
            if not self.ssl_client_enable and getattr(self, f"ssl_{name}_location") is not None:
                raise UsageError(
                    f"zookeeper.ssl.{name}.location has no effect without zookeeper.ssl.client.enable = true"
                )

    def context(self) -> ReloadedContext | None:
        """The context of connections by TLS, which follows its files; None for plaintext. Raises UsageError."""
        tls = self.tls
        return None if tls is None else ReloadedContext(_context, tls)


def _context(tls: TlsSettings) -> ssl.SSLContext:
    """With the sockets of the standard library, which kazoo knows."""
    context = client_context(tls)
    context.sslsocket_class = ssl.SSLSocket
    return context


NO_SECURITY = ZooKeeperSecurity()
