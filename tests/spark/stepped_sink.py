"""The sink by transactions as a format of its own, "kreplog-stepped", whose processes get a signal at a chosen step.

Option "steps" is a directory. The first process that comes to step S while there is a file S in it, with the name of a
signal, renames the file to S-PID.met and sends itself the signal. Steps: "staging", where a task has taken its
first rows; "before-API" and "after-API" for each request to a coordinator, such as after-END_TXN.

    python -m tests.spark.stepped_sink STEPS BOOTSTRAP TOPIC...

commits, without Spark and in a process for each topic, batch 0 with the rows a and b in a transaction of the topic's
name, with the steps of the directory STEPS/TOPIC; the error, or nothing, becomes STEPS/TOPIC/error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from kreplog.client.transactional_producer import TransactionalProducer
from kreplog.errors import KreplogError
from kreplog.wire.versions import ApiKey
from pyspark_kreplog.sink import Job
from pyspark_kreplog.sink_options import BrokerSinkOptions, parse_sink
from pyspark_kreplog.source import KreplogDataSource
from pyspark_kreplog.transactional_sink import ReturnedRows, TransactionalSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from pyspark_kreplog.sink import Sink

_call = TransactionalProducer._call


class SteppedDataSource(KreplogDataSource):
    @classmethod
    def name(cls) -> str:
        return "kreplog-stepped"

    def _sink(self, schema: StructType) -> Sink:
        return stepped_sink(Path(self.options["steps"]), dict(self.options))


class SteppedSink(TransactionalSink):
    def __init__(self, options: BrokerSinkOptions, steps: Path) -> None:
        super().__init__(options)
        self._steps = steps

    def write(self, job: Job, task: int, batches: Iterable[pa.RecordBatch]) -> ReturnedRows:
        def stepped() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                step(self._steps, "staging")
                yield batch

        return super().write(job, task, stepped())

    def commit(self, messages: Sequence[WriterCommitMessage]) -> None:
        def call(producer: TransactionalProducer, api: ApiKey, *arguments: Any, **fields: Any) -> Any:
            step(self._steps, f"before-{api.name}")
            response = _call(producer, api, *arguments, **fields)
            step(self._steps, f"after-{api.name}")
            return response

        with patch.object(TransactionalProducer, "_call", call):
            super().commit(messages)


def stepped_sink(steps: Path, options: dict[str, str]) -> SteppedSink:
    parsed = parse_sink({name: value for name, value in options.items() if name != "steps"})
    assert isinstance(parsed, BrokerSinkOptions)
    return SteppedSink(parsed, steps)


def step(steps: Path, name: str) -> None:
    try:
        number = signal.Signals[(steps / name).read_text()]
        (steps / name).rename(steps / f"{name}-{os.getpid()}.met")
    except FileNotFoundError:  # not planned, or another process has met it
        return
    os.kill(os.getpid(), number)


def plan(steps: Path, name: str, number: signal.Signals) -> None:
    draft = steps / f".{name}"
    draft.write_text(number.name)
    draft.rename(steps / name)


def met(steps: Path, name: str) -> list[int]:
    """The processes that have met a step."""
    return [int(path.stem.rpartition("-")[2]) for path in steps.glob(f"{name}-*.met")]


def commit(steps: Path, bootstrap: str, topic: str) -> None:
    import pyarrow as pa

    options = {"kafka.bootstrap.servers": bootstrap, "kafka.transactional.id": topic, "topic": topic}
    sink = stepped_sink(steps, options)
    rows = pa.record_batch({"value": [b"a", b"b"]})
    error = ""
    try:
        sink.commit([sink.write(Job("job", topic, 0), 0, [rows])])
    except KreplogError as raised:
        error = f"{type(raised).__name__}: {raised}"
    (steps / "error").write_text(error)


def main(steps: Path, bootstrap: str, topics: Sequence[str]) -> None:
    import pyarrow  # noqa: F401 - loaded once, before the children are forked

    children = []
    for topic in topics:
        pid = os.fork()
        if pid == 0:
            commit(steps / topic, bootstrap, topic)
            return
        children.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
