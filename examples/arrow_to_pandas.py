"""A range of offsets as a pandas DataFrame, by way of Arrow. Usage: python arrow_to_pandas.py DIRECTORY"""

from __future__ import annotations

import sys

import pyarrow as pa

import kreplog


def main(directory: str) -> None:
    with kreplog.Log.open(f"{directory}/orders-0") as log:
        log.append_many([b"3", b"4", b"5"], keys=[b"alice", b"bob", b"alice"])
        frame = pa.Table.from_batches(log.to_arrow(columns=["offset", "key", "value"])).to_pandas()
    frame["amount"] = frame["value"].str.decode("utf-8").astype(int)
    frame["customer"] = frame["key"].str.decode("utf-8")
    print(frame.groupby("customer")["amount"].sum().to_dict())


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
