"""The console's web server: routes, static files, and the process from its start to SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from importlib import resources

from aiohttp import web

from kreplog.client.bootstrap import UnreachableError
from kreplog.client.bulk_errors import BrokersUnreachableError
from kreplog.console.access import ConsoleAccess, Handler, add_headers
from kreplog.console.live import Source, Watch, serve_page
from kreplog.console.page_connections import BACKLOG, PageConnections
from kreplog.console.parameters import number_in
from kreplog.console.replays import Replays
from kreplog.errors import KreplogError, OffsetOutOfRangeError, UsageError
from kreplog.replay.page import policy_of_pages

MAX_BODY_BYTES = 2 << 20
SHUTDOWN_S = 2.0
_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Which JSON may hold, and UTF-8 may not."""

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def static_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page by name, with their content types."""
    folder = resources.files("kreplog.console") / "static"
    return {
        file.name: (file.read_bytes(), TYPES[file.name.rpartition(".")[2]])
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in TYPES
    }


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors of this package into {"error": ...}, with the status 400, 503 where nothing responds, or else 502."""
    try:
        return await handler(request)
    except (UnreachableError, BrokersUnreachableError) as error:
        status, text = 503, str(error)
    except (KreplogError, OSError) as error:
        status, text = 400 if isinstance(error, UsageError | OffsetOutOfRangeError) else 502, str(error)
    return web.json_response({"error": text}, status=status)


def application(
    source: Source, access: ConsoleAccess, replays: Replays, *, allow_writes: bool = False
) -> web.Application:
    """The routes. access: what each request is checked by. allow_writes: pages may change the cluster."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[access.middleware, errors_as_json])
    app.on_response_prepare.append(add_headers)
    watch = Watch(source, allow_writes, replays.has_logs)

    async def watching(_: web.Application) -> AsyncIterator[None]:
        await watch.look()
        task = asyncio.create_task(watch.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await watch.close()
        await replays.close()
        await source.close()

    app.cleanup_ctx.append(watching)
    files = static_files()

    async def file(request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        if name not in files:
            raise web.HTTPNotFound
        body, content_type = files[name]
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    async def live(request: web.Request) -> web.StreamResponse:
        return await serve_page(watch, request)

    async def read(request: web.Request) -> web.Response:
        return web.json_response(await source.read(request.match_info["name"], request.query))

    async def record_field(request: web.Request) -> web.Response:
        body = await source.record_field(request.query)
        headers = {"Content-Disposition": "attachment"}  # a record is data: a browser shows none of it as a page
        return web.Response(body=body or b"", content_type="application/octet-stream", headers=headers)

    async def events(request: web.Request) -> web.Response:
        before = number_in(request.query, "before")
        return web.json_response({"events": watch.timeline.before(before, request.query.get("topic"))})

    async def listed_replays(_: web.Request) -> web.Response:
        return web.json_response(replays.listing())

    async def make_replay(request: web.Request) -> web.Response:
        return web.json_response({"page": await replays.make(request.query)})

    async def replay_page(request: web.Request) -> web.Response:
        page = replays.page(request.match_info["id"])
        if page is None:
            raise web.HTTPNotFound(text="this replay is not kept any more: choose it again\n")
        headers = {"Content-Security-Policy": f"{policy_of_pages()}; frame-ancestors 'self'"}
        return web.Response(body=page, content_type="text/html", charset="utf-8", headers=headers)

    async def trace(request: web.Request) -> web.Response:
        changes = {"start": replays.start_trace, "stop": replays.stop_trace}
        change = changes.get(request.match_info["name"])
        if change is None:
            raise web.HTTPNotFound
        parameters, _ = _act_request(await request.text())
        return web.json_response(change(parameters))

    async def act(request: web.Request) -> web.Response:
        if not allow_writes:
            raise web.HTTPForbidden(text="this console changes nothing: start it with --allow-writes\n")
        parameters, confirmed = _act_request(await request.text())
        return web.json_response(await source.act(request.match_info["name"], parameters, confirmed))

    app.add_routes(
        [
            web.get("/", file),
            web.get("/static/{name}", file),
            web.get("/live", live),
            web.get("/api/record-field", record_field),
            web.get("/api/events", events),
            web.get("/api/replays", listed_replays),
            web.get("/api/replays/page", make_replay),
            web.get("/replays/{id}", replay_page),
            web.post("/api/traces/{name}", trace),
            web.get("/api/{name}", read),
            web.post("/api/acts/{name}", act),
        ]
    )
    return app


def _act_request(body: str) -> tuple[dict[str, str], str | None]:
    """The parameters and the confirmation in a request. Raises UsageError."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    match content:
        case {"parameters": dict() as parameters, "confirm": str() | None as confirmed}:
            if all(isinstance(value, str) and not _SURROGATE.search(value) for value in parameters.values()):
                return parameters, confirmed
    raise UsageError("not what a page sends: give parameters, each a text, and confirm")


async def serve(listening: socket.socket, app: web.Application, access: ConsoleAccess) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving(listening, app, access):
        await stop.wait()


@contextlib.asynccontextmanager
async def serving(listening: socket.socket, app: web.Application, access: ConsoleAccess) -> AsyncIterator[None]:
    """Requests are answered within the context; the socket is closed at its end. access: of `app`."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        assert runner.server is not None  # since it is set up
        connections = PageConnections(runner.server, access.known)
        server = await asyncio.get_running_loop().create_server(connections, sock=listening, backlog=BACKLOG)
        try:
            yield
        finally:
            server.close()
    finally:
        await runner.cleanup()


def listen(port: int) -> socket.socket:
    """A socket that listens on loopback; 0: on any free port. Raises UsageError for a port in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} is in use, perhaps by another console: choose another by --port, 0 for any free one"
            ) from error
        raise
