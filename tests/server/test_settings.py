"""Settings: what counts over what, and errors that name the setting, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kreplog.errors import UsageError
from kreplog.server.listeners import Listener
from kreplog.server.runtime.starting import log_config_of
from kreplog.server.settings import SETTINGS, check, given_value, load
from kreplog.server.settings_of_kafka import REFUSED, REFUSED_FAMILIES, refusal

NEEDED = {"broker.id": 1, "log.dirs": "/data", "coordination": "embedded:/coordination"}


def test_the_command_line_counts_over_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        'broker.id = 1\nlog.dirs = ["/a", "/b"]\ncoordination = "embedded:/c"\n[min.insync]\nreplicas = 2\n'
    )
    assert load({}, file, {}).broker_id == 1
    assert load({}, file, {"KREPLOG_BROKER_ID": "2", "KREPLOG_OTHER": "x"}).broker_id == 2
    settings = load({"broker.id": 3}, file, {"KREPLOG_BROKER_ID": "2", "KREPLOG_LOG_DIRS": "/x, /y"})
    assert (settings.broker_id, settings.log_dirs, settings.topic.min_insync_replicas) == (3, ("/x", "/y"), 2)


def test_listeners() -> None:
    settings = load(NEEDED | {"listeners": "127.0.0.1:0,[::1]:9093,unix:/run/k.sock"}, None, {})
    assert settings.listeners == (Listener("127.0.0.1", 0), Listener("::1", 9093), Listener(path="/run/k.sock"))
    remote = NEEDED | {"listeners": ["192.0.2.1:9092"]}
    with pytest.raises(UsageError, match=r"192\.0\.2\.1 is not a loopback address.*allow\.plaintext\.remote"):
        load(remote, None, {})
    assert load(remote | {"allow.plaintext.remote": True}, None, {}).allow_plaintext_remote


def test_where_a_broker_listens_unasked_only_its_own_host_reaches() -> None:
    assert load(NEEDED, None, {}).listeners == (Listener("127.0.0.1", 9092), Listener(path="/data/broker.sock"))
    deep = f"/{'d' * 120}"
    assert load(NEEDED | {"log.dirs": deep}, None, {}).listeners == (Listener("127.0.0.1", 9092),)
    assert load(NEEDED, None, {}).metrics_listener is None


def test_advertised_listeners_must_be_addresses_for_clients() -> None:
    everywhere = NEEDED | {"listeners": "0.0.0.0:9092", "allow.plaintext.remote": True}
    with pytest.raises(UsageError, match=r"set advertised\.listeners"):
        load(everywhere, None, {})
    assert load(everywhere | {"advertised.listeners": "db1:9092"}, None, {}).advertised == (Listener("db1", 9092),)
    for nowhere in ("0.0.0.0:9092", "db1:0"):
        with pytest.raises(UsageError, match="is not an address that clients can connect to"):
            load(everywhere | {"advertised.listeners": nowhere}, None, {})
    with pytest.raises(UsageError, match=r"metrics\.listener.*allow\.plaintext\.remote"):
        load(NEEDED | {"metrics.listener": "[::]:9404"}, None, {})


def test_the_internal_listener() -> None:
    assert load(NEEDED, None, {}).internal == Listener(path="/data.internal/broker.sock")
    tcp = NEEDED | {"inter.broker.listener": "192.0.2.1:9093"}
    with pytest.raises(UsageError, match=r"needs inter\.broker\.key\.file"):
        load(tcp, None, {})
    assert load(tcp | {"inter.broker.key.file": "/key"}, None, {}).internal == Listener("192.0.2.1", 9093)
    for nowhere in ("0.0.0.0:9093", "[::]:9093"):
        with pytest.raises(UsageError, match="not an address that other brokers"):
            load(tcp | {"inter.broker.listener": nowhere, "inter.broker.key.file": "/key"}, None, {})
    for wrong in ("unix:broker.sock", "9093", 9093, "a:1,b:2"):
        with pytest.raises(UsageError, match=r"inter\.broker\.listener"):
            load(NEEDED | {"inter.broker.listener": wrong}, None, {})


def test_brokers_of_several_hosts_do_not_meet_at_unix_sockets_by_default() -> None:
    several = NEEDED | {
        "coordination": "zookeeper:zk:2181",
        "listeners": "192.0.2.1:9092",
        "allow.plaintext.remote": True,
    }
    with pytest.raises(UsageError, match=r"set inter\.broker\.listener"):
        load(several, None, {})
    assert load(several | {"inter.broker.listener": "unix:/run/k/b.sock"}, None, {}).internal.path == "/run/k/b.sock"
    assert load(NEEDED | {"coordination": "zookeeper:zk:2181"}, None, {}).internal.path


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("broker.id", "one", "broker.id = 'one' in the command line: must be an integer from 0"),
        ("broker.id", True, "must be an integer"),
        ("log.dirs", [], "at least one is needed"),
        ("log.dirs", "/a,/a", "none twice"),
        ("listeners", "localhost", "neither host:port"),
        ("listeners", "unix:/only", "must contain a host:port"),
        ("coordination", "/somewhere", "must be embedded:"),
        ("allow.plaintext.remote", "maybe", "must be true or false"),
        ("metrics.listener", "unix:/somewhere", "must be host:port"),
        ("server.log.format", "xml", "must be one of json, text"),
        ("replica.fetch.min.bytes", 0, "replica.fetch.min.bytes = 0 in the command line: must be an integer from 1"),
        (
            "log.segment.bytes",
            "big",
            "log.segment.bytes = 'big' in the command line: must be an integer from 256 to",
        ),
        ("log.segment.bytes", 1.5, "must be an integer from 256 to 2147483647"),
        (
            "unclean.leader.election.enable",
            "x",
            "unclean.leader.election.enable = 'x' in the command line: must be",
        ),
        ("log.message.timestamp.type", "Now", "log.message.timestamp.type = 'Now' in the command line: choose one of"),
        ("broker.id", "1_0", "must be an integer"),
        ("flush.messages", 1, "flush.messages in the command line is called log.flush.interval.messages"),
        ("log.retention.hours", 168, "is no setting here: write log.retention.ms, in milliseconds; take it out"),
        ("num.io.threads", 8, "is no setting here: one event loop serves all connections of a broker; take it out"),
        (
            "offsets.load.buffer.size",
            1,
            "is no setting here: a coordinator sizes the reads of its",
        ),
        ("offsets.topic.compression.codec", 0, "is no setting here: committed offsets are stored uncompressed"),
        ("transaction.partition.verification.enable", True, "is no setting here: a transactional batch is always"),
        ("log.flush.scheduler.interval.ms", 9, "is no setting here: write log.flush.interval.ms, for which each"),
        ("log.roll.jitter.hours", 0, "is no setting here: segments are rolled without jitter"),
        ("group.coordinator.threads", 4, "is no setting here: one event loop serves all connections of a broker"),
        ("group.consumer.assignment.interval.ms", 0, "is no setting here: an assignment is made as soon as"),
        (
            "remote.log.reader.threads",
            1,
            "remote.log.reader.threads in the command line is no setting here: there",
        ),
        ("group.share.max.size", 1, "group.share.max.size in the command line is no setting here: there are no share"),
        ("sasl.oauthbearer.scope", "x", "is no setting here: a broker does not log in"),
        ("no.such.setting", 1, "no.such.setting in the command line is not a setting of a broker"),
        (
            "group.consumer.heartbeat.interval.ms",
            200,
            "group.consumer.heartbeat.interval.ms = 200 must be within group.consumer.min.heartbeat.interval.ms = 5000",
        ),
        ("group.consumer.session.timeout.ms", 90_000, "and group.consumer.max.session.timeout.ms = 60000"),
    ],
)
def test_wrong_settings_are_named(name: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as error:
        load(NEEDED | {name: value}, None, {})
    assert expected in str(error.value)


def test_a_session_is_longer_than_the_interval_of_heartbeats() -> None:
    values = NEEDED | {f"group.consumer.{name}": 5000 for name in ("session.timeout.ms", "min.session.timeout.ms")}
    with pytest.raises(UsageError, match=r"5000 must be below group\.consumer\.session\.timeout\.ms = 5000"):
        load(values, None, {})
    valid = values | {"group.consumer.session.timeout.ms": 5001}
    assert load(valid, None, {}).groups.group_consumer_session_timeout_ms == 5001


def test_missing_settings_are_named() -> None:
    with pytest.raises(UsageError, match=r"a broker requires broker\.id, log\.dirs, coordination"):
        load({}, None, {})


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text("broker.id: 1")
    with pytest.raises(UsageError, match="not TOML"):
        load({}, tmp_path / "broker.toml", {})
    with pytest.raises(UsageError, match="cannot be read"):
        load({}, tmp_path / "missing.toml", {})


def test_every_setting_has_a_value_to_describe() -> None:
    settings = load(NEEDED, None, {})
    assert given_value(settings, "listeners") == "127.0.0.1:9092,unix:/data/broker.sock"
    assert all(not isinstance(given_value(settings, name), tuple) for name in SETTINGS)


def test_cleaner_threads_share_the_dedupe_buffer() -> None:
    given = {"broker.id": 1, "log.dirs": "/data", "coordination": "embedded:/coordination"}
    settings = load(given | {"log.cleaner.threads": 4, "log.cleaner.dedupe.buffer.size": 1 << 20}, None, {})
    assert log_config_of(settings).dedupe_buffer_size == 1 << 18
    assert given_value(settings, "log.cleaner.dedupe.buffer.size") == 1 << 20
    assert given_value(settings, "log.cleaner.io.buffer.size") == 512 << 10


def test_a_former_name_in_the_environment_is_not_lost_in_silence() -> None:
    with pytest.raises(UsageError, match=r"is called log\.flush\.interval\.messages"):
        check({"broker.id": 0}, "file", {"KREPLOG_FLUSH_MESSAGES": "1"}, {})


def test_what_is_refused_of_kafkas_settings_is_no_setting_and_names_such_as_are() -> None:
    assert not REFUSED.keys() & SETTINGS.keys()
    for name, reason in (REFUSED | REFUSED_FAMILIES).items():
        advised = {word.strip("`,;()=") for word in reason.split() if word.count(".") and "..." not in word}
        assert advised <= SETTINGS.keys(), name


def test_what_kafkas_own_files_set_is_a_setting_or_refused_with_a_reason() -> None:
    """config/server.properties and config/kraft/server.properties of Kafka 3.9."""
    given = """
        advertised.listeners broker.id controller.listener.names controller.quorum.bootstrap.servers
        controller.quorum.voters group.initial.rebalance.delay.ms inter.broker.listener.name
        listener.security.protocol.map listeners log.dirs log.flush.interval.messages log.flush.interval.ms
        log.retention.bytes log.retention.check.interval.ms log.retention.hours log.segment.bytes node.id
        num.io.threads num.network.threads num.partitions num.recovery.threads.per.data.dir
        offsets.topic.replication.factor process.roles socket.receive.buffer.bytes socket.request.max.bytes
        socket.send.buffer.bytes transaction.state.log.min.isr transaction.state.log.replication.factor
        zookeeper.connect zookeeper.connection.timeout.ms
    """
    assert [name for name in given.split() if name not in SETTINGS and refusal(name) is None] == []
