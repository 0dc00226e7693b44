"""A cluster for the tests of commands that need one, started at first use, and the command run in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from kreplog.cluster.local_cluster import LocalCluster


class Outcome(NamedTuple):
    """How one run of the command ended."""

    code: int
    out: bytes
    err: str


Kreplog = Callable[..., Outcome]


@pytest.fixture(scope="package")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers that serve. Whoever stops one starts it again."""
    from tests.integration import clusters

    settings = (*clusters.GROUPS, '"controlled.shutdown.max.wait.ms" = 3000')  # the only in-sync replicas stop, too
    with clusters.running(tmp_path_factory.mktemp("trio") / "c", settings) as made:
        yield made


@pytest.fixture
def kreplog(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Kreplog:
    """Run `kreplog ...` with these words, and `stdin`."""
    from kreplog.cli import main

    def run(*words: str | int | Path, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as left:
            main(list(map(str, words)))
        out, err = capsysbinary.readouterr()
        assert b"Traceback" not in out + err
        return Outcome(int(left.value.code or 0), out, err.decode())

    return run


@pytest.fixture
def on_trio(trio: LocalCluster, kreplog: Kreplog) -> Kreplog:
    """As `kreplog`, of the cluster `trio`."""

    def run(*words: Any, **more: Any) -> Outcome:
        return kreplog(*words, "--cluster", trio.directory, **more)

    return run
