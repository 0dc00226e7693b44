"""Dynamic configs of consumer groups (KIP-848): settings that a group has in place of those of its coordinator.

One node of the store holds them as texts by group and name, see core.whole_nodes; every broker reads it. A group may
have them before it exists, and keeps them when it is deleted. Of a setting counts

    the group's own config, else the broker's setting of the same name after `group.`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kreplog.config import RANGES, GroupConfig
from kreplog.core import nodes
from kreplog.core.dynamic_configs import DYNAMIC_GROUP, Change, InvalidSettingError, Synonym, with_changes
from kreplog.core.effects import GetNodes, Steps
from kreplog.core.setting_values import ValueType, integer
from kreplog.core.topic_settings import Described
from kreplog.core.whole_nodes import alter_whole, encode_whole
from kreplog.errors import CoordinationError
from kreplog.types import Node, printable

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"

NAMES = (HEARTBEAT_INTERVAL, SESSION_TIMEOUT)
"""The settings of a group."""

_OTHER_TYPES = {
    "share.": "share groups (KIP-932)",
    "errors.deadletterqueue.": "share groups (KIP-932)",
    "streams.": "streams groups (KIP-1071)",
}
"""By prefix of settings: the groups that have them, which kreplog does not."""

GroupTexts = Mapping[str, Mapping[str, str]]
"""Configs of groups: texts by group and name."""


class MemberTimes(NamedTuple):
    """The interval of the heartbeats of a group's members, and how long they may be silent."""

    heartbeat_interval_ms: int
    session_timeout_ms: int


def broker_setting(name: str) -> str:
    """The broker's setting that counts for groups without their own."""
    return f"group.{name}"


def _field(name: str) -> str:
    return broker_setting(name).replace(".", "_")


TYPES: Mapping[str, ValueType] = {name: integer(*RANGES[_field(name)]) for name in NAMES}
"""The type of every setting of a group."""


def _bounds(name: str, config: GroupConfig) -> dict[str, int]:
    """The broker's settings for the least and the greatest value, and these."""
    kind = name.removeprefix("consumer.")
    settings = (f"group.consumer.{bound}.{kind}" for bound in ("min", "max"))
    return {setting: getattr(config, setting.replace(".", "_")) for setting in settings}


def static_times(config: GroupConfig) -> MemberTimes:
    """The times in groups without configs."""
    return MemberTimes(config.group_consumer_heartbeat_interval_ms, config.group_consumer_session_timeout_ms)


def times_error(times: MemberTimes, config: GroupConfig, prefix: str = "") -> str | None:
    """Why members cannot have these times, outside of the bounds in `config` or of which no member can keep alive; None
    if they can. prefix: of the names of the settings."""
    for name, value in zip(NAMES, times, strict=True):
        (least, low), (greatest, high) = _bounds(name, config).items()
        if not low <= value <= high:
            return f"{prefix}{name} = {value} must be within {least} = {low} and {greatest} = {high}"
    if times.heartbeat_interval_ms >= times.session_timeout_ms:
        return (
            f"{prefix}{HEARTBEAT_INTERVAL} = {times.heartbeat_interval_ms} must be below {prefix}{SESSION_TIMEOUT} = "
            f"{times.session_timeout_ms}: a member that sends heartbeats would be taken for dead"
        )
    return None


def member_times(texts: Mapping[str, str], config: GroupConfig) -> MemberTimes:
    """The times that a group with these configs has. config: the broker's. Raises InvalidSettingError."""
    values = dict(zip(NAMES, static_times(config), strict=True))
    values |= {name: _value(name, text) for name, text in texts.items() if name in TYPES}
    times = MemberTimes(*(values[name] for name in NAMES))
    refused = times_error(times, config)
    if refused is not None:
        raise InvalidSettingError(refused)
    return times


def _value(name: str, text: str) -> int:
    try:
        value: int = TYPES[name].parse(text)
    except ValueError as error:
        raise InvalidSettingError(f"{name} = {text[:100]}: {error}") from error
    return value


def _unknown(name: str) -> str:
    others = next((groups for prefix, groups in _OTHER_TYPES.items() if name.startswith(prefix)), None)
    known = f"a group has {' and '.join(NAMES)}"
    if others is not None:
        return f"{name[:100]} is a setting of {others}, which this cluster does not have: {known}"
    return f"{name[:100]} is not a setting of a group: {known}"


def group_error(name: str) -> str | None:
    """Why the configs of the group resource `name` can be neither altered nor described; None if they can."""
    return None if name else "groups have no default configs: give the id of a group"


