"""TlsListeners: the TLS of a broker's listeners: contexts that follow their files, and principals of clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from kreplog.core.security.distinguished_name import distinguished_name
from kreplog.core.security.principal import ANONYMOUS, Principal
from kreplog.core.security.principal_mapping import PrincipalMapping
from kreplog.errors import PeerProtocolError, UsageError
from kreplog.server.listeners import Listener
from kreplog.server.settings import BrokerSettings, internal_tls, tls_settings
from kreplog.tls import ReloadedContext, TlsSettings, TlsSocket, client_context, server_context

_log = logging.getLogger("kreplog.server")

RELOAD_CHECK_S = 1.0
"""Interval of the checks whether a file of certificates has changed."""


class TlsListener:
    """TLS of one listener: the context of its next handshakes, and the principals of its clients."""

    def __init__(self, context: ReloadedContext, mapping: PrincipalMapping) -> None:
        self.context = context
        self._mapping = mapping

    def principal_of(self, sock: TlsSocket) -> Principal:
        """The principal of a connection after its handshake: ANONYMOUS without a client's certificate.

        Raises PeerProtocolError for a certificate to which no rule applies."""
        certificate = sock.getpeercert()
        if not certificate:
            return ANONYMOUS
        name = distinguished_name(certificate.get("subject", ()))  # type: ignore[arg-type]  # a name, of nested tuples
        mapped = self._mapping.name_of(name)
        if not mapped:
            raise PeerProtocolError(f"no rule of ssl.principal.mapping.rules applies to the certificate of {name!r}")
        return Principal(mapped)


class TlsListeners:
    """TLS of the listeners whose security protocol has it. internal: of the listener for other brokers, whose
    certificates are required; dialing: of connections to those of other brokers; None without TLS between brokers.

    Raises UsageError for settings and files of no use."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.internal: TlsListener | None = None
        self.dialing: ReloadedContext | None = None
        self._by_name: dict[str, TlsListener] = {}
        for listener in settings.listeners:
            if listener.security_protocol.encrypts and listener.name not in self._by_name:
                own = tls_settings(settings, listener.name)
                with _named(f"listeners = {listener}"):
                    self._by_name[listener.name] = _tls_listener(own)
        if settings.internal.security_protocol.encrypts:
            with _named(f"inter.broker.listener = {settings.internal}"):
                self.internal = _tls_listener(replace(internal_tls(settings), client_auth="required"))
                self.dialing = dialing_tls(settings)

    def of(self, listener: Listener) -> TlsListener | None:
        return self._by_name.get(listener.name)

    async def run(self) -> NoReturn:
        """Reload certificates when their files change; until it is cancelled."""
        contexts = {f"listener {name}": tls.context for name, tls in self._by_name.items()}
        if self.internal is not None and self.dialing is not None:
            contexts |= {"inter.broker.listener": self.internal.context, "connections to brokers": self.dialing}
        while True:
            await asyncio.sleep(RELOAD_CHECK_S)  # asyncio has no notification of files that change
            for name, context in contexts.items():
                refused = await asyncio.get_running_loop().run_in_executor(None, context.reload)
                if refused:
                    _log.error("%s: the former certificates stay in force: %s", name, refused)
                elif refused is not None:
                    _log.info("%s: new connections get the certificates that are in the files now", name)


def dialing_tls(settings: BrokerSettings) -> ReloadedContext | None:
    """TLS of connections to the internal listeners of brokers; None without it. Raises UsageError."""
    if not settings.internal.security_protocol.encrypts:
        return None
    return ReloadedContext(client_context, internal_tls(settings))


def _tls_listener(settings: TlsSettings) -> TlsListener:
    return TlsListener(ReloadedContext(server_context, settings), PrincipalMapping(settings.principal_mapping_rules))


@contextmanager
def _named(setting: str) -> Iterator[None]:
    """Name the setting of a listener in a UsageError of its TLS."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{setting}: {error}", path=error.path) from error
