"""TLS files of a cluster on this host, for trying out: a private CA, the brokers' keystores, and a client's.

<dir>/tls/ca.key              the CA's private key: whoever reads it can be any client and any broker
<dir>/tls/ca.pem              its certificate, the truststore of brokers and clients
<dir>/tls/broker-<id>.pem     keystore of a broker, for the names and addresses of this host
<dir>/tls/client.pem          keystore of a client, CN=client
<dir>/tls/client.properties   settings of clients, for --command-config and Kafka's tools

All files are their owner's alone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kreplog.errors import UsageError
from kreplog.managed_log import atomic_write, make_directory

if TYPE_CHECKING:
    from kreplog.cluster.certificates import Authority

_CLIENT = "client"


def client_properties(root: Path) -> Path:
    """Where clients' settings are; the file exists in a cluster with TLS alone."""
    return root / "tls" / "client.properties"


def with_tls(root: Path, broker: int, settings: Sequence[str]) -> Sequence[str]:
    """The settings of a broker with its files of TLS, and clients' certificates required."""
    truststore = json.dumps(str(root / "tls" / "ca.pem"))
    common = [f'"ssl.truststore.location" = {truststore}', '"ssl.client.auth" = "required"']
    return with_keystore(root, broker, [*settings, *common])


def with_keystore(root: Path, broker: int, settings: Sequence[str]) -> Sequence[str]:
    """The settings of a broker with its keystore; brokers share the others."""
    return [*settings, f'"ssl.keystore.location" = {json.dumps(str(root / "tls" / f"broker-{broker}.pem"))}']


def create_authority() -> Authority:
    """A new CA. Raises UsageError without the extra `tls`."""
    return _authority().create("CA of a kreplog cluster")


def create_certificates(root: Path, authority: Authority, brokers: Iterable[int]) -> None:
    """Write the files of a new CA, of a client, and of the brokers."""
    tls = root / "tls"
    make_directory(str(tls))
    atomic_write(str(tls / "ca.key"), authority.key_pem())
    _issue_all(tls, authority, brokers)
    properties = (
        "security.protocol=SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={tls / 'ca.pem'}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={tls / f'{_CLIENT}.pem'}\n"
    )
    atomic_write(str(client_properties(root)), properties.encode())


def add_certificates(root: Path, brokers: Iterable[int]) -> None:
    """Write the keystores of further brokers. Raises UsageError if the CA's files cannot be read, or without the extra
    `tls`."""
    _issue(root / "tls", _load_authority(root / "tls"), brokers)


def renew_certificates(root: Path, brokers: Iterable[int]) -> datetime:
    """Write the certificates of the CA, of the client and of the brokers again, with the CA's key as it was and new
    keys of the others; running brokers load them within about a second. Returns when they expire.

    Old and new ones trust each other, so that a renewal that is killed half done breaks nothing; do it again. Raises
    UsageError for a cluster without TLS, if the CA's files cannot be read, or without the extra `tls`."""
    if not client_properties(root).exists():
        raise UsageError(f"{root} has no certificates to renew: it was not created with --tls", path=str(root))
    authority = _load_authority(root / "tls").renewed()
    _issue_all(root / "tls", authority, brokers)
    return authority.expires


def _load_authority(tls: Path) -> Authority:
    try:
        return _authority().load((tls / "ca.key").read_bytes(), (tls / "ca.pem").read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"the CA in {tls}, which new certificates need, cannot be read: {error}") from error


def _issue_all(tls: Path, authority: Authority, brokers: Iterable[int]) -> None:
    atomic_write(str(tls / "ca.pem"), authority.pem())
    atomic_write(str(tls / f"{_CLIENT}.pem"), authority.issue(_CLIENT))
    _issue(tls, authority, brokers)


def _issue(tls: Path, authority: Authority, brokers: Iterable[int]) -> None:
    names = filter(str.isascii, ("localhost", "127.0.0.1", "::1", socket.gethostname()))  # others have no DNS name
    hosts = list(dict.fromkeys(names))
    for broker in brokers:
        name = f"broker-{broker}"
        atomic_write(str(tls / f"{name}.pem"), authority.issue(name, hosts))


def _authority() -> type[Authority]:
    try:
        from kreplog.cluster.certificates import Authority
    except ImportError as error:
        raise UsageError("certificates are made with the library cryptography: pip install 'kreplog[tls]'") from error
    return Authority
