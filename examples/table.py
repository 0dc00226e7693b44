"""Serve lookups from a cache that follows a topic, while another process writes it.

Usage: python table.py DIRECTORY
"""

from __future__ import annotations

import subprocess
import sys

import kreplog


def write(path: str, key: str, value: str) -> None:
    with kreplog.Topic.open(path, key_codec="str", value_codec="str") as topic:
        place = topic.append(value, key)
    print(place.partition, place.offset)  # for the process that reads


def update(path: str, key: str, value: str) -> tuple[int, int]:
    """Append in a process of its own; return where the record is."""
    done = subprocess.run(
        [sys.executable, __file__, path, key, value], capture_output=True, text=True, check=True
    )  # fmt: skip
    partition, offset = done.stdout.split()
    return int(partition), int(offset)


def main(directory: str) -> None:
    path = f"{directory}/prices"
    kreplog.Topic.open(path, partitions=2).close()
    with kreplog.Topic.open(path, read_only=True, key_codec="str", value_codec="str") as topic, topic.table() as cache:
        for key, price in (("tea", "4"), ("coffee", "7"), ("tea", "5")):
            cache.wait_for(update(path, key, price))
            if key == "tea":
                print(key, cache[key])
        print(f"{len(cache)} keys")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        write(*sys.argv[1:])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        sys.exit(__doc__)
