"""Workers take jobs and acknowledge each by itself; one is killed at work, and a job that always fails becomes a dead
letter.

Usage: python job_queue.py DIRECTORY
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection

import kreplog


def run(job: str) -> str:
    if job == "broken":
        raise ValueError("this job always fails")
    return f"{job} is done"


def work(path: str, results: Connection, killed_at: str) -> None:
    with (
        kreplog.Topic.open(path, read_only=True, value_codec="str") as topic,
        topic.work_queue("workers", dead_letter="jobs.dead", delivery_count_limit=3) as queue,
    ):
        for record in queue:
            if record.value == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                results.send(run(record.value))
            except ValueError as error:
                queue.nack(record, delay_ms=10, error=error)
            else:
                queue.ack(record)


def main(directory: str) -> None:
    path = f"{directory}/jobs"
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with kreplog.Topic.open(path, partitions=2, value_codec="str") as topic:
        for number in range(10):
            topic.append("broken" if number == 3 else f"job {number}", partition=number % 2)
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(path, sender, "job 7"))]
        workers[0].start()
        workers[0].join()  # job 7 has killed it
        workers.append(context.Process(target=work, args=(path, sender, "")))
        workers[1].start()
        done: set[str] = set()
        while len(done) < 9:
            done.add(receiver.recv())
        while topic.lags()["workers"] != {0: 0, 1: 0}:  # the broken job is delivered three times first
            workers[1].join(0.01)
        workers[1].kill()
        workers[1].join()
    print(f"{len(done)} jobs are done")
    with kreplog.Topic.open(f"{path}.dead", read_only=True, value_codec="str") as dead:
        for letter in dead.read():
            print(letter.value, dict(letter.headers)["__dlq.errors.message"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
