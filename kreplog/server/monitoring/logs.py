"""Log files of a broker: server.log, state-change.log for state changes of partitions, authorizer.log for what clients
were denied, and administration.log for what administrators did; one line for each event.

A line has time (UTC), level, broker, logger and message, then the facts of the event, and error (a traceback) if there
is one; as a JSON object, or as key=value with quoted values where needed. Files rotate by size, so that a client cannot
fill the disk with them. Lines contain nothing of what clients send but names, which are quoted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from kreplog.core.messages import (
    LeaderAndIsrRequest,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.errors import ErrorCode
from kreplog.managed_log import make_directory
from kreplog.types import TopicPartition

STATE_CHANGES = "kreplog.state_change"
"""Logger of the cores' state changes, and of requests between controllers and brokers."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_BARE = re.compile(r"[\w.:/+@-]+", re.ASCII)
_changes = logging.getLogger(STATE_CHANGES)

Facts = Mapping[str, Any]
Row = tuple[PartitionState | StopReplica | TopicPartition, ErrorCode]
"""A partition's state in a control request (TopicPartition alone: it is deleted), and the error code."""

DRAIN_S = 0.02
MAX_ROWS = 250
"""Maximum of rows that are written at a time, every DRAIN_S."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a broker's log files. format: "json" or "text". level: the lowest that is written. max_bytes,
    backups: of each file."""

    format: str = "json"
    level: str = "info"
    max_bytes: int = 64 << 20
    backups: int = 4


class Lines(logging.Formatter):
    """Formats a record as a line; one with `rows` as a line for each row, all with the record's facts."""

    def __init__(self, broker_id: int, as_json: bool) -> None:
        super().__init__()
        self._broker_id = broker_id
        self._json = as_json

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "broker": self._broker_id,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        line = _as_json(facts) if self._json else _as_text(facts)
        rows: list[Row] | None = getattr(record, "rows", None)
        if not rows:
            return line
        row_of = _json_row if self._json else _text_row
        start, end = (line[:-1], "}") if self._json else (line, "")
        return "\n".join([f"{start}{row_of(row)}{end}" for row in rows])


_as_json = json.JSONEncoder(separators=(",", ":")).encode


def _as_text(facts: Facts) -> str:
    return " ".join([f"{name}={_value(value)}" for name, value in facts.items()])


def _value(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)


# Rows are formatted by hand, since there may be thousands; topic names need no quoting.


def _json_row(row: Row) -> str:
    subject, error = row
    partition = subject if isinstance(subject, TopicPartition) else subject.partition
    start = f',"partition":"{partition.topic}-{partition.partition}"'
    if error is not ErrorCode.NONE:
        start += f',"error":"{error.name}"'
    if isinstance(subject, PartitionState):
        state = subject.state
        return (
            f'{start},"leader":{state.leader},"leader_epoch":{state.leader_epoch},"isr":{list(state.isr)},'
            f'"replicas":{list(subject.replicas)},"partition_epoch":{state.partition_epoch}'
        )
    if isinstance(subject, StopReplica):
        return f'{start},"leader_epoch":{subject.leader_epoch},"delete":{"true" if subject.delete else "false"}'
    return f'{start},"deleted":true'


def _text_row(row: Row) -> str:
    subject, error = row
    partition = subject if isinstance(subject, TopicPartition) else subject.partition
    start = f" partition={partition.topic}-{partition.partition}"
    if error is not ErrorCode.NONE:
        start += f" error={error.name}"
    if isinstance(subject, PartitionState):
        state = subject.state
        return (
            f"{start} leader={state.leader} leader_epoch={state.leader_epoch} isr={state.isr} "
            f"replicas={subject.replicas} partition_epoch={state.partition_epoch}"
        ).replace(", ", ",")
    if isinstance(subject, StopReplica):
        return f"{start} leader_epoch={subject.leader_epoch} delete={subject.delete}"
    return f"{start} deleted=True"


def set_up(broker_id: int, folder: Path | None, settings: LogSettings | None = None) -> None:
    """Send log records to server.log, state-change.log, authorizer.log and administration.log in `folder`, or all of
    them to stderr.

    The last two are complete at every level, and exist once there is something in them."""
    settings = settings or LogSettings()
    root = logging.getLogger()
    formatter, level = Lines(broker_id, settings.format == "json"), _LEVELS[settings.level]
    if folder is None:
        _configure(root, logging.StreamHandler(sys.stderr), formatter, level)
    else:
        make_directory(str(folder))
        _configure(root, _File(folder / "server.log", settings), formatter, level)
        _configure(_changes, _DeferredFile(folder / "state-change.log", settings), formatter, level)
        _changes.propagate = False
        for name in ("authorizer", "administration"):
            logger = logging.getLogger(f"kreplog.{name}")
            _configure(logger, _File(folder / f"{name}.log", settings, delay=True), formatter, logging.INFO)
            logger.propagate = False
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _configure(logger: logging.Logger, handler: logging.Handler, formatter: logging.Formatter, level: int) -> None:
    handler.setFormatter(formatter)
    logger.handlers[:] = [handler]
    logger.setLevel(level)


