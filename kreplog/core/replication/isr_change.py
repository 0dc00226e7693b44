"""IsrChange: a leader's ISR change in flight, and what the store's responses decide about it.

    response to   is                                         the change is then
    the write     the node's new version                     ADOPTED
    the write     a refusal of the node's version            OVERTAKEN: the node has to be read
    the write     a refusal of a check of the joiner         DROPPED: its broker has registered again, or is stopping
    the read      a later version, of this leader and epoch  ADOPTED, whether it is our write, its response lost, or not
    the read      another leader or epoch, or no node        DEPOSED: commits nothing more, waits for the controller
    the read      a version known already                    UNKNOWN: the server that was read lags
    either        any other error                            UNKNOWN

An UNKNOWN change is written again after a pause, not read: the first write might still be in flight, and be applied
after the read. Any definite response to the second write decides about both, since their version matches only once
(KAFKA-14144, F14). isr_proposer.py decides which replicas join or leave, and acts on the outcome.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto

from kreplog.core import nodes
from kreplog.core.events import StoreReplied
from kreplog.core.replication.isr import RemoteReplica
from kreplog.errors import BadVersionError, NoNodeError
from kreplog.types import Check, Create, LeaderAndIsr, Node, SetData, StoreOperation, TopicPartition


class Outcome(Enum):
    """The outcome of an ISR change by the store's response; the table of the module says when."""

    ADOPTED = auto()
    OVERTAKEN = auto()
    DROPPED = auto()
    DEPOSED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class IsrChange:
    """An ISR change without outcome: the store may have `proposed` already, or may still get it.

    proposed.partition_epoch: the version that it replaces. path: of the node written. tag: of the write, or of the read
    in flight; None between two attempts, the next not before `retry_ms`.
    """

    proposed: LeaderAndIsr
    path: str
    operations: tuple[StoreOperation, ...]
    tag: Hashable | None
    retry_ms: int = 0

    def outcome(self, event: StoreReplied) -> tuple[Outcome, LeaderAndIsr | None]:
        """The outcome of the response under `tag`; with ADOPTED and DEPOSED the state in the store, None for no
        node."""
        if event.error is not None:
            if not isinstance(event.error, BadVersionError | NoNodeError):
                return Outcome.UNKNOWN, None
            return (Outcome.DROPPED if event.error.index else Outcome.OVERTAKEN), None
        response = event.results[0]
        if isinstance(response, Node | None):
            return self._read(response)
        return Outcome.ADOPTED, self.proposed._replace(partition_epoch=response.version)

    def _read(self, node: Node | None) -> tuple[Outcome, LeaderAndIsr | None]:
        ours = self.proposed
        state = None if node is None else nodes.decode_leader_and_isr(self.path, node)
        if state is None or (state.leader, state.leader_epoch) != (ours.leader, ours.leader_epoch):
            return Outcome.DEPOSED, state
        if state.partition_epoch <= ours.partition_epoch:
            return Outcome.UNKNOWN, None
        return Outcome.ADOPTED, state


def isr_operations(
    partition: TopicPartition, proposed: LeaderAndIsr, version: int, joiner: RemoteReplica | None
) -> tuple[StoreOperation, ...]:
    """Write `proposed` if the node is at `version`, and notify the controller.

    The joiner's registration must be the one that fetched (KIP-903), and not be stopping, which would have raised its
    version above 0 (KIP-841); the multi checks both.
    """
    checks: tuple[StoreOperation, ...] = ()
    if joiner is not None:
        checks = (
            Check(nodes.broker_epoch(joiner.broker_id), joiner.broker_epoch),
            Check(nodes.broker(joiner.broker_id), 0),
        )
    return (
        SetData(nodes.leader_and_isr(partition), nodes.encode_leader_and_isr(proposed), version),
        *checks,
        Create(f"{nodes.ISR_CHANGES}/change_", nodes.encode_partitions([partition]), sequential=True),
    )
