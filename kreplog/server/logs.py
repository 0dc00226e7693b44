"""Where a broker's messages go: one JSON object a line, state changes of partitions apart from the rest."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

STATE_CHANGES = "kreplog.state_change"
"""The logger of the cores' state changes."""

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class JsonLines(logging.Formatter):
    """time (UTC), level, broker, logger, message, and error (a traceback) where there is one."""

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "broker": self._broker_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False)


def set_up(broker_id: int, folder: Path | None) -> None:
    """Send what is logged to server.log and state-change.log in `folder`, or all of it to stderr."""
    root, changes = logging.getLogger(), logging.getLogger(STATE_CHANGES)
    formatter = JsonLines(broker_id)
    if folder is None:
        _direct(root, logging.StreamHandler(sys.stderr), formatter)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _direct(root, logging.FileHandler(folder / "server.log"), formatter)
        _direct(changes, logging.FileHandler(folder / "state-change.log"), formatter)
        changes.propagate = False
    logging.getLogger("kazoo").setLevel(logging.WARNING)


def _direct(logger: logging.Logger, handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.setFormatter(formatter)
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)


def log_state_change(level: str, text: str) -> None:
    """A core's StateChange."""
    logging.getLogger(STATE_CHANGES).log(_LEVELS[level], "%s", text)
