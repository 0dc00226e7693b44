"""Rules of requests that administer topics and the cluster.

Source: Kafka, ControllerApis and KafkaApis; the tables of operations in its documentation, "Authorization and ACLs".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from kreplog.core.security.acls import Operation, ResourceType
from kreplog.errors import ErrorCode
from kreplog.server.authorization.checks import (
    FAILURES,
    AuthorizationCheck,
    Authorized,
    Fields,
    message_fields,
)
from kreplog.server.authorization.partition_rules import cluster_operations
from kreplog.types import ConfigResource
from kreplog.wire import generic

_TOPIC_FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_name_of = attrgetter("name")

# Topics


def create_topics(check: AuthorizationCheck, request: Any) -> Authorized:
    """CREATE on the cluster or the topics. Those that may not see a topic's settings do not get them."""
    denied = _deny_topics(check, request, Operation.CREATE, cluster=True)
    refusals = [{"name": name, **message_fields(_TOPIC_FAILED)} for name in denied]

    def finish(response: Fields | None) -> Fields:
        created = [] if response is None else response["topics"]
        return {"topics": [*(_without_settings(check, topic) for topic in created), *refusals]}

    return Authorized(request if request.topics or not denied else None, finish)


def _without_settings(check: AuthorizationCheck, topic: Fields) -> Fields:
    if check.allows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic["name"], logs_denied=False):
        return topic
    hidden = {"num_partitions": -1, "replication_factor": -1, "configs": []}
    return topic | hidden | {"topic_config_error_code": 0 if topic["error_code"] else int(_TOPIC_FAILED)}


def create_partitions(check: AuthorizationCheck, request: Any) -> Authorized:
    denied = _deny_topics(check, request, Operation.ALTER)
    refusals = [{"name": name, **message_fields(_TOPIC_FAILED)} for name in denied]

    def finish(response: Fields | None) -> Fields:
        return {"results": [*([] if response is None else response["results"]), *refusals]}

    return Authorized(request if request.topics or not denied else None, finish if refusals else None)


def _deny_topics(check: AuthorizationCheck, request: Any, operation: Operation, *, cluster: bool = False) -> list[str]:
    """Leave out of request.topics, and return, those that the operation is denied on. Repeated ones stay, for the
    handler refuses them. cluster: the operation on the cluster allows all of them."""
    counts = Counter(map(_name_of, request.topics))
    if cluster and check.allows_cluster(operation, logs_denied=False):
        return []
    names = [name for name, count in counts.items() if count == 1]
    _, denied = check.split(names, str, operation)
    left_out = set(denied)
    request.topics = [topic for topic in request.topics if topic.name not in left_out]
    return denied


def delete_topics(check: AuthorizationCheck, request: Any) -> Authorized:
    """DELETE on the cluster or the topics, which are named or, from version 6 on, identified. A topic that may not be
    described looks alike whether it exists or not; an unknown id is left to the handler, which looks it up in the same
    iteration of the event loop."""
    if check.allows_cluster(Operation.DELETE, logs_denied=False):
        return Authorized(request)
    refusals: list[Fields] = []

    def is_allowed(name: str, topic_id: Any = None) -> bool:
        if check.allows(Operation.DELETE, ResourceType.TOPIC, name):
            return True
        visible = check.visible(name)
        exists = topic_id is not None or not visible or name in check.topics.all
        error = _TOPIC_FAILED if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        fields = {"error_code": int(error), "error_message": None}
        shown = name if topic_id is None or visible else None
        refusals.append({"name": shown, "topic_id": "" if topic_id is None else topic_id, **fields})
        return False

    def is_topic_allowed(topic: Any) -> bool:
        if topic.name is not None:
            return is_allowed(topic.name)
        name = check.topics.name_of(generic.topic_id(topic.topic_id))
        return name is None or is_allowed(name, topic.topic_id)

    request.topic_names = [name for name in dict.fromkeys(request.topic_names or ()) if is_allowed(name)]
    request.topics = [topic for topic in request.topics or () if is_topic_allowed(topic)]

    def finish(response: Fields | None) -> Fields:
        return {"responses": [*([] if response is None else response["responses"]), *refusals]}

    has_rest = request.topic_names or request.topics or not refusals
    return Authorized(request if has_rest else None, finish)


# Settings

_OF_CLUSTER = frozenset({ConfigResource.BROKER, ConfigResource.BROKER_LOGGER, ConfigResource.CLIENT_METRICS})
"""Numbers of config resources that are the cluster's: brokers, their loggers, and client metrics."""


def describe_configs(check: AuthorizationCheck, request: Any) -> Authorized:
    return _configs(check, request, Operation.DESCRIBE_CONFIGS, "results", {"configs": []})


def alter_configs(check: AuthorizationCheck, request: Any) -> Authorized:
    return _configs(check, request, Operation.ALTER_CONFIGS, "responses", {})


def _configs(check: AuthorizationCheck, request: Any, operation: Operation, answered: str, more: Fields) -> Authorized:
    """Split the resources of a request. answered: the field of the response for the entries, with `more`. The handlers
    refuse resources of other types."""
    refusals: list[Fields] = []
    left = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        failure = _config_failure(check, operation, kind, name)
        if failure is None:
            left.append(resource)
        else:
            refusals.append({"resource_type": kind, "resource_name": name, **message_fields(failure), **more})
    request.resources = left

    def finish(response: Fields | None) -> Fields:
        return {answered: [*([] if response is None else response[answered]), *refusals]}

    return Authorized(request if left or not refusals else None, finish if refusals else None)


