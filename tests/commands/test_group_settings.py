"""group alter-configs and group describe-configs, against brokers that serve."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from tests.commands.conftest import Kreplog
from tests.integration.clusters import eventually

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_configs_of_a_group_are_set_shown_and_deleted(on_trio: Kreplog) -> None:
    def until_described(expected: dict[str, str]) -> None:
        """Another broker may respond than that which the configs were altered through."""
        shown: list[object] = []

        def matches() -> bool:
            shown.append(json.loads(on_trio("group", "describe-configs", "set\n", "--json").out)["configs"])
            return shown[-1] == expected

        eventually(matches, lambda: f"group describe-configs shows {shown[-1]}")

    done = on_trio("group", "alter-configs", "set\n", "--config", f"{SESSION}=60000", "--config", f"{HEARTBEAT}=15000")
    assert (done.code, done.out.decode()) == (0, f"set\\n: {SESSION} = 60000, {HEARTBEAT} = 15000\n")
    until_described({SESSION: "60000", HEARTBEAT: "15000"})
    assert on_trio("group", "describe-configs", "other").out == b""
    refused = on_trio("group", "alter-configs", "set\n", "--config", f"{SESSION}=60001")
    assert refused.code == 1 and "must be within group.consumer.min.session.timeout.ms = 45000" in refused.err
    done = on_trio("group", "alter-configs", "set\n", "--delete-config", HEARTBEAT, "--json")
    assert json.loads(done.out) == {"group": "set\n", "configs": {HEARTBEAT: None}}
    until_described({SESSION: "60000"})
    assert on_trio("group", "describe-configs", "set\n").out.decode() == f"{SESSION} = 60000\n"
    on_trio("group", "alter-configs", "set\n", "--delete-config", SESSION)
    until_described({})


def test_what_is_wrong_is_said(on_trio: Kreplog) -> None:
    assert "nothing to alter" in on_trio("group", "alter-configs", "readers").err
    twice = ("--config", f"{SESSION}=60000", "--delete-config", SESSION)
    assert "give each setting once" in on_trio("group", "alter-configs", "readers", *twice).err
