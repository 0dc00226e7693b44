"""A Spark driver in a process of its own that streams a topic into files, and kills itself where it is to.

    python stream_driver.py DATA OUTPUT KILL_IN_BATCH OPTIONS_JSON

A batch becomes OUTPUT/rows/<batch>-<pid>.json, [[partition, offset], ...]. In batch KILL_IN_BATCH (-1 for none) the
JVM and this process get SIGKILL after that file is written, which is before Spark notes the batch as done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kreplog import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(data: str, output: str, kill_in_batch: int, options: dict[str, str]) -> None:
    spark = session(
        "stream driver",
        "local[2]",
        spark_ui_enabled=False,
        spark_driver_memory="512m",
    )
    spark.sparkContext.setLogLevel("ERROR")

    def take(frame: DataFrame, batch: int) -> None:
        rows = sorted([row.partition, row.offset] for row in frame.select("partition", "offset").collect())
        target = Path(output, "rows", f"{batch}-{os.getpid()}.json")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_suffix(".tmp").write_text(json.dumps(rows))
        target.with_suffix(".tmp").rename(target)
        if batch == kill_in_batch:
            gateway = spark.sparkContext._gateway
            assert gateway is not None
            os.kill(gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    reader = spark.readStream.format("kreplog").option("path", data).options(**options)
    writer = reader.load().writeStream.option("checkpointLocation", str(Path(output, "checkpoint")))
    query = writer.foreachBatch(take).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