class _File(RotatingFileHandler):
    """Rotates before the next record once it is full; records that cannot be written are dropped."""

    def __init__(self, path: Path, settings: LogSettings, *, delay: bool = False) -> None:
        """A log file that is rotated by size. delay: the file is made with the first record."""
        size, backups = settings.max_bytes, settings.backups
        super().__init__(path, maxBytes=size, backupCount=backups, encoding="utf-8", errors="replace", delay=delay)

    def shouldRollover(self, record: logging.LogRecord) -> int:
        return int(self.stream is not None and self.stream.tell() >= self.maxBytes)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignored: a full disk must not stop the broker."""


class _DeferredFile(_File):
    """Writes records later, a few at a time: a failover logs ten thousand rows while clients wait for new leaders.

    Records that are logged outside the event loop are written at once, as are the waiting ones at the end.
    """

    def __init__(self, path: Path, settings: LogSettings) -> None:
        super().__init__(path, settings)
        self._waiting: deque[logging.LogRecord] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        if loop is None:
            self._write_all()
            super().emit(record)
            return
        self._waiting.append(record)
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(DRAIN_S, self._drain)

    def _drain(self) -> None:
        room, lines = MAX_ROWS, []
        while self._waiting and room > 0:
            record = self._waiting.popleft()
            rows: list[Row] = getattr(record, "rows", None) or []
            if len(rows) > room:
                rest = copy(record)
                record.rows, rest.rows = rows[:room], rows[room:]
                self._waiting.appendleft(rest)
            room -= max(1, len(rows))
            lines.append(self.format(record))
        if lines:  # empty if another thread has written them
            with suppress(OSError):
                if self.stream is None:
                    self.stream = self._open()
                if self.shouldRollover(record):
                    self.doRollover()
                self.stream.write("\n".join([*lines, ""]))
                self.flush()
        if self._waiting and self._loop is not None:
            self._loop.call_later(DRAIN_S, self._drain)
        else:
            self._loop = None

    def _write_all(self) -> None:
        while self._waiting:
            super().emit(self._waiting.popleft())

    def close(self) -> None:
        self._write_all()
        super().close()


def log_state_change(level: str, text: str) -> None:
    """A core's StateChange."""
    number = _LEVELS[level]
    if _changes.isEnabledFor(number):
        _log_record(number, text)


def _log_record(level: int, text: str, **more: Any) -> None:
    """Log without the caller's file and line, whose lookup would cost more than the rest."""
    record = _changes.makeRecord(STATE_CHANGES, level, "", 0, text, (), None)
    record.__dict__.update(more)
    _changes.handle(record)


# Requests between controllers and brokers

Request = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest


def log_sent(request: Request, broker: int) -> None:
    """The controller of this process has sent a request to `broker`; a line for each partition."""
    _log_request("sent", request, {"to": broker}, {})


def log_applied(request: Request, error: ErrorCode, errors: Iterable[tuple[TopicPartition, ErrorCode]] = ()) -> None:
    """This broker has applied or refused a request of a controller."""
    if error is ErrorCode.NONE:
        _log_request(
            "applied", request, {}, {partition: code for partition, code in errors if code is not ErrorCode.NONE}
        )
    elif (
        error is not ErrorCode.INVALID_TOPIC_EXCEPTION
    ):  # the core has logged it, and rows may contain legal names only
        _log_request("refused", request, {"error": error.name}, {})


def _log_request(
    outcome: str, request: Request, facts: dict[str, Any], errors: Mapping[TopicPartition, ErrorCode]
) -> None:
    if not _changes.isEnabledFor(logging.INFO):
        return
    none = ErrorCode.NONE
    rows: list[Row] = [
        (partition, errors.get(partition.partition, none) if errors else none) for partition in request.partitions
    ]
    if isinstance(request, UpdateMetadataRequest):
        facts["brokers"] = [broker.id for broker in request.brokers]
        rows += [(partition, none) for partition in request.deleted]
    elif isinstance(request, LeaderAndIsrRequest) and request.is_init:
        facts["init"] = True
    name = type(request).__name__.removesuffix("Request")
    facts = {"controller": request.controller_id, "controller_epoch": request.controller_epoch, **facts}
    _log_record(logging.INFO, f"{name} {outcome}", facts=facts, rows=rows)
