"""Replays: pages to step through, of seeds and lessons of the simulator, of what the brokers of a cluster logged, and
of traces of a running cluster.

A page is made once and kept under an id. Those of the simulator and of log files are made by a process of their own;
a trace is taken in this one, which looks at the cluster in a few milliseconds of each second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from kreplog.console.live import Source
from kreplog.console.parameters import Parameters, number_in
from kreplog.console.tracing import MAX_SECONDS, trace
from kreplog.errors import KreplogError, UsageError
from kreplog.replay.lesson_files import GROUPS, heading, names, text_of
from kreplog.replay.page import render
from kreplog.types import check_topic

MAX_PAGES = 16
"""Pages that are kept, the newest; one has 5 MB at most."""

MAX_TRACES = 8
"""Traces that are listed, the newest."""

MAKE_TIMEOUT_S = 300.0


@dataclass(slots=True)
class _Trace:
    """A trace that runs, or has ended. page: its id; "" before its end. error: why there is none."""

    number: int
    topics: Sequence[str]
    seconds: int
    began_s: float = field(default_factory=time.monotonic)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    page: str = ""
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        elapsed_s = min(self.seconds, int(time.monotonic() - self.began_s))
        return {
            "number": self.number,
            "topics": list(self.topics),
            "seconds": self.seconds,
            "elapsed_s": elapsed_s,
            "page": self.page,
            "error": self.error,
        }


class Replays:
    """The replays of a console. seed: which it was started with, None for none. log_folders: of the log files of the
    brokers by id, empty where they are not on this host. trace_source: opens the cluster for a trace; None for none."""

    def __init__(
        self,
        seed: int | None = None,
        log_folders: Mapping[int, Path] | None = None,
        trace_source: Callable[[], Source] | None = None,
    ) -> None:
        self._seed = seed
        self._log_folders = log_folders or {}
        self._trace_source = trace_source
        self._pages: OrderedDict[str, bytes] = OrderedDict()
        self._ids: dict[tuple[str, ...], str] = {}
        self._count = 0
        self._making = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._traces: list[_Trace] = []

    @property
    def has_logs(self) -> bool:
        return bool(self._log_folders)

    def listing(self) -> dict[str, Any]:
        """{"seed", "logs": whether those of brokers can be replayed, "trace": whether a trace can be taken, "traces",
        "lessons": [{"group", "lessons": [{"name", "title", "sentence"}]}]}."""
        return {
            "seed": self._seed,
            "logs": self.has_logs,
            "trace": self._trace_source is not None,
            "traces": [each.as_json() for each in reversed(self._traces)],
            "lessons": [
                {"group": group, "lessons": [{"name": name, **heading(name)._asdict()} for name in names(group)]}
                for group in GROUPS
            ],
        }

    async def make(self, parameters: Parameters) -> str:
        """The id of a page. parameters: "seed"; "lesson"; or "since" and "until", times in UTC as ISO 8601 has them, ""
        for the first and the last line. Raises UsageError, KreplogError."""
        if "seed" in parameters:
            words = ["seed", str(number_in(parameters, "seed"))]
        elif "lesson" in parameters:
            text_of(parameters["lesson"])  # one that does not exist needs no process
            words = ["lesson", parameters["lesson"]]
        elif self._log_folders:
            times = [_time_in(parameters, name) for name in ("since", "until")]
            words = ["logs", *times, *(f"{broker}={folder}" for broker, folder in self._log_folders.items())]
        else:
            raise UsageError("this console has no log files of brokers: start it with --cluster, on their host")
        made = asyncio.create_task(self._made(tuple(words)))
        self._tasks.add(made)  # of which none is left behind at the end
        made.add_done_callback(self._tasks.discard)
        return await made

    async def _made(self, words: tuple[str, ...]) -> str:
        async with self._making:  # one process at a time: others need the processor too
            if self._ids.get(words) in self._pages:
                return self._ids[words]
            found = self._add(await _printed(words))
            if words[0] != "logs":  # files grow
                self._ids[words] = found
        return found

    def page(self, page_id: str) -> bytes | None:
        """The page, None for one that is not kept any more."""
        return self._pages.get(page_id)

    def start_trace(self, parameters: Parameters) -> dict[str, Any]:
        """Begin a trace. parameters: "topics", separated by spaces, and "seconds". Raises UsageError."""
        if self._trace_source is None:
            raise UsageError("there is no cluster to trace")
        topics = [check_topic(topic) for topic in parameters.get("topics", "").split()]
        seconds = number_in(parameters, "seconds", 30)
        if not topics or not 1 <= seconds <= MAX_SECONDS:
            raise UsageError(f"give topics, separated by spaces, and 1 to {MAX_SECONDS} seconds")
        if any(not each.page and not each.error for each in self._traces):
            raise UsageError("another trace runs: stop it, or wait for its end")
        started = _Trace(self._traces[-1].number + 1 if self._traces else 1, topics, seconds)
        task = asyncio.create_task(self._run(started, self._trace_source))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._traces = [*self._traces, started][-MAX_TRACES:]
        return started.as_json()

    def stop_trace(self, parameters: Parameters) -> dict[str, Any]:
        """End a trace now. parameters: its "number". Raises UsageError."""
        number = number_in(parameters, "number")
        for each in self._traces:
            if each.number == number:
                each.stop.set()
                return each.as_json()
        raise UsageError(f"there is no trace {number}")

    async def _run(self, started: _Trace, source: Callable[[], Source]) -> None:
        try:
            opened = await asyncio.to_thread(source)
            recording = await trace(opened, started.topics, started.seconds, started.stop, self._log_folders)
            page = await asyncio.to_thread(render, recording)
            started.page = self._add(page.encode())
        except (KreplogError, OSError) as error:
            started.error = str(error)

    def _add(self, page: bytes) -> str:
        self._count += 1
        self._pages[str(self._count)] = page
        while len(self._pages) > MAX_PAGES:
            self._pages.popitem(last=False)
        return str(self._count)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _printed(words: Sequence[str]) -> bytes:
    """The page that `python -m kreplog.replay` prints. Raises UsageError with what it says where there is none."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kreplog.replay", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the console's alone
    )
    try:
        async with asyncio.timeout(MAKE_TIMEOUT_S):
            page, complaint = await process.communicate()
    except TimeoutError as error:
        raise KreplogError(f"the replay took more than {MAKE_TIMEOUT_S:.0f} s, and was given up") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = complaint.decode(errors="replace").strip().splitlines()
        raise UsageError(lines[-1] if lines else f"the replay's process ended with {process.returncode}")
    return page


def _time_in(parameters: Parameters, name: str) -> str:
    text = parameters.get(name, "")
    try:
        return text and datetime.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UsageError(f"{name} = {text!r}: give a time in UTC, as 2026-03-01T12:03:07") from error
