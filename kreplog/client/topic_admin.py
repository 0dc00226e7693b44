"""Topics for tools: create and delete them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import ADMIN_TIMEOUT_MS, TopicRequestError, raise_for_error
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER
from kreplog.wire.versions import ApiKey

LEADERS_TIMEOUT_S = 10.0
_POLL_S = 0.1


def create_topic(
    admin: AdminClient, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
) -> None:
    """Create a topic, and wait until the metadata have leaders of all its partitions. Raises TopicRequestError, also
    where that takes longer than LEADERS_TIMEOUT_S: the topic exists then."""
    created = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in configs.items()],
    }
    response = admin.request(
        ApiKey.CREATE_TOPICS, 5, topics=[created], timeout_ms=ADMIN_TIMEOUT_MS, validate_only=False
    )
    raise_for_error("topic", topic, response.topics[0])
    deadline = time.monotonic() + LEADERS_TIMEOUT_S
    while not _has_leaders(admin, topic, partitions):
        if time.monotonic() > deadline:
            raise TopicRequestError(
                f"topic {topic} is created, but has no leaders yet: see `kreplog topic describe {topic}`"
            )
        time.sleep(_POLL_S)  # metadata reach brokers later, which clients are not notified of


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether all partitions have leaders; True where the principal may create the topic and not describe it."""
    (found,) = admin.metadata([topic]).topics
    if found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return True
    return [each.leader_id != NO_LEADER for each in found.partitions].count(True) == partitions


def delete_topic(admin: AdminClient, topic: str) -> None:
    """Delete a topic with all its records. Raises TopicRequestError."""
    response = admin.request(ApiKey.DELETE_TOPICS, 5, topic_names=[topic], timeout_ms=ADMIN_TIMEOUT_MS)
    raise_for_error("topic", topic, response.responses[0])
