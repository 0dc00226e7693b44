"""The promises of transactions, checked from what producers and readers observe:

aborted visible   a reader gets a record of a transaction that its producer has never tried to commit
visible twice     a record is at two offsets, or a number was copied twice
epoch used up     a producer is given the epoch that is left to fence it, or a later one
acks not all      a record of a transaction is acknowledged that was sent without acks=all
fenced producer   a reader gets a record that was sent after another producer of the same transactional id had begun
stable end fell   a reader gets a lower last stable offset from the same or a later leader
producer refused  the coordinator does not know a producer whose id cannot have expired, or calls the end of its
                  transaction invalid, although no other process has requested its id; a broker that no longer
                  leads the partition of the id cannot know
stale commit      offsets that a member commits with a transaction in an earlier generation are accepted (KIP-447)
offsets refused   a transaction's offsets are refused since their generation is not assigned yet
commit lost       a record of a transaction whose commit was acknowledged is not visible                  at the end
not atomic        some records of a transaction are visible, others not                                   at the end
commit fenced     a commit that was decided is refused, and no other process has requested its id         at the end
copy lost         a number was not copied although a later one was                                        at the end

That every transaction is decided once faults have ended is checked by the readers, which cannot finish before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from kreplog.core.transaction_messages import LAST_EPOCH
from kreplog.errors import ErrorCode
from kreplog.sim.faults import TRANSACTIONS
from kreplog.sim.history import (
    Event,
    ProducerBeginning,
    ProducerBegun,
    ProducerRefused,
    StableEnd,
    StableRead,
    TransactionalCommit,
    TransactionEnded,
    TransactionEnding,
    TransactionRecordSent,
    TransactionRecordWritten,
)
from kreplog.types import TopicPartition

EXPIRATION_MS = TRANSACTIONS.transactional_id_expiration_ms
"""After which a transactional id may expire, at the earliest."""

Violate = Callable[[str, str], None]
"""Called with the kind of a violation and its text."""


@dataclass(slots=True)
class _Transaction:
    """A transaction as its producer and the readers observed it. epoch: of its producer. records: those sent, by value;
    whether each is acknowledged. fenced: those sent after another producer had begun. wanted: whether its producer
    tried to commit it. committed: that was acknowledged. refused: the error of a commit that was refused although no
    other process had requested to become the producer of its transactional id."""

    name: str
    transactional_id: str
    epoch: tuple[int, int]
    records: dict[str, bool] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)
    wanted: bool = False
    committed: bool = False
    refused: str = ""


class TransactionChecker:
    """Observes the transactions of one run. leader_of: the leader of a partition in the store. last_epoch: after which
    a producer gets another id."""

    def __init__(self, violate: Violate, leader_of: Callable[[TopicPartition], int]) -> None:
        self._violate = violate
        self._leader_of = leader_of
        self.last_epoch = LAST_EPOCH
        self._requested_ms: dict[str, int] = {}
        self._confirmed_ms: dict[str, int] = {}
        self._producers: dict[str, tuple[str, tuple[int, int]]] = {}
        self._beginning: dict[str, set[str]] = defaultdict(set)
        self._contested: set[str] = set()
        self._sole: dict[str, str] = {}
        self._shared: set[str] = set()
        self._newest: dict[str, tuple[int, int]] = {}
        self._transactions: dict[str, _Transaction] = {}
        self._of_value: dict[str, _Transaction] = {}
        self._visible: dict[str, tuple[TopicPartition, int]] = {}
        self._copies: dict[int, str] = {}
        self._stable: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        self.counts = {"transactions": 0}

    def observe(self, event: Event) -> None:
        match event:
            case ProducerBeginning(client=client, transactional_id=name):
                self._requested_ms[client] = event.at_ms
                self._beginning[name].add(client)
                self._sole.pop(name, None)
                if len(self._beginning[name]) > 1:
                    self._contested.add(name)
                if event.late:
                    self._shared.add(name)
            case ProducerBegun(client=client, transactional_id=name):
                epoch = event.producer_id, event.producer_epoch
                if client in self._beginning[name]:
                    self._beginning[name].discard(client)
                    if not self._beginning[name]:
                        self._begun_last(client, name)
                if event.producer_epoch > self.last_epoch:
                    self._violate("epoch used up", f"{client} is given epoch {event.producer_epoch} of {name}")
                self._producers[client] = name, epoch
                self._confirmed_ms[name] = self._requested_ms.get(client, event.at_ms)
                held = self._newest.get(name, epoch)
                self._newest[name] = max(held, epoch) if held[0] == epoch[0] else epoch  # responses overtake each other
            case ProducerRefused():
                self._refused(event)
            case TransactionalCommit(error=ErrorCode.NONE.name):
                text = f"{event.client} got offsets committed with a transaction in generation {event.generation}"
                self._violate("stale commit", f"{text}, and was in generation {event.latest} already")
            case TransactionRecordSent():
                self._sent(event)
            case TransactionRecordWritten(transaction=name, value=value):
                if event.acks != -1:
                    text = f"{event.client} got {value} acknowledged with acks={event.acks}"
                    self._violate("acks not all", text)
                self._transactions[name].records[value] = True
            case TransactionEnding(transaction=name, committed=committed):
                self._requested_ms[event.client] = event.at_ms
                self._transactions[name].wanted = committed
            case TransactionEnded(transaction=name, committed=committed, error=error):
                transaction = self._transactions[name]
                transaction.committed = committed and error == ErrorCode.NONE.name
                name = transaction.transactional_id
                if committed and not transaction.committed and self._is_sole(event.client, name):
                    transaction.refused = error
                if error == ErrorCode.NONE.name:
                    self._confirmed_ms[name] = self._requested_ms[event.client]
                self.counts["transactions"] += 1
            case StableRead():
                self._read(event)
            case StableEnd():
                self._end(event)
            case _:
                pass

    def _begun_last(self, client: str, transactional_id: str) -> None:
        """The last of the producers that were beginning has begun. Of those that began side by side none is known to be
        the newest: their responses overtake each other."""
        if transactional_id in self._contested:
            self._contested.remove(transactional_id)
        else:
            self._sole[transactional_id] = client

    def _is_sole(self, client: str, transactional_id: str) -> bool:
        """Whether no other process can have become the producer of the transactional id since this one did."""
        return self._sole.get(transactional_id) == client and transactional_id not in self._shared

    def _refused(self, event: ProducerRefused) -> None:
        name = event.transactional_id
        since_ms = event.at_ms - self._confirmed_ms.get(name, -EXPIRATION_MS)
        unknown = event.error == ErrorCode.INVALID_PRODUCER_ID_MAPPING.name and since_ms < EXPIRATION_MS
        wrong = unknown or event.error == ErrorCode.INVALID_TXN_STATE.name
        leads = event.broker == self._leader_of(event.partition)
        if wrong and leads and self._is_sole(event.client, name):
            self._violate("producer refused", f"{event.client} gets {event.error} as the producer of {name}")
        if event.error == ErrorCode.REBALANCE_IN_PROGRESS.name:
            self._violate("offsets refused", f"{event.client} gets {event.error} as the producer of {name}")

    def _sent(self, event: TransactionRecordSent) -> None:
        transaction = self._transactions.get(event.transaction)
        if transaction is None:
            transactional_id, epoch = self._producers[event.client]
            transaction = self._transactions[event.transaction] = _Transaction(
                event.transaction, transactional_id, epoch
            )
        transaction.records[event.value] = False
        newest = self._newest[transaction.transactional_id]
        if newest[0] == transaction.epoch[0] and newest > transaction.epoch:
            transaction.fenced.add(event.value)
        self._of_value[event.value] = transaction

    def _read(self, event: StableRead) -> None:
        transaction = self._of_value.get(event.value)
        place = event.partition, event.offset
        if transaction is None or not transaction.wanted:
            self._violate("aborted visible", f"{event.client} reads {event.value}, whose commit was never requested")
            return
        if event.value in transaction.fenced:
            self._violate("fenced producer", f"{event.client} reads {event.value}, which a fenced producer has sent")
        if self._visible.setdefault(event.value, place) != place:
            text = f"{event.value} is visible in {self._visible[event.value]} and {place}"
            self._violate("visible twice", text)
        _, copied, number = event.value.partition(":copy:")
        if copied and self._copies.setdefault(int(number), event.value) != event.value:
            text = f"{number} was copied by {self._copies[int(number)]} and again by {event.value}"
            self._violate("visible twice", text)

    def _end(self, event: StableEnd) -> None:
        key = event.client, event.partition
        epoch, highest = self._stable.get(key, (-1, -1))
        if event.leader_epoch < epoch:
            return
        if event.last_stable_offset < highest:
            text = f"{event.client} got last stable offset {event.last_stable_offset} of {event.partition}, before that"
            self._violate("stable end fell", f"{text} {highest}")
        self._stable[key] = event.leader_epoch, max(highest, event.last_stable_offset)

    def judge(self) -> None:
        """At the end: all readers have read all."""
        for transaction in self._transactions.values():
            written = [value for value, acknowledged in transaction.records.items() if acknowledged]
            seen = [value for value in written if value in self._visible]
            if seen and transaction.refused:
                text = f"{seen[0]} is visible, but the commit of its transaction was refused: {transaction.refused}"
                self._violate("commit fenced", text)
            if len(seen) == len(written):
                continue
            lost = next(value for value in written if value not in self._visible)
            if transaction.committed:
                self._violate("commit lost", f"{lost} is not visible, although its transaction is committed")
            elif seen:
                self._violate("not atomic", f"{seen[0]} is visible, but {lost} of the same transaction is not")
        gap = next((number for number in range(max(self._copies, default=0)) if number not in self._copies), None)
        if gap is not None:
            self._violate("copy lost", f"{gap} was not copied, but {max(self._copies)} was")
