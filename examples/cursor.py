"""Total the orders of a topic in SQLite, each exactly once, with a cursor whose position is in the same database.

Usage: python cursor.py DIRECTORY
"""

from __future__ import annotations

import os
import sqlite3
import sys

import kreplog


def total(topic: kreplog.Topic, database: sqlite3.Connection) -> None:
    """Add what is new to the totals; whatever is interrupted is done again, or has been done."""
    with topic.cursor("totals") as cursor, cursor.transaction(database):
        for record in cursor:
            database.execute(
                "INSERT INTO totals VALUES (?, ?) ON CONFLICT (customer) DO UPDATE SET total = total + excluded.total",
                (record.key, record.value["count"]),
            )


def main(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    database = sqlite3.connect(f"{directory}/totals.db")
    database.execute("CREATE TABLE totals (customer TEXT PRIMARY KEY, total INTEGER)")
    with kreplog.Topic.open(f"{directory}/orders", partitions=2, key_codec="str", value_codec="json") as topic:
        topic.append({"count": 3}, "alice")
        topic.append({"count": 4}, "bob")
        total(topic, database)
        topic.append({"count": 5}, "alice")
        total(topic, database)
        total(topic, database)  # nothing is new
    for customer, count in database.execute("SELECT * FROM totals ORDER BY customer"):
        print(customer, count)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
