"""The watches of one session by path, each called once."""

from __future__ import annotations

from kreplog.coord.base import Watch
from kreplog.types import WatchEvent


class Watches:
    """Watches of reads of a node (`data`) and of its children. The owner guards it against other threads.

    data, children: by path, each watch once, in the order in which they were left. The value: whether the node existed
    when it was read.
    """

    __slots__ = ("children", "data")

    def __init__(self) -> None:
        self.data: dict[str, dict[Watch, bool]] = {}
        self.children: dict[str, dict[Watch, bool]] = {}

    def on_data(self, path: str, watch: Watch, existed: bool) -> None:
        """Add a watch of get or exists."""
        self.data.setdefault(path, {})[watch] = existed

    def on_children(self, path: str, watch: Watch) -> None:
        """Add a watch of children."""
        self.children.setdefault(path, {})[watch] = True

    def take(self, event: WatchEvent) -> list[Watch]:
        """Remove and return the watches that `event` fires; a watch left by both kinds of read is returned once."""
        if event.kind == "children":
            taken = self.children.pop(event.path, None)
            return list(taken) if taken else []
        taken = self.data.pop(event.path, None)
        if event.kind == "deleted":
            more = self.children.pop(event.path, None)
            if more:
                taken = {**(taken or {}), **more}
        return list(taken) if taken else []

    def clear(self) -> None:
        """Drop all of them, uncalled."""
        self.data.clear()
        self.children.clear()

    def __bool__(self) -> bool:
        return bool(self.data or self.children)
