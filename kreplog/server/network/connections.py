"""Connections and listening sockets on one event loop: frames in, lists of buffers out, without copies.

asyncio's transports copy what a socket does not take at once, so a `Connection` works on the socket itself, and sends
records from the mapped segments. (sendfile was tried instead: fetches of 1 MiB cost as much CPU, or up to half as much
again.) The size of a frame is checked before memory is allocated for it, the memory of all connections is bounded, and
an error of a peer closes its connection and affects no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import stat
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from kreplog.core.memory import MemoryAccount
from kreplog.errors import PeerProtocolError, StorageError
from kreplog.managed_log import close_idle_files
from kreplog.server.listeners import Listener
from kreplog.server.monitoring.repeated_failures import is_power_of_two
from kreplog.server.network.connection_quotas import ConnectionRate
from kreplog.server.network.internal import socket_name
from kreplog.server.runtime.pauses import call_paced, has_socket_time
from kreplog.wire.frames import SCRATCH_BYTES, FrameReader

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger("kreplog.server")

BACKLOG = 512
MAX_ACCEPTS = 8
"""Connections that a listener accepts in a row before the event loop serves others."""

MAX_READS = 8
"""Reads of a connection in a row before the event loop serves others."""

ACCOUNT = "connections"

WAKE_BYTES = 1 << 20
"""Bytes of another broker's frame, or the rest of it, that must have arrived before it is read (SO_RCVLOWAT): a wake-up
for every 64 KiB costs both ends more than the transfer."""

THREAD_BYTES = 64 << 10
"""Bytes of a frame still to come from which on a ReceivingThread receives them; for fewer the way there and back takes
longer."""

DELIVERY_S = 0.002
"""Time for the frames of a connection in one iteration of the event loop."""

_IOV_MAX = min(os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16, 1024)
_ACCEPT_PAUSE_S = 0.5
_INT = struct.Struct("i")
_scratch = bytearray(SCRATCH_BYTES)
"""The buffer into which all connections receive small frames; only the event loop uses it."""

_OWN_MEMORY = (bytes, bytearray)
"""Types whose buffers take the broker's memory; records are views of mapped segments, which do not."""

Frame = bytes | bytearray


def peer_of(sock: socket.socket) -> str:
    """Address of the other end of a connection, for log lines."""
    try:
        name = sock.getpeername()
    except OSError:
        return "a closed connection"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a local process"


def own_bytes(buffers: Iterable[Buffer]) -> int:
    """Bytes of the buffers that take the broker's memory, being no views of mapped files."""
    views = [memoryview(buffer) for buffer in buffers]
    return sum(view.nbytes for view in views if isinstance(view.obj, _OWN_MEMORY))


class ConnectionMemory:
    """The memory of all connections: incomplete requests, and responses that clients have not read yet.

    When the account is exceeded, connections are closed: those that are not proved first, so that a flood of them ends
    no other, and then those that have held memory for longest: a client that sends and reads holds it only for moments.
    Connections may always hold a quarter of the limit, so that other charges never
    close the connections of all clients.
    """

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        # The connection that has held memory for longest first; by Connection.is_proved.
        self._holders: dict[bool, dict[Connection, int]] = {False: {}, True: {}}
        self._closed = 0

    def charge(self, connection: Connection, size: int) -> None:
        """Set the bytes that a connection holds; it may be closed for it."""
        holders = self._holders[connection.is_proved]
        self._account.held[ACCOUNT] += size - holders.get(connection, 0)
        if size:
            holders[connection] = size
        else:
            holders.pop(connection, None)
        while self._account.exceeded and self._account.held[ACCOUNT] > self._account.limit // 4:
            victim, victim_bytes = next(iter((self._holders[False] or self._holders[True]).items()))
            self._closed += 1
            if is_power_of_two(self._closed):
                _log.warning(
                    "%s is closed: it has held memory for longest of all connections%s, %d bytes; connections hold %d "
                    "bytes, and all holders more than queued.max.request.bytes = %d; closed since the start: %d",
                    victim.peer,
                    "" if victim.is_proved else " without a request or a login",
                    victim_bytes,
                    self.held,
                    self._account.limit,
                    self._closed,
                )
            victim.close()

    def release(self, connection: Connection) -> None:
        """A connection is closed."""
        self._account.held[ACCOUNT] -= self._holders[connection.is_proved].pop(connection, 0)

    def proved(self, connection: Connection) -> None:
        """A connection is proved from now on."""
        size = self._holders[False].pop(connection, 0)
        if size:
            self._holders[True][connection] = size

    @property
    def held(self) -> int:
        """Bytes that all connections hold."""
        return self._account.held[ACCOUNT]


