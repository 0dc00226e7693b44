"""The client quotas in the coordination store: the content of their node, and the steps of requests about them.

One node holds all quotas, see core.whole_nodes. Source of requests: KIP-546.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kreplog.core import nodes
from kreplog.core.effects import GetNodes, Steps
from kreplog.core.quotas.entities import (
    DEFAULT,
    ENTITY_TYPES,
    IP,
    QuotaEntity,
    Quotas,
    check_entity,
    check_quota,
)
from kreplog.core.whole_nodes import alter_whole, encode_whole
from kreplog.errors import CoordinationError, UsageError
from kreplog.types import Node

EXACT, OF_DEFAULT, ANY = range(3)
"""Match types of DescribeClientQuotas: a name, the default, or both and every name."""


class QuotaAlteration(NamedTuple):
    """A change of the quotas of an entity. values: by QuotaKey; None removes one."""

    entity: QuotaEntity
    values: Mapping[str, float | None]


class QuotaFilter(NamedTuple):
    """A component of DescribeClientQuotas. kind: an entity type. match_type: EXACT with a name, OF_DEFAULT or ANY."""

    kind: str
    match_type: int
    name: str | None = None


def entity_types(entity: QuotaEntity) -> list[tuple[str, str | None]]:
    """(type, name) of an entity as in requests, with None for the default; the reverse of check_entity."""
    parts = zip(ENTITY_TYPES, entity, strict=True)
    return [(kind, None if name == DEFAULT else name) for kind, name in parts if name is not None]


def encode(quotas: Quotas) -> bytes:
    """The content of the node: [entity types and names, quotas by key] of each entity. Raises UsageError if it is
    larger than a node may be."""
    content = [[dict(entity_types(entity)), dict(values)] for entity, values in sorted(quotas.items(), key=str)]
    return encode_whole(content, "client quotas", "use those of defaults, and remove others")


def decode(node: Node | None) -> Quotas:
    """The quotas in the node, none if there is no node. Raises CoordinationError."""
    if node is None:
        return {}
    try:
        content = [(check_entity(entity.items()), values) for entity, values in json.loads(node.data)]
        return {
            entity: {key: check_quota(entity, key, value) for key, value in values.items()}
            for entity, values in content
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise CoordinationError(
            f"the node {nodes.CLIENT_QUOTAS} has no quotas that this version can read ({error}): restore it, or delete "
            "it and set the quotas again; brokers enforce those that they have read before",
            path=nodes.CLIENT_QUOTAS,
        ) from error


def read_quotas() -> Steps[Quotas]:
    """All quotas. Raises CoordinationError."""
    (node,) = yield GetNodes((nodes.CLIENT_QUOTAS,))
    return decode(node)


def check_alteration(
    types: Sequence[tuple[str, str | None]], operations: Iterable[tuple[str, float, bool]]
) -> QuotaAlteration:
    """An alteration of a request: (type, name) of the entity, and (key, value, whether it is removed). Raises
    UsageError."""
    entity = check_entity(types)
    values: dict[str, float | None] = {}
    for key, value, removes in operations:
        checked = check_quota(entity, key, 1.0 if removes else value)
        if key in values:
            raise UsageError(f"{key} of {entity} is altered twice in the request")
        values[key] = None if removes else checked
    return QuotaAlteration(entity, values)


def alter_quotas(alterations: Sequence[QuotaAlteration]) -> Steps[None]:
    """Apply all alterations together. Raises UsageError (too many quotas; nothing was changed), CoordinationError."""

    def altered(before: Quotas) -> Quotas:
        after = {entity: dict(values) for entity, values in before.items()}
        for entity, values in alterations:
            own = after.setdefault(entity, {})
            for key, value in values.items():
                if value is None:
                    own.pop(key, None)
                else:
                    own[key] = value
        return {entity: own for entity, own in after.items() if own}

    yield from alter_whole(nodes.CLIENT_QUOTAS, "client quotas", decode, encode, altered)


def check_filters(components: Iterable[QuotaFilter]) -> list[QuotaFilter]:
    """The components of a request, of known types. Raises UsageError, with Kafka's messages."""
    checked: dict[str, QuotaFilter] = {}
    for component in components:
        kind, match_type, name = component
        if not kind:
            raise UsageError("Invalid empty entity type.")
        if kind in checked:
            raise UsageError(f"Entity type {kind} cannot appear more than once in the filter.")
        if match_type not in (EXACT, OF_DEFAULT, ANY):
            raise UsageError(f"Unknown match type {match_type}")
        if match_type == EXACT and name is None:
            raise UsageError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match_type != EXACT and name is not None:
            raise UsageError("Request specified a match type without a name, but also specified a match string.")
        checked[kind] = component
    if IP in checked and len(checked) > 1:
        raise UsageError(
            "Invalid entity filter component combination, IP filter component should not be used with user or clientId "
            "filter component."
        )
    return list(checked.values())


def matching(quotas: Quotas, components: Sequence[QuotaFilter], *, strict: bool) -> Quotas:
    """The quotas of the entities that all components match. strict: and that have no other type."""
    return {
        entity: values
        for entity, values in quotas.items()
        if (not strict or len(components) == sum(part is not None for part in entity))
        and all(_matches(entity, component) for component in components)
    }


def _matches(entity: QuotaEntity, component: QuotaFilter) -> bool:
    name = dict(zip(ENTITY_TYPES, entity, strict=True)).get(component.kind)
    if name is None:
        return False
    return component.match_type == ANY or name == (DEFAULT if component.match_type == OF_DEFAULT else component.name)
