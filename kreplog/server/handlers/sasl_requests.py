"""SaslHandlers: SaslHandshake and SaslAuthenticate, by the SaslConnection of each connection.

PLAIN takes milliseconds of CPU for a password, so that it is checked in a thread, one at a time: a flood of attempts
delays only others by PLAIN, and no attempt outlives its connection in the queue. So are tokens of OAUTHBEARER, in a
thread of their own. A connection that fails is answered and closed after connection.failed.authentication.delay.ms.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kreplog.config import SaslConfig
from kreplog.core.security.oauthbearer import MAX_TOKEN_MESSAGE_BYTES, OAUTHBEARER, OauthServer
from kreplog.core.security.plain import PLAIN, PlainServer
from kreplog.core.security.sasl import (
    ILLEGAL_AUTHENTICATE,
    ILLEGAL_HANDSHAKE,
    AuthenticateResponse,
    SaslConnection,
    SaslMechanism,
)
from kreplog.core.security.scram import MAX_MESSAGE_BYTES, SCRAM_MECHANISMS, ScramMechanism, ScramServer
from kreplog.errors import PeerProtocolError, UsageError
from kreplog.server.clock import monotonic_ms
from kreplog.server.listeners import Listener
from kreplog.server.network.connections import Frame
from kreplog.server.network.serving import RequestContext
from kreplog.server.security.credential_cache import CredentialCache
from kreplog.server.settings import BrokerSettings, sasl_settings
from kreplog.wire import generic

if TYPE_CHECKING:
    from kreplog.server.security.json_web_keys import JsonWebKeys

_log = logging.getLogger("kreplog.server")

_NONCE_BYTES = 24

_MAX_ENTRIES = 16
"""Maximum of entries, which all are unknown tags, in a request of somebody who may not be authenticated."""


_T = TypeVar("_T")


class _Thread:
    """A thread for the costly work of one mechanism. What waits for its turn is not in the thread's queue yet, so that
    it ends with its connection."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[], _T]) -> _T:
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class SaslHandlers:
    """Handlers of the requests of SASL. start: runs work in a task."""

    def __init__(
        self,
        cache: CredentialCache,
        settings: BrokerSettings,
        start: Callable[[Awaitable[None]], asyncio.Task[None]],
    ) -> None:
        self._cache = cache
        self._settings = {each.name: sasl_settings(settings, each.name) for each in settings.listeners}
        self._start = start
        self._threads = {PLAIN: _Thread("kreplog-passwords"), OAUTHBEARER: _Thread("kreplog-tokens")}
        self._ready: dict[str, asyncio.Event] = {}  # of mechanisms that need no users
        self._keys: JsonWebKeys | None = None
        users = cache.credentials
        self._mechanisms = {
            name: SaslMechanism(partial(self._scram, scram)) for name, scram in SCRAM_MECHANISMS.items()
        }
        self._mechanisms[PLAIN] = SaslMechanism(lambda: PlainServer(users.is_password), is_costly=True)
        if any(OAUTHBEARER in each.mechanisms for each in self._settings.values()):
            self._mechanisms[OAUTHBEARER] = self._oauthbearer(settings.sasl)

    def connection(self, listener: Listener) -> SaslConnection:
        """The state of a new connection of a listener."""
        settings = self._settings[listener.name]
        mechanisms = {name: self._mechanisms[name] for name in settings.mechanisms}
        return SaslConnection(mechanisms, settings.connections_max_reauth_ms)

    def _oauthbearer(self, config: SaslConfig) -> SaslMechanism:
        """Begins to read the keys of tokens. Raises UsageError."""
        try:
            from kreplog.server.security.json_web_keys import JsonWebKeys
            from kreplog.server.security.oauth_tokens import TokenValidator
        except ModuleNotFoundError as error:
            raise UsageError("the SASL mechanism OAUTHBEARER needs joserfc: pip install 'kreplog[oauth]'") from error
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        self._ready[OAUTHBEARER] = ready
        self._keys = JsonWebKeys(config, partial(_call_if_open, loop, ready.set))
        self._keys.start()
        validate = TokenValidator(config, self._keys).validate
        return SaslMechanism(partial(OauthServer, validate), True, MAX_TOKEN_MESSAGE_BYTES)

    def _scram(self, mechanism: ScramMechanism) -> ScramServer:
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        return ScramServer(mechanism, partial(self._cache.credentials.find, mechanism), nonce)

    def handshake(self, context: RequestContext, frame: Frame) -> None:
        request = generic.decode_request(frame, context.header, _MAX_ENTRIES)
        sasl = context.client.sasl
        response = ILLEGAL_HANDSHAKE
        if sasl is not None:
            response = sasl.handshake(request.mechanism, context.header.api_version, monotonic_ms())
        fields = {"error_code": response.error, "mechanisms": list(response.mechanisms)}
        buffers = generic.encode_response(context.header, **fields)
        if sasl is not None and sasl.failure:
            context.refuse(buffers)
        else:
            context.respond(buffers)

    def authenticate(self, context: RequestContext, frame: Frame) -> None:
        raw = context.client.expects_raw_token
        token = bytes(frame) if raw else generic.decode_request(frame, context.header, _MAX_ENTRIES).auth_bytes
        sasl = context.client.sasl
        most = MAX_MESSAGE_BYTES if sasl is None else sasl.max_message_bytes
        if len(token) > most:
            raise PeerProtocolError(f"a token of SASL of {len(token)} bytes: {most} at most")
        if sasl is None:
            self._respond(context, ILLEGAL_AUTHENTICATE, raw)
        elif sasl.is_costly or not self._ready_for(sasl).is_set():
            context.hold(len(token))
            context.client.authentication = self._start(self._authenticate_later(context, sasl, token, raw))
        else:
            self._respond(context, sasl.authenticate(token, monotonic_ms()), raw)

    async def _authenticate_later(self, context: RequestContext, sasl: SaslConnection, token: bytes, raw: bool) -> None:
        """Authenticate once the users, or the keys of tokens, are known; in a thread where that takes long, when it is
        its turn. Later requests wait, since the connection is held."""
        try:
            await self._ready_for(sasl).wait()
            if sasl.is_costly:
                response = await self._threads[sasl.mechanism].run(lambda: sasl.authenticate(token, monotonic_ms()))
            else:
                response = sasl.authenticate(token, monotonic_ms())
            self._respond(context, response, raw)
        except Exception as error:
            context.failed(error)
        finally:
            context.release(len(token))

    def _ready_for(self, sasl: SaslConnection) -> asyncio.Event:
        return self._ready.get(sasl.mechanism, self._cache.loaded)

    def _respond(self, context: RequestContext, response: AuthenticateResponse, raw: bool) -> None:
        sasl = context.client.sasl
        if sasl is not None and sasl.is_authenticated:
            context.client.authenticated(sasl.principal)
        buffers: Sequence[Any] = (struct.pack(">i", len(response.auth_bytes)), response.auth_bytes)
        if not raw:
            buffers = generic.encode_response(
                context.header,
                error_code=response.error,
                error_message=response.message,
                auth_bytes=response.auth_bytes,
                session_lifetime_ms=response.session_lifetime_ms,
            )
        if sasl is not None and sasl.failure:
            context.refuse(() if raw else buffers)
        else:
            context.respond(buffers)

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
        if self._keys is not None:
            self._keys.close()


def _call_if_open(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have a loop call something, from another thread; nothing once the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
