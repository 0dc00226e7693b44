"""The jobs as commands: their help, what the page of the docs says of them, and the bar that shows their progress."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from kreplog_jobs import job, submit
from tests.integration.clusters import eventually
from tests.spark.processes import ROOT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = (ROOT / "docs" / "spark-jobs.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_the_page_has_all_jobs_each_with_a_picture() -> None:
    modules = (ROOT / "spark" / "jobs" / "kreplog_jobs").glob("*.py")
    assert sorted(path.stem for path in modules if "job.run(main)" in path.read_text()) == [*submit.JOBS]
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(SECTIONS) == set(submit.JOBS)
    for section in SECTIONS.values():
        assert re.match(r"\n```text\n.*[►┼┴].*?\n```", section, re.DOTALL)


@pytest.mark.parametrize("name", submit.JOBS)
def test_help_has_the_options_of_the_page(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delitem(sys.modules, f"kreplog_jobs.{name}", raising=False)  # runpy warns of one that is imported
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"kreplog_jobs.{name}", run_name="__main__", alter_sys=False)
    assert end.value.code == 0
    shown = capsys.readouterr().out
    options = re.compile(r"--[a-z][a-z-]+")
    of_kafka = re.compile(r"^kafka-.*$", re.MULTILINE)
    documented = set(options.findall(of_kafka.sub("", SECTIONS[name])))
    offered = set(options.findall(shown))
    assert documented <= offered
    required = re.findall(r"(--[a-z-]+).*\n?.*\[required\]", shown)
    assert set(required) <= documented


@pytest.mark.parametrize(
    ("arguments", "status", "shown"),
    [
        (["profile", "--help"], 0, "Usage: "),
        (["profit"], 2, "error: name a job first, one of audit, compact,"),
        ([], 2, "error: name a job first, one of audit, compact,"),
    ],
)
def test_spark_submit_runs_a_job_from_a_file(arguments: list[str], status: int, shown: str) -> None:
    """As Spark does: the folder of the file, with the job `profile`, is where Python looks first for its own module."""
    done = subprocess.run([sys.executable, submit.__file__, *arguments], capture_output=True, text=True, timeout=300)
    assert (done.returncode, (done.stdout + done.stderr).startswith(shown)) == (status, True), done.stderr


def test_the_bar_follows_the_tasks(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three tasks ends, the others wait until the bar has shown that."""
    shown = io.StringIO()
    monkeypatch.setattr(job, "console", Console(file=shown, force_terminal=True, width=80))
    seen = tmp_path / "seen"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            while batch.column("id")[0].as_py() and not seen.exists():
                time.sleep(0.02)  # until the test, another process, makes the file
            yield batch

    def watch() -> None:
        try:
            eventually(lambda: "1/3" in shown.getvalue(), shown.getvalue, 60)
        finally:
            seen.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with job.progress(spark, "counting"):
        assert spark.range(0, 3, numPartitions=3).mapInArrow(wait, "id bigint").count() == 3
    watcher.join()
    plain = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", shown.getvalue())
    frames = re.findall(r"counting \S+ (\d/[\d?]) ", plain)
    assert "1/3" in frames and frames[-1][0] == frames[-1][2], frames
