"""Append to a topic of several partitions, and read it back by partition, by time and as Arrow.

Usage: python topic.py DIRECTORY
"""

from __future__ import annotations

import sys

import pyarrow as pa

import kreplog


def main(directory: str) -> None:
    with kreplog.Topic.open(f"{directory}/orders", partitions=4, key_codec="str", value_codec="json") as topic:
        topic.append({"item": "apples", "count": 3}, "alice", timestamp_ms=1_700_000_000_000)
        rest = [{"item": "pears", "count": 4}, {"item": "plums", "count": 5}]
        topic.append_many(rest, ["bob", "alice"], [1_700_000_000_001, 1_700_000_000_002])
        for record in topic.read(order="time"):
            print(record.key, record.value["item"])
        table = pa.Table.from_batches(list(topic.to_arrow(columns=["partition", "key"])))
        print(table.num_rows, "records in", len(topic.offsets()), "partitions")


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
