"""GroupWrites: records of a group that its log lacks still, and the responses that wait until it has them.

A group has one append under way at a time, of all that has changed since the last one, as one batch: a log has all of
it or nothing. The records of an append that has failed are written again with the next, since it may have been
committed nevertheless; so a response that was sent never depends on a record that a later coordinator may lack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from kreplog.core.effects import Reply, Steps
from kreplog.core.group_messages import GroupResponse, LogRecord
from kreplog.errors import ErrorCode

if TYPE_CHECKING:
    from kreplog.core.groups.group import Group
    from kreplog.core.groups.log_writer import GroupLogWriter
    from kreplog.core.groups.shard import GroupShard

Response = Callable[[ErrorCode], GroupResponse]
"""Returns the response that a request gets, for the error of the append that it waited for."""


Outcome = Callable[[ErrorCode, int], Steps[None]]
"""The step after an append: called with its error, and the time."""


class GroupWrites:
    """The unwritten records of one group, and the requests that wait for them. unwritten: by key, in order."""

    def __init__(self) -> None:
        self.unwritten: dict[Hashable, LogRecord] = {}
        self._under_way: dict[Hashable, LogRecord] = {}
        self._waiting: list[tuple[Hashable, Response]] = []
        self._is_writing = False
        self._is_abandoned = False

    @property
    def is_idle(self) -> bool:
        return not (self.unwritten or self._waiting or self._is_writing)

    @property
    def is_writing(self) -> bool:
        """Whether an append is under way."""
        return self._is_writing

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def lacking(self) -> dict[Hashable, LogRecord]:
        """The records that the next append may have, by key: those of one under way that fails, and all later ones."""
        return self._under_way | self.unwritten

    def answer(self, reply_to: Hashable, response: Response) -> None:
        """Respond to a request once the log has all that has changed until now."""
        self._waiting.append((reply_to, response))

    def flush(self, log: GroupLogWriter, shard: GroupShard, group: Group, then: Outcome) -> Steps[None]:
        """Append what is unwritten, unless an append is under way, and answer what waits. then: the step after an
        append, while this broker coordinates the group."""
        if self._is_writing:
            return
        if not self.unwritten:
            yield from self.end()
            return
        waiting, self._waiting = self._waiting, []
        records, self.unwritten = self.unwritten, {}
        self._under_way = records
        self._is_writing = True

        def written(error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
            self._is_writing = False
            self._under_way = {}
            if error is not ErrorCode.NONE:
                self._keep(records)
            group.is_stored = group.is_stored or base_offset >= 0
            for reply_to, response in waiting:
                yield Reply(reply_to, response(error))
            if not self._is_abandoned:
                yield from then(error, now_ms)

        yield from log.append(shard, group, tuple(records.values()), written)

    def _keep(self, records: dict[Hashable, LogRecord]) -> None:
        """An append has failed: its records, but for later ones of their keys, are written with the next."""
        self.unwritten = records | self.unwritten

    def drop(self) -> None:
        """Drop the unwritten records, which need not be written any more."""
        if not self._is_writing:
            self.unwritten.clear()

    def end(self) -> Steps[None]:
        """Nothing is left to be written, such as of a group that was deleted: answer what has waited for it."""
        self.drop()
        waiting, self._waiting = self._waiting, []
        for reply_to, response in waiting:
            yield Reply(reply_to, response(ErrorCode.NONE))

    def abandon(self) -> Steps[None]:
        """This broker no longer coordinates the group: the members of waiting requests have to find the new
        coordinator."""
        self._is_abandoned = True
        waiting, self._waiting = self._waiting, []
        for reply_to, response in waiting:
            yield Reply(reply_to, response(ErrorCode.NOT_COORDINATOR))
