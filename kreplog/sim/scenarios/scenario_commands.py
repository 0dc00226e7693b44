"""Commands of a scenario that act on its cluster: setup, time, faults, held messages, and requests of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from kreplog.config import TopicConfig
from kreplog.core.controller import rebalance
from kreplog.core.controller.new_partitions import assignable, topic_replicas
from kreplog.sim.brokers.broker import BrokerProcess, Machine
from kreplog.sim.descriptions import describe
from kreplog.sim.scenarios.scenario_arguments import (
    ScenarioError,
    brokers,
    links,
    milliseconds,
    parse_direction,
    setting,
    settings,
)
from kreplog.sim.scenarios.scenario_cluster import STEP_MS, Direction, ScenarioCluster
from kreplog.types import TopicPartition, topic_id_text

LIMIT_MS = 30_000
"""Time limit of commands that wait, in virtual time."""


class Commands:
    """The commands of one scenario that act on its cluster; each method takes the words after its name."""

    def __init__(self, cluster: ScenarioCluster) -> None:
        self.cluster = cluster
        self._topics = 0

    # Setup

    def do_config(self, words: Sequence[str]) -> None:
        """Settings of the brokers, before they start."""
        plan = self.cluster.plan
        for name, value in settings(words).items():
            if name == "session_timeout_ms":
                plan = replace(plan, session_timeout_ms=int(value))
            else:
                plan = replace(plan, config=replace(plan.config, **setting(plan.config, name, value)))
        self.cluster.plan = plan

    def do_detect_failures(self, _words: Sequence[str]) -> None:
        """Brokers that start after this hold connections to each other, as all do outside of scenarios."""
        self.cluster.detects_failures = True

    def do_brokers(self, words: Sequence[str]) -> None:
        for word in words:
            self._start(int(word))

    def _start(self, broker: int) -> None:
        cluster = self.cluster
        machine = cluster.machines.get(broker)
        if machine is None:
            machine = cluster.machines[broker] = Machine(broker, cluster.disks.disk(broker), None)
        cluster.start_machine(machine)
        cluster.run_ms(50)

    def do_topic(self, words: Sequence[str]) -> None:
        """topic NAME replicas 1,2,3 2,3,1 [setting=value]; topic NAME partitions N factor K [setting=value]."""
        plain = [word for word in words if "=" not in word]
        config = TopicConfig()
        for name, value in settings(word for word in words if "=" in word).items():
            config = replace(config, **setting(config, name, value))
        if plain[1] == "replicas":
            placed = {number: brokers(word) for number, word in enumerate(plain[2:])}
        else:
            live = assignable(self.cluster.admin.live_brokers())
            placed = topic_replicas({}, int(plain[2]), int(plain[4]), live)
        self._topics += 1
        topic_id = topic_id_text(UUID(int=self._topics))
        self._require(self.cluster.admin.place_topic(plain[0], topic_id, placed, config))
        self.cluster.run_ms(50)

    # Time

    def do_run(self, words: Sequence[str]) -> None:
        """run 20ms; run 3s; run until "WORDS OF A LINE"."""
        if words[0] != "until":
            self.cluster.run_ms(milliseconds(words[0]))
            return
        seen: list[bool] = []
        self.cluster.on_line(words[1], lambda: seen.append(True))
        if not self.cluster.run_while(lambda: not seen, LIMIT_MS):
            raise ScenarioError(f"no line contains {words[1]!r} within {LIMIT_MS} ms")

    def do_settle(self, _words: Sequence[str]) -> None:
        """Run until the cluster is at rest."""
        cluster = self.cluster
        if not cluster.run_while(lambda: cluster.unrest() is not None, LIMIT_MS, 10):
            raise ScenarioError(f"not at rest after {LIMIT_MS} ms: {cluster.unrest()}")

    def do_trace(self, words: Sequence[str]) -> None:
        """trace silent; trace with states messages; trace plain."""
        self.cluster.silent = words[0] == "silent"
        self.cluster.states = "states" in words
        self.cluster.messages = "messages" in words

    # Faults

    def do_crash(self, words: Sequence[str]) -> None:
        """crash 2 [unnoticed]: kill -9; the store ends its session at once, or only when it times out."""
        self._kill(words, lost_cache=False)

    def do_power_loss(self, words: Sequence[str]) -> None:
        """power-loss 2: a crash that also loses everything not fsynced."""
        self._kill(words, lost_cache=True)

    def _kill(self, words: Sequence[str], lost_cache: bool) -> None:
        cluster = self.cluster
        cluster.plan = replace(cluster.plan, quick_notice="unnoticed" not in words)
        for word in words:
            if word != "unnoticed":
                cluster.crash_machine(cluster.machines[int(word)], lost_cache)

    def do_restart(self, words: Sequence[str]) -> None:
        """restart 2; restart: all brokers that are down."""
        down = [str(machine.id) for machine in self.cluster.machines.values() if machine.process is None]
        for word in words or down:
            if word not in down:
                raise ScenarioError(f"broker {word} is up")
            self._start(int(word))

    def do_shutdown(self, words: Sequence[str]) -> None:
        """A controlled shutdown."""
        done: list[bool] = []
        self._process(words[0]).shut_down(lambda: done.append(True))
        if not self.cluster.run_while(lambda: not done, LIMIT_MS):
            raise ScenarioError(f"broker {words[0]} does not exit")

    def do_pause(self, words: Sequence[str]) -> None:
        for word in words:
            self._process(word).pause()

    def do_resume(self, words: Sequence[str]) -> None:
        for word in words:
            self._process(word).resume()

    def do_cut(self, words: Sequence[str]) -> None:
        """cut 1 2; cut 1->2; cut 1 store."""
        for source, destination in links(words):
            self.cluster.network.cut(source, destination)

    def do_heal(self, words: Sequence[str]) -> None:
        for source, destination in links(words):
            self.cluster.network.heal(source, destination)
        if not words:
            self.cluster.network.heal_all()

    def do_expire(self, words: Sequence[str]) -> None:
        """The store ends the session of a live broker."""
        session = self._process(words[0]).link.session
        if session is None:
            raise ScenarioError(f"broker {words[0]} has no session")
        self.cluster.store.expire(session.id)

    def do_lose_replies(self, words: Sequence[str]) -> None:
        """lose-replies 1 2: the next two replies of the store to broker 1 are lost, with their connections."""
        self._process(words[0]).link.lose_replies(int(words[1]))

    def do_fail_disk(self, words: Sequence[str]) -> None:
        self.cluster.machines[int(words[0])].disk.fail()

    def do_repair_disk(self, words: Sequence[str]) -> None:
        self.cluster.machines[int(words[0])].disk.repair()

    def do_fsync(self, words: Sequence[str]) -> None:
        """fsync 1 t-0: all records so far survive a power loss."""
        log = self.cluster.machines[int(words[0])].disk.log(TopicPartition.parse(words[1]))
        if log is None:
            raise ScenarioError(f"broker {words[0]} has no open log of {words[1]}")
        log.flush()

    def do_crash_controller(self, words: Sequence[str]) -> None:
        """crash-controller after 3 effects; crash-controller at "WORDS OF A LINE": before the next effect."""
        if words[0] == "at":
            self.cluster.on_line(words[1], self._crash_controller)
            return
        process = self._process(str(self.cluster.controller()))
        process.fuse, process.on_fuse = int(words[1]), self._crash_controller

    def _crash_controller(self) -> None:
        controller = self.cluster.controller()
        self.cluster.report(f"b{controller} crashes")
        self.cluster.crash_machine(self.cluster.machines[controller], lost_cache=False)

    # Held messages

    def do_hold(self, words: Sequence[str]) -> None:
        self.cluster.network.hold(parse_direction(words))

    def do_release(self, words: Sequence[str]) -> None:
        self.cluster.network.release(parse_direction(words))
        self.cluster.run_ms(STEP_MS)

    def do_deliver(self, words: Sequence[str]) -> None:
        self._act_on_oldest(words, "delivered", self.cluster.network.deliver)

    def do_drop(self, words: Sequence[str]) -> None:
        self._act_on_oldest(words, "dropped", self.cluster.network.drop)

    def _act_on_oldest(self, words: Sequence[str], verb: str, act: Callable[[Direction], Any]) -> None:
        direction = parse_direction(words)
        held = self.cluster.network.held.get(direction)
        if not held:
            raise ScenarioError(f"no message is held on {direction}")
        self.cluster.report(f"({direction} {verb}: {describe(held[0][2])})")
        act(direction)
        self.cluster.run_ms(STEP_MS)

    # Operators

    def do_reassign(self, words: Sequence[str]) -> None:
        self._require(self.cluster.admin.reassign(TopicPartition.parse(words[0]), brokers(words[1])))

    def do_cancel(self, words: Sequence[str]) -> None:
        self._require(self.cluster.admin.reassign(TopicPartition.parse(words[0]), None))

    def do_delete(self, words: Sequence[str]) -> None:
        self._require(self.cluster.admin.delete_topic(words[0]))

    def do_configure(self, words: Sequence[str]) -> None:
        """configure t min.insync.replicas=2: other settings stay."""
        config = self.cluster.config_of(words[0])
        for name, value in settings(words[1:]).items():
            config = replace(config, **setting(config, name, value))
        self._require(self.cluster.admin.configure(words[0], config))

    def do_delete_records(self, words: Sequence[str]) -> None:
        """delete-records t-0 3 [timeout_ms=500]: all below offset 3; -1 for all committed records. The response is
        reported when it arrives."""
        partition, offset = TopicPartition.parse(words[0]), int(words[1])
        timeout_ms = int(settings(words).get("timeout_ms", "500"))
        self._require(self.cluster.records_deleted(partition, offset, timeout_ms))
        self.cluster.run_ms(STEP_MS)

    def do_elect(self, _words: Sequence[str]) -> None:
        """Elect the preferred leader of every partition."""
        self._require(self.cluster.admin.elect_preferred())

    def _require(self, accepted: bool) -> None:
        if not accepted:
            raise ScenarioError("the request is refused")

    def do_add_brokers(self, words: Sequence[str]) -> None:
        """add-brokers 3 4 --plan: report the moves. add-brokers 3 4: start the brokers and request the moves."""
        new = [int(word) for word in words if not word.startswith("-")]
        known = dict.fromkeys(broker for broker in sorted(self.cluster.machines) if broker not in new)
        plan = rebalance.add_brokers(self.cluster.assignment(), known, dict.fromkeys(new))
        if "--plan" in words:
            copied = {broker: sum(move.target == broker for move in plan.moves) for broker in new}
            targets = ", ".join(f"{count} to b{broker}" for broker, count in copied.items())
            self.cluster.report(
                f"{len(plan.moves)} replicas are to be copied ({targets}), {len(plan.changed)} partitions change"
            )
            for broker, load in plan.after.items():
                before = plan.before[broker]
                self.cluster.report(
                    f"b{broker}: {before.replicas} -> {load.replicas} replicas, "
                    f"{before.leaders} -> {load.leaders} preferred leaders"
                )
            return
        for broker in new:
            self._start(broker)
        for partition, replicas in plan.changed.items():
            self._require(self.cluster.admin.reassign(partition, replicas))

    def _process(self, word: str) -> BrokerProcess:
        process = self.cluster.machines[int(word)].process
        if process is None:
            raise ScenarioError(f"broker {word} is down")
        return process
