"""Client quotas over the Kafka protocol: DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import raise_for_error
from kreplog.core.quotas.entities import Quotas, check_entity
from kreplog.core.quotas.quota_requests import QuotaAlteration, entity_types
from kreplog.errors import PeerProtocolError, UsageError
from kreplog.wire.versions import ApiKey

_VERSION = 1


def describe_quotas(admin: AdminClient) -> Quotas:
    """All quotas. Raises TopicRequestError, UnreachableError, PeerProtocolError."""
    response = admin.request(ApiKey.DESCRIBE_CLIENT_QUOTAS, _VERSION, components=[], strict=False)
    raise_for_error("the", "client quotas", response)
    try:
        return {
            check_entity([(part.entity_type, part.entity_name) for part in entry.entity]): {
                each.key: each.value for each in entry.values
            }
            for entry in response.entries
        }
    except UsageError as error:
        raise PeerProtocolError(f"a quota of a newer version: {error}") from error


def alter_quotas(admin: AdminClient, alteration: QuotaAlteration) -> None:
    """Set and remove quotas of an entity. Raises TopicRequestError, UnreachableError."""
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in entity_types(alteration.entity)]
    operations = [
        {"key": key, "value": value or 0.0, "remove": value is None} for key, value in alteration.values.items()
    ]
    entries = [{"entity": entity, "ops": operations}]
    response = admin.request(ApiKey.ALTER_CLIENT_QUOTAS, _VERSION, entries=entries, validate_only=False)
    for entry in response.entries:
        raise_for_error("quotas of", str(alteration.entity), entry)
