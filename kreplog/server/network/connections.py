"""Connections and listeners on one event loop: frames in, lists of buffers out, nothing copied on the way.

asyncio's own transports copy what a socket does not take at once; a log's segments are sent from where they are mapped,
so a `Connection` works on the socket itself. (sendfile was tried instead: a broker that answers fetches of 1 MiB took
as much CPU for them, or up to half as much again.) What a peer sends is bounded before memory is taken for it, the
memory that all of them take is bounded together, and whatever is wrong with a peer costs its connection and nothing
else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from time import monotonic

from typing_extensions import Buffer

from kreplog.core.memory import MemoryAccount
from kreplog.errors import PeerProtocolError, StorageError
from kreplog.managed_log import close_idle_files
from kreplog.server.network.internal import socket_name
from kreplog.server.runtime.pauses import call_paced, has_socket_time
from kreplog.server.settings import Listener
from kreplog.wire.frames import SCRATCH_BYTES, FrameReader

_log = logging.getLogger("kreplog.server")

BACKLOG = 512
ACCEPTS_AT_ONCE = 8
"""Connections that a listener accepts in a row before the event loop serves others."""

READS_AT_ONCE = 8
"""Reads of one connection before others get their turn."""

ACCOUNT = "connections"

WAKE_BYTES = 1 << 20
"""What another broker sends is received when so much more of a frame is there, or all of it: waking up for every 64 KiB
costs both ends more than receiving them."""

TURN_S = 0.002
"""So long may the requests of one connection that came together be handled before others get theirs."""

_IOV_MAX = min(os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16, 1024)
_ACCEPT_PAUSE_S = 0.5
_scratch = bytearray(SCRATCH_BYTES)
"""Where all connections receive small frames: one event loop serves them in turn."""

_OWN_MEMORY = (bytes, bytearray)
"""What a buffer to be sent is a view of when it costs memory; records are views of mapped segments, which do not."""

Frame = bytes | bytearray


def is_power_of_two(count: int) -> bool:
    """Of the 1st, 2nd, 4th, 8th...: so that a flood of repeated failures does not flood the log."""
    return count & (count - 1) == 0


def own_bytes(buffers: Iterable[Buffer]) -> int:
    """Bytes of those buffers that are not views of mapped files, and so take the broker's memory."""
    views = [memoryview(buffer) for buffer in buffers]
    return sum(view.nbytes for view in views if isinstance(view.obj, _OWN_MEMORY))


class Memory:
    """The memory of all connections: incomplete requests, and answers that clients have not read yet.

    When the account is exceeded, the connections that have held memory for longest are closed: a client that sends and
    reads holds it only for moments. Connections may always hold a quarter of the limit, whatever else is charged, so
    that state which a broker must keep never closes the connections of all clients.
    """

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._holders: dict[Connection, int] = {}  # who has held some for longest comes first

    def charge(self, connection: Connection, size: int) -> None:
        """`connection` holds `size` bytes now; it may be closed for it."""
        self._account.held[ACCOUNT] += size - self._holders.get(connection, 0)
        if size:
            self._holders[connection] = size
        else:
            self._holders.pop(connection, None)
        while self._account.exceeded and self._account.held[ACCOUNT] > self._account.limit // 4:
            victim = next(iter(self._holders))
            _log.warning(
                "%s is closed: of all connections it has held memory for longest, %d bytes; connections hold %d bytes, "
                "and all holders more than queued.max.request.bytes = %d",
                victim.peer,
                self._holders[victim],
                self.held,
                self._account.limit,
            )
            victim.close()

    def release(self, connection: Connection) -> None:
        """`connection` is closed."""
        self._account.held[ACCOUNT] -= self._holders.pop(connection, 0)

    @property
    def held(self) -> int:
        """Bytes that all connections hold."""
        return self._account.held[ACCOUNT]


