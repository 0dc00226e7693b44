"""TlsConnection: a connection whose socket is a TlsSocket, after the handshake.

What has been decrypted and not been read is not in the system's socket, which does not become readable for it: whoever
stops reading reads on from has_input. Memory beyond that of a plain connection: OpenSSL holds a record in and a record
out, 16 KiB each, while they are incomplete; decrypted records wait for their frames in the buffers that are charged.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from kreplog.server.network.connections import Connection, ConnectionMemory, Frame
from kreplog.tls import BlockedReadError, TlsSocket

MAX_SENDS = 4
"""Calls that encrypt and send in one iteration of the event loop, each up to 256 KiB."""


class TlsConnection(Connection):
    """A Connection over TLS; its calls are the same."""

    max_sends = MAX_SENDS
    max_end_bytes = 31  # the record of a close_notify by AES-GCM; of TLS 1.3 it is shorter, and no request is

    _sock: TlsSocket
    _input_due = False
    _read_blocked = False

    def peer_closed(self) -> None:
        if not self._sock.pending():  # else a request may wait that OpenSSL has decrypted already
            super().peer_closed()

    def _read(self) -> None:
        super()._read()
        self._read_later()

    def _read_later(self) -> None:
        """Read in the next iteration what the system's socket has no event for."""
        if self._reading and not self._input_due and self._sock.has_input:
            self._input_due = True
            self._loop.call_soon(self._read_input)

    def _read_input(self) -> None:
        self._input_due = False
        if self._reading:
            self._readable()

    def _readable(self) -> None:
        try:
            super()._readable()
        except BlockedReadError:
            self._stop_reading()
            self._read_blocked = True
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock, self._flush)
        else:
            self._read_later()

    def _flush(self) -> None:
        super()._flush()
        if self._read_blocked:
            self._read_blocked = False
            self._read()

    def _set_low_watermark(self, size: int) -> None:
        """Sets none: the system's socket may have less than what is missing, the start of a record being OpenSSL's."""


def connection_over(
    sock: socket.socket,
    max_frame_bytes: int,
    on_frame: Callable[[Frame], None],
    on_closed: Callable[[], None],
    memory: ConnectionMemory | None = None,
    *,
    trusting: bool = False,
) -> Connection:
    """A Connection, or over a TlsSocket a TlsConnection."""
    kind = TlsConnection if isinstance(sock, TlsSocket) else Connection
    return kind(sock, max_frame_bytes, on_frame, on_closed, memory, trusting=trusting)
