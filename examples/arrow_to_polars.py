"""A range of offsets as a Polars DataFrame, by way of Arrow. Usage: python arrow_to_polars.py DIRECTORY"""

from __future__ import annotations

import sys

import polars as pl
import pyarrow as pa

import kreplog


def main(directory: str) -> None:
    with kreplog.Log.open(f"{directory}/orders-0") as log:
        log.append_many([b"3", b"4", b"5"], keys=[b"alice", b"bob", b"alice"])
        frame = pl.DataFrame(pa.Table.from_batches(log.to_arrow(columns=["key", "value"])))
    texts = frame.select(pl.col("key").cast(pl.String), pl.col("value").cast(pl.String).cast(pl.Int64))
    print(dict(texts.group_by("key").agg(pl.col("value").sum()).sort("key").iter_rows()))


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