class Connection:
    """One connected socket, which it owns.

    on_frame: called with each whole frame, in order; PeerProtocolError from it closes the connection. on_closed: called
    once, at the end, whoever brought it about. memory: shared with others. trusting: as a FrameReader's, and a long
    frame is received in large pieces. active_at: when something last came in or went out, by the loop's clock.
    """

    def __init__(
        self,
        sock: socket.socket,
        max_frame_bytes: int,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[], None],
        memory: Memory | None = None,
        *,
        trusting: bool = False,
    ) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(max_frame_bytes, _scratch, trusting=trusting)
        self._trusting = trusting
        self._wakes_at = 1
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._out: deque[memoryview] = deque()
        self._flush_due = False
        self._writing = False
        self._reading = False
        self._paused = False
        self._held: deque[Frame] = deque()  # came with the one at which it was paused
        self._handing = False
        self._memory = memory
        self._charged = False
        self._held_bytes = 0
        self.active_at = monotonic()
        self.queued_bytes = 0
        self.on_drained: Callable[[], None] | None = None
        self.closed = False
        self._read()

    @property
    def peer(self) -> str:
        """Who is at the other end, for people."""
        try:
            name = self._sock.getpeername()
        except OSError:
            return "a closed connection"
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a local process"

    # In

    def pause(self) -> None:
        """Take no more frames until `resume`: the peer has to wait."""
        self._paused = True
        self._stop_reading()

    def resume(self) -> None:
        if self._paused and not self.closed:
            self._paused = False
            if not self._held:
                self._read()
            elif not self._handing:
                self._go_on()

    def _read(self) -> None:
        if not self._reading and not self._paused and not self.closed:
            self._reading = True
            self._loop.add_reader(self._sock, self._readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def _hand_over(self, frames: Iterable[Frame]) -> None:
        """These, after those that wait, as far as they are taken now; never within itself, whatever is answered. When
        they take long the others get their turn first."""
        held = self._held
        held.extend(frames)
        self._handing = True
        began = monotonic()
        try:
            while held and not self._paused and not self.closed:
                self._on_frame(held.popleft())
                if held and monotonic() - began > TURN_S:
                    break
        except PeerProtocolError as error:
            _log.warning("%s: %s; its connection is closed", self.peer, error)
            self.close()
        finally:
            self._handing = False
        if held and not self._paused and not self.closed:
            self._stop_reading()
            self._go_on()
        else:
            self._read()

    def _go_on(self) -> None:
        """Hand over the frames that were put off, paced with those of other connections."""
        call_paced(self._loop, partial(self._hand_over, ()))

    def _readable(self) -> None:
        if not has_socket_time(self._loop):
            return
        try:
            for _ in range(READS_AT_ONCE):
                buffer = self._frames.buffer()
                size = self._sock.recv_into(buffer)
                if size == 0:
                    self.close()
                    return
                self.active_at = monotonic()
                frames = self._frames.received(size)
                if self._trusting:
                    self._wake_at(max(1, min(self._frames.missing, WAKE_BYTES)))
                if frames:
                    self._hand_over(frames)
                if self._charged or self._frames.reserved:
                    self._charge()
                if not self._reading or size < len(buffer):
                    return
        except BlockingIOError:
            return
        except PeerProtocolError as error:
            _log.warning("%s: %s; its connection is closed", self.peer, error)
            self.close()
        except OSError:
            self.close()

    def _wake_at(self, size: int) -> None:
        """The loop is to tell of what comes in when it is `size` bytes, or when the peer closes."""
        if size != self._wakes_at:
            self._wakes_at = size
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _charge(self) -> None:
        """What a peer holds that is neither in the middle of a request nor slow is not worth counting."""
        if self._memory is not None and not self.closed:
            size = self._frames.reserved + own_bytes(self._out) + sum(map(len, self._held)) + self._held_bytes
            self._charged = size > 0
            self._memory.charge(self, size)

    def hold(self, size: int) -> None:
        """Charge the connection `size` more bytes, of requests and answers held elsewhere; negative: fewer."""
        self._held_bytes += size
        self._charge()

    # Out

    def send(self, buffers: Iterable[Buffer], *, at_once: bool = False) -> None:
        """Send these, after all before them; they must not change until they are gone. Never waits.

        at_once: what the socket takes has gone when this returns, else when the loop has its next turn."""
        if self.closed:
            return
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if len(view):
                self._out.append(view)
                self.queued_bytes += len(view)
        if at_once and not self._writing:
            self._flush()
        elif not self._flush_due and not self._writing:
            self._flush_due = True
            self._loop.call_soon(self._flush_in_turn)  # what else is sent in this turn of the loop goes with it

    def _flush_in_turn(self) -> None:
        if has_socket_time(self._loop):
            self._flush_due = False
            self._flush()
        else:
            self._loop.call_soon(self._flush_in_turn)

    def _flush(self) -> None:
        out = self._out
        try:
            while out and not self.closed:
                sent = self._sock.sendmsg([out[i] for i in range(min(len(out), _IOV_MAX))])
                self.active_at = monotonic()
                self.queued_bytes -= sent
                if not self.queued_bytes:
                    out.clear()
                    break
                while sent:
                    if sent < len(out[0]):
                        out[0] = out[0][sent:]
                        break
                    sent -= len(out.popleft())
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        if out or self._charged:
            self._charge()
        if self.closed:
            return
        if bool(out) != self._writing:
            self._writing = bool(out)
            if out:
                self._loop.add_writer(self._sock, self._flush)
            else:
                self._loop.remove_writer(self._sock)
        if self.on_drained is not None:
            self.on_drained()

    # End

    def close(self) -> None:
        """What has not been sent is dropped. Again: does nothing."""
        if self.closed:
            return
        self.closed = True
        self.pause()
        if self._writing:
            self._loop.remove_writer(self._sock)
        self._out.clear()
        self._held.clear()
        self._frames = FrameReader(0, _scratch)  # the half of a frame goes now, not with the next garbage collection
        self.queued_bytes = 0
        if self._memory is not None:
            self._memory.release(self)
        self._sock.close()
        self._on_closed()
        # Whose methods they are holds this, and is freed now, not with the next garbage collection.
        self._on_frame, self._on_closed, self.on_drained = _ignore, _nothing, None


def _ignore(frame: Frame) -> None:
    """There is nobody to take it."""


def _nothing() -> None:
    """Nobody waits for it."""


class ListeningSocket:
    """A socket that listens, from `__init__` to `close`. on_accept is given every connected socket.

    address: as given, but with the port that was found where it was 0. Raises StorageError for a unix socket whose
    place is taken, OSError for an address that is.
    """

    def __init__(self, address: Listener, on_accept: Callable[[socket.socket], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_accept = on_accept
        self._failures = 0
        if address.path:
            self._sock = _listen_at_path(Path(address.path))
            self.address = address
        else:
            family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
            self._sock = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
            self.address = Listener(address.host, self._sock.getsockname()[1])
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._acceptable)

    def _acceptable(self) -> None:
        if not has_socket_time(self._loop):
            return
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors: new connections wait in the backlog
                self._failures += 1
                if is_power_of_two(self._failures):
                    _log.error(
                        "%s cannot accept connections: %s; tried again in %g s; failures since the start: %d",
                        self.address,
                        error,
                        _ACCEPT_PAUSE_S,
                        self._failures,
                    )
                close_idle_files()
                self._loop.remove_reader(self._sock)
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again)
                return
            self._on_accept(sock)

    def _accept_again(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock, self._acceptable)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
        self._sock.close()
        if self.address.path:
            with contextlib.suppress(OSError):
                os.unlink(self.address.path)


def _listen_at_path(path: Path) -> socket.socket:
    """A unix socket for its owner only; one that a dead process left is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise StorageError(f"{path} is no socket, but something else stands there: move it away", path=str(path))
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_name(str(path)) as name:
            os.fchmod(sock.fileno(), 0o600)  # on Linux bind makes it so; nobody connects before listen, elsewhere
            sock.bind(name)
        os.chmod(path, 0o600)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
