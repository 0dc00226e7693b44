"""Features over the Kafka protocol: those of each broker by ApiVersions, UpdateFeatures (KIP-584)."""

from __future__ import annotations

from typing import NamedTuple

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import raise_for_error
from kreplog.client.broker_client import BrokerClient
from kreplog.wire.versions import ApiKey


class BrokerFeature(NamedTuple):
    """A feature at one broker. least, greatest: the levels that it supports, 0 for none. finalized: 0 if it is not."""

    least: int
    greatest: int
    finalized: int


NOT_KNOWN = BrokerFeature(0, 0, 0)


def describe_features(admin: AdminClient) -> dict[int, dict[str, BrokerFeature]]:
    """By the id of each live broker that responds: its features by name. Raises UnreachableError."""
    admin.metadata(())

    async def request(_: int, client: BrokerClient) -> dict[str, BrokerFeature]:
        names = {"client_software_name": "kreplog", "client_software_version": "0"}
        response = await client.request(ApiKey.API_VERSIONS, 3, **names)
        supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
        finalized = {each.name: each.max_version_level for each in response.finalized_features}
        return {
            name: BrokerFeature(*supported.get(name, (0, 0)), finalized.get(name, 0))
            for name in sorted({*supported, *finalized})
        }

    return dict(sorted(admin.request_each(admin.live, request).items()))


def update_feature(admin: AdminClient, feature: str, level: int, *, validate_only: bool) -> None:
    """Finalize a level. Raises TopicRequestError, UnreachableError."""
    updates = [{"feature": feature, "max_version_level": level, "upgrade_type": 1}]
    response = admin.request(
        ApiKey.UPDATE_FEATURES, 1, timeout_ms=30_000, feature_updates=updates, validate_only=validate_only
    )
    raise_for_error("feature", feature, response)
