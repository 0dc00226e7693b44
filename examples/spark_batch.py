"""Query an embedded log with Spark. Needs Java 17 or newer. Usage: python spark_batch.py DIRECTORY"""

from __future__ import annotations

import sys

import kreplog
import pyspark_kreplog


def main(directory: str) -> None:
    with kreplog.Log.open(f"{directory}/orders-0") as log:
        log.append_many([b"3", b"4", b"5"], keys=[b"alice", b"bob", b"alice"])

    spark = pyspark_kreplog.session(master="local[2]", spark_ui_enabled=False)
    orders = spark.read.format("kreplog").option("path", directory).option("subscribe", "orders").load()
    orders.createOrReplaceTempView("orders")
    query = "SELECT string(key) AS customer, sum(int(string(value))) AS amount FROM orders GROUP BY key ORDER BY key"
    for row in spark.sql(query).collect():
        print(row.customer, row.amount)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
