"""Configs of an unreadable node are kept by a controller that has read them, and by no other."""

from __future__ import annotations

import pytest

from kreplog.core.messages import NO_CONFIGS, BrokerConfigs, Configs
from kreplog.sim.checks.config_checker import UnreadableConfigs

READ: Configs = (("log.retention.ms", "1000"),)
OTHER: Configs = (("log.retention.ms", "2000"),)
OWN, DEFAULT = BrokerConfigs(own=READ), BrokerConfigs(default=READ)


class World:
    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.unreadable = UnreadableConfigs(lambda kind, text: self.kinds.append(kind))


@pytest.mark.parametrize(("subject", "before"), [(1, OWN), (None, DEFAULT)])
def test_configs_are_forgotten_by_a_controller_that_had_read_them(subject: int | None, before: BrokerConfigs) -> None:
    world = World()
    world.unreadable.taken(1, 4, NO_CONFIGS, before)
    world.unreadable.spoilt(subject, READ, 4)
    world.unreadable.taken(1, 4, before, NO_CONFIGS)
    assert world.kinds == ["configs forgotten"]


def test_others_may_change_and_a_new_controller_cannot_know_them() -> None:
    world = World()
    for broker in (1, 2):
        world.unreadable.taken(broker, 4, NO_CONFIGS, OWN)
    world.unreadable.spoilt(1, READ, 4)
    world.unreadable.taken(1, 5, OWN, NO_CONFIGS)
    world.unreadable.taken(2, 4, OWN, NO_CONFIGS)
    world.unreadable.taken(1, 4, BrokerConfigs(OTHER), NO_CONFIGS)  # sent before
    world.unreadable.taken(1, 4, OWN, BrokerConfigs(READ, OTHER))
    assert 1 in world.unreadable
    world.unreadable.repaired(1)
    world.unreadable.taken(1, 4, OWN, NO_CONFIGS)
    assert world.kinds == []


def test_a_request_of_a_new_controller_comes_after_it_has_read_the_repaired_node() -> None:
    world = World()
    world.unreadable.taken(1, 4, NO_CONFIGS, OWN)
    world.unreadable.spoilt(1, READ, 5)
    world.unreadable.taken(1, 5, OWN, NO_CONFIGS)
    assert world.kinds == []
