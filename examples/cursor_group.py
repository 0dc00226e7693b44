"""Two worker processes split the partitions of a topic among them; one is killed, and the other takes over its records.

Usage: python cursor_group.py DIRECTORY
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.connection import Connection

import kreplog


def work(path: str, results: Connection) -> None:
    with kreplog.Topic.open(path, read_only=True) as topic, topic.group_cursor("workers") as cursor:
        for batch in cursor.follow_batches(max_records=10):
            results.send([(record.partition, record.offset) for record in batch])
            cursor.commit()  # after the work: a batch that is not committed is done again by another worker


def main(directory: str) -> None:
    path = f"{directory}/jobs"
    done: set[tuple[int, int]] = set()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with kreplog.Topic.open(path, partitions=4) as topic:
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(path, sender)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for number in range(100):
            topic.append(b"job %d" % number, partition=number % 4)
        done.update(receiver.recv())
        workers[0].kill()
        while len(done) < 100:
            done.update(receiver.recv())
        workers[1].kill()
        for worker in workers:
            worker.join()
    print(f"{len(done)} jobs are done")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