def _config_failure(check: AuthorizationCheck, operation: Operation, kind: int, name: str) -> ErrorCode | None:
    if kind in _OF_CLUSTER:
        return None if check.allows_cluster(operation) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if kind in (ConfigResource.TOPIC, ConfigResource.GROUP):
        resource_type = ResourceType.TOPIC if kind == ConfigResource.TOPIC else ResourceType.GROUP
        return None if check.allows(operation, resource_type, name) else FAILURES[resource_type]
    return None


def refused_config_resources(request: Any, error: ErrorCode) -> Fields:
    return {"error_code": int(error), "config_resources": []}


# The cluster


def describe_cluster(check: AuthorizationCheck, request: Any) -> Authorized:
    """Free; the authorized operations, where they are requested, are none for those that may not describe it."""

    def finish(response: Fields) -> Fields:
        if response["error_code"]:
            return response
        return {**response, "authorized_operations": cluster_operations(check)}

    return Authorized(request, finish if request.include_cluster_authorized_operations else None)


def refused_log_dirs(request: Any, error: ErrorCode) -> Fields:
    return {"error_code": int(error), "results": []}


def refused_moves(request: Any, error: ErrorCode) -> Fields:
    partitions: dict[str, list[Fields]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            refused = [{"partition_index": number, "error_code": int(error)} for number in topic.partitions]
            partitions.setdefault(topic.name, []).extend(refused)
    return {"results": [{"topic_name": name, "partitions": fields} for name, fields in partitions.items()]}


def moved_replicas(request: Any) -> Iterable[str]:
    return (f"{topic.name} to {directory.path}" for directory in request.dirs for topic in directory.topics)


def refused_election(request: Any, error: ErrorCode) -> Fields:
    """With the error of each partition too, which is all that version 0 has."""
    results = [
        {
            "topic": named.topic,
            "partition_result": [{"partition_id": number, **message_fields(error)} for number in named.partitions],
        }
        for named in request.topic_partitions or ()
    ]
    return {"error_code": int(error), "replica_election_results": results}


def refused_reassignment(request: Any, error: ErrorCode) -> Fields:
    fields = message_fields(error)
    responses = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": each.partition_index, **fields} for each in topic.partitions],
        }
        for topic in request.topics
    ]
    return {**fields, "responses": responses}


def refused_listing(request: Any, error: ErrorCode) -> Fields:
    return {**message_fields(error), "topics": []}


# ACLs


def refused_users(request: Any, error: ErrorCode) -> Fields:
    return {**message_fields(error), "results": []}


def refused_alterations(request: Any, error: ErrorCode) -> Fields:
    return {"results": [{"user": user, **message_fields(error)} for user in altered_users(request)]}


def refused_quotas(request: Any, error: ErrorCode) -> Fields:
    return {**message_fields(error), "entries": None}


def refused_quota_alterations(request: Any, error: ErrorCode) -> Fields:
    return {"entries": [{**message_fields(error), "entity": entity_fields(entry)} for entry in request.entries]}


def entity_fields(entry: Any) -> list[Fields]:
    return [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]


def refused_features(request: Any, error: ErrorCode) -> Fields:
    return {**message_fields(error), "results": []}


def refused_acls(request: Any, error: ErrorCode) -> Fields:
    return {**message_fields(error), "resources": []}


def refused_creations(request: Any, error: ErrorCode) -> Fields:
    return {"results": [message_fields(error) for _ in request.creations]}


def refused_deletions(request: Any, error: ErrorCode) -> Fields:
    return {"filter_results": [{**message_fields(error), "matching_acls": []} for _ in request.filters]}


# For the audit log


def updated_features(request: Any) -> list[str]:
    return [f"{update.feature}={update.max_version_level}" for update in request.feature_updates]


def altered_configs(request: Any) -> list[str]:
    """Names of the settings that a request alters, without their values."""
    return [
        f"{resource.resource_name or 'all brokers'} ({', '.join(config.name for config in resource.configs)})"
        for resource in request.resources
    ]


def altered_users(request: Any) -> list[str]:
    """Names of the users whose credentials a request alters, each once."""
    return list(dict.fromkeys(given.name for given in (*request.deletions, *request.upsertions)))


def altered_quotas(request: Any) -> list[str]:
    """The quotas that a request alters, by their entities."""
    return [f"{_entity_text(entry)} ({', '.join(map(_quota_text, entry.ops))})" for entry in request.entries]


def _entity_text(entry: Any) -> str:
    return ", ".join(f"{part.entity_type} {part.entity_name or '<default>'}" for part in entry.entity)


def _quota_text(operation: Any) -> str:
    return f"no {operation.key}" if operation.remove else f"{operation.key}={operation.value:.15g}"


def acl_text(given: Any) -> str:
    """An ACL of CreateAcls, or a filter of DeleteAcls, with the numbers of the protocol."""
    return ", ".join(f"{name}={value}" for name, value in given.to_dict().items())
