"""The feature kreplog.version (KIP-584): which of the changes that brokers of an older version cannot read are in use.

Each level adds to those before it; brokers register the levels that they support, the operator finalizes one:

    1   all that versions write and send which register no levels

A change to nodes of the store, to records of internal topics, or to requests between brokers that a broker of the
version before would misread gets the next level: SUPPORTED grows by it, and it is in use from
FinalizedVersion.level on. All members of a cluster can read it by then: a level is finalized in two writes of one node,
which every registration checks. The first refuses brokers that lack the level, the second follows when all that have
registered by then are found to support it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kreplog.core import nodes
from kreplog.core.effects import GetChildren, GetNodes, Multi, Steps
from kreplog.core.whole_nodes import retry_pause
from kreplog.errors import (
    BadVersionError,
    CoordinationError,
    InvalidUpdateVersionError,
    NoNodeError,
    UnsupportedFeatureError,
)
from kreplog.types import KREPLOG_VERSION, BrokerRegistration, Node, SetData

SUPPORTED = (1, 1)
"""The least and the greatest level that a broker of this version supports."""

ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class FinalizedVersion:
    """The finalized level. raising: the one that an update is about to finalize, None for none. epoch: the version of
    the node, which grows with every change."""

    level: int = 1
    raising: int | None = None
    epoch: int = 0


def encode(finalized: FinalizedVersion) -> bytes:
    raising = {} if finalized.raising is None else {"raising": {KREPLOG_VERSION: finalized.raising}}
    return json.dumps({"features": {KREPLOG_VERSION: finalized.level}, **raising}, separators=(",", ":")).encode()


def decode(node: Node | None) -> FinalizedVersion:
    """Level 1 where there is no node yet. Raises CoordinationError."""
    if node is None:
        return FinalizedVersion()
    try:
        content = json.loads(node.data)
        raising = content.get("raising", {}).get(KREPLOG_VERSION)
        level = int(content["features"][KREPLOG_VERSION])
        return FinalizedVersion(level, None if raising is None else int(raising), node.stat.version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CoordinationError(
            f"the node {nodes.FEATURE} has the content {node.data[:80]!r}, which is no finalized level of "
            f"{KREPLOG_VERSION}: restore it from a backup",
            path=nodes.FEATURE,
        ) from error


def initial(broker: BrokerRegistration, *, is_new: bool) -> FinalizedVersion:
    """The level of a cluster that has no node yet: is_new: since this broker is its first."""
    return FinalizedVersion(broker.supported_versions[1] if is_new else 1)


def check_supported(broker: BrokerRegistration, finalized: FinalizedVersion) -> None:
    """Raises UnsupportedFeatureError for a broker that cannot run at the finalized level, or at the next."""
    least, greatest = broker.supported_versions
    has = f"broker {broker.id} supports {KREPLOG_VERSION} {least} to {greatest}, and"
    if finalized.level < least:
        raise UnsupportedFeatureError(
            f"{has} its cluster is at {finalized.level}: install an older version of kreplog that supports both on all "
            f"brokers, run `kreplog cluster features upgrade`, and then install this one"
        )
    if finalized.level > greatest:
        raise UnsupportedFeatureError(
            f"{has} its cluster is at {finalized.level}: install the version of kreplog that its other brokers have"
        )
    if finalized.raising is not None and finalized.raising > greatest:
        raise UnsupportedFeatureError(
            f"{has} its cluster is being raised from {finalized.level} to {finalized.raising}: install the version of "
            f"kreplog that its other brokers have, or give that up with `kreplog cluster features upgrade --feature "
            f"{KREPLOG_VERSION}={finalized.level}`"
        )


def raise_version(level: int, *, validate_only: bool = False) -> Steps[None]:
    """Finalize a level that all registered brokers support. That which is finalized already is no error, and gives up
    an update that was interrupted. Raises InvalidUpdateVersionError, CoordinationError."""
    for attempt in range(ATTEMPTS):
        try:
            yield from _raise(level, validate_only)
            return
        except BadVersionError:
            yield retry_pause(attempt)
    raise CoordinationError(f"too many concurrent changes of {KREPLOG_VERSION}: try again", path=nodes.FEATURE)


def _raise(level: int, validate_only: bool) -> Steps[None]:
    (node,) = yield GetNodes((nodes.FEATURE,))
    if node is None:
        raise NoNodeError(f"no broker that knows {KREPLOG_VERSION} has registered: start one", path=nodes.FEATURE)
    finalized = decode(node)
    settled = replace(finalized, raising=None)
    if level < finalized.level:
        raise InvalidUpdateVersionError(
            f"{KREPLOG_VERSION} is at {finalized.level}, and cannot be lowered to {level}: brokers have written what "
            "older versions cannot read"
        )
    if level == finalized.level:
        if finalized.raising is not None and not validate_only:
            yield _write(settled, finalized.epoch)
        return
    if validate_only:
        yield from _check_brokers(level)
        return
    yield _write(replace(finalized, raising=level), finalized.epoch)
    try:
        yield from _check_brokers(level)
    except InvalidUpdateVersionError:
        yield _write(settled, finalized.epoch + 1)
        raise
    yield _write(FinalizedVersion(level), finalized.epoch + 1)


def _write(finalized: FinalizedVersion, version: int) -> Multi:
    return Multi((SetData(nodes.FEATURE, encode(finalized), version),))


def _check_brokers(level: int) -> Steps[None]:
    """Raises InvalidUpdateVersionError if a registered broker does not support the level."""
    names = yield GetChildren(nodes.BROKER_IDS)
    paths = [f"{nodes.BROKER_IDS}/{name}" for name in names or ()]
    found: Iterable[Node | None] = yield GetNodes(tuple(paths))
    brokers = [nodes.decode_broker(path, node, -1) for path, node in zip(paths, found, strict=True) if node is not None]
    lacking = [
        f"broker {broker.id} supports {least} to {greatest}"
        for broker in brokers
        for least, greatest in [broker.supported_versions]
        if not least <= level <= greatest
    ]
    if lacking:
        raise InvalidUpdateVersionError(
            f"{KREPLOG_VERSION} cannot be raised to {level}: {', '.join(lacking)}; install a version of kreplog that "
            "supports it there first, or stop the broker"
        )
