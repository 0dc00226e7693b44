"""A web page that shows the records of a log as they come, by server-sent events; a client of its own reads three.

Usage: python tail_to_web_page.py DIRECTORY
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from functools import partial

import kreplog

PAGE = b"""<!doctype html><title>tail</title><ol id="records"></ol><script>
new EventSource("/events").onmessage = (event) => {
  const item = document.createElement("li")
  item.textContent = JSON.parse(event.data)
  document.getElementById("records").append(item)
}</script>"""


async def respond(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: "
    if request.startswith(b"GET /events "):
        writer.write(head + b"text/event-stream\r\n\r\n")
        with kreplog.Log.open(path, read_only=True) as log:
            read = re.search(rb"\r\nlast-event-id: (\d{1,18})\r\n", request, re.IGNORECASE)  # of a browser that returns
            async for record in log.follow(int(read[1]) + 1 if read else 0):
                item = json.dumps((record.value or b"").decode(errors="replace"))  # in one line
                writer.write(b"id: %d\ndata: %s\n\n" % (record.offset, item.encode()))
                await writer.drain()  # raises at the second record after the browser has gone, which ends the follow
    else:
        writer.write(head + b"text/html\r\n\r\n" + PAGE)
    writer.close()


async def main(directory: str) -> None:
    with kreplog.Log.open(f"{directory}/news-0") as log:
        server = await asyncio.start_server(partial(respond, log.path), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]  # open http://127.0.0.1:port in a browser
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            log.append(b"news %d" % number)
            print((await reader.readuntil(b"\n\n")).decode().split("\n")[1])
        log.close()  # which ends the response, after the last record
        assert await reader.read() == b""
        writer.close()
        server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or sys.exit(__doc__)))
