"""The checker of memory accounts.

memory   what is held for fetches, groups and transactions is charged, and within its limit   after each step
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.groups.shard import ACCOUNT as GROUP_ACCOUNT
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import CONSUMER
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.core.transactions.transaction_shard import ACCOUNT as TRANSACTION_ACCOUNT


class MemoryChecker:
    """Checks the memory of all brokers of one run. violate: takes the kind and the text of a violation."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._consumers_bytes: dict[int, int] = {}

    def fetchers_stepped(self, broker: int, manager: ReplicaManager) -> None:
        """A step of a replication core with a memory limit has ended."""
        held: Counter[str] = Counter()
        consumers = 0
        for account, replica_id, size in manager.charges():
            held[account] += size
            consumers += size if replica_id <= CONSUMER else 0
        if held != manager.memory.held:
            text = (
                f"broker {broker} holds {dict(held)} bytes for fetchers, its account says {dict(manager.memory.held)}"
            )
            self._violate("memory", text)
        if consumers > self._consumers_bytes.get(broker, 0) and held.total() > manager.memory.limit // 2:
            text = (
                f"broker {broker} reserved more for a consumer: {held.total()} of {manager.memory.limit} bytes are held"
            )
            self._violate("memory", text)
        self._consumers_bytes[broker] = consumers

    def groups_stepped(self, broker: int, groups: GroupCoordinator, account: MemoryAccount) -> None:
        """A step of a coordinator has ended."""
        held = account.held[GROUP_ACCOUNT]
        if held != groups.charged:
            text = f"the groups of broker {broker} are charged {groups.charged} bytes, its account says {held}"
            self._violate("memory", text)

    def transactions_stepped(self, broker: int, transactions: TransactionCoordinator, account: MemoryAccount) -> None:
        """A step of a coordinator of transactions has ended."""
        held = account.held[TRANSACTION_ACCOUNT]
        if held != transactions.charged:
            text = f"the transactions of broker {broker} take {transactions.charged} bytes, its account says {held}"
            self._violate("memory", text)
