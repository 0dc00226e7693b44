"""What Kafka's protocol has no request for, by the coordination store itself: which brokers are registered, and the
removal of a topic's last partitions, requested from the controller; ACLs, users and quotas, which must exist before the
first client may send a request for them; and ZooKeeper's own ACLs. Source: "Kafka Replication" of Kafka's wiki."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from kreplog.coord.base import Session
from kreplog.coord.zookeeper import ZooKeeperStore
from kreplog.core import nodes
from kreplog.core.controller import admin_requests
from kreplog.core.quotas import quota_requests
from kreplog.core.quotas.entities import Quotas
from kreplog.core.quotas.quota_requests import QuotaAlteration
from kreplog.core.request_calls import carry_out
from kreplog.core.security import acl_requests, user_requests
from kreplog.core.security.acls import AclBinding, AclFilter
from kreplog.core.security.credentials import SECRET_BYTES
from kreplog.core.security.user_requests import CredentialUpsertion
from kreplog.errors import ErrorCode, NoNodeError, UsageError
from kreplog.server.runtime.store import children_of
from kreplog.server.runtime.store_steps import log_note
from kreplog.server.settings import load
from kreplog.types import StoreOperation

_SESSION_MS = 10_000


def set_zookeeper_acls(config: Path, *, secure: bool) -> int:
    """Give all nodes of the cluster in ZooKeeper to the user or certificate of a broker's settings, or else to
    everybody; returns their number. config: the file of settings. Raises UsageError, CoordinationError."""
    settings = load({}, config)
    kind, _, hosts = settings.coordination.partition(":")
    if kind != "zookeeper":
        raise UsageError(f"coordination = {settings.coordination} in {config}: only nodes of ZooKeeper have ACLs")
    if secure and not settings.zookeeper.set_acl:
        raise UsageError(
            f"zookeeper.set.acl is not true in {config}: nodes that brokers create later would have no ACLs; set it "
            "there first"
        )
    with closing(ZooKeeperStore(hosts, security=settings.zookeeper)) as store:
        return store.connect(_SESSION_MS).set_acls(secure)


def registered_brokers(session: Session) -> tuple[int | None, set[int]]:
    """(id of the controller, ids of all registered brokers), as the store has them."""
    try:
        ids = {int(child) for child in session.children(nodes.BROKER_IDS)}
    except NoNodeError:
        return None, set()
    (node,) = session.get_many((nodes.CONTROLLER,))
    return None if node is None else nodes.decode_controller(node), ids


def controller_epoch(session: Session) -> int:
    """The epoch of the last controller that was elected, 0 before the first. Raises CoordinationError."""
    (node,) = session.get_many((nodes.CONTROLLER_EPOCH,))
    return 0 if node is None else nodes.decode_number(nodes.CONTROLLER_EPOCH, node)


def request_removal(session: Session, topic: str, keep: int) -> list[int]:
    """Request that partitions `keep` and above be deleted with their records; returns their numbers. Raises UsageError
    for a topic that does not exist, InvalidPartitionsError, also for an internal one, RefusedError where others request
    removals all the time, CoordinationError."""
    try:
        return carry_out(admin_requests.remove_partitions(topic, keep), _SessionCalls(session))
    except admin_requests.RefusedError as refused:
        if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise UsageError(str(refused)) from refused


def pending_removals(session: Session, topic: str) -> list[int]:
    """The partitions of a topic that are requested to be removed, and are not yet."""
    return carry_out(admin_requests.pending_removals(topic), _SessionCalls(session))


def topic_names(session: Session) -> set[str]:
    return set(session.children(nodes.TOPICS))


def read_acls(session: Session) -> list[AclBinding]:
    """All ACLs. Raises CoordinationError."""
    return carry_out(acl_requests.read_acls(), _SessionCalls(session))


def create_acls(session: Session, acls: Sequence[AclBinding]) -> None:
    """Add ACLs. Raises UsageError, CoordinationError."""
    carry_out(acl_requests.create_acls(acls), _SessionCalls(session))


def delete_acls(session: Session, filters: Sequence[AclFilter]) -> list[list[AclBinding]]:
    """Delete ACLs, and return those of each filter. Raises CoordinationError."""
    return carry_out(acl_requests.delete_acls(filters), _SessionCalls(session))


def put_user(session: Session, credentials: Sequence[CredentialUpsertion]) -> None:
    """Create or replace credentials of one user. Raises UnacceptableCredentialError, CoordinationError."""
    changes = user_requests.changes_of(credentials)
    steps = user_requests.alter_user(credentials[0].user, changes, secrets.token_bytes(SECRET_BYTES))
    carry_out(steps, _SessionCalls(session))


def remove_user(session: Session, user: str) -> None:
    """Delete all credentials of a user. Raises UnknownCredentialError, CoordinationError."""
    carry_out(user_requests.remove_user(user), _SessionCalls(session))


def users_in(session: Session) -> dict[str, dict[str, int]]:
    """The iterations of the credentials of all users, by user and mechanism. Raises CoordinationError."""
    found = carry_out(user_requests.stored_users(), _SessionCalls(session))
    return {user: {name: given.iterations for name, given in each.items()} for user, each in found.items()}


def alter_quotas(session: Session, alteration: QuotaAlteration) -> None:
    """Set and remove quotas of an entity. Raises UsageError, CoordinationError."""
    carry_out(quota_requests.alter_quotas([alteration]), _SessionCalls(session))


def quotas_in(session: Session) -> Quotas:
    """All client quotas. Raises CoordinationError."""
    return carry_out(quota_requests.read_quotas(), _SessionCalls(session))


class _SessionCalls:
    """Calls of a process that has a session of its own, and nothing else to do."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_nodes(self, paths: Sequence[str]) -> Any:
        return self._session.get_many(paths)

    def get_children(self, path: str) -> Any:
        return children_of(self._session, path)

    def multi(self, operations: Sequence[StoreOperation]) -> Any:
        return self._session.multi(operations)

    def pause(self, ms: int) -> None:
        time.sleep(ms / 1000)  # this process has nothing else to do meanwhile

    def note(self, level: str, text: str) -> None:
        log_note(level, text)
