"""A session in a process of its own, which executes commands: lines of Python literals in, results as such lines out.

As a script: puppet.py STORE TIMEOUT_MS, where STORE is "embedded:DIRECTORY" or "zookeeper:HOSTS/ROOT". It answers each
line (method, arguments, keywords) with ("ok", result) or ("error", class name, message).
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from kreplog.coord.base import CoordinationStore, Session
from kreplog.coord.embedded import EmbeddedStore
from kreplog.errors import BadVersionError, CoordinationError, NoNodeError
from kreplog.types import Check, Node, NodeStat, SetData

ROOT = Path(__file__).parents[2]


def open_store(address: str) -> CoordinationStore:
    kind, _, where = address.partition(":")
    if kind == "embedded":
        return EmbeddedStore(where)
    from kreplog.coord.zookeeper import ZooKeeperStore

    return ZooKeeperStore(where)


class Refused(Exception):
    """What the puppet's session raised: the name of its class, then its message."""


class Puppet:
    """The other process, as the test sees it."""

    def __init__(self, address: str, timeout_ms: int = 10_000) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.coord.puppet", address, str(timeout_ms)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ready = False

    def send(self, method: str, *arguments: object, **keywords: object) -> None:
        """Send a method call to the other process without waiting for it; `answer` returns its result."""
        if not self._ready:
            self._ready = True
            self.id = self.answer()
        assert self.process.stdin is not None
        print(repr((method, arguments, keywords)), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the puppet has died"
        answer = ast.literal_eval(line)
        if answer[0] != "ok":
            raise Refused(*answer[1:])
        return answer[1]

    def __call__(self, method: str, *arguments: object, **keywords: object) -> Any:
        self.send(method, *arguments, **keywords)
        return self.answer()

    def stop(self, signal: int) -> None:
        os.kill(self.process.pid, signal)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()


class Acts:
    """What a puppet can do besides its session's own methods."""

    def __init__(self, session: Session, ended: list[str]) -> None:
        self.session, self.ended = session, ended

    def expired(self) -> tuple[bool, int]:
        """What the session says, and how often on_expired was called."""
        return self.session.expired, len(self.ended)

    def add(self, path: str, times: int) -> int:
        """Add 1 to the number in `path`, `times` over; how many writes were refused meanwhile."""
        refused = done = 0
        while done < times:
            node = self.session.get(path)
            try:
                self.session.set_data(path, b"%d" % (int(node.data) + 1), node.stat.version)
                done += 1
            except BadVersionError:
                refused += 1
        return refused

    def once(self, path: str, version: int) -> bool:
        """One conditional write."""
        try:
            self.session.set_data(path, b"won", version)
        except BadVersionError:
            return False
        return True

    def count(self, path: str, last: int) -> None:
        """Write 1, 2, ..., last into `path`."""
        for number in range(1, last + 1):
            self.session.set_data(path, b"%d" % number)

    def grow(self, path: str, times: int) -> None:
        """Create children."""
        for _ in range(times):
            self.session.create(f"{path}/n-", sequential=True)

    def together(self, paths: list[str]) -> None:
        """Write the same number into all `paths` in one multi after the other, for ever."""
        number = 0
        print(repr(("ok", "writing")), flush=True)
        while True:
            number += 1
            self.session.multi([SetData(path, b"%d" % number) for path in paths])

    def fenced(self, guard: str, version: int, path: str) -> bool:
        """A write that holds only while `guard` is at `version`, as a controller's."""
        self.session.multi([Check(guard, version), SetData(path, b"fenced")])
        return True


def plain(value: object) -> object:
    """What can be read back as a literal."""
    if isinstance(value, Node):
        return value.data, value.stat.version
    return value.version if isinstance(value, NodeStat) else value


def main(address: str, timeout_ms: str) -> None:
    ended: list[str] = []
    session = open_store(address).connect(int(timeout_ms), lambda: ended.append("expired"))
    acts = Acts(session, ended)
    print(repr(("ok", session.id)), flush=True)
    for line in sys.stdin:
        method, arguments, keywords = ast.literal_eval(line)
        try:
            done = getattr(acts if hasattr(Acts, method) else session, method)(*arguments, **keywords)
            print(repr(("ok", plain(done))), flush=True)
        except (CoordinationError, NoNodeError) as error:
            print(repr(("error", type(error).__name__, str(error))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
