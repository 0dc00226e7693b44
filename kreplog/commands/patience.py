"""Patience: how long `kreplog consume` waits for brokers, and what it says meanwhile.

As Kafka's console consumer it waits until it is interrupted. With --timeout it gives up after that, or after
MIN_PATIENCE_S, whichever is longer: brokers may be slow, and no record is late before they are found.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from kafka.errors import KafkaTimeoutError

from kreplog.client.bootstrap import SilentBrokersError
from kreplog.commands.interruption import Interruption

T = TypeVar("T")

NOTE_S = 5.0
"""Time after which the command says what it waits for; a request is tried again then."""

MIN_PATIENCE_S = 30.0


class Patience:
    """The time for which a command waits for brokers. timeout_s: of --timeout, None without."""

    def __init__(self, interruption: Interruption, timeout_s: float | None) -> None:
        self._interruption = interruption
        self._patience_s = None if timeout_s is None else max(timeout_s, MIN_PATIENCE_S)
        self._noted = ""

    @property
    def limit_ms(self) -> int | None:
        """The longest wait, None for one without an end."""
        return None if self._patience_s is None else int(self._patience_s * 1000)

    def note(self, subject: str) -> None:
        """Say what the command waits for, unless it has said so just before. "" for nothing."""
        if subject and subject != self._noted:
            print(f"waiting for {subject}", file=sys.stderr, flush=True)
        self._noted = subject

    @contextmanager
    def noting(self, subject: str) -> Iterator[None]:
        """Within the `with` block, say what the command waits for if that takes long; a signal raises
        KeyboardInterrupt."""
        timer = threading.Timer(NOTE_S, self.note, (subject,))
        timer.daemon = True
        timer.start()
        try:
            with self._interruption.raising():
                yield
        finally:
            timer.cancel()

    def retry(self, call: Callable[[int], T], subject: str) -> T:
        """The result of `call`, which is given a time-out in ms, and is called again after that. Raises
        KafkaTimeoutError or SilentBrokersError once there is no patience left, KeyboardInterrupt after a signal."""
        began_s = time.monotonic()
        while True:
            try:
                return call(int(NOTE_S * 1000))
            except (KafkaTimeoutError, SilentBrokersError) as error:
                if self._interruption.happened:
                    raise KeyboardInterrupt from error
                if self._patience_s is not None and time.monotonic() - began_s >= self._patience_s:
                    raise
                self.note(subject)
