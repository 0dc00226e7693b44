"""Append records one at a time through a buffer, compressed. Usage: python appender.py DIRECTORY"""

from __future__ import annotations

import sys

import kreplog


def main(directory: str) -> None:
    with kreplog.Log.open(f"{directory}/events-0") as log:
        with log.appender(compression="lz4", linger_ms=50) as appender:  # a batch is written when full, or after 50 ms
            for number in range(10_000):
                appender.append(b"event %d" % number)
        print(log.log_end_offset, "records,", len(log.segments), "segment")


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
