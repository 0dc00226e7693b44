"""The sink by transactions under a loop that does for it what Spark does for a stream, so that a kill costs little.

    python -m tests.spark.sink_loop FOLDER BOOTSTRAP TOPIC

Batch B has the numbers from B * ROWS on, as keys and values, in two tasks. FOLDER/committed has the number of batches
whose commit has returned. Batches are written until there is FOLDER/end, by a child whose process id is in
FOLDER/worker; after a child that was killed, or failed, there is another. FOLDER has the steps of stepped_sink.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import pyarrow as pa

from pyspark_kreplog.sink import Job
from tests.spark.stepped_sink import stepped_sink

ROWS = 40


def work(folder: Path, bootstrap: str, topic: str) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "kafka.transactional.id": topic, "topic": topic}
    while True:
        sink = stepped_sink(folder, options)
        batch = number_in(folder / "committed")
        job = Job(f"job {batch}", topic, batch)
        middle = batch * ROWS + ROWS // 2
        halves = (range(batch * ROWS, middle), range(middle, (batch + 1) * ROWS))
        sink.commit([sink.write(job, task, [rows(half)]) for task, half in enumerate(halves)])
        write(folder / "committed", batch + 1)
        if (folder / "end").exists():  # not before: the batch of a process that was killed runs again first
            return


def rows(numbers: range) -> pa.RecordBatch:
    values = [b"%d" % number for number in numbers]
    return pa.record_batch({"key": values, "value": values})


def write(path: Path, number: int) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(str(number))
    draft.rename(path)


def number_in(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


def main(folder: Path, bootstrap: str, topic: str) -> None:
    while True:
        pid = os.fork()
        if pid == 0:
            try:
                work(folder, bootstrap, topic)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        write(folder / "worker", pid)
        if os.waitpid(pid, 0)[1] == 0:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
