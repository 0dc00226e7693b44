"""broker alter and broker describe, against brokers that serve."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.commands.conftest import Kreplog
from tests.integration.clusters import eventually


def test_settings_of_one_broker_and_of_all(trio: LocalCluster, on_trio: Kreplog) -> None:
    first, second = sorted(trio.brokers)[:2]

    def until_described(expected: Any, *arguments: str | int) -> None:
        """A broker may respond before it has applied what was altered through another."""
        shown: list[Any] = []

        def matches() -> bool:
            shown.append(json.loads(on_trio("broker", "describe", *arguments, "--json").out)["configs"])
            return bool(shown[-1] == expected)

        eventually(matches, lambda: f"broker describe {arguments} shows {shown[-1]}")

    done = on_trio("broker", "alter", "--default", "--config", "log.retention.ms=1000", "--config", "log.roll.ms=5000")
    assert (done.code, done.out) == (0, b"all brokers: log.retention.ms = 1000, log.roll.ms = 5000\n")
    done = on_trio("broker", "alter", "--id", second, "--config", "log.retention.ms=2000")
    assert done.out.decode() == f"broker {second}: log.retention.ms = 2000\n"
    until_described({"log.retention.ms": "2000"}, "--id", second)
    assert on_trio("broker", "describe", "--id", second).out == b"log.retention.ms = 2000\n"
    assert on_trio("broker", "describe", "--id", first).out == b""
    until_described({"log.retention.ms": "1000", "log.roll.ms": "5000"}, "--default")
    assert json.loads(on_trio("broker", "describe", "--default", "--json").out)["broker"] is None
    refused = on_trio("broker", "alter", "--id", second, "--config", "log.dirs=/elsewhere")
    assert refused.code == 1 and "log.dirs cannot be changed while a broker runs" in refused.err
    on_trio("broker", "alter", "--id", second, "--delete-config", "log.retention.ms")
    on_trio("broker", "alter", "--default", "--delete-config", "log.retention.ms", "--delete-config", "log.roll.ms")
    until_described({}, "--default")
    until_described({}, "--id", second)


def test_what_is_wrong_is_said(on_trio: Kreplog) -> None:
    assert "nothing to alter" in on_trio("broker", "alter", "--default").err
    change = ("--config", "log.roll.ms=1")
    for arguments in (("alter", *change), ("alter", "--id", 1, "--default", *change), ("describe",)):
        assert "give either --id, for one broker, or --default" in on_trio("broker", *arguments).err
    twice = ("--config", "log.roll.ms=1", "--delete-config", "log.roll.ms")
    assert "give each setting once" in on_trio("broker", "alter", "--default", *twice).err
    assert "broker 77 does not respond, live are" in on_trio("broker", "describe", "--id", 77).err
