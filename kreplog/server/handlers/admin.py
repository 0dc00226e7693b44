"""What clients have changed in the cluster: topics, partitions, reassignments, elections, producer ids.

Any broker takes these: it writes them to the store, where the controller's watches wait for them, and answers when its
own metadata show the result or the request's time is over. Requests are messages of kreplog.wire.generic; what is given
back are the fields of the answers.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller import admin_operations as operations
from kreplog.core.controller import assignment
from kreplog.core.controller.partition_limits import PartitionLimits
from kreplog.errors import (
    BadVersionError,
    CoordinationError,
    ErrorCode,
    KreplogError,
    NodeExistsError,
    NoNodeError,
    PeerProtocolError,
)
from kreplog.server.handlers.topics import Topics, TopicView
from kreplog.server.network.slices import in_slices
from kreplog.server.runtime.store import AnySession
from kreplog.server.topic_settings import Change, InvalidSettingError, for_new
from kreplog.types import NO_LEADER, BrokerRegistration, Create, SetData, StoreOperation, TopicPartition, check_topic
from kreplog.wire import generic

ATTEMPTS = 5
RETRY_S = 0.05
INVALID_CONFIG = 40
ELECTION_NOT_NEEDED = 84
"""Kafka's codes that only administrators meet."""

PRODUCER_IDS = "/latest_producer_id_block"
"""In the store: the first producer id that no broker has taken yet, decimal."""
PRODUCER_ID_BLOCK = 1000

MAX_NEW_PARTITIONS = 10_000
"""Of one request, as in Kafka: a number with a zero too many would hold up the broker, then the whole cluster."""

