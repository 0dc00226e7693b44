"""ClientQuotaManager: what the clients of a broker have used of their quotas, and for how long each is throttled; and
how many connections its addresses have opened.

All connections of the clients that share a quota have one sensor: more of them get no more. As long as a sensor is
throttled, what it is of waits on every connection; Kafka handles a request of each other connection first, so that who
connects again for each request is never slowed.

A sensor that has been idle for all windows is like a new one, and is dropped. At MAX_SENSORS of a kind, clients that
have none share one for each entity: a flood of client ids, or of addresses, takes no more memory, and gets no more than
one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from kreplog.core.quota_windows import QuotaWindow, SampledRate, TokenBucket
from kreplog.core.quotas.entities import DEFAULT, MAX_NAME_CHARS, QuotaEntity, QuotaKey, QuotaLimits

MAX_SENSORS = 5000
"""Sensors of a kind of quota, of some 1 KB each; those that entities share come on top."""

_EXAMINED = 16
"""Sensors, the least recently used, that are looked at before a new one is made."""


class QuotaSensor:
    """The use of one quota. limit: the quota, as of the last use. until_ms: when its clients may go on."""

    __slots__ = ("bucket", "limit", "rate", "throttle_ms", "until_ms", "used_ms")

    def __init__(self) -> None:
        self.rate = SampledRate()
        self.bucket: TokenBucket | None = None
        self.limit = 0.0
        self.until_ms = self.used_ms = self.throttle_ms = 0


class SensorState(NamedTuple):
    """A sensor for metrics. rate: by the second; of mutations the tokens left. throttle_ms: of the last request that
    was throttled, 0 once that is over."""

    key: QuotaKey
    entity: QuotaEntity
    rate: float
    throttle_ms: int


class ClientQuotaManager:
    """The sensors of one broker. window: of all kinds but mutations. limits: the quotas, none at first. is_active:
    whether there is any."""

    def __init__(self, window: QuotaWindow, mutation_window: QuotaWindow) -> None:
        self.limits = QuotaLimits({})
        self.is_active = False
        self._window = window
        self._mutation_window = mutation_window
        self._sensors: Mapping[QuotaKey, dict[QuotaEntity, QuotaSensor]] = {key: {} for key in QuotaKey}
        self._shared: dict[tuple[QuotaKey, QuotaEntity], QuotaSensor] = {}

    def replace(self, limits: QuotaLimits) -> None:
        """Other quotas hold from now on. Whoever is throttled by the former goes on; what was used is not forgotten."""
        self.limits = limits
        self.is_active = bool(limits.quotas)
        self._shared = {(key, entity): of for (key, entity), of in self._shared.items() if entity in limits.quotas}
        for _, _, sensor in self._all():
            sensor.until_ms = sensor.throttle_ms = 0

    def has_quota(self, user: str, client_id: str) -> bool:
        """Whether any quota holds for the client."""
        return bool(self.limits.of_client(user, client_id))

    def remaining_ms(self, key: QuotaKey, user: str, client_id: str, now_ms: int) -> int:
        """The time for which the client is still throttled by a quota of that kind."""
        found = self.limits.find(key, user, client_id)
        if found is None:
            return 0
        sensor = self._existing(key, found[0], user, client_id)
        return 0 if sensor is None else max(0, sensor.until_ms - now_ms)

    def record(self, key: QuotaKey, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Count a use, of bytes or percent x seconds; returns for how many ms the client is throttled."""
        sensor = self._sensor(key, user, client_id, now_ms)
        if sensor is None:
            return 0
        throttle_ms = self._use(sensor, value, now_ms)
        if key is QuotaKey.REQUEST_PERCENTAGE:
            throttle_ms = min(throttle_ms, self._window.size_ms)
        return _throttle(sensor, throttle_ms, now_ms)

    def _use(self, sensor: QuotaSensor, value: float, now_ms: int) -> int:
        sensor.rate.record(value, self._window, now_ms)
        return sensor.rate.throttle_ms(sensor.limit, self._window, now_ms)

    def record_fetch(self, user: str, client_id: str, value: float, now_ms: int) -> tuple[bool, int]:
        """As `record` of fetched bytes; returns whether they may be sent, too. Where that exceeds the quota they are
        not, and not counted; unless the client has used nothing lately, and would never be allowed to."""
        sensor = self._sensor(QuotaKey.CONSUMER_BYTE_RATE, user, client_id, now_ms)
        if sensor is None:
            return True, 0
        idle = sensor.rate.rate(self._window, now_ms) == 0
        throttle_ms = _throttle(sensor, self._use(sensor, value, now_ms), now_ms)
        if throttle_ms and not idle:
            sensor.rate.record(-value, self._window, now_ms)
        return idle or not throttle_ms, throttle_ms

    def most_fetched(self, user: str, client_id: str) -> int | None:
        """The most bytes that a client may fetch at once, having used nothing lately, without being throttled; None if
        there is no quota."""
        found = self.limits.find(QuotaKey.CONSUMER_BYTE_RATE, user, client_id)
        return None if found is None else int(found[1] * (self._window.samples - 1) * self._window.size_ms / 1000)

    def take_tokens(self, user: str, client_id: str, tokens: float, now_ms: int, *, strict: bool) -> int:
        """Take tokens for mutations; returns for how many ms the client is throttled (KIP-599). strict: take none while
        some are missing, since the mutation is refused then."""
        key = QuotaKey.CONTROLLER_MUTATION_RATE
        sensor = self._sensor(key, user, client_id, now_ms)
        if sensor is None:
            return 0
        if sensor.bucket is None:
            sensor.bucket = TokenBucket(sensor.limit, self._mutation_window, now_ms)
        bucket = sensor.bucket
        bucket.fill(sensor.limit, self._mutation_window, now_ms)
        refused_ms = bucket.throttle_ms(sensor.limit)
        if strict and refused_ms:
            return _throttle(sensor, refused_ms, now_ms)
        bucket.tokens -= tokens
        return 0 if strict else _throttle(sensor, bucket.throttle_ms(sensor.limit), now_ms)

    def record_connection(self, address: str, now_ms: int) -> int:
        """Count a new connection of an IP address; returns 0, or for how many ms it is throttled and the connection is
        not accepted, nor counted (KIP-612)."""
        found = self.limits.of_address(address)
        if found is None:
            return 0
        entity, limit = found
        key = QuotaKey.CONNECTION_CREATION_RATE
        sensor = self._sensor_of(key, entity, limit, QuotaEntity(ip=address), now_ms)
        throttle_ms = min(self._use(sensor, 1, now_ms), self._window.size_ms)
        if throttle_ms:
            sensor.rate.record(-1, self._window, now_ms)
        return _throttle(sensor, throttle_ms, now_ms)

    def states(self, now_ms: int) -> Iterator[SensorState]:
        """Sensors in use, for metrics."""
        for key, entity, sensor in list(self._all()):
            if not self._is_idle(sensor, now_ms):
                bucket = sensor.bucket
                rate = sensor.rate.rate(self._window, now_ms) if bucket is None else bucket.tokens
                yield SensorState(key, entity, rate, sensor.throttle_ms if sensor.until_ms > now_ms else 0)

    def __len__(self) -> int:
        return len(self._shared) + sum(map(len, self._sensors.values()))

    def _all(self) -> Iterator[tuple[QuotaKey, QuotaEntity, QuotaSensor]]:
        for key, sensors in self._sensors.items():
            for entity, sensor in sensors.items():
                yield key, entity, sensor
        for (key, entity), sensor in self._shared.items():
            yield key, entity, sensor

    def _existing(self, key: QuotaKey, entity: QuotaEntity, user: str, client_id: str) -> QuotaSensor | None:
        sensors = self._sensors[key]
        sensor = sensors.get(_of_client(entity, user, client_id))
        if sensor is None and (len(sensors) >= MAX_SENSORS or len(client_id) > MAX_NAME_CHARS):
            return self._shared.get((key, entity))
        return sensor

    def _sensor(self, key: QuotaKey, user: str, client_id: str, now_ms: int) -> QuotaSensor | None:
        """The sensor of a client, that used least recently first; None if there is no quota for it."""
        found = self.limits.find(key, user, client_id)
        if found is None:
            return None
        entity, limit = found
        of_client, has_long_name = _of_client(entity, user, client_id), len(client_id) > MAX_NAME_CHARS
        return self._sensor_of(key, entity, limit, of_client, now_ms, has_long_name=has_long_name)

    def _sensor_of(
        self,
        key: QuotaKey,
        entity: QuotaEntity,
        limit: float,
        of_client: QuotaEntity,
        now_ms: int,
        *,
        has_long_name: bool = False,
    ) -> QuotaSensor:
        sensors = self._sensors[key]
        sensor = sensors.pop(of_client, None)
        if sensor is None:
            self._drop_idle(sensors, now_ms)
            if len(sensors) >= MAX_SENSORS or has_long_name:
                sensor = self._shared.setdefault((key, entity), QuotaSensor())
            else:
                sensor = QuotaSensor()
        if sensor is not self._shared.get((key, entity)):
            sensors[of_client] = sensor
        sensor.limit, sensor.used_ms = limit, now_ms
        return sensor

    def _drop_idle(self, sensors: dict[QuotaEntity, QuotaSensor], now_ms: int) -> None:
        """Drop idle sensors from the least recently used on, also behind some that are throttled for long."""
        dropped = True
        while sensors and dropped:
            dropped = False
            for of_client in list(islice(sensors, _EXAMINED)):
                sensor = sensors.pop(of_client)
                if self._is_idle(sensor, now_ms):
                    dropped = True
                else:
                    sensors[of_client] = sensor

    def _is_idle(self, sensor: QuotaSensor, now_ms: int) -> bool:
        """Whether it is as a new one."""
        if sensor.until_ms > now_ms:
            return False
        if sensor.bucket is not None:
            return sensor.bucket.is_full(sensor.limit, self._mutation_window, now_ms)
        return now_ms - sensor.used_ms > self._window.span_ms


def _of_client(entity: QuotaEntity, user: str, client_id: str) -> QuotaEntity:
    """The clients that share a quota: those of an entity whose DEFAULT parts are replaced by the client's names."""
    return QuotaEntity(
        user if entity.user == DEFAULT else entity.user, client_id if entity.client_id == DEFAULT else entity.client_id
    )


def _throttle(sensor: QuotaSensor, throttle_ms: int, now_ms: int) -> int:
    if throttle_ms:
        sensor.throttle_ms = throttle_ms
        sensor.until_ms = max(sensor.until_ms, now_ms + throttle_ms)
    return throttle_ms
