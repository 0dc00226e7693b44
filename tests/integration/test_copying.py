"""The checks of copies that grow under faults find what they are for, without brokers: what is planted is what brokers
or members that break a guarantee would show them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the clients of the checks are librdkafka's")

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from tests.integration.copy_reader import CopyCheck
from tests.integration.copying import Copying, Observer, PlainCommits, is_copy


class Committed:
    """A consumer by whose coordinator these offsets are committed, one list after the other; None: it fails. Commits
    of these offsets fail, or None: all succeed."""

    def __init__(self, found: Iterable[list[int] | None], refused: frozenset[int] = frozenset()) -> None:
        self._found = iter(found)
        self._refused = refused

    def committed(self, places: list[Place], _: float) -> list[Place]:
        offsets = next(self._found)
        if offsets is None:
            raise KafkaException(KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))
        return [Place(place.topic, place.partition, offset) for place, offset in zip(places, offsets, strict=True)]

    def commit(self, offsets: list[Place], asynchronous: bool) -> None:
        assert not asynchronous
        if offsets[0].offset in self._refused:
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))


@pytest.mark.parametrize(
    ("copied", "kinds"),
    [
        (["commit/0/a", "commit/1/b"], []),
        (["commit/0/a", "abort/1/b", "commit/1/b"], ["aborted", "twice"]),
        (["commit/0/a", "commit/0/a", "commit/1/b"], ["twice"]),
        (["commit/0/a", "commit/2/c", "commit/3/d"], ["gap"]),
        (["commit/0/a", "commit/2/c", "commit/1/b"], ["gap", "twice"]),
    ],
)
def test_a_copy_with_another_record_than_is_due(copied: list[str], kinds: list[str]) -> None:
    check = CopyCheck(2)
    found = [check.violation(1, offset, value.encode()) for offset, value in enumerate(copied)]
    assert [text.partition(":")[0] for text in found if text] == kinds
    assert check.seen[0] == 0, "of another partition nothing is seen"


@pytest.mark.parametrize(
    ("offsets", "back"),
    [
        ([[0, 0], [3, 1], None, [3, 2]], []),
        ([[3, 1], None, [2, 1]], ["committed 3, then 2"]),
        ([[3, 1], [-1001, 1], [3, 1]], ["committed 3, then 0"]),
    ],
)
def test_committed_offsets_that_go_back(offsets: list[list[int] | None], back: list[str]) -> None:
    observer = Observer(Committed(offsets), "group", "read", 2)
    for _ in offsets:
        observer.look()
    assert [text.partition("partition 0: ")[2] for text in observer.violations] == back
    assert observer.committed == offsets[-1]


@pytest.mark.parametrize(
    ("found", "refused", "lost"),
    [
        ([[1], [2], None, [4]], frozenset(), 0),
        ([[1], [2], [2], [4]], frozenset({3}), 0),
        ([[1], [2], [3], [4]], frozenset({3}), 0),
        ([[1], [1], [3], [4]], frozenset(), 1),
        ([[1], [1], [2], [4]], frozenset({2, 3}), 0),
        ([[1], [-1001], [2], [4]], frozenset({2, 3}), 1),
        ([[1], [3], [3], [4]], frozenset(), 1),
    ],
)
def test_an_acknowledged_commit_that_is_lost(found: list[list[int] | None], refused: frozenset[int], lost: int) -> None:
    """A refused commit may be found or not, and another than was sent may never be."""
    commits = PlainCommits(Committed([], refused), Committed(found), "plain", "read")
    for offset in range(1, len(found) + 1):
        commits.commit(offset)
    assert len(commits.violations) == lost
    assert commits.acknowledged == len(found)


@pytest.mark.parametrize(
    ("copied", "same"),
    [
        ([b"commit/0/a", b"commit/1/b"], True),
        ([b"commit/0/a"], False),
        ([b"commit/0/a", b"commit/1/b", b"commit/1/b"], False),
        ([b"commit/1/b", b"commit/0/a"], False),
        ([b"commit/0/a", b"abort/1/b"], False),
        ([b"commit/0/a", b"commit/1/a"], False),
    ],
)
def test_a_copy_at_rest_that_differs(copied: list[bytes], same: bool) -> None:
    assert is_copy([b"a", b"b"], copied) is same


def test_a_member_that_has_ended_by_itself(tmp_path: Path) -> None:
    """It may not: whatever a coordinator answers, it goes on."""

    class Ending(Copying):
        def _spawn(self, slot: int) -> subprocess.Popen[bytes]:
            with (tmp_path / f"copy-member-{slot}").open("wb") as reports:
                return subprocess.Popen([sys.executable, "-c", "raise SystemExit('no way on')"], stderr=reports)

    copying = Ending("127.0.0.1:1", "read", "copy", 1, "classic", tmp_path)
    copying.join(0)
    copying._members[0].wait()
    assert copying.violations() == ["ended: member 0 of copy: no way on"]


def test_a_member_whose_library_hangs_is_replaced(tmp_path: Path) -> None:
    class Hanging(Copying):
        def _spawn(self, slot: int) -> subprocess.Popen[bytes]:
            hangs = "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(600)"
            return subprocess.Popen([sys.executable, "-c", hangs])

    copying = Hanging("127.0.0.1:1", "read", "copy", 1, "classic", tmp_path)
    copying.join(0)
    first = copying._members[0]
    first.wait()
    copying.replace_hung()
    assert copying.hung == 1 and copying._members[0] is not first
    copying.kill(0)
