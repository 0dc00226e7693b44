"""An outbox: what a transaction of a database says is in a topic once, although the relay is killed between the two.

Usage: python outbox.py DIRECTORY
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import sys

import kreplog


def place_order(database: sqlite3.Connection, item: str) -> None:
    with database:  # both rows, or neither
        order = database.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
        database.execute("INSERT INTO outbox (event) VALUES (?)", (f"order {order}: {item}",))


def relay(directory: str, killed_after: int = 0) -> None:
    """Append the events in their order. The key is the event's number: what the topic has is not appended again."""
    database = sqlite3.connect(f"{directory}/shop.db")
    with kreplog.Topic.open(f"{directory}/events", 1, key_codec="json", value_codec="str") as topic:
        offsets = topic.offsets()[0]
        start = max(offsets.start, offsets.stop - 1)
        newest = next((record.key for record in topic.read(0, start=start)), 0)
        for number, event in database.execute("SELECT number, event FROM outbox ORDER BY number").fetchall():
            if number > newest:
                topic.append(event, number)
            topic.flush()  # before the row goes, which is all that there is of it
            if number == killed_after:
                os.kill(os.getpid(), signal.SIGKILL)
            with database:
                database.execute("DELETE FROM outbox WHERE number = ?", (number,))


def main(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    database = sqlite3.connect(f"{directory}/shop.db")
    database.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT)")
    database.execute("CREATE TABLE outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT)")
    for item in ("pen", "ink", "cup"):
        place_order(database, item)
    killed = multiprocessing.get_context("spawn").Process(target=relay, args=(directory, 2))
    killed.start()
    killed.join()
    relay(directory)
    with kreplog.Topic.open(f"{directory}/events", read_only=True, value_codec="str") as topic:
        for record in topic.read():
            print(record.value)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
