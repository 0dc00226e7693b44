"""The promises of groups, checked from what members observe; those about offsets also where the coordinator assigns:

lost offset       a reader gets an offset although a later commit was acknowledged before it read, and not from a broker
                  that does not know yet that it has been replaced as the coordinator
refused commit    a reader gets an offset whose commit was refused
stale commit      a commit is acknowledged in a generation after which another was assigned before it was sent
two owners        two members of a generation have the same partition

A group that is empty and has no offsets is removed, as in Kafka: one of its name begins with generation 1 again. The
member id of an assignment or of a commit shows which of these groups it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kreplog.errors import ErrorCode
from kreplog.sim.clients.member_offsets import REFUSED
from kreplog.sim.history import Event, GroupAssigned, OffsetCommitInvoked, OffsetCommitted, OffsetFetched
from kreplog.types import TopicPartition

_REFUSED = {error.name for error in REFUSED}
_NEVER = 1 << 62
_NO_GENERATION = (-1, -1)

Violate = Callable[[str, str, Event], None]
"""Called with the kind of a violation, its text, and the event that shows it."""


@dataclass(slots=True)
class _Commit:
    """A commit of an offset that a member has tried. generation: behind the count of the groups that were removed
    before. fenced: another process had taken over from its static member. invoked, acknowledged: places in the
    history."""

    number: int
    generation: tuple[int, int]
    fenced: bool
    invoked: int
    acknowledged: int = _NEVER
    refused: bool = False


class GroupChecker:
    """Observes the members of one group of a run. leader_of: the leader of a partition in the store."""

    def __init__(self, violate: Violate, leader_of: Callable[[TopicPartition], int]) -> None:
        self._violate = violate
        self._leader_of = leader_of
        self._commits: dict[str, _Commit] = {}
        self._last_acknowledged: dict[int, list[_Commit]] = {}
        self._removed = 0
        self._removed_before: dict[str, int] = {}
        self._owners: dict[tuple[int, int, int], str] = {}
        self._processes: dict[str, list[str]] = {}
        self._generations: list[tuple[tuple[int, int], int]] = []
        self.counts = {"offsets": 0, "generations": 0}

    def observe(self, event: Event, place: int) -> None:
        """An event, and its place in the history."""
        match event:
            case GroupAssigned():
                self._assigned(event, place)
            case OffsetCommitInvoked():
                self._commits[event.text] = self._invoked(event, place)
            case OffsetCommitted():
                self._committed(event, place)
            case OffsetFetched():
                self._fetched(event)
            case _:
                pass

    def _assigned(self, event: GroupAssigned, place: int) -> None:
        reached = self._reached_before(event)
        static = event.owner != event.member_id
        if (self._removed, event.generation + static) <= reached:
            self._removed += 1
        elif static and (self._removed, event.generation) == reached:
            # Either it returned, which begins no generation, or the group was removed and it began the next.
            self._owners = {key: owner for key, owner in self._owners.items() if key[:2] != reached}
        removed = self._removed_before.setdefault(event.member_id, self._removed)
        if all((removed, event.generation) > generation for generation, _ in self._generations):
            self._generations.append(((removed, event.generation), place))
            self.counts["generations"] += 1
        processes = self._processes.setdefault(event.owner, [])
        if event.member_id not in processes:
            processes.append(event.member_id)
        for number in event.numbers:
            owner = self._owners.setdefault((removed, event.generation, number), event.owner)
            if owner != event.owner:
                text = f"{owner} and {event.owner} both have partition {number} in generation {event.generation}"
                self._violate("two owners", text, event)

    def _reached_before(self, event: GroupAssigned) -> tuple[int, int]:
        """The generation that was over before a new member began to join, if the group may have been removed since:
        without that, the member gets a later one."""
        if self._last_acknowledged or event.member_id in self._removed_before:
            return _NO_GENERATION
        return max(
            (generation for generation, place in self._generations if place < event.since), default=_NO_GENERATION
        )

    def _invoked(self, event: OffsetCommitInvoked, place: int) -> _Commit:
        latest = self._processes.get(event.owner, [event.member_id])
        fenced = event.member_id in latest[:-1]
        removed = self._removed_before.get(event.member_id, self._removed)
        return _Commit(event.number, (removed, event.generation), fenced, place)

    def _committed(self, event: OffsetCommitted, place: int) -> None:
        commit = self._commits[event.text]
        if event.error != ErrorCode.NONE.name:
            commit.refused = event.error in _REFUSED
            return
        commit.acknowledged = place
        self.counts["offsets"] += 1
        self._last_acknowledged.setdefault(commit.number, []).append(commit)
        if commit.fenced:
            text = f"{event.client} got {event.text} acknowledged, after another process had taken over from it"
            self._violate("stale commit", text, event)
        for generation, assigned in self._generations:
            if generation > commit.generation and assigned < commit.invoked:
                text = (
                    f"{event.client} got {event.text} acknowledged in generation {commit.generation[1]}, after "
                    f"generation {generation[1]} was assigned"
                )
                self._violate("stale commit", text, event)
                return

    def _fetched(self, event: OffsetFetched) -> None:
        found = self._commits.get(event.text)
        if event.text and (found is None or found.refused):
            self._violate("refused commit", f"{event.client} reads {event.text}, which was refused", event)
            return
        if event.broker != self._leader_of(event.partition):
            return
        ended = -1 if found is None else found.acknowledged
        for later in self._last_acknowledged.get(event.number, ()):
            if later.invoked > ended and later.acknowledged < event.since:
                shown = event.text or "no offset"
                newer = next(text for text, commit in self._commits.items() if commit is later)
                self._violate("lost offset", f"{event.client} reads {shown}, but {newer} was acknowledged", event)
                return
