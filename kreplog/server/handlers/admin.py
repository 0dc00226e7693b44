"""AdminHandlers: requests that change the cluster: topics, partitions, reassignments, elections.

Any broker accepts them: it writes them to the store, where the controller watches for them, and responds once its own
metadata show the result, or after the request's time-out. Requests are messages of kreplog.wire.generic, results the
fields of their responses.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar

from kreplog.config import TopicConfig
from kreplog.core.controller import admin_requests, new_partitions
from kreplog.core.controller.admin_requests import RefusedError, admin_error, stored_topic
from kreplog.core.controller.leader_elections import (
    LeaderAndPreferred,
    election_error,
    is_reported,
    requested_election,
    to_elect,
)
from kreplog.core.controller.new_partitions import MAX_NEW_PARTITIONS
from kreplog.core.controller.partition_limits import PartitionLimits
from kreplog.core.controller.topic_names import TopicNames, can_collide
from kreplog.core.dynamic_configs import Change, InvalidSettingError, config_text
from kreplog.core.effects import Steps
from kreplog.core.topic_settings import Described, changed, without_own
from kreplog.errors import (
    CoordinationError,
    ErrorCode,
    KreplogError,
    PeerProtocolError,
)
from kreplog.server.clock import monotonic_ms
from kreplog.server.handlers.topics import TopicView, TopicViews
from kreplog.server.monitoring.repeated_failures import RepeatedFailures
from kreplog.server.network.slices import in_slices
from kreplog.server.runtime.store import AnySession
from kreplog.server.runtime.store_steps import carry_out
from kreplog.server.settings import BrokerSettings
from kreplog.types import BrokerRegistration, TopicPartition, topic_id_text
from kreplog.wire import generic

_log = logging.getLogger("kreplog.server")

Fields = dict[str, Any]
Mutate = Callable[[int], bool]
"""Charges the creation or deletion of so many partitions to the client's quota; False: it must not take place."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_TURN_S = 1.0
"""How long a creation of a topic waits for others of this broker."""


def unlimited(partitions: int) -> bool:
    """A Mutate without any quota."""
    return True


async def respond_to(fields: Fields, work: Awaitable[Fields]) -> Fields:
    """The response to a part of a request: `fields`, and the result or the error of `work`."""
    try:
        return {**fields, **await work, "error_code": 0, "error_message": None}
    except KreplogError as error:
        return {**fields, "error_code": admin_error(error), "error_message": str(error)}


def first_by_name(entries: Iterable[T], name_of: Callable[[T], K]) -> tuple[list[T], set[K]]:
    """The first entry of each name, and the names of repeated entries."""
    found: dict[K, T] = {}
    repeated = set()
    for entry in entries:
        name = name_of(entry)
        if name in found:
            repeated.add(name)
        else:
            found[name] = entry
    return list(found.values()), repeated


def partitions_by_topic(topics: Iterable[tuple[str, Iterable[int]]]) -> dict[str, dict[int, None]]:
    """The partition numbers of a request by topic, each once, in the order of the request."""
    found: dict[str, dict[int, None]] = {}
    for name, numbers in topics:
        found.setdefault(name, {}).update(dict.fromkeys(numbers))
    return found


def _name_of(topic: Any) -> str:
    return str(topic.name)


async def refuse_repeated(name: str) -> Fields:
    """Refuse a repeated entry: it is not clear which of them applies. As Kafka does."""
    raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name} is repeated in the request")


def _charge(mutate: Mutate, partitions: int) -> None:
    """Raises RefusedError, with Kafka's message, for a client that exceeds its quota."""
    if not mutate(partitions):
        raise RefusedError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")


