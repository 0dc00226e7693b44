"""Children of a driver: run a function in a fork and hear its result, or read its reports until it is killed."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import select
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.faults import shim

T = TypeVar("T")

_ACK = struct.Struct(">qq")


def result_of(body: Callable[[], T]) -> T:
    """`body()` in a forked child that ends without any clean-up; raises AssertionError if it fails or dies."""
    status, answer = _run(lambda: pickle.dumps(body()))
    assert status == 0, f"the child ended with {status}"
    result: T = pickle.loads(answer)
    return result


def shares(body: Callable[[int, int], T]) -> list[T]:
    """`body(share, count)` for each share of `count`, in a child for each core, all at once; the results in order."""
    count = os.cpu_count() or 1

    def report(share: int, pipe: int) -> None:
        _write_all(pipe, pickle.dumps(body(share, count)))

    started = [start(partial(report, share)) for share in range(count)]
    ended = [finish(*child) for child in started]
    assert all(status == 0 for status, _ in ended), f"the children ended with {[status for status, _ in ended]}"
    return [pickle.loads(answer) for _, answer in ended]


def ends_by(body: Callable[[], Any]) -> tuple[int, bytes]:
    """Run `body` in a child; return its wait status as a code (negative: the signal) and the bytes it wrote."""
    return _run(lambda: _as_bytes(body()))


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def _run(body: Callable[[], bytes]) -> tuple[int, bytes]:
    return finish(*start(lambda pipe: _write_all(pipe, body())))


def finish(pid: int, reader: int) -> tuple[int, bytes]:
    """Wait for a child; return its exit code (negative: the signal) and all it wrote."""
    chunks = []
    while chunk := os.read(reader, 1 << 16):
        chunks.append(chunk)
    os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), b"".join(chunks)


def start(body: Callable[[int], None]) -> tuple[int, int]:
    """Fork a child that runs `body(pipe)` and ends; return its pid and the reading end of the pipe."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            body(writer)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    return pid, reader


class KilledChildren:
    """Children that a test kills, but for those that kill themselves. failed: how others have ended, as a code."""

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}
        self.failed: list[int] = []

    def start(self, body: Callable[[int], None]) -> None:
        pid, pipe = start(body)
        self._pipes[pid] = pipe

    def kill_one(self, drawn: random.Random) -> None:
        self._kill(drawn.choice(sorted(self._pipes)))

    def kill_all(self) -> None:
        for pid in list(self._pipes):
            self._kill(pid)

    def ended(self) -> int:
        """How many have ended since the last call without being killed by the test."""
        before = len(self._pipes)
        for pid in list(self._pipes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._forget(pid, status)
        return before - len(self._pipes)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self._forget(pid, os.waitpid(pid, 0)[1])

    def _forget(self, pid: int, status: int) -> None:
        os.close(self._pipes.pop(pid))
        code = os.waitstatus_to_exitcode(status)
        if code != -signal.SIGKILL:
            self.failed.append(code)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def acknowledge(pipe: int, first: int, stop: int) -> None:
    """Report to the parent that the records [first, stop) were acknowledged."""
    os.write(pipe, _ACK.pack(first, stop))


def broken_off_at_each_call(
    directory: Path,
    mode: str,
    topic: str,
    prepare: Callable[[Path], object],
    play: Callable[[Path, str, int, int], None],
    check: Callable[[Path, list[tuple[int, int]]], None],
    stride: int = 1,
) -> None:
    """Break `play(path, mode, n, pipe)` off at its n-th file call, n = 1, 1 + stride, ..., until it has fewer; after
    each, run `check(path, acknowledged)`. Each n has a path of its own, made ready by `prepare`. Prints how many there
    were.

    Raises AssertionError, with n."""
    broken_off = 0
    for nth in itertools.count(1, stride):
        path = directory / f"{mode}-{nth}" / topic
        prepare(path)
        code, received = finish(*start(partial(play, path, mode, nth)))
        try:
            assert code in (0, shim.REFUSED, shim.UNHARMED, -signal.SIGKILL), f"the child ended with {code}"
            check(path, acknowledged(received))
        except AssertionError as error:
            error.add_note(f"broken off at file call {nth}")
            raise
        shutil.rmtree(path.parent)
        if code == shim.UNHARMED:
            print(f"calls={nth} broken_off={broken_off}")
            return
        broken_off += code != 0


def kill_after(pid: int, reader: int, delay_s: float) -> tuple[int, list[tuple[int, int]]]:
    """Take acknowledgements for `delay_s`, kill the child, take the rest.

    Returns its exit code (-9 if the kill came before its end) and the acknowledged ranges, in order.
    """
    received = bytearray()
    end = time.monotonic() + delay_s
    open_end = True
    while open_end and (left := end - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            chunk = os.read(reader, 1 << 16)
            received += chunk
            open_end = bool(chunk)
    os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    while open_end and (chunk := os.read(reader, 1 << 16)):
        received += chunk
    os.close(reader)
    return code, acknowledged(received)


def acknowledged(received: bytes | bytearray) -> list[tuple[int, int]]:
    whole = len(received) - len(received) % _ACK.size
    return [(int(first), int(stop)) for first, stop in _ACK.iter_unpack(received[:whole])]
