"""No mix of requests of a thousand clients holds up a broker: the longest pause of its event loop, in units of work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kreplog.wire.versions import ApiKey
from tests.hostile.floods import Flood, array, int32, new_topic
from tests.hostile.thousand_clients import CLIENTS, PARTITIONS, ROUNDS, TOPIC
from tests.hostile.victim import PATIENCE_S, UNITS, WRITTEN_FOR_S, Victim, unit_s

ATTEMPTS = 12


def test_any_mix_of_a_thousand_clients(tmp_path: Path) -> None:
    """Other processes can only lengthen a pause, so the shortest of several attempts counts."""
    victim = Victim(tmp_path, **{"max.partitions": 100})
    try:
        body = array([new_topic(TOPIC, PARTITIONS)]) + int32(60_000) + b"\0"
        assert victim.request(Flood("create", ApiKey.CREATE_TOPICS, 2, body).frame())
        units: list[float] = []
        while not units or min(units) > UNITS:
            assert len(units) < ATTEMPTS, f"pauses of {units} units of work: {UNITS} are allowed"
            units.append(units_of_pause(victim, seed=len(units)))
    finally:
        victim.close()


def units_of_pause(victim: Victim, seed: int) -> float:
    """The longest while the clients of `seed` are served.

    The loop's budgets are in seconds, so a unit counts as no less than the time that UNITS is written for."""
    host, port = victim.broker.address
    command = [sys.executable, "-m", "tests.hostile.thousand_clients", host, str(port), str(seed)]
    printed: list[str] = []
    pause_s = victim.longest_pause_s(
        lambda: printed.append(
            subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=PATIENCE_S, text=True).stdout
        )
    )
    sent, answered = map(int, printed[0].split())
    assert sent > CLIENTS * ROUNDS and answered > sent * 0.7
    return pause_s / max(unit_s(), WRITTEN_FOR_S)
