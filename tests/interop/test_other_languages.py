"""Clients of other languages, unmodified: kafkajs for Node.js, franz-go and kafka-go for Go.

Each shares the partitions of a group, commits, and takes over those of a member that leaves. Those with transactions
copy a topic, their process killed twice.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.test_consumer_protocol import SETTINGS, produce, topic_of
from tests.client_libraries.test_protocol_migration import committed, type_of
from tests.client_libraries.test_transactions import PARTITIONS, create, values
from tests.integration.clusters import eventually, running
from tests.interop.jvm import Unavailable, cache_folder, skipped_where_unavailable

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
INSTALL_S = 600
WITHIN_S = 60
SHARED = 4
RECORDS = 60
KILLS = 2
Command = Callable[..., Sequence[str]]


def installed(program: str, *arguments: str, folder: Path) -> None:
    """Run a language's own installer in `folder`. Raises Unavailable: without the program, or the packages."""
    path = shutil.which(program)
    if path is None:
        raise Unavailable(f"no {program} on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([path, *arguments], cwd=folder, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        raise Unavailable(f"{program} {arguments[0]} fails: {done.stderr[-500:]}")


@pytest.fixture(scope="module")
def go() -> Command:
    with skipped_where_unavailable():
        installed("go", "build", "-o", str(cache_folder() / "interop-go"), folder=HERE / "go")
    return lambda *arguments: [str(cache_folder() / "interop-go"), *arguments]


@pytest.fixture(scope="module")
def node() -> Command:
    folder = cache_folder() / "interop-node"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (HERE / "node").iterdir():
        shutil.copy(source, folder)
    with skipped_where_unavailable():
        installed("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", folder=folder)
    return lambda *arguments: ["node", str(folder / "clients.js"), *arguments]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (
        *(*SETTINGS, '"group.initial.rebalance.delay.ms" = 0'),
        '"transaction.state.log.num.partitions" = 3',
    )
    with running(tmp_path_factory.mktemp("languages"), settings) as cluster:
        yield cluster


class Member:
    """A process that is a member of a group. log: a file for what it prints and complains of."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def numbers(self) -> list[int]:
        """What it has read; complaints stand among them."""
        return [int(line) for line in self.output.split("\n")[:-1] if line.isdecimal()]

    def leave(self) -> None:
        self.process.terminate()
        assert self.process.wait(WITHIN_S) == 0, self.output


@contextmanager
def member(command: Sequence[str], log: Path) -> Iterator[Member]:
    made = Member(command, log)
    try:
        yield made
    except BaseException:
        print(made.output[-8000:])
        raise
    finally:
        made.process.kill()
        made.process.wait()


def shares(bootstrap: str, group: str) -> list[int]:
    """How many partitions each member has, by what the coordinator says."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(WITHIN_S)
    return sorted(len(each.assignment.topic_partitions) for each in described.members if each.assignment)


@pytest.mark.parametrize("library", ["kafkajs", "kafka-go", "franz-go", "franz-go-848"])
def test_members_share_commit_and_take_over(
    request: pytest.FixtureRequest, brokers: LocalCluster, library: str, tmp_path: Path
) -> None:
    bootstrap, topic, group = brokers.bootstrap(), topic_of(brokers, f"of-{library}", SHARED), f"group-{library}"
    if library == "kafkajs":
        command = request.getfixturevalue("node")("member", bootstrap, group, topic)
    else:
        command = request.getfixturevalue("go")("member", library, bootstrap, group, topic)
    sent = 0

    def send() -> None:
        nonlocal sent
        produce(bootstrap, topic, [b"%d" % (sent + number) for number in range(RECORDS)], SHARED)
        sent += RECORDS

    def all_read(*members: Member) -> None:
        def found() -> set[int]:
            return {number for each in members for number in each.numbers}

        eventually(lambda: found() == set(range(sent)), lambda: f"{len(found())} of {sent} records are read", WITHIN_S)
        eventually(
            lambda: committed(bootstrap, group, topic, SHARED) == sent, "the committed offsets do not follow", WITHIN_S
        )

    with member(command, tmp_path / "first") as first:
        send()
        all_read(first)
        assert type_of(bootstrap, group).lower() == ("consumer" if library == "franz-go-848" else "classic")
        with member(command, tmp_path / "second") as second:
            eventually(
                lambda: shares(bootstrap, group) == [SHARED // 2] * 2,
                lambda: f"the shares are {shares(bootstrap, group)}",
                WITHIN_S,
            )
            before = [len(first.numbers), len(second.numbers)]
            send()
            all_read(first, second)
            assert all(len(each.numbers) > count for each, count in zip((first, second), before, strict=True))
            first.leave()
            send()
            all_read(first, second)
            second.leave()


@pytest.mark.parametrize("library", ["kafkajs", "franz-go"])
def test_a_read_process_write_loop_that_is_killed_writes_nothing_twice(
    request: pytest.FixtureRequest, brokers: LocalCluster, library: str, tmp_path: Path
) -> None:
    source, target, bootstrap = f"source-{library}", f"target-{library}", brokers.bootstrap()
    for topic in (source, target):
        create(brokers, topic)
    clients = request.getfixturevalue("node" if library == "kafkajs" else "go")
    command = clients("copy", bootstrap, source, target, f"loop-{library}")
    sent: list[bytes] = []

    def send() -> None:
        values = [b"%d" % (len(sent) + number) for number in range(150)]
        produce(bootstrap, source, values, PARTITIONS)
        sent.extend(values)

    def count() -> int:
        return sum(map(len, values(bootstrap, target, "read_committed").values()))

    def goes_on(before: int) -> None:
        eventually(lambda: count() > before, "nothing is copied", WITHIN_S)

    for turn in range(KILLS):
        before = count()
        send()
        with member(command, tmp_path / f"{turn}"):
            goes_on(before)
    send()
    with member(command, tmp_path / "last"):
        eventually(lambda: count() >= len(sent), lambda: f"{count()} of {len(sent)} records are copied", WITHIN_S)
    wanted = {partition: sent[partition::PARTITIONS] for partition in range(PARTITIONS)}
    assert values(bootstrap, target, "read_committed") == wanted
