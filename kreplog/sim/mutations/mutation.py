"""A mutation: one rule of the cores turned wrong by patches; and the group of mutations that a module defines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Patch = tuple[Any, str, Any]
"""(module or class, attribute, wrong value)."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A wrong rule, which the checkers are to find. description: the wrong rule in one line, with the flaw that it
    brings back. make: returns the patches.

    harmless: it costs elections and time, and violates no guarantee.
    """

    name: str
    description: str
    make: Callable[[], list[Patch]]
    harmless: bool


class MutationGroup:
    """The mutations of one module, in the order of their definition."""

    def __init__(self) -> None:
        self._mutations: list[Mutation] = []

    def __iter__(self) -> Iterator[Mutation]:
        return iter(self._mutations)

    def add(
        self, name: str, *, harmless: bool = False
    ) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
        """Decorates a function that returns the patches of mutation `name`; its docstring is the description."""

        def register(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
            self._mutations.append(Mutation(name, " ".join((make.__doc__ or "").split()), make, harmless))
            return make

        return register