Fields = dict[str, Any]
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class RefusedError(Exception):
    """A request, or one part of it, is answered with this error code of Kafka's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = int(code)


async def answer_one(answer: Fields, work: Awaitable[Fields]) -> Fields:
    """`answer` to one part of a request, with what its work gave or the error that it ended in."""
    try:
        return {**answer, **await work, "error_code": 0, "error_message": None}
    except RefusedError as refused:
        return {**answer, "error_code": refused.code, "error_message": str(refused)}
    except KreplogError as error:
        return {**answer, "error_code": _code_of(error), "error_message": str(error)}


def by_name(entries: Iterable[T], name_of: Callable[[T], K]) -> tuple[list[T], set[K]]:
    """The first entry of each name, and the names that stand more than once."""
    found: dict[K, T] = {}
    repeated = set()
    for entry in entries:
        name = name_of(entry)
        if name in found:
            repeated.add(name)
        else:
            found[name] = entry
    return list(found.values()), repeated


def numbers_of(topics: Iterable[tuple[str, Iterable[int]]]) -> dict[str, dict[int, None]]:
    """The partitions that a request names, each once, in the order in which it does."""
    found: dict[str, dict[int, None]] = {}
    for name, numbers in topics:
        found.setdefault(name, {}).update(dict.fromkeys(numbers))
    return found


def _name_of(topic: Any) -> str:
    return str(topic.name)


async def refuse_repeated(name: str) -> Fields:
    """Kafka refuses an entry that stands more than once where it cannot say which of them holds."""
    raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name} stands more than once in the request")


async def stored_topic(store: AnySession, name: str) -> nodes.Topic:
    """The topic as the store has it. Raises RefusedError, InvalidTopicError."""
    path = nodes.topic(check_topic(name))
    (node,) = await store.get_nodes((path,))
    if node is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return nodes.decode_topic(path, node)


class Admin:
    """brokers: the live ones, as the controller told last. default: what a topic's settings are when none are given.
    max_partitions, max_broker_partitions: see BrokerSettings."""

    def __init__(
        self,
        store: AnySession,
        topics: Topics,
        brokers: Callable[[], Mapping[int, BrokerRegistration]],
        default: TopicConfig,
        max_partitions: int,
        max_broker_partitions: int,
    ) -> None:
        self._store = store
        self._topics = topics
        self._brokers = brokers
        self._default = default
        self._limits = PartitionLimits(max_partitions, max_broker_partitions)
        self._ids = range(0)
        self._ids_lock = asyncio.Lock()

    # Producer ids

    async def init_producer_id(self, request: Any) -> Fields:
        """A producer id that nobody else gets. There are no transactions."""
        if request.transactional_id is not None:
            return {"error_code": ErrorCode.INVALID_REQUEST, "producer_id": -1, "producer_epoch": -1}
        try:
            async with self._ids_lock:
                if not self._ids:
                    self._ids = await self._take_producer_ids()
                producer_id, self._ids = self._ids[0], self._ids[1:]
        except CoordinationError as error:
            return {"error_code": _code_of(error), "producer_id": -1, "producer_epoch": -1}
        return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}

    async def _take_producer_ids(self) -> range:
        for _ in range(ATTEMPTS):
            (node,) = await self._store.get_nodes((PRODUCER_IDS,))
            first = 0 if node is None else int(node.data)
            content = str(first + PRODUCER_ID_BLOCK).encode()
            taken: StoreOperation = Create(PRODUCER_IDS, content)
            if node is not None:
                taken = SetData(PRODUCER_IDS, content, node.stat.version)
            try:
                await self._store.multi((taken,))
            except (NodeExistsError, BadVersionError):
                continue
            return range(first, first + PRODUCER_ID_BLOCK)
        raise CoordinationError("too many brokers take producer ids at once", path=PRODUCER_IDS)

    # Topics

    async def create_topics(self, request: Any) -> Fields:
        if len(request.topics) > MAX_NEW_PARTITIONS:
            raise PeerProtocolError(
                f"{len(request.topics)} new topics in one request: {MAX_NEW_PARTITIONS} are allowed"
            )
        topics, repeated = by_name(request.topics, _name_of)
        self._recount()
        asked = sum(max(1, topic.num_partitions, len(topic.assignments)) for topic in topics)
        results = [
            await answer_one(
                {"name": topic.name, "num_partitions": -1, "replication_factor": -1, "configs": []},
                refuse_repeated(topic.name)
                if topic.name in repeated
                else self._create_topic(topic, asked, request.validate_only),
            )
            async for topic in in_slices(topics)
        ]
        made = [result["name"] for result in results if not result["error_code"]]
        if made and not request.validate_only:
            await self._wait_for(results, made, request.timeout_ms, lambda name: self._is_led(name, 1))
        return {"topics": results}

    def _recount(self) -> None:
        existing = {
            name: [state.replicas for state in view.partitions.values()] for name, view in self._topics.all.items()
        }
        self._limits.recount(existing, _now_ms())

    @contextmanager
    def _counted(self, topic: str, placed: Mapping[int, Sequence[int]], validate_only: bool) -> Iterator[None]:
        """New partitions count from before they are created, and no more where they are not. Raises
        InvalidPartitionsError."""
        number = self._limits.add(topic, min(placed), placed.values(), _now_ms())
        created = False
        try:
            yield
            created = not validate_only
        finally:
            if not created:
                self._limits.withdraw(number)

    async def _create_topic(self, topic: Any, asked: int, validate_only: bool) -> Fields:
        """asked: partitions of all topics of the request."""
        _check_new(asked)
        brokers = self._placeable()
        if topic.assignments:
            placed = {one.partition_index: tuple(one.broker_ids) for one in topic.assignments}
        else:
            wanted = 1 if topic.num_partitions == -1 else topic.num_partitions
            factor = min(3, len(brokers)) if topic.replication_factor == -1 else topic.replication_factor
            held = sum(len(view.partitions) for view in self._topics.all.values())
            placed = assignment.assign(
                {broker.id: broker.rack for broker in brokers.values()}, wanted, factor, start=held
            )
        replicas = len(next(iter(placed.values()), ()))
        try:
            config = for_new(self._default, [Change(one.name, one.value) for one in topic.configs], replicas)
        except InvalidSettingError as error:
            raise RefusedError(INVALID_CONFIG, str(error)) from error
        topic_id = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        writes = operations.create_topic_operations(topic.name, topic_id, placed, config, brokers)
        if topic.name in self._topics.all:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} exists already")
        with self._counted(topic.name, placed, validate_only):
            if not validate_only:
                try:
                    await self._store.multi(writes)
                except NodeExistsError as error:
                    raise RefusedError(
                        ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} exists already, or is still being deleted"
                    ) from error
        return {
            "topic_id": topic_id,
            "num_partitions": len(placed),
            "replication_factor": len(placed[0]),
        }

    def _placeable(self) -> dict[int, BrokerRegistration]:
        return {broker.id: broker for broker in self._brokers().values() if not broker.stopping}

    async def delete_topics(self, request: Any) -> Fields:
        wanted: dict[tuple[str | None, Any], None] = {(name, None): None for name in request.topic_names or ()}
        for topic in request.topics or ():
            name = topic.name if topic.name is not None else self._topics.name_of(generic.topic_id(topic.topic_id))
            wanted[name, topic.topic_id] = None
        results = [
            await answer_one({"name": name, "topic_id": topic_id}, self._delete_topic(name))
            async for name, topic_id in in_slices(wanted)
        ]
        gone = [result["name"] for result in results if not result["error_code"]]
        if gone:
            await self._wait_for(results, gone, request.timeout_ms, lambda name: self._topics.get(name) is None)
        return {"responses": results}

    async def _delete_topic(self, name: str | None) -> Fields:
        if name is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with that id")
        try:
            await self._store.multi(operations.delete_topic_operations(name))
        except NodeExistsError:
            pass  # it is being deleted already
        except NoNodeError as error:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}") from error
        return {}

    async def create_partitions(self, request: Any) -> Fields:
        topics, repeated = by_name(request.topics, _name_of)
        self._recount()
        results = [
            await answer_one(
                {"name": topic.name},
                refuse_repeated(topic.name)
                if topic.name in repeated
                else self._create_partitions(topic, request.validate_only),
            )
            async for topic in in_slices(topics)
        ]
        counts = {topic.name: topic.count for topic in topics}
        made = [result["name"] for result in results if not result["error_code"]]
        if made and not request.validate_only:
            await self._wait_for(results, made, request.timeout_ms, lambda name: self._is_led(name, counts[name]))
        return {"results": results}

    async def _create_partitions(self, topic: Any, validate_only: bool) -> Fields:
        current = await stored_topic(self._store, topic.name)
        first = max(current.partitions) + 1
        if topic.count <= first:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name} has {first} partitions: ask for more than that in all",
            )
        _check_new(topic.count - first)
        brokers = self._placeable()
        if topic.assignments:
            given = [tuple(one.broker_ids) for one in topic.assignments]
            if len(given) != topic.count - first:
                raise RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{len(given)} assignments for {topic.count - first} partitions",
                )
            placed = dict(enumerate(given, first))
        else:
            existing = {number: one.target for number, one in current.partitions.items()}
            placed = assignment.assign(
                {broker.id: broker.rack for broker in brokers.values()},
                topic.count - first,
                len(existing[min(existing)]),
                first,
                existing=existing,
            )
        writes = {
            directory: operations.add_partitions_operations(topic.name, current, placed, brokers, directory=directory)
            for directory in (True, False)
        }
        with self._counted(topic.name, placed, validate_only):
            if not validate_only:
                await self._in_directory(writes.__getitem__)
        return {}

    # Replicas and leaders

    async def alter_reassignments(self, request: Any) -> Fields:
        responses = [
            {
                "name": topic.name,
                "partitions": [
                    await answer_one(
                        {"partition_index": partition.partition_index},
                        self._reassign(TopicPartition(topic.name, partition.partition_index), partition.replicas),
                    )
                    async for partition in in_slices(
                        {partition.partition_index: partition for partition in topic.partitions}.values()
                    )
                ],
            }
            async for topic in in_slices(request.topics)
        ]
        return {"error_code": 0, "error_message": None, "responses": responses}

    async def _reassign(self, partition: TopicPartition, replicas: Sequence[int] | None) -> Fields:
        topic = await stored_topic(self._store, partition.topic)
        if partition.partition not in topic.partitions:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")
        if replicas is None:
            try:
                await self._store.multi(operations.cancel_reassignment_operations(partition))
            except NoNodeError as error:
                raise RefusedError(
                    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{partition} is not being reassigned"
                ) from error
            return {}
        brokers = self._brokers()
        (pending,) = await self._store.get_nodes((nodes.partition(partition, nodes.REASSIGNED),))
        await self._in_directory(
            lambda directory: operations.reassign_operations(
                partition, replicas, brokers, directory=directory, pending=pending is not None
            )
        )
        return {}

    async def list_reassignments(self, request: Any) -> Fields:
        asked = (
            None
            if request.topics is None
            else numbers_of((topic.name, topic.partition_indexes) for topic in request.topics)
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
                if (state.adding or state.removing) and (asked is None or number in asked.get(view.name, ()))
            ]
            if moving:
                listed.append({"name": view.name, "partitions": moving})
        return {"error_code": 0, "error_message": None, "topics": listed}

    async def elect_leaders(self, request: Any) -> Fields:
        """Preferred leaders only: an unclean election is a setting of the topic."""
        if request.election_type != 0:
            return {"error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": []}
        if request.topic_partitions is None:
            asked = numbers_of((view.name, view.partitions) for view in self._topics.all.values())
        else:
            asked = numbers_of(
                (topic_partition.topic, topic_partition.partitions) for topic_partition in request.topic_partitions
            )
        before = {
            TopicPartition(topic, number): self._leadership(topic, number)
            for topic, numbers in asked.items()
            for number in numbers
        }
        needed = [one for one, found in before.items() if found is not None and found[0] != found[1]]
        if needed:
            try:
                await self._retrying(lambda: self._store.multi(operations.preferred_election_operations(needed)))
            except CoordinationError as error:
                return {"error_code": _code_of(error), "replica_election_results": []}
            await self._topics.until(lambda: all(self._is_preferred(one) for one in needed), request.timeout_ms / 1000)
        results: list[Fields] = []
        for topic, numbers in asked.items():
            answers = [(number, self._elected(TopicPartition(topic, number), before)) for number in numbers]
            if request.topic_partitions is None:
                answers = [(number, code) for number, code in answers if code != ELECTION_NOT_NEEDED]
            partitions = [
                {"partition_id": number, "error_code": code, "error_message": None} for number, code in answers
            ]
            if partitions:
                results.append({"topic": topic, "partition_result": partitions})
        return {"error_code": 0, "replica_election_results": results}

    def _elected(self, partition: TopicPartition, before: Mapping[TopicPartition, tuple[int, int] | None]) -> int:
        was = before[partition]
        if was is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if was[0] == was[1]:
            return ELECTION_NOT_NEEDED
        return ErrorCode.NONE if self._is_preferred(partition) else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE

    def _leadership(self, topic: str, number: int) -> tuple[int, int] | None:
        """(leader, preferred leader)."""
        view = self._topics.get(topic)
        state = None if view is None else view.partitions.get(number)
        return None if state is None else (state.state.leader, state.replicas[0])

    def _is_preferred(self, partition: TopicPartition) -> bool:
        found = self._leadership(partition.topic, partition.partition)
        return found is not None and found[0] == found[1]

    # Helpers

    async def _in_directory(self, make: Callable[[bool], tuple[StoreOperation, ...]]) -> None:
        """Write into a directory that whoever comes first makes, and the controller deletes when it is empty."""
        directory = True
        for attempt in range(ATTEMPTS):
            try:
                await self._store.multi(make(directory))
                return
            except (NodeExistsError, NoNodeError) as error:
                if error.index or attempt == ATTEMPTS - 1:
                    raise RefusedError(
                        ErrorCode.REASSIGNMENT_IN_PROGRESS, f"another such request is still under way: {error}"
                    ) from error
                directory = isinstance(error, NoNodeError)

    async def _retrying(self, write: Callable[[], Awaitable[Any]]) -> None:
        """Again, while the node of an earlier request is still there."""
        for attempt in range(ATTEMPTS):
            try:
                await write()
                return
            except NodeExistsError:
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(RETRY_S)  # the controller removes it when it has done what it asks for

    async def _wait_for(
        self, results: Iterable[Fields], names: Sequence[str], timeout_ms: int, done: Callable[[str], bool]
    ) -> None:
        """Wait until `done` is true of all `names`; those of which it is not in time are told so."""
        await self._topics.until(lambda: all(map(done, names)), max(0, timeout_ms) / 1000)
        for result in results:
            if not result["error_code"] and not done(result["name"]):
                result["error_code"] = ErrorCode.REQUEST_TIMED_OUT
                result["error_message"] = "it was written down, but has not been done in time"

    def _is_led(self, name: str, partitions: int) -> bool:
        """Whether the topic is known here, with so many partitions, each with a leader."""
        view: TopicView | None = self._topics.get(name)
        return (
            view is not None
            and len(view.partitions) >= partitions
            and all(partition.state.leader != NO_LEADER for partition in view.partitions.values())
        )


def _check_new(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions:,} new partitions are more than the {MAX_NEW_PARTITIONS:,} of one request",
        )


def _code_of(error: KreplogError) -> int:
    """Kafka's code; for a store that could not be asked one after which clients try again."""
    return int(ErrorCode.REQUEST_TIMED_OUT if isinstance(error, CoordinationError) else error.kafka_code)


def _now_ms() -> int:
    return int(monotonic() * 1000)
