"""`kreplog top`: the console's figures in a terminal, by the same source and the same watch as the page has."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live

from kreplog.console.live import Source, Watch
from kreplog.console.terminal_frame import (
    OPENED,
    TOPICS,
    Facts,
    Selection,
    following,
    frame,
    listing,
    selected_index,
    whole,
)
from kreplog.console.terminal_keys import Keys
from kreplog.errors import KreplogError

DRAW_S = 1.0
MIN_DRAW_S = 0.1
READ_S = 2.0
SHARE = 0.5
"""The most of the time that a read takes."""

ESCAPE_S = 0.1
"""After an escape, how long the rest of a sequence of bytes may take."""

PAGE = 10
MAX_FILTER = 100


class TerminalView:
    """Facts of a source as they change, and what of them is shown."""

    def __init__(self, source: Source, console: Console) -> None:
        self._source = source
        self._console = console
        self._watch = Watch(source, writable=False, log_replays=False)
        self.facts = Facts()
        self.selection = Selection()
        self._notes: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._suspend = asyncio.Event()
        self._opened = asyncio.Event()
        self._keys = Keys()
        self._flush: asyncio.TimerHandle | None = None

    async def print_once(self, interval_s: float) -> str:
        """Print one frame with all rows; returns why the source cannot be read, "" where it can. interval_s: over which
        rates are measured."""
        await self._watch.look()
        await asyncio.gather(self._read_figures(), self._read_rates(), self._read_groups({"all": ""}))
        await asyncio.sleep(interval_s)  # a rate is of two moments
        await asyncio.gather(self._read_figures(), self._read_rates())
        self._take_watch()
        self._console.print(whole(self.facts, self._console.width))
        return self.facts.error

    async def run(self) -> None:
        """Until SIGINT, SIGTERM, SIGHUP or the key q. The terminal is left as it was, by Ctrl-Z too."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        for number, event in ((signal.SIGWINCH, self._changed), (signal.SIGTSTP, self._suspend)):
            loop.add_signal_handler(number, event.set)
        reads = (self._read_figures, self._read_rates, self._read_groups)
        tasks = [asyncio.create_task(self._watch.run())]
        tasks += [asyncio.create_task(self._repeat(read)) for read in reads]
        tasks.append(asyncio.create_task(self._repeat(self._read_replicas, self._opened)))
        try:
            while not self._stop.is_set():
                live = Live(
                    console=self._console,
                    screen=True,
                    auto_refresh=False,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                with self._reading_keys(loop), live:
                    await self._draw(live)
                if self._suspend.is_set():
                    self._suspend.clear()
                    os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _draw(self, live: Live) -> None:
        while not (self._stop.is_set() or self._suspend.is_set()):
            self._changed.clear()
            self._take_watch()
            width, height = self._console.size
            live.update(frame(self.facts, self.selection, width, height), refresh=True)
            for event, seconds in ((self._stop, MIN_DRAW_S), (self._changed, DRAW_S)):
                with suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), seconds)

    # Facts

    def _take_watch(self) -> None:
        facts, watch = self.facts, self._watch
        facts.time = time.strftime("%H:%M:%SZ", time.gmtime())
        facts.overview, facts.error = watch.overview, watch.error
        opened = watch.snapshot.topics.get(self.selection.opened or "") if self.selection.of == TOPICS else None
        facts.partitions = {} if opened is None else opened.partitions
        lines = [] if opened is None else watch.out_of_sync(self.selection.opened or "")
        facts.out_of_sync = [each["text"] for each in lines]
        facts.events = watch.timeline.before(watch.timeline.end)[::-1]
        facts.note = "" if facts.error else "; ".join(dict.fromkeys(filter(None, self._notes.values())))

    async def _repeat(self, read: Callable[[], Awaitable[None]], wake: asyncio.Event | None = None) -> None:
        while True:
            began = time.monotonic()
            await read()
            self._changed.set()
            seconds = time.monotonic() - began
            pause_s = max(READ_S, seconds / SHARE - seconds)
            if wake is None:
                await asyncio.sleep(pause_s)  # brokers report to nobody what changes
            else:
                wake.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), pause_s)

    @contextmanager
    def _noting(self, kind: str) -> Iterator[None]:
        """Turn errors within into a note on the screen, which goes on."""
        try:
            yield
            self._notes[kind] = ""
        except (KreplogError, OSError) as error:
            self._notes[kind] = str(error)

    async def _read_figures(self) -> None:
        with self._noting("metrics"):
            found = (await self._source.read("metrics", {}))["brokers"]
            self.facts.figures = found
            if failed := [f"broker {broker}: {each['error']}" for broker, each in found.items() if "error" in each]:
                raise KreplogError(f"metrics of {'; '.join(failed)}")

    async def _read_rates(self) -> None:
        with self._noting("rates"):
            self.facts.rates = (await self._source.read("topic-rates", {}))["topics"]

    async def _read_groups(self, parameters: Mapping[str, str] | None = None) -> None:
        with self._noting("groups"):
            self.facts.groups = (await self._source.read("group-facts", parameters or {}))["groups"]

    async def _read_replicas(self) -> None:
        topic, rows = self.selection.opened, self.facts.partitions
        if topic is None or self.selection.of != TOPICS or not rows:
            self.facts.replicas = {}
            return
        listed = listing(self.facts, self.selection).rows
        index = selected_index(listed, self.selection)
        near = listed[max(0, index - self._console.height) : index + self._console.height]
        wanted = {int(row.name): rows[int(row.name)] for row in near}
        with self._noting("replicas"):
            replicas = await self._source.replicas(topic, wanted)
            if self.selection.opened == topic:
                self.facts.replicas = replicas

    # Keys

    @contextmanager
    def _reading_keys(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Keys come one by one, without echo, where stdin is a terminal."""
        if not sys.stdin.isatty():
            yield
            return
        file = sys.stdin.fileno()
        before = termios.tcgetattr(file)
        tty.setcbreak(file, termios.TCSANOW)
        loop.add_reader(file, self._on_input, loop, file)
        try:
            yield
        finally:
            loop.remove_reader(file)
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(file, termios.TCSANOW, before)

    def _on_input(self, loop: asyncio.AbstractEventLoop, file: int) -> None:
        try:
            data = os.read(file, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            loop.remove_reader(file)
            self._stop.set()
            return
        if self._flush is not None:
            self._flush.cancel()
        for key in self._keys.feed(data):
            self.press(key)
        if self._keys.pending:
            self._flush = loop.call_later(ESCAPE_S, self._on_escape)

    def _on_escape(self) -> None:
        for key in self._keys.flush():
            self.press(key)

    def press(self, key: str) -> None:
        """Carry out a key of Keys."""
        if self.selection.typing:
            self._type(key)
        else:
            self._navigate(key)
        self._keys.typing = self.selection.typing
        self._take_watch()
        self._opened.set()
        self._changed.set()

    def _navigate(self, key: str) -> None:
        selection = self.selection
        rows = listing(self.facts, selection).rows
        index = selected_index(rows, selection)
        steps = {"up": -1, "down": 1, "page up": -PAGE, "page down": PAGE}
        if key == "quit":
            self._stop.set()
        elif key in steps and rows:
            selection.row = rows[max(0, min(len(rows) - 1, index + steps[key]))].name
        elif key == "open" and selection.opened is None and selection.of in OPENED and rows:
            selection.row = rows[index].name
            self.selection, self.facts.replicas = Selection(selection.of, selection.row, before=selection), {}
        elif key == "back" and selection.filter:
            selection.filter = ""
        elif key == "back" and selection.before is not None:
            self.selection = selection.before
        elif key == "list":
            self.selection = Selection(following(selection.of))
        elif key == "filter":
            selection.typing = True

    def _type(self, key: str) -> None:
        selection = self.selection
        if key == "open":
            selection.typing = False
        elif key == "back":
            selection.typing, selection.filter = False, ""
        elif key == "erase":
            selection.filter = selection.filter[:-1]
        elif len(key) == 1 and len(selection.filter) < MAX_FILTER:
            selection.filter += key
