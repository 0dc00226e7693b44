"""EffectExecutor: carries out the effects of a broker's cores, by the parts of the broker that they are for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kreplog.core import effects, events
from kreplog.core import messages as m
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.replication.partition import Partition
from kreplog.errors import CoordinationError, InvariantError, StorageError
from kreplog.server.dynamic_settings import DynamicSettings
from kreplog.server.handlers.api import Api
from kreplog.server.monitoring.counters import EventCounters, Traffic
from kreplog.server.monitoring.logs import log_state_change
from kreplog.server.network.serving import LocalRequest, RequestContext, Server
from kreplog.server.replication.senders import Senders
from kreplog.server.runtime.core_runners import CoreRunners
from kreplog.server.runtime.runners import InThread
from kreplog.server.runtime.starting import cleaner_settings_of, limits_of, log_config_of
from kreplog.server.runtime.store import StoreLink
from kreplog.server.storage.coordinator_logs import CoordinatorLogs
from kreplog.server.storage.log_manager import LOG_EFFECTS, LogManager
from kreplog.server.storage.open_files import OpenFiles
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")


@dataclass(frozen=True, slots=True)
class EffectExecutor:
    """Carries out the effects of the cores of one broker. may_exit: set by the end of a controlled shutdown."""

    cores: BrokerCores
    runners: CoreRunners
    store: StoreLink
    logs: LogManager
    group_logs: CoordinatorLogs
    transaction_logs: CoordinatorLogs
    senders: Senders
    api: Api
    server: Server
    dynamic: DynamicSettings
    files: OpenFiles
    traffic: Traffic
    event_counters: EventCounters
    may_exit: asyncio.Event

    def start(self) -> None:
        """Have the runners step the cores."""
        runners, cores = self.runners, self.cores
        runners.replicas.start(self._for_replicas, self._after(cores.replicas), self.store.check)
        runners.controller.start(self._awaited, self._after(cores.controller))
        runners.registration.start(self._awaited, self._after(cores.registration))
        runners.detector.start(self._awaited, self._after(cores.detector))
        runners.shutdown.start(self._for_shutdown, self._after(cores.shutdown))
        runners.groups.start(self._for_groups, self._after(cores.groups))
        runners.transactions.start(self._for_transactions, self._after(cores.transactions))

    # Effects of one core on the others, and on the process

    def _after(self, core: effects.Core) -> Callable[[], None]:
        return lambda: self._follow(self.cores.stepped(core))

    def _follow(self, following: Sequence[effects.Effect]) -> None:
        """Carry out the effects that follow from a step."""
        for effect in following:
            match effect:
                case effects.Deliver(core, event):
                    self.runners.deliver(effect)
                    if core is self.cores.controller and isinstance(event, events.Registered):
                        _log.info("registered with broker epoch %d", event.broker_epoch)
                        self.api.registered()
                case effects.Reply():
                    self._answer(effect)
                case effects.SyncFiles(applied):
                    self.logs.sync_files(partial(self._files_synced, applied))
                case effects.ClearUncleanMark():
                    self._clear_unclean_mark()
                case effects.CloseControlChannel(broker):
                    self.senders.control.close_channel(broker)
                case _:
                    raise InvariantError(f"a broker cannot carry out {type(effect).__name__}")

    def _files_synced(self, applied: effects.LeaderAndIsrApplied) -> None:
        self._follow(self.cores.files_synced(applied))

    def _clear_unclean_mark(self) -> None:
        for directory in self.logs.hosted.directories:
            if directory.start.may_have_lost and directory.may_clear_unclean():
                try:
                    directory.clear_unclean()
                except (OSError, StorageError) as error:
                    text = "%s: cannot write the boot mark, so the next start registers as unclean again: %s"
                    _log.error(text, directory.path, error)

    # Effects of the replication core

    def _for_replicas(self, effect: effects.Effect) -> Any:
        """Returns the answer to the effect."""
        kind = type(effect)
        if kind in LOG_EFFECTS:
            answer = self.logs.execute(effect)
            if isinstance(effect, effects.AppendAsLeader):
                self.traffic.appended(effect.partition.topic, len(effect.records), answer[0].records)
            elif isinstance(effect, effects.AppendAsFollower):
                return self._replicated(effect, answer)
            return answer
        if isinstance(effect, effects.Reply):
            self._answer(effect)
        elif isinstance(effect, effects.ConfigureBroker):
            self._configure(effect.configs)
        elif isinstance(effect, effects.LeaderAndIsrApplied):
            self._follow(self.cores.applied(effect))
        elif isinstance(effect, effects.Send):
            self.senders.fetches.send(effect)
        elif isinstance(effect, effects.SendAddPartitions):
            self.senders.add_partitions.send(effect)
        elif isinstance(effect, effects.SubmitMulti):
            self.store.submit_multi(effect.operations, partial(self._store_replied, effect.tag))
        elif isinstance(effect, effects.SubmitRead):
            self.store.submit_read(effect.paths, partial(self._store_replied, effect.tag))
        else:
            self._note(effect)
        return None

    def _replicated(self, effect: effects.AppendAsFollower, answer: Any) -> Any:
        count = partial(self.traffic.replicated, effect.partition.topic, len(effect.records))
        if isinstance(answer, InThread):
            return answer.then(count)
        count()
        return answer

    def _configure(self, configs: m.BrokerConfigs) -> None:
        """Apply other dynamic configs; the core has each log configured after this."""
        self.dynamic.take(configs)
        settings = self.dynamic.current
        self.logs.hosted.config = log_config_of(settings)
        self.logs.cleaner.configure(cleaner_settings_of(settings))
        self.logs.moves.rate = settings.alter_log_dirs_max_bytes_per_second
        self.server.limits = limits_of(settings, self.files)

    def _store_replied(self, tag: Hashable, results: Iterable[Any] | None, error: CoordinationError | None) -> None:
        replicas, change = self.runners.replicas, self._isr_change(tag)
        replicas.put(events.StoreReplied(tag, tuple(results or ()), error))
        if change is not None:
            partition, before = change
            replicas.call_after(lambda: self.event_counters.isr_changed(before, partition.isr, error is not None))

    def _isr_change(self, tag: Hashable) -> tuple[Partition, tuple[int, ...]] | None:
        """The partition, led here, whose ISR change has this tag, and its ISR before."""
        key = tag[1] if isinstance(tag, tuple) and tag[0] == "isr" else None
        partition = self.cores.replicas.partitions.get(key) if isinstance(key, TopicPartition) else None
        return None if partition is None else (partition, partition.isr)

    # Effects of the coordinators of groups and of transactions

    def _for_groups(self, effect: effects.Effect) -> Any:
        """Returns the answer to the effect."""
        return self._for_coordinator(effect, self.group_logs)

    def _for_transactions(self, effect: effects.Effect) -> Any:
        """Returns the answer to the effect."""
        if isinstance(effect, effects.SendMarkers):
            self.senders.markers.send(effect)
            return None
        return self._for_coordinator(effect, self.transaction_logs)

    def _for_coordinator(self, effect: effects.Effect, logs: CoordinatorLogs) -> Any:
        if isinstance(effect, effects.Reply):
            self._answer(effect)
        elif isinstance(effect, effects.StateChange):
            self._note(effect)
        else:
            return logs.execute(effect)
        return None

    # Effects of the cores that wait for the store

    async def _awaited(self, runner: Any, effect: effects.Effect) -> Any:
        """Returns the answer to the effect."""
        on_watch: Callable[[Any], None] = runner.on_watch
        if isinstance(effect, effects.Multi):
            return await self.store.multi(effect.operations)
        if isinstance(effect, effects.GetNodes):
            return await self.store.get_nodes(effect.paths, on_watch if effect.watch else None)
        if isinstance(effect, effects.GetChildren):
            return await self.store.get_children(effect.path, on_watch if effect.watch else None)
        if isinstance(effect, effects.SendControl):
            self.senders.control.send(effect)
            await asyncio.sleep(0)  # it is sent while the controller prepares the requests to other brokers
        elif isinstance(effect, effects.DrainControlChannels):
            await self.senders.control.until_idle(effect.max_ms / 1000, effect.rest_ms / 1000)
        elif isinstance(effect, effects.ConnectPeer):
            self.senders.peers.connect(effect.broker)
        elif isinstance(effect, effects.DisconnectPeer):
            self.senders.peers.disconnect(effect.broker)
        elif isinstance(effect, effects.Reply):
            self._answer(effect)
        else:
            self._note(effect)
        return None

    # Effects of a controlled shutdown

    def _for_shutdown(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.SubmitRead):
            self.store.submit_read(effect.paths, partial(self._shutdown_read, effect.tag))
        elif isinstance(effect, effects.SendShutdown):
            self.senders.shutdown.send(effect)
        elif isinstance(effect, effects.Exit):
            self.may_exit.set()
        else:
            self._note(effect)

    def _shutdown_read(self, tag: Hashable, results: Iterable[Any] | None, error: CoordinationError | None) -> None:
        self.runners.shutdown.put(events.StoreReplied(tag, tuple(results or ()), error))

    # Effects of every core

    def _note(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.StateChange):
            log_state_change(effect.level, effect.text)
        elif isinstance(effect, effects.UncleanElection):
            self.event_counters.unclean_elections += 1
            text = (
                f"{effect.partition}: UNCLEAN ELECTION of {effect.leader} in epoch {effect.leader_epoch}: data is lost"
            )
            log_state_change("error", text)
            _log.error("%s", text)
        else:
            raise InvariantError(f"a broker cannot carry out {type(effect).__name__}")

    def _answer(self, effect: effects.Reply) -> None:
        context, response = effect.reply_to, effect.response
        if not isinstance(context, (RequestContext, LocalRequest)):
            raise InvariantError(f"{type(response).__name__} has no request to reply to: {context!r}")
        if isinstance(response, m.FetchResponse):
            if isinstance(context, RequestContext) and context.charge is not None:
                response = context.charge.fetched(response)
            self.traffic.fetched(response, isinstance(context, RequestContext) and context.follower)
        elif isinstance(response, m.ProduceResponse):
            self.traffic.produced(response)
        context.reply(response)