class AdminHandlers:
    """Handlers of requests that change the cluster. brokers: returns the live brokers by id. max_broker_partitions: as
    in BrokerSettings, or fewer. settings_of: returns the settings of a topic that is created with these."""

    def __init__(
        self,
        store: AnySession,
        topics: TopicViews,
        brokers: Callable[[], Mapping[int, BrokerRegistration]],
        settings: BrokerSettings,
        max_broker_partitions: int,
        settings_of: Callable[[TopicConfig], Iterable[Described]],
    ) -> None:
        self._store = store
        self._topics = topics
        self._brokers = brokers
        self._settings = settings
        self._settings_of = settings_of
        self._limits = PartitionLimits(settings.max_partitions, max_broker_partitions)
        self._naming = asyncio.Lock()  # creations by this broker need not race each other for a guard of TopicNames
        self._refused = RepeatedFailures("refusals to create topics automatically")

    # Topics

    async def create_topics(self, request: Any, mutate: Mutate = unlimited) -> Fields:
        if len(request.topics) > MAX_NEW_PARTITIONS:
            raise PeerProtocolError(
                f"{len(request.topics)} new topics in a request: at most {MAX_NEW_PARTITIONS} are allowed"
            )
        topics, repeated = first_by_name(request.topics, _name_of)
        self._recount()
        partitions = sum(len(topic.assignments) or self._partitions_of(topic) for topic in topics)
        names = TopicNames()
        shown = cache(self._shown)  # topics of a request mostly have the same settings
        results = [
            await respond_to(
                {"name": topic.name, "num_partitions": -1, "replication_factor": -1, "configs": []},
                refuse_repeated(topic.name)
                if topic.name in repeated
                else self._create_topic(
                    topic, partitions, names, validate_only=request.validate_only, mutate=mutate, shown=shown
                ),
            )
            async for topic in in_slices(topics)
        ]
        created = [result["name"] for result in results if not result["error_code"]]
        if created and not request.validate_only:
            await self._await_result(results, created, request.timeout_ms, lambda name: self._are_led(name, 1))
        return {"topics": results}

    async def create_internal_topic(
        self, name: str, partitions: int, replicas: int, settings: Mapping[str, str], timeout_s: float
    ) -> None:
        """Create a topic that coordinators need, unless it exists, and wait until its partitions have leaders. Raises
        RefusedError, KreplogError."""
        configs = [SimpleNamespace(name=setting, value=value) for setting, value in settings.items()]
        topic = SimpleNamespace(
            name=name, num_partitions=partitions, replication_factor=replicas, assignments=(), configs=configs
        )
        self._recount()
        try:
            await self._create_topic(topic, partitions, TopicNames())
        except RefusedError as refused:
            if refused.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        await self._topics.until(lambda: self._are_led(name, 1), timeout_s)

    async def create_default_topics(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create topics with the broker's defaults, and return the error of each."""
        self._recount()
        errors: dict[str, ErrorCode] = {}
        refused: dict[str, str] = {}
        existing = TopicNames()
        async for name in in_slices(names):
            topic = SimpleNamespace(name=name, num_partitions=-1, replication_factor=-1, assignments=(), configs=())
            result = await respond_to({}, self._create_topic(topic, self._settings.num_partitions, existing))
            error = ErrorCode(result["error_code"])
            if error is ErrorCode.NONE:
                _log.info("topic %s is created automatically", name)
            elif error is not ErrorCode.TOPIC_ALREADY_EXISTS:
                refused[name] = result["error_message"]
            errors[name] = error
        if refused:
            name, reason = next(iter(refused.items()))
            if count := self._refused.count(errors[name]):
                text = "%d topics are not created automatically, such as %s: %s; times that this happened: %d"
                _log.warning(text, len(refused), name, reason, count)
        return errors

    def _partitions_of(self, topic: Any) -> int:
        """Number of partitions of a topic that is to be created without assignments."""
        return new_partitions.number_of_partitions(topic.num_partitions, self._settings.num_partitions)

    def _recount(self) -> None:
        existing = {
            name: [state.replicas for state in view.partitions.values()] for name, view in self._topics.all.items()
        }
        self._limits.recount(existing, monotonic_ms())

    @contextmanager
    def _counted(self, topic: str, assigned: Mapping[int, Sequence[int]], validate_only: bool) -> Iterator[None]:
        """Count new partitions against the limits while they are created, and afterwards if they were. Raises
        InvalidPartitionsError."""
        number = self._limits.add(topic, min(assigned), assigned.values(), monotonic_ms())
        created = False
        try:
            yield
            created = not validate_only
        finally:
            if not created:
                self._limits.withdraw(number)

    async def _create_topic(
        self,
        topic: Any,
        partitions: int,
        names: TopicNames,
        *,
        validate_only: bool = False,
        mutate: Mutate = unlimited,
        shown: Callable[[TopicConfig], list[tuple[Any, ...]]] = lambda config: [],
    ) -> Fields:
        """Create a topic; returns the fields of its response. partitions: of all topics of the request. names: of
        topics that exist, shared by those of the request. shown: returns the settings for the response."""
        new_partitions.check_number(partitions)
        brokers = new_partitions.assignable(self._brokers())
        entries = ((entry.partition_index, entry.broker_ids) for entry in topic.assignments)
        given_replicas = new_partitions.given_replicas(entries, topic.num_partitions, topic.replication_factor)
        default = self._settings.default_replication_factor
        factor = new_partitions.replication_factor(topic.replication_factor, default, len(brokers))
        existing = sum(len(view.partitions) for view in self._topics.all.values())
        count = self._partitions_of(topic)
        assigned = new_partitions.topic_replicas(given_replicas, count, factor, brokers, existing)
        replicas = len(next(iter(assigned.values()), ()))
        try:
            given = [Change(setting.name, setting.value) for setting in topic.configs]
            none = without_own(self._settings.topic)
            config = changed(none, given, none, replicas)
        except InvalidSettingError as error:
            raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
        topic_id = topic_id_text(uuid.uuid4())
        steps = admin_requests.create_topic(
            topic.name, topic_id, assigned, config, brokers, names, validate_only=validate_only
        )
        if topic.name in self._topics.all:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} exists already")
        _charge(mutate, len(assigned))
        with self._counted(topic.name, assigned, validate_only):
            async with self._turn() if can_collide(topic.name) else nullcontext():
                await self._carry_out(steps)
        return {
            "topic_id": topic_id,
            "num_partitions": len(assigned),
            "replication_factor": len(assigned[0]),
            "configs": shown(config),
        }

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold up other creations of names that can collide, which would be repeated. Not for long: while the store is
        away each lasts until it gives up."""
        try:
            async with asyncio.timeout(_TURN_S):
                await self._naming.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            self._naming.release()

    def _shown(self, config: TopicConfig) -> list[tuple[Any, ...]]:
        """The settings of a created topic in the response (KIP-525): name, value, read-only, source, sensitive. Tuples
        are encoded quicker: there are dozens for each topic."""
        return [
            (
                setting.name,
                None if setting.is_secret else config_text(setting.value),
                not setting.alterable,
                setting.source,
                setting.is_secret,
            )
            for setting in self._settings_of(config)
        ]

    async def delete_topics(self, request: Any, mutate: Mutate = unlimited) -> Fields:
        requested: dict[tuple[str | None, Any], None] = {(name, None): None for name in request.topic_names or ()}
        for topic in request.topics or ():
            name = topic.name if topic.name is not None else self._topics.name_of(generic.topic_id(topic.topic_id))
            requested[name, topic.topic_id] = None
        results = [
            await respond_to({"name": name, "topic_id": topic_id}, self._delete_topic(name, mutate))
            async for name, topic_id in in_slices(requested)
        ]
        deleted = [result["name"] for result in results if not result["error_code"]]
        if deleted:
            await self._await_result(results, deleted, request.timeout_ms, lambda name: self._topics.get(name) is None)
        return {"responses": results}

    async def _delete_topic(self, name: str | None, mutate: Mutate) -> Fields:
        if name is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with that id")
        view = self._topics.get(name)
        if view is not None:
            _charge(mutate, len(view.partitions))
        await self._carry_out(admin_requests.delete_topic(name))
        return {}

    async def create_partitions(self, request: Any, mutate: Mutate = unlimited) -> Fields:
        topics, repeated = first_by_name(request.topics, _name_of)
        self._recount()
        results = [
            await respond_to(
                {"name": topic.name},
                refuse_repeated(topic.name)
                if topic.name in repeated
                else self._create_partitions(topic, request.validate_only, mutate),
            )
            async for topic in in_slices(topics)
        ]
        counts = {topic.name: topic.count for topic in topics}
        created = [result["name"] for result in results if not result["error_code"]]
        if created and not request.validate_only:
            await self._await_result(
                results, created, request.timeout_ms, lambda name: self._are_led(name, counts[name])
            )
        return {"results": results}

    async def _create_partitions(self, topic: Any, validate_only: bool, mutate: Mutate) -> Fields:
        current = await self._carry_out(stored_topic(topic.name))
        given = [entry.broker_ids for entry in topic.assignments or ()]
        brokers = new_partitions.assignable(self._brokers())
        assigned = new_partitions.added_partitions(topic.name, current, topic.count, given, brokers)
        _charge(mutate, len(assigned))
        steps = admin_requests.add_partitions(topic.name, current, assigned, brokers)
        with self._counted(topic.name, assigned, validate_only):
            if not validate_only:
                await self._carry_out(steps)
        return {}

    # Replicas and leaders

    async def alter_reassignments(self, request: Any) -> Fields:
        keep_count = not request.allow_replication_factor_change
        responses = [
            {
                "name": topic.name,
                "partitions": [
                    await respond_to(
                        {"partition_index": partition.partition_index},
                        self._reassign(
                            TopicPartition(topic.name, partition.partition_index), partition.replicas, keep_count
                        ),
                    )
                    async for partition in in_slices(
                        {partition.partition_index: partition for partition in topic.partitions}.values()
                    )
                ],
            }
            async for topic in in_slices(request.topics)
        ]
        return {
            "error_code": 0,
            "error_message": None,
            "allow_replication_factor_change": not keep_count,
            "responses": responses,
        }

    async def _reassign(self, partition: TopicPartition, replicas: Sequence[int] | None, keep_count: bool) -> Fields:
        await self._carry_out(admin_requests.reassign(partition, replicas, self._brokers(), keep_count=keep_count))
        return {}

    async def list_reassignments(self, request: Any) -> Fields:
        requested = (
            None
            if request.topics is None
            else partitions_by_topic((topic.name, topic.partition_indexes) for topic in request.topics)
        )
        listed: list[Fields] = []
        for view in self._topics.all.values():
            moving = [
                {
                    "partition_index": number,
                    "replicas": list(state.replicas),
                    "adding_replicas": list(state.adding),
                    "removing_replicas": list(state.removing),
                }
                for number, state in view.partitions.items()
                if (state.adding or state.removing) and (requested is None or number in requested.get(view.name, ()))
            ]
            if moving:
                listed.append({"name": view.name, "partitions": moving})
        return {"error_code": 0, "error_message": None, "topics": listed}

    async def elect_leaders(self, request: Any) -> Fields:
        kind = requested_election(request.election_type)
        if kind is None:
            return {"error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": []}
        if request.topic_partitions is None:
            requested = partitions_by_topic((view.name, view.partitions) for view in self._topics.all.values())
        else:
            requested = partitions_by_topic(
                (topic_partition.topic, topic_partition.partitions) for topic_partition in request.topic_partitions
            )
        before = {
            partition: self._leadership(partition)
            for topic, numbers in requested.items()
            for partition in (TopicPartition(topic, number) for number in numbers)
        }
        needed = to_elect(kind, before)
        if needed:
            try:
                await self._carry_out(admin_requests.elect_leaders(kind, needed))
            except CoordinationError as error:
                return {"error_code": admin_error(error), "replica_election_results": []}
            await self._topics.until(
                lambda: not to_elect(kind, {partition: self._leadership(partition) for partition in needed}),
                request.timeout_ms / 1000,
            )
        results: list[Fields] = []
        for topic, numbers in requested.items():
            codes = [
                (partition.partition, election_error(kind, before[partition], self._leadership(partition)))
                for partition in (TopicPartition(topic, number) for number in numbers)
            ]
            partitions = [
                {"partition_id": number, "error_code": code, "error_message": None}
                for number, code in codes
                if is_reported(code, of_all=request.topic_partitions is None)
            ]
            if partitions:
                results.append({"topic": topic, "partition_result": partitions})
        return {"error_code": 0, "replica_election_results": results}

    def _leadership(self, partition: TopicPartition) -> LeaderAndPreferred | None:
        """Leader and preferred leader by this broker's metadata; None if there is no such partition."""
        view = self._topics.get(partition.topic)
        state = None if view is None else view.partitions.get(partition.partition)
        return None if state is None else LeaderAndPreferred(state.state.leader, state.replicas[0])

    # Helpers

    async def _carry_out(self, steps: Steps[T]) -> T:
        return await carry_out(steps, self._store)

    async def _await_result(
        self, results: Iterable[Fields], names: Sequence[str], timeout_ms: int, done: Callable[[str], bool]
    ) -> None:
        """Wait until `done` is true of all `names`; the others get REQUEST_TIMED_OUT after `timeout_ms`."""
        await self._topics.until(lambda: all(map(done, names)), max(0, timeout_ms) / 1000)
        for result in results:
            if not result["error_code"] and not done(result["name"]):
                result["error_code"] = ErrorCode.REQUEST_TIMED_OUT
                result["error_message"] = "the request is stored, but was not carried out in time"

    def _are_led(self, name: str, count: int) -> bool:
        view: TopicView | None = self._topics.get(name)
        return view is not None and new_partitions.are_led(view.partitions.values(), count)
