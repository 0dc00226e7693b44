"""Follow a log that another process writes, without a lock. Usage: python tail_from_another_process.py DIRECTORY"""

from __future__ import annotations

import subprocess
import sys

import kreplog

WRITER = """
import sys, kreplog
with kreplog.Log.open(sys.argv[1]) as log:
    for number in range(5):
        log.append(b"record %d" % number)
"""


def main(directory: str) -> None:
    path = f"{directory}/events-0"
    kreplog.Log.open(path).close()  # a reader needs a directory that holds a log
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path])
    with kreplog.Log.open(path, read_only=True) as log:
        for record in log.follow(across_writers=True):
            print(record.offset, record.value)
            if record.offset == 4:
                break
    writer.wait()


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