def altered(
    present: Mapping[str, str], changes: Iterable[Change], config: GroupConfig, *, keep: bool
) -> dict[str, str]:
    """`present`, the configs of a group, with the changes. keep: those that are not changed stay. config: the broker's.
    Raises as with_changes does."""

    def check(name: str) -> None:
        if name not in TYPES:
            raise InvalidSettingError(_unknown(name))

    def stored(name: str, text: str | None) -> str:
        if text is None:
            raise InvalidSettingError(f"{name} has no value: give {TYPES[name].allowed}, or delete it")
        return str(_value(name, text))

    after = with_changes(present if keep else {}, changes, check, stored)
    member_times(after, config)
    return after


def described(texts: Mapping[str, str], broker: Callable[[str], list[Synonym]]) -> Iterator[Described]:
    """The settings of a group with these configs. broker: returns the values of a broker's setting by precedence."""
    for name in NAMES:
        own = [Synonym(name, TYPES[name].parse(texts[name]), DYNAMIC_GROUP)] if name in texts else []
        yield Described(name, TYPES[name].config_type, True, (*own, *broker(broker_setting(name))))


class AppliedConfigs(NamedTuple):
    """The configs of groups that a broker applies. deviations: where these are others than the stored ones, and why."""

    texts: GroupTexts
    times: Mapping[str, MemberTimes]
    deviations: Sequence[str]


def applied(stored: GroupTexts, config: GroupConfig) -> AppliedConfigs:
    """The stored configs as a broker with this config applies them: another broker with other bounds, a newer version
    or a person may have written them. A value outside of the bounds counts as the nearest within, as in Kafka."""
    texts, times, deviations = dict[str, Mapping[str, str]](), dict[str, MemberTimes](), list[str]()
    for group_id, given in stored.items():
        own, reasons = _within_bounds(given, config)
        try:
            found = member_times(own, config)
        except InvalidSettingError as error:
            reasons.append(f"all are ignored: {error}")
        else:
            if own:
                texts[group_id], times[group_id] = own, found
        deviations += (f"{reason} (of group {printable(group_id)})" for reason in reasons)
    return AppliedConfigs(texts, times, deviations)


def _within_bounds(given: Mapping[str, str], config: GroupConfig) -> tuple[dict[str, str], list[str]]:
    """The configs of a group that a broker knows, and why they are others than the given ones."""
    own, reasons = dict[str, str](), list[str]()
    for name, text in given.items():
        if name not in TYPES:
            reasons.append(_unknown(name))
            continue
        try:
            value = _value(name, text)
        except InvalidSettingError as error:
            reasons.append(str(error))
            continue
        (least, low), (greatest, high) = _bounds(name, config).items()
        counting = min(max(value, low), high)
        if counting != value:
            reasons.append(f"{name} = {value} counts as {counting}, for {least} = {low} and {greatest} = {high}")
        own[name] = str(counting)
    return own, reasons


class GroupConfigs:
    """The configs of groups in effect at one broker, read by its coordinator. config: the broker's."""

    def __init__(self, config: GroupConfig) -> None:
        self._static = static_times(config)
        self._applied = AppliedConfigs({}, {}, ())

    def replace(self, configs: AppliedConfigs) -> None:
        self._applied = configs

    @property
    def texts(self) -> GroupTexts:
        return self._applied.texts

    def times_of(self, group_id: str) -> MemberTimes:
        """The times of the members of a group from their next heartbeat on."""
        return self._applied.times.get(group_id, self._static)


def encode(configs: GroupTexts) -> bytes:
    """The content of the node. Raises UsageError if it is larger than a node may be."""
    content = {group_id: dict(sorted(texts.items())) for group_id, texts in sorted(configs.items()) if texts}
    return encode_whole(content, "configs of groups", "delete those of groups that are gone")


def decode(node: Node | None) -> dict[str, dict[str, str]]:
    """The configs in the node, none if there is no node. Raises CoordinationError."""
    if node is None:
        return {}
    try:
        content = json.loads(node.data)
        return {
            group_id: {name: str(text) for name, text in texts.items()} for group_id, texts in content.items() if texts
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise CoordinationError(
            f"the node {nodes.GROUP_CONFIGS} has no configs of groups that this version can read ({error}): restore "
            "it, or delete it and set them again; coordinators apply those that they have read before",
            path=nodes.GROUP_CONFIGS,
        ) from error


def alter_group(
    group_id: str, alter: Callable[[Mapping[str, str]], dict[str, str]], *, validate_only: bool = False
) -> Steps[None]:
    """Write new configs of a group; with validate_only nothing is written. Raises what `alter` raises, UsageError (too
    many groups have configs; nothing was changed), CoordinationError."""

    def altered_in(before: GroupTexts) -> GroupTexts:
        after = {**before, group_id: alter(before.get(group_id, {}))}
        return {name: texts for name, texts in after.items() if texts}

    if validate_only:
        (node,) = yield GetNodes((nodes.GROUP_CONFIGS,))
        encode(altered_in(decode(node)))
    else:
        yield from alter_whole(nodes.GROUP_CONFIGS, "configs of groups", decode, encode, altered_in)
