"""Arrow tables to a cluster and back, without a Python object per record: python bulk_client.py [BOOTSTRAP] [TOPIC].

The topic has to be there: kreplog topic create bulk --replication-factor 3 --cluster DIR
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

from kreplog.client import Consumer, Producer


def main(bootstrap: str = "127.0.0.1:9092", topic: str = "bulk") -> None:
    orders = pa.table({"key": ["alice", "bob"] * 5000, "value": [b"%d" % number for number in range(10_000)]})
    with Producer(bootstrap, compression="lz4") as producer:
        for piece in producer.append_arrow(topic, orders):
            print(f"{piece.partition}: offsets {piece.first_offset} to {piece.next_offset - 1}")

    with Consumer(bootstrap, columns=["key", "value"]) as consumer:
        partitions = list(consumer.partitions(topic))
        start, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        pieces = consumer.read_arrow({at: (start[at], end[at]) for at in partitions})
        found = pa.Table.from_batches([piece.to_arrow() for piece in pieces])
    keys = found["key"].cast(pa.string())
    for count in pc.value_counts(keys).to_pylist():
        print(f"{count['values']} {count['counts']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
