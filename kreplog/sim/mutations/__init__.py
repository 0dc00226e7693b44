"""Mutations: one rule of the cores turned wrong at a time, to test the checkers: `kreplog simulate --mutate NAME`.

Each mutation replaces a small function or method of the cores by a wrong version while `applied` lasts, and names the
known flaw that it brings back. A mutation that no seed finds is a hole in the checkers or in the faults; except for the
harmless ones, which no seed may find.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kreplog.errors import UsageError
from kreplog.sim.mutations import (
    broker_cores,
    consumer_group_decisions,
    controller,
    exhaustion,
    failure_detection,
    group_coordination,
    isr_and_watermark,
    log_start_and_settings,
    producer_id_blocks,
    requests_of_clients,
    shared_transactions,
    transaction_decisions,
    truncation,
)
from kreplog.sim.mutations.mutation import Mutation, Patch

_MODULES = (
    truncation,
    isr_and_watermark,
    log_start_and_settings,
    exhaustion,
    controller,
    failure_detection,
    broker_cores,
    shared_transactions,
    producer_id_blocks,
    requests_of_clients,
    group_coordination,
    consumer_group_decisions,
    transaction_decisions,
)
_MUTATIONS: dict[str, Mutation] = {mutation.name: mutation for module in _MODULES for mutation in module.MUTATIONS}


def names() -> list[str]:
    """All mutations, grouped by what they break."""
    return list(_MUTATIONS)


def harmless() -> list[str]:
    """Mutations that cost elections and time, and violate no guarantee."""
    return [name for name, mutation in _MUTATIONS.items() if mutation.harmless]


def describe(name: str) -> str:
    """The wrong rule in one line, with the flaw that it brings back."""
    return _MUTATIONS[name].description


def patches(name: str) -> list[Patch]:
    """The patches of a mutation: what it replaces, and by what. Raises UsageError for an unknown name."""
    if name not in _MUTATIONS:
        raise UsageError(f"unknown mutation {name!r}: `kreplog simulate --list-mutations` prints all names")
    return _MUTATIONS[name].make()


@contextmanager
def applied(name: str) -> Iterator[None]:
    """Apply a mutation, and undo it at the end. Raises UsageError for an unknown name."""
    with ExitStack() as stack:
        for owner, attribute, wrong in patches(name):
            right = owner.__dict__[attribute]
            setattr(owner, attribute, wrong)
            stack.callback(setattr, owner, attribute, right)
        yield
