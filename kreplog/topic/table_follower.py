"""TableFollower: the thread that keeps a table at the end of its topic."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from kreplog._native.any_wait import sleep_any
from kreplog.errors import KreplogError, LogClosedError

if TYPE_CHECKING:
    from kreplog.topic.table import Table

_logger = logging.getLogger("kreplog")


class TableFollower:
    """Ends when the table is closed or collected, its topic is closed, or reading fails; `failure`: that error."""

    def __init__(self, table: Table) -> None:
        self.failure: KreplogError | None = None
        self._table = weakref.ref(table)
        self._path = repr(table)
        self._thread = threading.Thread(target=self._run, name="kreplog-table", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, which takes no longer than the batch that it applies and 20 ms."""
        if self._thread is not threading.current_thread():  # the table may be collected by its own follower
            self._thread.join()

    def _run(self) -> None:
        while True:
            table = self._table()
            if table is None or table.closed:
                return
            try:
                waits = table._poll_and_update()
            except LogClosedError:
                return
            except KreplogError as error:
                _logger.error("%s follows no longer: %s", self._path, error)
                self.failure = error
                return
            del table
            if waits is not None:
                sleep_any(waits)
