"""transaction list, describe and abort, against brokers that serve."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.transaction_admin import TransactionDescription
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands import producer_transactions
from kreplog.types import TopicPartition
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


def test_an_open_transaction_has_its_time_and_age() -> None:
    found = TransactionDescription("t", "Ongoing", 60_000, 1_700_000_000_000, 7, 2, (TopicPartition("a", 1),))
    *_, line = producer_transactions.description(found, 1_700_000_000_000 + 3_723_999)
    assert line == "open since 2023-11-14T22:13:20.000Z, for 1:02:03: a-1"
    *_, line = producer_transactions.description(found, 0)
    assert line == "open since 2023-11-14T22:13:20.000Z, for 0:00:00: a-1", "the clock here is behind"


def test_a_cluster_without_transactions_is_said_to_have_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(producer_transactions, "cluster_connections", lambda *_: nullcontext())
    monkeypatch.setattr(producer_transactions, "list_transactions", lambda *_: [])
    for as_json, expected in ((False, "there is no transactional id\n"), (True, '{"transactions":[]}\n')):
        producer_transactions.list_all(as_json=as_json)
        assert capsys.readouterr().out == expected
