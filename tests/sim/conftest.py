"""The sound history that the tests of checkers break."""

from __future__ import annotations

import pytest

from kreplog.sim.history import (
    Position,
)
from tests.sim.checked_world import ID, TP, World


@pytest.fixture
def world() -> World:
    """Two records, on every replica, committed, acknowledged and read."""
    made = World()
    made.append(0, 0)
    made.append(1, 1)
    made.commit(2)
    made.ok(0, 0)
    made.ok(1, 1)
    made.history.add(Position(0, TP, ID, "consumer", 0, "earliest"))
    made.read(0, 0)
    made.read(1, 1)
    made.got_watermark(2)
    return made
