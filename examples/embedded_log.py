"""Append to an embedded log, make it durable, read it back. Usage: python embedded_log.py DIRECTORY"""

from __future__ import annotations

import sys

import kreplog


def main(directory: str) -> None:
    with kreplog.Log.open(f"{directory}/orders-0") as log:
        first = log.append(b"apples", key=b"alice", headers=[("source", b"web")])
        log.append_many([b"pears", b"plums"], keys=[b"bob", b"alice"])
        log.flush()  # fsync: what was appended survives power loss from here on
        for record in log.read(start=first):
            print(record.offset, record.key, record.value)


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
