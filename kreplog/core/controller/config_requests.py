"""Requests that alter settings: the steps that each takes in the coordination store, where the controller finds them.

A broker carries them out for AlterConfigs and IncrementalAlterConfigs, the simulator for its operators. New settings
are made from those that are stored, and written on condition that no other write came in between; else they are made
again from what that has written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller.admin_operations import set_broker_config_operations, set_config_operations
from kreplog.core.controller.admin_requests import ATTEMPTS, RefusedError, stored_topic, unknown
from kreplog.core.dynamic_configs import InvalidSettingError
from kreplog.core.effects import GetNodes, Multi, Steps
from kreplog.errors import BadVersionError, CoordinationError, ErrorCode, NodeExistsError, NoNodeError
from kreplog.types import Node

Decoded = TypeVar("Decoded")

AlterTopic = Callable[[TopicConfig | None, int], TopicConfig]
"""The new settings of a topic, from those that it has, None if they are unreadable, and its number of replicas. Raises
InvalidSettingError."""

AlterBroker = Callable[[Mapping[str, str]], dict[str, str]]
"""The new dynamic configs of a broker or of all, from those that are stored. Raises InvalidSettingError."""


def alter_topic(
    name: str, alter: AlterTopic, *, replace_unreadable: bool, validate_only: bool = False
) -> Steps[TopicConfig]:
    """Write new settings of a topic, and return them; with validate_only nothing is written.

    replace_unreadable: settings that cannot be decoded are replaced, not refused. Raises RefusedError (there is no such
    topic, or a setting is wrong or unreadable), InvalidTopicError, CoordinationError.
    """
    for _ in range(ATTEMPTS):
        topic = yield from stored_topic(name)
        path = nodes.topic_config(name)
        (node,) = yield GetNodes((path,))
        if node is None:
            raise unknown(f"topic {name}")
        before = _decoded(nodes.decode_topic_config, path, node, replace_unreadable)
        replicas = len(topic.partitions[min(topic.partitions)].target)
        try:
            after = alter(before, replicas)
        except InvalidSettingError as error:
            raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
        if validate_only:
            return after
        try:
            yield Multi(set_config_operations(name, after, node.stat.version))
        except BadVersionError:
            continue
        except NoNodeError as error:
            raise unknown(f"topic {name}") from error
        return after
    raise _contended(name)


def alter_broker(
    broker_id: int | None, alter: AlterBroker, *, replace_unreadable: bool, validate_only: bool = False
) -> Steps[dict[str, str]]:
    """Write new dynamic configs of a broker, or with None as its id of all brokers, and return them; with validate_only
    nothing is written. What does not change is not written.

    replace_unreadable: configs that cannot be decoded are replaced, not refused. Raises CoordinationError, RefusedError
    (INVALID_REQUEST also for a wrong value: Kafka keeps that error for compatibility, KAFKA-13609).
    """
    path = nodes.broker_config(broker_id)
    for _ in range(ATTEMPTS):
        parent, node = yield GetNodes((nodes.BROKER_CONFIGS, path))
        before = _decoded(nodes.decode_broker_config, path, node, replace_unreadable)
        try:
            after = alter(dict(before or ()))
        except InvalidSettingError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, str(error)) from error
        if validate_only or (before is not None and dict(before) == after):
            return after
        version = None if node is None else node.stat.version
        try:
            yield Multi(set_broker_config_operations(broker_id, after, version, directory=parent is None))
        except (NodeExistsError, NoNodeError, BadVersionError):
            continue
        return after
    raise _contended("the brokers")


def _decoded(
    decode: Callable[[str, Node | None], Decoded], path: str, node: Node | None, replace_unreadable: bool
) -> Decoded | None:
    """The settings in a node; None if they are unreadable, and are to be replaced. Raises RefusedError."""
    try:
        return decode(path, node)
    except CoordinationError as error:
        if not replace_unreadable:
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"{error}; AlterConfigs replaces it") from error
        return None


def _contended(subject: str) -> RefusedError:
    text = f"too many concurrent changes of the settings of {subject}: try again"
    return RefusedError(ErrorCode.REQUEST_TIMED_OUT, text)
