"""The commands of topics against one broker process, and against none: what they say, and that they say it soon."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, RequestTimedOutError

from kreplog.cli import main
from kreplog.client import bootstrap
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file
from kreplog.commands.connecting import bootstrap_servers


class Outcome(NamedTuple):
    """How one run of the command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `kreplog ...` in this process."""

    def run(*arguments: str | Path) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Outcome(int(left.value.code or 0), out, err)

    return run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker that serves."""
    made = LocalCluster.create(tmp_path_factory.mktemp("commands") / "c", [0], 0)
    made.start()
    yield made
    pid = read_pid_file(made.home(0))[0]
    if pid:
        os.kill(pid, signal.SIGKILL)
        made.wait_until_gone(0)


@pytest.fixture
def topic(cluster: LocalCluster, run: Run) -> Callable[..., Outcome]:
    return lambda *words: run("topic", *words, "--cluster", cluster.directory)


def test_a_topic_is_made_described_listed_and_deleted(topic: Run) -> None:
    assert topic("create", "t", "-p", "2").out == "t: 2 partitions, 1 replica each\n"
    described = json.loads(topic("describe", "t", "--json").out)
    assert [
        (partition["partition"], partition["leader"], partition["isr"]) for partition in described["partitions"]
    ] == [
        (0, 0, [0]),
        (1, 0, [0]),
    ]
    assert json.loads(topic("list", "--json").out) == {"topics": ["t"]}
    assert topic("delete", "t").out == "t: deleted\n"
    assert topic("list").out == ""


def test_a_topic_id_is_spelled_as_everywhere(cluster: LocalCluster, topic: Run, run: Run) -> None:
    topic("create", "spelled")
    described = json.loads(topic("describe", "spelled", "--json").out)
    info = json.loads(run("log", "info", "--json", cluster.home(0) / "data" / "spelled-0").out)
    assert described["topic_id"] == info["topic_id"]
    assert len(info["topic_id"]) == 22
    assert info["topic_id"] in topic("describe", "spelled").out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["create", "there"], "topic there exists already"),
        (["create", "new", "-r", "2"], "topic new: replication factor 2 with 1 live broker: choose 1, or start more"),
        (
            ["create", "new", "--config", "no.such=1"],
            "topic new: no.such is not a setting of a topic: the settings are",
        ),
        (["create", "new", "--config", "min.insync.replicas=two"], "topic new: min.insync.replicas = "),
        (["create", "a/b"], "'a/b' is no legal topic name"),
        (["describe", "nope"], "topic nope: there is no such topic; `kreplog topic list` lists the topics"),
        (["delete", "nope"], "there is no topic nope"),
        (["delete", "a/b"], "'a/b' is no legal topic name"),
    ],
)
def test_a_refusal_is_one_short_line(topic: Run, words: list[str], expected: str) -> None:
    topic("create", "there")
    refused = topic(*words)
    assert refused.code != 0
    assert refused.out == ""
    assert refused.err.startswith(f"kreplog: {expected}")
    assert refused.err.count("\n") == 1
    assert "Request" not in refused.err


def test_librdkafka_lists_all_topics(cluster: LocalCluster, topic: Run) -> None:
    admin = pytest.importorskip("confluent_kafka.admin")
    topic("create", "for-rdkafka")
    found = admin.AdminClient({"bootstrap.servers": cluster.bootstrap()}).list_topics(timeout=10)
    assert "for-rdkafka" in found.topics
    assert found.topics["for-rdkafka"].error is None


def test_the_readme_example(
    cluster: LocalCluster, topic: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to its first record: it would wait ten seconds for another."""
    monkeypatch.setattr(KafkaConsumer, "__iter__", lambda consumer: iter([next(consumer)]))
    topic("create", "events", "-p", "4")
    section = (Path(__file__).parents[2] / "README.md").read_text().partition("## A cluster on one host")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    assert "127.0.0.1:9092" in code
    exec(compile(code.replace("127.0.0.1:9092", cluster.bootstrap()), "README.md", "exec"), {})
    offset, record = capsys.readouterr().out.splitlines()
    assert offset == "0"
    assert record.endswith(" 0 b'alice' b'hello'")


@pytest.mark.parametrize("error", [RequestTimedOutError, KafkaTimeoutError, KafkaConnectionError])
def test_a_broker_that_falls_silent(topic: Run, monkeypatch: pytest.MonkeyPatch, error: type[KafkaError]) -> None:
    def list_topics(self: KafkaAdminClient) -> list[str]:
        raise error

    monkeypatch.setattr(KafkaAdminClient, "list_topics", list_topics)
    outcome = topic("list")
    assert outcome.code == 1
    assert f"a broker did not respond ({error.__name__})" in outcome.err


# No cluster


def test_a_cluster_that_is_stopped(tmp_path: Path, run: Run) -> None:
    LocalCluster.create(tmp_path / "c", [0, 1], 0)
    outcome = run("topic", "list", "--cluster", tmp_path / "c")
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.err
        == f"kreplog: no broker of {tmp_path}/c is running: start them with `kreplog cluster start {tmp_path}/c`\n"
    )


def test_nothing_listens_there(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = run("topic", "list", "--bootstrap", f"127.0.0.1:{port},localhost:{port}")
    assert outcome.code == 1
    assert f"no broker responds at 127.0.0.1:{port} (connection refused), localhost:{port} (connection" in outcome.err


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":9092", "localhost:0", "localhost:x", "a:1,"])
def test_malformed_bootstrap_addresses(run: Run, address: str) -> None:
    outcome = run("topic", "list", "--bootstrap", address)
    assert outcome.code == 2
    assert "write host:port" in outcome.err


@pytest.fixture
def speaking() -> Iterator[Callable[[bytes | None], str]]:
    """Makes a listener that answers whoever connects with these bytes, or with nothing (None: not even an end)."""
    open_sockets: list[socket.socket] = []

    def listen(answer: bytes | None) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        open_sockets.append(server)

        def serve() -> None:
            try:
                sock, _ = server.accept()
                open_sockets.append(sock)
                sock.recv(1000)
                if answer is not None:
                    sock.sendall(answer)
                    sock.shutdown(socket.SHUT_WR)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield listen
    for open_socket in open_sockets:
        open_socket.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "no response in time"),
        (b"", "connection closed: is the broker stopping, or does its listener have another security.protocol?"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what listens there is not a Kafka broker"),
        (b"\0\0\0\4\0\0\0\7", "what listens there is not a Kafka broker"),
    ],
)
def test_addresses_without_a_kafka_broker(
    run: Run, speaking: Any, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, expected: str
) -> None:
    monkeypatch.setattr(bootstrap, "CONNECT_TIMEOUT_S", 0.2)
    address = speaking(answer)
    assert f"no broker responds at {address} ({expected}): check the address" in run("topic", "list", "-b", address).err


def test_one_reachable_broker_is_enough(cluster: LocalCluster, speaking: Any) -> None:
    silent, reachable = speaking(None), cluster.bootstrap()
    assert bootstrap_servers(None, f"{silent},{reachable}", None)[0] == [reachable]
    assert bootstrap_servers(cluster.directory, None, None)[0] == [reachable]
