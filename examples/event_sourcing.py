"""Accounts whose state is what their events add up to: a command is checked, and becomes an event that is appended.

Usage: python event_sourcing.py DIRECTORY
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import kreplog


class Accounts:
    """The balances, by account. The events of an account are in one partition, in their order."""

    def __init__(self, path: str) -> None:
        self.topic = kreplog.Topic.open(path, partitions=4, key_codec="str", value_codec="json")
        self.balances: dict[str, int] = defaultdict(int)
        for record in self.topic.read():
            self.apply(record.key, record.value)

    def apply(self, account: str, event: dict[str, Any]) -> None:
        self.balances[account] += event["amount"] if event["type"] == "deposited" else -event["amount"]

    def record(self, account: str, event: dict[str, Any]) -> None:
        if event["amount"] <= 0:
            raise ValueError(f"{event['amount']} is no amount")
        self.topic.append(event, account)
        self.apply(account, event)

    def deposit(self, account: str, amount: int) -> None:
        self.record(account, {"type": "deposited", "amount": amount})

    def withdraw(self, account: str, amount: int) -> None:
        if amount > self.balances[account]:
            raise ValueError(f"{account} has {self.balances[account]}, not {amount}")
        self.record(account, {"type": "withdrawn", "amount": amount})


def main(directory: str) -> None:
    accounts = Accounts(f"{directory}/accounts")
    accounts.deposit("alice", 50)
    accounts.deposit("bob", 20)
    accounts.withdraw("alice", 15)
    try:
        accounts.withdraw("bob", 30)
    except ValueError as error:
        print(error)
    accounts.topic.close()
    again = Accounts(f"{directory}/accounts")  # as another program has them, or this after it was killed
    print(dict(sorted(again.balances.items())))
    again.topic.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
