"""SQL over a range of offsets: DuckDB reads Arrow columns. Usage: python arrow_to_duckdb.py DIRECTORY"""

from __future__ import annotations

import sys

import duckdb
import pyarrow as pa

import kreplog


def main(directory: str) -> None:
    with kreplog.Log.open(f"{directory}/orders-0") as log:
        log.append_many([b"3", b"4", b"5"], keys=[b"alice", b"bob", b"alice"])
        orders = pa.Table.from_batches(log.to_arrow(columns=["key", "value"]))
    connection = duckdb.connect()
    connection.register("orders", orders)
    connection.execute("SELECT decode(key), sum(CAST(decode(value) AS INTEGER)) FROM orders GROUP BY key ORDER BY key")
    print({customer: int(amount) for customer, amount in connection.fetchall()})


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
