"""transaction list, describe and abort, against brokers that serve."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.commands.conftest import Kreplog
from tests.integration.clusters import WITHIN_S

confluent_kafka: Any = pytest.importorskip("confluent_kafka")


def test_a_transaction_is_listed_described_and_aborted(on_trio: Kreplog, trio: LocalCluster) -> None:
    on_trio("topic", "create", "abandoned", "-p", 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": trio.bootstrap(), "transactional.id": "abandoned"})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    producer.produce("abandoned", b"x", partition=1)
    producer.flush(WITHIN_S)
    listed = json.loads(on_trio("transaction", "list", "--json").out)["transactions"]
    (found,) = [each for each in listed if each["transactional_id"] == "abandoned"]
    assert found["state"] == "Ongoing"
    assert f"abandoned  Ongoing  producer {found['producer_id']}\n" in on_trio("transaction", "list").out.decode()
    described = json.loads(on_trio("transaction", "describe", "abandoned", "--json").out)
    assert described["partitions"] == ["abandoned-1"] and described["start_ms"] > 0
    assert (described["state"], described["producer_id"]) == ("Ongoing", found["producer_id"])
    assert b": abandoned-1\n" in on_trio("transaction", "describe", "abandoned").out
    outcome = on_trio("transaction", "abort", "abandoned")
    assert outcome.code == 0, outcome.err
    assert outcome.out == f"abandoned: aborted, and producer {found['producer_id']} is fenced\n".encode()
    with pytest.raises(confluent_kafka.KafkaException) as error:
        producer.commit_transaction(WITHIN_S)
    assert error.value.args[0].fatal()
    following = confluent_kafka.Producer({"bootstrap.servers": trio.bootstrap(), "transactional.id": "abandoned"})
    following.init_transactions(WITHIN_S)
    following.begin_transaction()
    following.produce("abandoned", b"y", partition=0)
    following.flush(WITHIN_S)
    described = json.loads(on_trio("transaction", "describe", "abandoned", "--json").out)
    outcome = on_trio("transaction", "abort", "abandoned", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {
        "transactional_id": "abandoned",
        "producer_id": found["producer_id"],
        "producer_epoch": described["producer_epoch"],
        "partitions": ["abandoned-0"],
        "aborted": True,
    }
    outcome = on_trio("transaction", "abort", "abandoned")
    assert outcome.code == 2 and "it has no open transaction" in outcome.err
    for verb in ("describe", "abort"):
        outcome = on_trio("transaction", verb, "unknown")
        assert outcome.code == 2 and "unknown does not exist" in outcome.err
