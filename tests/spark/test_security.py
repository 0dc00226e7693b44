"""Reads and writes over TLS and SASL, of brokers with an authorizer: by Kafka's options, and no secret in any text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")
pytest.importorskip("cryptography", reason="needs cryptography, the extra `tls`")
pytest.importorskip("joserfc", reason="needs joserfc, the extra `oauth`")

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kreplog.client import BrokersUnreachableError, Consumer, Producer, TopicAuthorizationError
from kreplog.client.bulk_errors import TransactionRequestError
from kreplog.client.user_admin import new_credentials
from kreplog.cluster import store_requests
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.security.acls import AclBinding, AclFilter, Operation, PatternType, Permission
from kreplog.core.security.acls import ResourceType as Kind
from kreplog.errors import AuthenticationError, KreplogError, UsageError
from kreplog.server.settings import STANDARD_AUTHORIZER
from kreplog.types import TopicPartition
from kreplog_jobs import audit, compact, export, job, mirror
from kreplog_jobs import load as load_job
from pyspark_kreplog.options import ReadOptions, parse_batch
from pyspark_kreplog.plan import plan
from pyspark_kreplog.read import read
from pyspark_kreplog.sink_options import parse_sink
from tests.certificates import HOSTS, Certificates
from tests.client.brokers import make_topic
from tests.client_libraries.test_sasl import with_listeners
from tests.integration.clusters import GROUPS, end, eventually
from tests.tokens import Issuer

pytestmark = pytest.mark.spark

PASSWORD = "pencil-of-alice"
MECHANISM = "SCRAM-SHA-512"
TOPICS = ("read", "written", "described", "hidden")
COUNT = 1000


class Secured(NamedTuple):
    """A broker where the client of its first listener may do everything, alice logs in and may read the topics read and
    written, write the latter, and describe described; the owner of a certificate CN=carol may read read.

    texts: PEM of carol's key and certificate, and of the CA."""

    cluster: LocalCluster
    addresses: dict[str, str]
    truststore: str
    texts: tuple[str, str, str]
    other_ca: str
    issuer: Issuer

    def alice(self, password: str = PASSWORD, **more: str) -> dict[str, str]:
        """Options of Spark's Kafka source; more: with _ for a dot."""
        return {
            "kafka.bootstrap.servers": self.addresses["SASL_SSL"],
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": MECHANISM,
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="alice" password="{password}";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": self.truststore,
            **{f"kafka.{name.replace('_', '.')}": value for name, value in more.items()},
        }

    def bearer(self, token: str) -> dict[str, str]:
        """Alice by a token in a file, which is made again for each test."""
        file = self.issuer.path.with_name("token")
        file.write_text(token)
        login = {name: text for name, text in self.alice().items() if not name.startswith("kafka.sasl.")}
        return login | {
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        }

    def carol(self) -> dict[str, str]:
        """Without a file: workers need none."""
        key, chain, trusted = self.texts
        return {
            "kafka.bootstrap.servers": self.addresses["SSL"],
            "kafka.security.protocol": "SSL",
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.key": key,
            "kafka.ssl.keystore.certificate.chain": chain,
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": trusted,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with _running(tmp_path_factory.mktemp("security"), "User:ANONYMOUS") as made:
        yield made


@contextmanager
def _running(folder: Path, super_users: str) -> Iterator[Secured]:
    certificates = Certificates(folder / "ca")
    settings = [
        *GROUPS[2:],
        f'"authorizer.class.name" = "{STANDARD_AUTHORIZER}"',
        f'"super.users" = "{super_users}"',
    ]
    cluster = LocalCluster.create(folder / "c", [0], 0, settings)
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(("SSL", "SASL_SSL"), free_ports(2), strict=True)}
    issuer = Issuer(folder / "issuer")
    issuer.publish()
    mechanisms = issuer.settings(sasl_enabled_mechanisms=f"{MECHANISM},OAUTHBEARER")
    file = cluster.home(0) / "broker.toml"
    own = [f"{name}://{address}" for name, address in addresses.items()]
    lines = [
        with_listeners(line, lambda given: [*given, *own]) if line.startswith('"listeners"') else line
        for line in file.read_text().splitlines()
    ]
    lines += [
        f'"ssl.keystore.location" = "{certificates.keystore("broker", HOSTS)}"',
        f'"ssl.truststore.location" = "{certificates.truststore}"',
        '"listener.name.ssl.ssl.client.auth" = "required"',
        *(f'"{name.replace("_", ".")}" = "{value}"' for name, value in mechanisms.items()),
    ]
    file.write_text("\n".join([*lines, ""]))
    with cluster.store_session() as session:
        store_requests.put_user(session, new_credentials("alice", PASSWORD, [MECHANISM], 4096))
        store_requests.create_acls(
            session,
            [
                *(allow("alice", Kind.TOPIC, topic, Operation.READ) for topic in ("read", "written")),
                allow("alice", Kind.TOPIC, "written", Operation.WRITE),
                allow("alice", Kind.TOPIC, "described", Operation.DESCRIBE),
                allow("alice", Kind.TRANSACTIONAL_ID, "of-alice", Operation.WRITE),
                allow("alice", Kind.GROUP, "kreplog-spark-", Operation.READ, PatternType.PREFIXED),
                allow("CN=carol", Kind.TOPIC, "read", Operation.READ),
            ],
        )
    try:
        cluster.start()
        for topic in TOPICS:
            make_topic(cluster, topic, 2, 1)
        rows = pa.record_batch(
            {"value": [b"%d" % number for number in range(COUNT)], "partition": [0, 1] * (COUNT // 2)}
        )
        with Producer(cluster.bootstrap()) as producer:
            for topic in ("read", "described", "hidden"):
                producer.append_arrow(topic, rows)
        pem = Path(certificates.keystore("carol")).read_text()
        at = pem.index("-----BEGIN CERTIFICATE")
        texts = pem[:at], pem[at:].replace("\n", "\\n"), Path(certificates.truststore).read_text()
        other_ca = Certificates(folder / "other", "another CA").truststore
        yield Secured(cluster, addresses, certificates.truststore, texts, other_ca, issuer)
    finally:
        end(cluster)


def allow(
    user: str, kind: Kind, name: str, operation: Operation, pattern: PatternType = PatternType.LITERAL
) -> AclBinding:
    return AclBinding(kind, pattern, name, f"User:{user}", "*", operation, Permission.ALLOW)


def load(spark: SparkSession, options: dict[str, str], topic: str = "read") -> DataFrame:
    return spark.read.format("kreplog").options(subscribe=topic, **options).load()


def values(cluster: LocalCluster, topic: str) -> list[bytes]:
    """Those of committed transactions, and of none."""
    with Consumer(cluster.bootstrap(), columns=["value"], isolation_level="read_committed") as consumer:
        ends = consumer.end_offsets(consumer.partitions(topic))
        pieces = consumer.read_arrow({at: (0, end_offset) for at, end_offset in ends.items()})
        return [value for piece in pieces for value in piece.to_arrow()["value"].to_pylist()]


def test_batch_reads_by_password_and_by_certificate(spark: SparkSession, secured: Secured) -> None:
    plain = {"kafka.bootstrap.servers": secured.cluster.bootstrap()}
    expected = sorted(map(tuple, load(spark, plain).collect()))
    assert len(expected) == COUNT
    for options in (secured.alice(), secured.carol()):
        assert sorted(map(tuple, load(spark, options).collect())) == expected
    pattern = spark.read.format("kreplog").options(subscribePattern="read|hidden", **secured.alice())
    assert pattern.load().count() == COUNT


def test_sinks_and_streams(spark: SparkSession, secured: Secured, tmp_path: Path) -> None:
    """One idempotent and one transactional write, batch and stream, each of all rows of the topic read."""
    writes = 0
    for more in ({}, {"transactional_id": "of-alice"}):
        sink = secured.alice(**more) | {"topic": "written"}
        load(spark, secured.carol()).select("value").write.format("kreplog").mode("append").options(**sink).save()
        stream = spark.readStream.format("kreplog").options(
            subscribe="read", startingOffsets="earliest", **secured.alice(group_id="kreplog-spark-lag")
        )
        query = (
            stream.load().select("value").writeStream.format("kreplog").options(**sink)
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{writes}")).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120)
        assert query.exception() is None
        assert PASSWORD not in str([progress.json for progress in query.recentProgress])
        writes += 2
    expected = sorted(values(secured.cluster, "read") * writes)
    eventually(lambda: sorted(values(secured.cluster, "written")) == expected, lambda: "rows are missing, or twice")
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or PASSWORD.encode() not in path.read_bytes(), path


def test_no_secret_in_plans_descriptions_and_logs(
    spark: SparkSession, secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = [PASSWORD, secured.texts[0].splitlines()[1]]
    caplog.set_level(logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.INFO)  # it writes down every call of the JVM
    texts = []
    for options in (secured.alice(), secured.carol()):
        frame = load(spark, options)
        frame.collect()
        execution = frame._jdf.queryExecution()
        texts += [execution.toString(), execution.explainString(execution_mode(spark, "extended"))]
        texts += map(repr, plan(parse_batch(options | {"subscribe": "read"}), 2))
        texts.append(repr(parse_sink(options)))
    sink = secured.alice() | {"topic": "written"}
    spark.sql("SELECT 'x' AS value").where("false").write.format("kreplog").mode("append").options(**sink).save()
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    for execution in map(executions.apply, range(executions.size())):
        texts += [execution.description(), execution.details(), execution.physicalPlanDescription()]
    assert "AppendData" in texts[-1]
    everything = "\n".join([*texts, caplog.text])
    assert [secret for secret in secrets if secret in everything] == []


def test_reads_and_writes_by_a_token(spark: SparkSession, secured: Secured) -> None:
    token = secured.issuer.token("alice")
    options = secured.bearer(token)
    frame = load(spark, options)
    assert frame.count() == COUNT
    assert token not in frame._jdf.queryExecution().toString() + repr(
        plan(parse_batch(options | {"subscribe": "read"}), 2)
    )
    before = len(values(secured.cluster, "written"))
    write(spark, options, "written")
    assert len(values(secured.cluster, "written")) == before + 2
    refused = secured.issuer.token("alice", iss="https://other.test")
    options = secured.bearer(refused) | {"kafka.sasl.oauthbearer.scope": "another source of tokens than before"}
    with pytest.raises(Exception, match="AuthenticationError") as failure:
        load(spark, options).count()
    assert "(token of file://" in str(failure.value)
    assert refused not in str(failure.value)


def execution_mode(spark: SparkSession, name: str) -> object:
    return spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(name)  # type: ignore[union-attr]  # is set


Act = Callable[[SparkSession, Secured], object]


@pytest.mark.parametrize(
    ("act", "kind", "reason"),
    [
        (lambda spark, it: load(spark, it.alice("wrong-secret")).count(), AuthenticationError, "(user alice)"),
        (lambda spark, it: write(spark, it.alice("wrong-secret"), "written"), AuthenticationError, "(user alice)"),
        (
            lambda spark, it: load(spark, it.alice(ssl_truststore_location=it.other_ca)).count(),
            BrokersUnreachableError,
            "is ssl.truststore.location the CA of the broker's certificate?",
        ),
        (
            lambda spark, it: write(spark, it.alice(ssl_truststore_location=it.other_ca), "written"),
            BrokersUnreachableError,
            "is ssl.truststore.location the CA of the broker's certificate?",
        ),
        (lambda spark, it: load(spark, it.alice(), "described").count(), TopicAuthorizationError, "may not READ it"),
        (lambda spark, it: load(spark, it.alice(), "hidden").count(), TopicAuthorizationError, "may not DESCRIBE it"),
        (lambda spark, it: write(spark, it.alice(), "read"), TopicAuthorizationError, "may not WRITE it"),
        (lambda spark, it: write(spark, it.alice(transactional_id="of-alice"), "read"), TopicAuthorizationError,
         "may not WRITE"),
        (lambda spark, it: write(spark, it.alice(transactional_id="of-bob"), "written"), TransactionRequestError,
         "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)  # fmt: skip
def test_what_is_refused_is_one_error_of_the_driver(
    spark: SparkSession, secured: Secured, act: Act, kind: type[KreplogError], reason: str
) -> None:
    """No task runs."""
    group = f"refused {reason}"
    spark.sparkContext.setJobGroup(group, group)
    with pytest.raises(Exception, match=kind.__name__) as refused:
        act(spark, secured)
    assert reason in str(refused.value)
    assert "secret" not in str(refused.value)
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []


def write(spark: SparkSession, options: dict[str, str], topic: str) -> None:
    frame = spark.range(2).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("kreplog").mode("append").options(topic=topic, **options).save()


@pytest.mark.parametrize("more", [{}, {"transactional_id": "of-alice"}])
@pytest.mark.parametrize(("refused", "reason"), [("read", "may not WRITE"), ("hidden", "principal may not")])
def test_of_rows_that_name_a_topic_that_is_refused_none_is_written(
    spark: SparkSession, secured: Secured, more: dict[str, str], refused: str, reason: str
) -> None:
    """Rows for another topic come first, which alice may write, in the same task."""
    before = values(secured.cluster, "written")
    named = f"IF(id < 10, 'written', '{refused}') AS topic"
    frame = spark.range(0, 11, 1, 1).selectExpr("CAST(id AS STRING) AS value", named)
    options = secured.alice(**more)
    with pytest.raises(Exception, match="TopicAuthorizationError") as failure:
        frame.write.format("kreplog").mode("append").options(**options).save()
    assert reason in str(failure.value)
    assert f"topic {refused}:" in str(failure.value) or f"{refused}-0" in str(failure.value)
    assert values(secured.cluster, "written") == before


def test_a_task_whose_topic_is_denied_meanwhile_fails_at_once(secured: Secured) -> None:
    """Not after the minute for which a leader that fails otherwise is tried."""
    make_topic(secured.cluster, "revoked", 1, 1)
    with Producer(secured.cluster.bootstrap()) as producer:
        producer.append_arrow("revoked", pa.record_batch({"value": [b"x"]}))
    with secured.cluster.store_session() as session:
        store_requests.create_acls(session, [allow("alice", Kind.TOPIC, "revoked", Operation.READ)])
        options = parse_batch(secured.alice(default_api_timeout_ms="2147483647") | {"subscribe": "revoked"})
        eventually(lambda: not is_denied(options), lambda: "the ACL is not applied")
        (task,) = plan(options, 1)
        store_requests.delete_acls(session, [AclFilter(operation=Operation.READ, name="revoked")])
        store_requests.create_acls(session, [allow("alice", Kind.TOPIC, "revoked", Operation.DESCRIBE)])
        eventually(lambda: is_denied(options), lambda: "the ACL is not removed")
    with pytest.raises(TopicAuthorizationError, match="revoked"):
        list(read(task, ["value"]))


def is_denied(options: ReadOptions) -> bool:
    try:
        plan(options, 1)
    except TopicAuthorizationError:
        return True
    return False


# The jobs


def properties(file: Path, options: dict[str, str]) -> tuple[str, Path]:
    """The brokers of Spark's options, and the file with their settings of security."""
    lines = {name.removeprefix("kafka."): value for name, value in options.items()}
    brokers = lines.pop("bootstrap.servers")
    escaped = {name: value.replace("\n", "\\n") for name, value in lines.items()}
    file.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
    return brokers, file


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Another cluster, with a CA and an alice of its own, who may do everything there."""
    with _running(tmp_path_factory.mktemp("other"), "User:ANONYMOUS;User:alice") as made:
        yield made


def test_export_reads_topics_by_a_file_of_properties(
    spark: SparkSession, secured: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    brokers, config = properties(tmp_path / "client.properties", secured.alice())
    lake = tmp_path / "lake"
    export.main(brokers, lake, "read", max_bytes=1 << 30, command_config=config)
    assert spark.read.parquet(str(lake / "topic=read")).count() == COUNT
    assert_no_secret(spark, lake, capfd)
    _, wrong = properties(tmp_path / "wrong.properties", secured.alice("wrong-secret"))
    with pytest.raises(Exception, match="AuthenticationError") as refused:
        export.main(brokers, tmp_path / "other", "read", max_bytes=1 << 30, command_config=wrong)
    assert "secret" not in str(refused.value)


def test_mirror_has_settings_for_each_cluster(
    spark: SparkSession, secured: Secured, other: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a certificate in the source, by a password in the target; a topic that is not there is created."""
    source, of_source = properties(tmp_path / "source.properties", secured.carol())
    target, of_target = properties(tmp_path / "target.properties", other.alice())
    with Consumer(other.cluster.bootstrap()) as consumer:
        existing = consumer.topics()
    name = "moved"
    make_topic(secured.cluster, name, 2, 1)
    with secured.cluster.store_session() as session:
        store_requests.create_acls(session, [allow("CN=carol", Kind.TOPIC, name, Operation.READ)])
    with Producer(secured.cluster.bootstrap()) as producer:
        producer.append_arrow(name, pa.record_batch({"value": [b"%d" % number for number in range(COUNT)]}))
    assert name not in existing
    checkpoint = tmp_path / "checkpoint"

    def run(source_config: Path | None, target_config: Path | None) -> None:
        mirror.main(source, target, checkpoint, name, source_config=source_config, target_config=target_config)

    eventually(lambda: not denied(secured, name), lambda: "the ACL is not applied")
    run(of_source, of_target)
    assert sorted(values(other.cluster, name)) == sorted(values(secured.cluster, name))
    assert_no_secret(spark, checkpoint, capfd)
    with pytest.raises(KreplogError) as refused:
        run(of_source, properties(tmp_path / "wrong.properties", other.alice("wrong-secret"))[1])
    assert "(user alice)" in str(refused.value)
    assert "secret" not in str(refused.value)


def denied(secured: Secured, topic: str) -> bool:
    return is_denied(parse_batch(secured.carol() | {"subscribe": topic}))


def test_load_and_compact_write_by_a_file_of_properties(
    spark: SparkSession, other: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of them in a transaction."""
    brokers, config = properties(tmp_path / "client.properties", other.alice())
    (tmp_path / "rows.csv").write_text("id,name\n1,ann\n2,bob\n")
    make_topic(other.cluster, "loaded", 1, 1)
    load_job.main(
        str(tmp_path / "rows.csv"), brokers, "loaded", "id", "name", transactional_id="load", command_config=config
    )
    assert sorted(values(other.cluster, "loaded")) == [b"ann", b"bob"]
    data = tmp_path / "data"
    load_job.main(str(tmp_path / "rows.csv"), str(data), "kept", "id", "name")
    compact.main(data, "kept", into=brokers, into_topic="loaded", command_config=config)
    assert sorted(values(other.cluster, "loaded")) == [b"ann", b"ann", b"bob", b"bob"]
    assert_no_secret(spark, data, capfd)


def test_audit_reads_the_metadata_by_a_file_of_properties(secured: Secured, other: Secured, tmp_path: Path) -> None:
    """A single broker has one replica of each partition, which the job says once the brokers have named them."""
    brokers, config = properties(tmp_path / "client.properties", other.alice())
    with pytest.raises(UsageError, match="there is nothing to compare: of 2 partitions"):
        audit.main(subscribe="read", bootstrap=brokers, command_config=config)
    _, stranger = properties(tmp_path / "stranger.properties", secured.alice())
    with pytest.raises(KreplogError, match=r"is ssl\.truststore\.location the CA"):
        audit.main(subscribe="read", bootstrap=brokers, command_config=stranger)
    assert audit.assigned_by(brokers, ["read"], job.security_of(brokers, config)) == {
        TopicPartition("read", partition): (0,) for partition in range(2)
    }
    found = audit.log_directories_of(brokers, job.security_of(brokers, config))
    assert [directory.path for directory in found] == [str(other.cluster.home(0) / "data")]


def test_properties_that_a_job_refuses(secured: Secured, tmp_path: Path) -> None:
    brokers, config = properties(tmp_path / "client.properties", secured.alice())
    with pytest.raises(UsageError, match="--command-config is of connections to brokers, and data is a directory"):
        export.main("data", tmp_path / "lake", command_config=config)
    with pytest.raises(UsageError, match="--target-config is of connections to brokers"):
        mirror.main(brokers, str(tmp_path), tmp_path / "c", source_config=config, target_config=config)
    with pytest.raises(UsageError, match="name them with --into"):
        compact.main(tmp_path, "t", tmp_path / "out", command_config=config)
    with pytest.raises(UsageError, match="name them with --bootstrap"):
        audit.main(tmp_path, command_config=config)
    config.write_text("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\nsasl.password=secret\n")
    with pytest.raises(UsageError, match=r"client\.properties: sasl\.mechanism = GSSAPI") as refused:
        export.main(brokers, tmp_path / "lake", command_config=config)
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "lake").exists()


def assert_no_secret(spark: SparkSession, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In what a job has written, printed and left in Spark's UI."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    texts = list(capfd.readouterr())
    for execution in map(executions.apply, range(executions.size())):
        texts += [execution.description(), execution.details(), execution.physicalPlanDescription()]
    texts += [path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert [text for text in texts if PASSWORD in text] == []
