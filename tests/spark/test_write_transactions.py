"""df.write and df.writeStream to brokers by transactions: each batch of a stream once, a job whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kreplog import Log
from kreplog.client.bulk_connection import SUPPORTED
from kreplog.client.consumer import Consumer
from kreplog.client.transactional_producer import TransactionalProducer, _refused
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import KreplogError, ProducerFencedError, UsageError
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from pyspark_kreplog.sink import Job
from pyspark_kreplog.sink_options import BrokerSinkOptions, parse_sink
from pyspark_kreplog.transactional_sink import TransactionalSink
from tests.client.brokers import make_topic
from tests.integration.clusters import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def sink(cluster: LocalCluster, transactional_id: str, **options: str) -> TransactionalSink:
    given = {"kafka.bootstrap.servers": cluster.bootstrap(), "kafka.transactional.id": transactional_id, **options}
    parsed = parse_sink(given)
    assert isinstance(parsed, BrokerSinkOptions)
    return TransactionalSink(parsed)


def values(cluster: LocalCluster, topic: str, level: str = "read_committed") -> list[bytes]:
    with Consumer(cluster.bootstrap(), columns=["value"], isolation_level=level) as consumer:
        partitions = list(consumer.partitions(topic))
        ends = consumer.end_offsets(partitions)
        pieces = consumer.read_arrow({at: (0, ends[at]) for at in partitions})
        return sorted(value for piece in pieces for value in piece.to_arrow()["value"].to_pylist())


def seen(cluster: LocalCluster, topic: str, wanted: list[bytes]) -> None:
    """The markers of a transaction that is committed may still be on their way."""
    eventually(lambda: values(cluster, topic) == wanted, lambda: f"{values(cluster, topic)}, not {wanted}")


def rows(*names: str) -> pa.RecordBatch:
    return pa.record_batch({"value": [name.encode() for name in names]})


def test_a_replayed_batch_is_acknowledged_and_not_written(cluster: LocalCluster) -> None:
    """Rows of tasks, of which none is visible before the commit; the batch runs again, and the next one runs."""
    make_topic(cluster, "replayed", 2)
    written = sink(cluster, "replayed", topic="replayed")
    for batch, expected in ((0, [b"0-a", b"0-b"]), (0, [b"0-a", b"0-b"]), (1, [b"0-a", b"0-b", b"1-a", b"1-b"])):
        job = Job(f"job {batch}", "query", batch)
        messages = [written.write(job, task, [rows(f"{batch}-{name}")]) for task, name in enumerate("ab")]
        messages.append(written.write(job, 2, []))
        before = values(cluster, "replayed", "read_uncommitted")
        assert not batch or before == [b"0-a", b"0-b"]
        written.commit(messages)
        seen(cluster, "replayed", expected)
    earlier = [written.write(Job("job 0", "query", 0), 0, [rows("0-a")])]
    with pytest.raises(UsageError, match="batch 0 of query query is not written: batches up to 1 have been committed"):
        written.commit(earlier)
    assert values(cluster, "replayed", "read_uncommitted") == [b"0-a", b"0-b", b"1-a", b"1-b"]


def test_the_transaction_of_a_dead_driver_is_aborted_by_the_next(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies with all rows and the batch's number sent, and nothing ended; its own late end is refused."""
    make_topic(cluster, "dead", 2)
    left: list[TransactionalProducer] = []
    written = sink(cluster, "dead", topic="dead")
    message = written.write(Job("job", "dead", 7), 0, [rows("a", "b")])

    def dies(producer: TransactionalProducer, *, committed: bool) -> None:
        left.append(producer)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "_end", dies)
        with pytest.raises(KeyboardInterrupt):
            written.commit([message])
    assert values(cluster, "dead", "read_uncommitted") == [b"a", b"b"]
    assert values(cluster, "dead") == []
    written.commit([message])
    seen(cluster, "dead", [b"a", b"b"])
    assert values(cluster, "dead", "read_uncommitted") == [b"a", b"a", b"b", b"b"]
    zombie = left[0]
    for call in (
        lambda: zombie._call(ApiKey.END_TXN, _refused, **zombie._producer(), committed=True),
        lambda: zombie._add_offsets("g", {TopicPartition("dead", 0): 1}),
    ):
        with pytest.raises(ProducerFencedError, match="another producer has begun with this transactional id"):
            call()


def test_a_failed_commit_writes_nothing(cluster: LocalCluster) -> None:
    """Rows of one topic are sent, those of the next are refused: all are aborted, and the batch can run again."""
    make_topic(cluster, "whole", 1)
    make_topic(cluster, "small", 1, max_message_bytes="1000")
    written = sink(cluster, "whole")
    batch = pa.record_batch({"topic": ["whole", "small"], "value": [b"a", b"v" * 2000]})
    message = written.write(Job("job", "whole", 0), 0, [batch])
    with pytest.raises(KreplogError, match=r"small-0: the leader refuses.*MESSAGE_TOO_LARGE"):
        written.commit([message])
    eventually(lambda: ends(cluster, "whole", "read_committed") == ends(cluster, "whole", "read_uncommitted"), "open")
    assert values(cluster, "whole", "read_uncommitted") == [b"a"]
    assert values(cluster, "whole") == []
    written.commit([written.write(Job("job", "whole", 0), 0, [batch.slice(0, 1)])])
    seen(cluster, "whole", [b"a"])


def ends(cluster: LocalCluster, topic: str, level: str) -> int:
    with Consumer(cluster.bootstrap(), isolation_level=level) as consumer:
        return sum(consumer.end_offsets(list(consumer.partitions(topic))).values())


@pytest.mark.long
def test_a_stream_whose_last_batch_runs_again(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    """Spark's note of the last batch is lost, as where the driver dies after the commit."""
    make_topic(cluster, "streamed-once", 2)
    with Log.open(tmp_path / "source" / "in-0") as log:
        log.append_many([b"%d" % number for number in range(100, 300)])

    def run() -> None:
        stream = spark.readStream.format("kreplog").option("path", str(tmp_path / "source"))
        read = stream.options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="100").load()
        written = read.select("value").writeStream.format("kreplog").option("topic", "streamed-once")
        written = written.option("kafka.bootstrap.servers", cluster.bootstrap())
        written = written.option("kafka.transactional.id", "streamed-once")
        written = written.option("checkpointLocation", str(tmp_path / "checkpoint"))
        written.trigger(availableNow=True).start().awaitTermination(120)

    run()
    expected = [b"%d" % number for number in range(100, 300)]
    seen(cluster, "streamed-once", expected)
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    run()
    assert last.exists()
    assert values(cluster, "streamed-once", "read_uncommitted") == expected


def test_brokers_without_transactions(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kreplog.client.bulk_connection.SUPPORTED",
        {**SUPPORTED, ApiKey.END_TXN: (90, 91)},
    )
    with pytest.raises(KreplogError, match="offers END_TXN in versions 0 to 5"):
        sink(cluster, "none", topic="any").prepare()


def test_the_id_is_checked() -> None:
    with pytest.raises(UsageError, match=r"'kafka.transactional.id' = '' must have 1 to 1000 bytes"):
        parse_sink({"kafka.bootstrap.servers": "h:1", "kafka.transactional.id": ""})