@dataclass(frozen=True, slots=True)
class ReceivingThread:
    """The thread that receives the rest of a connection's long frames, beside the event loop. prepare: called there
    with such a frame; what it returns is delivered in its place."""

    executor: Executor
    prepare: Callable[[Frame], Any]


class Connection:
    """A connected socket, which it owns.

    on_frame: called with each whole frame, in order; a PeerProtocolError from it closes the connection. on_closed:
    called once, when either end closes it. memory: charged for its buffers. trusting: as of FrameReader, and long
    frames are received in large pieces. active_at: time of the last byte in or out, by the loop's clock. max_sends: of
    calls that send before the event loop serves others; for a plain socket, which buffers what they send, no limit.
    max_end_bytes: of the end of the stream, which are no request.
    on_invalid: called with such an error, which is logged without.
    is_proved: it is of a client, and not of somebody who only connects; of those, memory is taken away first.
    thread: receives the long ones of the frames to come, while nothing else is received or sent; None: the event loop
    does.
    """

    max_sends = sys.maxsize
    max_end_bytes = 0

    def __init__(
        self,
        sock: socket.socket,
        max_frame_bytes: int,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[], None],
        memory: ConnectionMemory | None = None,
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
        self._low_watermark = 1
        self.thread: ReceivingThread | None = None
        self._in_thread = False
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._out: deque[memoryview] = deque()
        self._flush_due = False
        self._writing = False
        self._reading = False
        self._paused = False
        self._held: deque[Frame] = deque()  # received, but not delivered while paused
        self._delivering = False
        self._memory = memory
        self._charged = False
        self._held_bytes = 0
        self.is_proved = False
        self.active_at = monotonic()
        self.queued_bytes = 0
        self.on_drained: Callable[[], None] | None = None
        self.on_invalid: Callable[[PeerProtocolError], None] | None = None
        self.closed = False
        self._read()

    @property
    def peer(self) -> str:
        """Address of the other end, for log lines."""
        return peer_of(self._sock)

    @property
    def host(self) -> str:
        """Address of the other end as Kafka shows those of clients."""
        try:
            name = self._sock.getpeername()
        except OSError:
            return ""
        return f"/{name[0]}" if isinstance(name, tuple) else "/127.0.0.1"

    def limit_frames(self, max_frame_bytes: int) -> None:
        """Set the maximum size of the frames that begin from now on."""
        self._frames.limit = max_frame_bytes

    def prove(self) -> None:
        """Set is_proved."""
        if self._memory is not None:
            self._memory.proved(self)
        self.is_proved = True

    # In

    def pause(self) -> None:
        """Deliver no more frames until `resume`, and stop reading."""
        self._paused = True
        self._stop_reading()

    @property
    def is_paused(self) -> bool:
        return self._paused

    def resume(self) -> None:
        if self._paused and not self.closed:
            self._paused = False
            if not self._held:
                self._read()
            elif not self._delivering:
                self._deliver_later()

    def fileno(self) -> int:
        return self._sock.fileno()

    def peer_closed(self) -> None:
        """The peer has closed its end while the connection is paused: close it, unless it has sent what is still to be
        handled. Of an error the next call on the socket knows."""
        try:
            (unread,) = _INT.unpack(fcntl.ioctl(self._sock.fileno(), termios.FIONREAD, bytes(_INT.size)))
            failed = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError:
            failed, unread = 1, 0
        if failed or (unread <= self.max_end_bytes and not self._held):
            self.close()

    def discard(self, is_obsolete: Callable[[Frame], bool]) -> None:
        """Drop those frames that wait to be delivered and are obsolete."""
        waiting = [frame for frame in self._held if not is_obsolete(frame)]
        self._held.clear()
        self._held.extend(waiting)
        self._charge()

    def put_back(self, frame: Frame) -> None:
        """Deliver a frame again that `on_frame` has been given, before all others, once the connection is resumed."""
        self._held.appendleft(frame)
        self.pause()

    def _read(self) -> None:
        if not (self._reading or self._paused or self._in_thread or self.closed):
            self._reading = True
            self._loop.add_reader(self._sock, self._readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def _deliver(self, frames: Iterable[Frame]) -> None:
        """Deliver frames, after those that wait, until the connection is paused or DELIVERY_S are over; the rest is
        delivered in later iterations of the event loop. Never called recursively."""
        held = self._held
        held.extend(frames)
        self._delivering = True
        began = monotonic()
        try:
            while held and not self._paused and not self.closed:
                self._on_frame(held.popleft())
                if held and monotonic() - began > DELIVERY_S:
                    break
        except PeerProtocolError as error:
            self._refuse(error)
        finally:
            self._delivering = False
        if held and not self._paused and not self.closed:
            self._stop_reading()
            self._deliver_later()
        else:
            self._read()

    def _refuse(self, error: PeerProtocolError) -> None:
        if self.on_invalid is None:
            _log.warning("%s: %s; its connection is closed", self.peer, error)
        else:
            self.on_invalid(error)
        self.close()

    def _deliver_later(self) -> None:
        """Deliver the waiting frames in a later iteration, paced with those of other connections."""
        call_paced(self._loop, partial(self._deliver, ()))

    def _readable(self) -> None:
        if not has_socket_time(self._loop):
            return
        try:
            for _ in range(MAX_READS):
                buffer = self._frames.buffer()
                size = self._sock.recv_into(buffer)
                if size == 0:
                    self.close()
                    return
                self.active_at = monotonic()
                frames = self._frames.received(size)
                if self.thread is not None and self._frames.missing >= THREAD_BYTES:
                    self._receive_in(self.thread)
                elif self._trusting:
                    self._set_low_watermark(max(1, min(self._frames.missing, WAKE_BYTES)))
                if frames:
                    self._deliver(frames)
                if self._charged or self._frames.reserved:
                    self._charge()
                if not self._reading or size < len(buffer):
                    return
        except BlockingIOError:
            return
        except PeerProtocolError as error:
            self._refuse(error)
        except OSError:
            self.close()

    def _set_low_watermark(self, size: int) -> None:
        """Have the socket become readable at `size` bytes, or at the end of the stream."""
        if size != self._low_watermark:
            self._low_watermark = size
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _receive_in(self, thread: ReceivingThread) -> None:
        """Have a thread receive the rest of a frame."""
        self._stop_reading()
        self._in_thread = True
        self._sock.setblocking(True)
        thread.executor.submit(self._receive_rest, self._frames, thread.prepare)

    def _receive_rest(self, reader: FrameReader, prepare: Callable[[Frame], Any]) -> None:
        """In the thread: receive the rest of a frame with the GIL released, and prepare it."""
        frames: list[Any] = []
        with contextlib.suppress(OSError):
            while not frames:
                size = self._sock.recv_into(reader.buffer(), 0, socket.MSG_WAITALL)
                if not size:
                    break
                frames = [prepare(frame) for frame in reader.received(size)]
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._received_rest, frames)

    def _received_rest(self, frames: list[Any]) -> None:
        """The thread is done; no frame where the stream has ended."""
        self._in_thread = False
        self._sock.setblocking(False)
        if self.closed:
            self._sock.close()
        elif frames:
            self.active_at = monotonic()
            self._deliver(frames)
        else:
            self.close()

    def _charge(self) -> None:
        """Update the memory account; called only while there is an incomplete frame or an unsent response."""
        if self._memory is not None and not self.closed:
            size = self._frames.reserved + own_bytes(self._out) + sum(map(len, self._held)) + self._held_bytes
            self._charged = size > 0
            self._memory.charge(self, size)

    def hold(self, size: int) -> None:
        """Charge `size` more bytes, of requests and responses that others hold for this connection; negative: fewer."""
        self._held_bytes += size
        self._charge()

    # Out

    def send(self, buffers: Iterable[Buffer], *, at_once: bool = False) -> None:
        """Queue buffers, which must not change until they are sent. Never waits.

        at_once: write to the socket before this returns, unless received frames wait for delivery, whose responses may
        go together; else in the next iteration of the event loop."""
        if self.closed:
            return
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if len(view):
                self._out.append(view)
                self.queued_bytes += len(view)
        if at_once and self._out and not self._held and not self._writing:
            self._flush()
        elif not self._flush_due and not self._writing:
            self._flush_due = True
            self._loop.call_soon(self._flush_in_iteration)  # with what else is sent in this iteration

    def _flush_in_iteration(self) -> None:
        if has_socket_time(self._loop):
            self._flush_due = False
            self._flush()
        else:
            self._loop.call_soon(self._flush_in_iteration)

    def _flush(self) -> None:
        out = self._out
        try:
            for _ in range(self.max_sends):
                if not out or self.closed:
                    break
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
        """Close the socket, and drop what is not sent. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.pause()
        if self._writing:
            self._loop.remove_writer(self._sock)
        self._out.clear()
        self._held.clear()
        self._frames = FrameReader(0, _scratch)  # frees an incomplete frame now, not at the next garbage collection
        self.queued_bytes = 0
        if self._memory is not None:
            self._memory.release(self)
        if self._in_thread:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # ends the call of the thread
        else:
            self._sock.close()
        self._on_closed()
        # Breaks the reference cycle with the owner of these methods, which is freed now.
        self._on_frame, self._on_closed, self.on_drained, self.on_invalid = _ignore, _nothing, None, None


def _ignore(frame: Frame) -> None:
    """The connection is closed."""


def _nothing() -> None:
    """The connection is closed."""


class ListeningSocket:
    """A listening socket, open until `close`. on_accept: called with every accepted socket. rates: limit how many are
    accepted; others wait in the backlog.

    address: with the actual port if that was 0. Raises StorageError if the path of a unix socket is taken, OSError if
    an address is.
    """

    def __init__(
        self, address: Listener, on_accept: Callable[[socket.socket], None], rates: Sequence[ConnectionRate] = ()
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_accept = on_accept
        self._rates = () if address.path else rates
        self._failures = 0
        if address.path:
            self._sock = _listen_at_path(Path(address.path))
            self.address = address
        else:
            family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
            self._sock = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
            self.address = replace(address, port=self._sock.getsockname()[1])
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._acceptable)

    def _acceptable(self) -> None:
        if not has_socket_time(self._loop):
            return
        for _ in range(MAX_ACCEPTS):
            delay_s = max((rate.delay_s() for rate in self._rates), default=0.0)
            if delay_s > 0:
                self._pause(delay_s)
                return
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: new connections wait in the backlog
                self._failures += 1
                if is_power_of_two(self._failures):
                    _log.error(
                        "%s cannot accept connections: %s; next attempt in %g s; failures since the start: %d",
                        self.address,
                        error,
                        _ACCEPT_PAUSE_S,
                        self._failures,
                    )
                close_idle_files()
                self._pause(_ACCEPT_PAUSE_S)
                return
            for rate in self._rates:
                rate.accepted()
            self._on_accept(sock)

    def _pause(self, delay_s: float) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.call_later(delay_s, self._accept_again)

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
    """A listening unix socket for its owner only; replaces one that a dead process left."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise StorageError(f"{path} exists and is not a socket: move it away", path=str(path))
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_name(str(path)) as name:
            os.fchmod(sock.fileno(), 0o600)  # Linux: bind takes this mode; elsewhere no process connects before listen
            sock.bind(name)
        os.chmod(path, 0o600)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
