"""Options that begin with "kafka.": taken where they mean something, refused with the reason, or named in a warning."""

from __future__ import annotations

import logging

import pytest

from kreplog.errors import UsageError
from pyspark_kreplog.kafka_options import ConsumerSettings
from pyspark_kreplog.network import connect
from pyspark_kreplog.options import ReadOptions, parse_batch, parse_stream

pytestmark = pytest.mark.spark

SSL = {"security_protocol": "SSL"}
BASE = {"kafka.bootstrap.servers": "host:9092", "subscribe": "t"}


def given(**options: str) -> ReadOptions:
    return parse_batch(BASE | {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()})


def test_settings_of_the_consumer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert given().consumer == ConsumerSettings()
        found = parse_batch(
            BASE
            | {
                "kafka.isolation.level": "read_committed",
                "kafka.client.rack": "r1",
                "kafka.client.id": "job 7",
                "kafka.fetch.min.bytes": "100",
                "kafka.fetch.max.wait.ms": " 250 ",
                "kafka.fetch.max.bytes": "52428800",
                "kafka.max.partition.fetch.bytes": "1048576",
                "kafka.request.timeout.ms": "2500",
                "kafka.default.api.timeout.ms": "5000",
                "kafka.group.id": "g",
                "kafka.security.protocol": "ssl",
                "kafka.check.crcs": "true",
            }
        )
    assert found.consumer == ConsumerSettings(
        "job 7", "read_committed", "r1", 100, 250, 52428800, 1048576, 2.5, 5.0, {"security.protocol": "ssl"}
    )
    assert found.group == "g"
    assert not caplog.records
    with connect("host:9092", ["value"], found.consumer):
        pass  # no setting is refused


def test_a_larger_response_than_is_ever_requested_means_the_largest() -> None:
    assert given(fetch_max_bytes="1000000000").consumer.max_bytes == 64 << 20


def test_options_without_effect_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    given(max_poll_records="5", sasl_jaas_config="secret", check_crcs="false")
    (warning,) = caplog.messages
    assert warning == (
        "options without effect on reads from brokers: kafka.check.crcs, kafka.max.poll.records, kafka.sasl.jaas.config"
    )
    caplog.clear()
    parse_stream(BASE | {"kafka.max.poll.records": "5"})
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolation_level": "serializable"}, r"'kafka.isolation.level' = 'serializable' must be read_committed or"),
        ({"security_protocol": "SASL_SSL"}, r"option 'kafka.sasl.mechanism' = nothing: it is one of PLAIN, SCRAM-SHA"),
        ({**SSL, "ssl_truststore_type": "JKS"}, r"option 'kafka.ssl.truststore.type' = JKS: allowed: PEM"),
        (
            {**SSL, "ssl_truststore_location": "/ssl.d"},
            r"option 'kafka.ssl.truststore.location' = /ssl.d cannot be read",
        ),
        (
            {**SSL, "ssl_keystore_password": "secret"},
            r"option 'kafka.ssl.keystore.password' is not a setting of a client",
        ),
        ({"fetch_min_bytes": "-1"}, r"'kafka.fetch.min.bytes' = '-1' must be a whole number from 0 to 2147483647"),
        ({"fetch_max_bytes": "0"}, r"'kafka.fetch.max.bytes' = '0' must be a whole number from 1"),
        ({"max_partition_fetch_bytes": "1 MB"}, r"'kafka.max.partition.fetch.bytes' = '1 MB' must be"),
        ({"fetch_max_wait_ms": "30000"}, r"'kafka.fetch.max.wait.ms' = 30000 must be below kafka.request.timeout.ms"),
        ({"auto_offset_reset": "earliest"}, r"'kafka.auto.offset.reset' is not supported: .*startingOffsets"),
        ({"enable_auto_commit": "true"}, r"'kafka.enable.auto.commit' is not supported"),
        ({"interceptor_classes": "x"}, r"'kafka.interceptor.classes' is not supported"),
        ({"value_deserializer": "x"}, r"'kafka.value.deserializer' is not supported"),
    ],
)
def test_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        given(**options)


@pytest.mark.parametrize("name", ["isolationLevel", "kafka.isolation.level"])
@pytest.mark.parametrize("place", [{"path": "/data"}, {"kafka.bootstrap.servers": "host:9092"}])
def test_isolation_level_of_brokers_and_of_files(name: str, place: dict[str, str]) -> None:
    options = place | {"subscribe": "t"}
    assert parse_batch(options).consumer.isolation_level == "read_uncommitted"
    assert parse_stream(options | {name: " READ_COMMITTED "}).consumer.isolation_level == "read_committed"
