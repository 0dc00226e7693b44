"""Injector: executes the actions of a plan on the cluster: its faults here, those of operators in operator_actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from kreplog.core.messages import (
    FetchPartition,
    FetchRequest,
    LeaderAndIsrRequest,
    Request,
    UpdateMetadataRequest,
)
from kreplog.core.replication.role import Role
from kreplog.sim.faults import Action
from kreplog.sim.machines.scheduler import MS
from kreplog.sim.machines.store import STORE
from kreplog.sim.operator_actions import OperatorActions

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess, Machine
    from kreplog.sim.cluster import Cluster


HEAL_CHECK_MS = 3000


class Injector(OperatorActions):
    """Injects the faults of a plan into one cluster, and has its operators act. `heal` ends all faults; none begins
    after it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.counts: dict[str, int] = {}

    def schedule(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            self._scheduler.at(action.at_ms * MS, self._inject, action)

    def heal(self) -> None:
        """End all faults: links, store, disks and pauses; start every machine that is down."""
        self._healed = True
        cluster = self._cluster
        cluster.trace.note("fault", "all faults end")
        cluster.network.heal_all()
        cluster.network.jitter = (0.0, 0)
        cluster.network.starved.clear()
        if not cluster.store.available:
            cluster.store.resume()
        cluster.admin.repair_broker_configs()
        for machine in list(cluster.machines.values()):
            process = machine.process
            machine.disk.slow_ms = machine.disk.exhausted_every = 0
            if process is not None:
                process.fuse = None
                process.link.lose_replies(0)
                process.resume()
                process.set_clock(0, 1000)
            if machine.disk.failed:
                self._restart_with_new_disk(machine)
            machine.disk.repair()
        for machine in list(cluster.machines.values()):
            if machine.process is None:
                cluster.start_machine(machine)
        self._scheduler.after(HEAL_CHECK_MS * MS, self._restart_brokers_without_replicas)

    def _restart_brokers_without_replicas(self) -> None:
        """Act as operators after the loss of a disk: restart the broker when others continued without it, and delete a
        topic of which it had the only in-sync or eligible replica."""
        cluster = self._cluster
        for machine in list(cluster.machines.values()):
            missing = {} if machine.process is None else machine.process.manager.missing
            for partition in sorted(missing):
                state = cluster.state_of(partition)
                if state is not None and {*state.isr, *state.elr} == {machine.id}:
                    cluster.trace.note("fault", f"{partition} was lost with the disk of broker {machine.id}", partition)
                    cluster.admin.delete_topic(partition.topic)
            if missing:
                cluster.trace.note("fault", f"broker {machine.id} is restarted")
                cluster.crash_machine(machine, lost_cache=False)
                cluster.start_machine(machine)
        self._scheduler.after(HEAL_CHECK_MS * MS, self._restart_brokers_without_replicas)

    def _inject(self, action: Action) -> None:
        if self._healed:
            return
        done: bool = getattr(self, f"_{action.kind}")(action)
        if done:
            self.counts[action.kind] = self.counts.get(action.kind, 0) + 1

    # The network

    def _late(self, action: Action) -> bool:
        network = self._cluster.network
        before = network.jitter
        network.jitter = (action.draws[0], int(400 * MS * action.draws[1]))
        self._note(action, f"messages are late for {action.duration_ms} ms")

        def end() -> None:
            network.jitter = before

        self._later(action, end)
        return True

    def _drop(self, action: Action) -> bool:
        connections = self._cluster.network.connections()
        if not connections:
            return False
        connection = connections[int(action.draws[0] * len(connections))]
        self._note(action, f"the connection {connection} is lost")
        self._cluster.network.close(connection)
        return True

    def _cut_links(self, action: Action, links: list[tuple[str, str]], text: str) -> bool:
        network = self._cluster.network
        for link in links:
            network.cut(*link)
        self._note(action, f"{text} for {action.duration_ms} ms")

        def end() -> None:
            self._note(action, f"healed: {text}")
            for link in links:
                network.heal(*link)

        self._later(action, end)
        return True

    def _cut(self, action: Action) -> bool:
        machine = self._machine(action.draws[0], action.draws[1])
        other = self._other(machine, action.draws[2])
        forward, backward = (machine.host, other.host), (other.host, machine.host)
        if action.draws[3] < 0.4:
            return self._cut_links(action, [forward, backward], f"no link between {machine.host} and {other.host}")
        link = forward if action.draws[4] < 0.5 else backward
        return self._cut_links(action, [link], f"no link from {link[0]} to {link[1]}")

    def _isolate(self, action: Action) -> bool:
        cluster = self._cluster
        machine = self._machine(action.draws[0], action.draws[1])
        others = [other.host for other in cluster.machines.values() if other is not machine]
        if action.draws[2] < 0.3:
            others.append(STORE)
        if action.draws[3] < 0.2:
            others += cluster.client_hosts()
        links = []
        if action.draws[4] < 0.7:
            links += [(machine.host, other) for other in others]
        if action.draws[4] > 0.3:
            links += [(other, machine.host) for other in others]
        return self._cut_links(action, links, f"{machine.host} is cut off from {', '.join(others)}")

    def _refuse(self, action: Action) -> bool:
        """A host resets the connections of another host, or of all others, and refuses new ones, although its process
        is alive: false evidence of its failure."""
        network = self._cluster.network
        machine = self._machine(action.draws[0], action.draws[1])
        others = [other for other in self._cluster.machines.values() if other is not machine]
        if action.draws[2] < 0.4:
            others = [self._other(machine, action.draws[3])]
        links = [(other.host, machine.host) for other in others]
        for link in links:
            network.refuse(*link)
        names = ", ".join(other.host for other in others)
        self._note(action, f"{machine.host} refuses {names} for {action.duration_ms} ms")

        def end() -> None:
            for link in links:
                network.accept(*link)

        self._later(action, end)
        return True

    def _forge(self, action: Action) -> bool:
        """A broker gets a forged request from the future: of a controller epoch without an election, or of a follower
        under a broker epoch that it does not have."""
        cluster, machine = self._cluster, self._machine(action.draws[0], action.draws[1])
        partition, process = self._partition(action.draws[2]), machine.process
        if partition is None or process is None:
            return False
        ahead = 1 + int(action.draws[3] * 20)
        if action.draws[4] < 0.5:
            epochs = process.manager.controller_epoch + ahead, process.manager.broker_epoch
            kind = UpdateMetadataRequest if action.draws[5] < 0.5 else LeaderAndIsrRequest
            request: Request = kind(machine.id, *epochs, ())
            forged = f"{kind.__name__} of controller epoch {epochs[0]}"
        else:
            leader = process.manager.partitions.get(partition)
            if leader is None or leader.role is not Role.LEADER:
                return False
            follower = self._other(machine, action.draws[5])
            epoch = process.manager.metadata.epoch_of(follower.id) + ahead
            fetched = FetchPartition(partition, leader.topic_id, leader.leader_epoch, leader.log.leo)
            request = FetchRequest(follower.id, epoch, 0, 0, 1 << 20, (fetched,))
            forged = f"fetch of {partition} by broker {follower.id} with broker epoch {epoch}"
        self._note(action, f"broker {machine.id} gets a forged {forged}", partition)
        cluster.network.send("forger", machine.host, "forged", request)
        return True

    def _slow_link(self, action: Action) -> bool:
        network = self._cluster.network
        machine = self._machine(action.draws[0], action.draws[1])
        link = (machine.host, self._other(machine, action.draws[2]).host)
        network.slow[link] = int(500 * MS * action.draws[3])
        self._note(action, f"the link from {link[0]} to {link[1]} is slow for {action.duration_ms} ms")
        self._later(action, network.slow.pop, link, None)
        return True

    def _starve(self, action: Action) -> bool:
        network = self._cluster.network
        host = self._machine(1.0, action.draws[1]).host
        if host in network.starved:
            return False
        late_us = int(3000 * MS * action.draws[2])
        never = action.draws[3] < 0.5
        network.starved[host] = (5000 * MS, 6000 * MS) if never else (0, late_us)
        how = "do not arrive" if never else "are late"
        self._note(action, f"control messages to {host} {how} for {action.duration_ms} ms")
        self._later(action, network.starved.pop, host, None)
        return True

    # Processes

    def _crash(self, action: Action) -> bool:
        process = self._process(action)
        if process is None:
            return False
        self._kill(action, process, lost_cache=False)
        return True

    def _kill(self, action: Action, process: BrokerProcess, lost_cache: bool) -> None:
        cluster = self._cluster
        if not process.alive:
            return
        machine = process.machine
        down_ms = int(action.duration_ms * (0.02 if action.draws[3] < 0.3 else 1))
        failure = "loses power" if lost_cache else "crashes"
        self._note(action, f"broker {machine.id} {failure}, for {down_ms} ms")
        cluster.crash_machine(machine, lost_cache)

        def restart() -> None:
            if not self._healed and machine.process is None:
                cluster.start_machine(machine)
                if action.draws[4] < 0.3:  # it may crash again soon: before it is registered, in sync, or has its INIT
                    self._scheduler.after(int(600 * MS * action.draws[5]), again, machine.process)

        def again(process: BrokerProcess | None) -> None:
            if self._healed or process is None or not process.alive:
                return
            power = lost_cache and cluster.may_lose_power(machine)
            self._note(action, f"broker {machine.id} {'loses power' if power else 'crashes'} again")
            cluster.crash_machine(machine, power)
            self._scheduler.after(down_ms * MS, restart_once_more)

        def restart_once_more() -> None:
            if not self._healed and machine.process is None:
                cluster.start_machine(machine)

        self._scheduler.after(down_ms * MS, restart)

    def _power(self, action: Action) -> bool:
        process = self._process(action)
        if process is None or not self._cluster.may_lose_power(process.machine):
            return False
        self._kill(action, process, lost_cache=True)
        return True

    def _rejoin(self, action: Action) -> bool:
        """A follower that returns from a crash loses power while its leader, which proposes it for the ISR, waits for
        the store: the proposal is about a registration that is over (F16)."""
        cluster = self._cluster
        partition = self._partition(action.draws[0])
        leader = cluster.machines.get(-1 if partition is None else cluster.leader_of(partition))
        if partition is None or leader is None:
            return False
        followers = [
            broker_id
            for broker_id in cluster.admin.replicas_of(partition)
            if broker_id != leader.id and broker_id in cluster.machines
        ]
        if not followers:
            return False
        machine = cluster.machines[followers[int(action.draws[1] * len(followers))]]
        if machine.process is None:
            return False
        self._note(action, f"broker {machine.id} crashes, and will lose power when it is back", partition)
        cluster.crash_machine(machine, lost_cache=False)
        start_ms = self._cluster.plan.session_timeout_ms + 200 if action.draws[2] < 0.7 else 50

        def start() -> None:
            if not self._healed and machine.process is None:
                cluster.start_machine(machine)

        def cut_off() -> None:
            if self._healed:
                return
            links = [(leader.host, STORE), (STORE, leader.host)]
            text = f"no link between {leader.host} and the store"
            self._cut_links(replace(action, duration_ms=int(700 * action.draws[4])), links, text)

        def lose_power() -> None:
            if self._healed or machine.process is None or not cluster.may_lose_power(machine):
                return
            self._note(action, f"broker {machine.id} loses power", partition)
            cluster.crash_machine(machine, lost_cache=True)
            self._scheduler.after(10 * MS, start)

        self._scheduler.after(start_ms * MS, start)
        self._scheduler.after((start_ms + 5) * MS, cut_off)
        self._scheduler.after(int((start_ms + 20 + 150 * action.draws[5]) * MS), lose_power)
        return True

    def _new_disk(self, action: Action) -> bool:
        """A broker's disk is replaced by an empty one. Its replicas are created again by the start after the next."""
        cluster = self._cluster
        machine = self._machine(action.draws[0], action.draws[1])
        if machine.process is None or machine.disk.failed or not cluster.may_replace_disk(machine):
            return False
        self._note(action, f"broker {machine.id} fails, and returns with an empty disk", *machine.disk.on_disk())
        cluster.replace_disk(machine)

        def start() -> None:
            if not self._healed and machine.process is None:
                cluster.start_machine(machine)

        def start_again() -> None:
            if not self._healed and machine.process is not None and machine.process.manager.missing:
                self._note(action, f"broker {machine.id} is restarted")
                cluster.crash_machine(machine, lost_cache=False)
                start()

        self._scheduler.after(int(action.duration_ms * MS * action.draws[2]), start)
        self._scheduler.after((action.duration_ms + 1500) * MS, start_again)
        return True

    def _all_down(self, action: Action) -> bool:
        """All brokers fail at the same instant; by a power failure only if every acknowledged record is fsynced."""
        cluster = self._cluster
        power = cluster.plan.all_flush and action.draws[0] < 0.7
        failure = "all brokers lose power" if power else "all brokers crash"
        self._note(action, f"{failure}, for {action.duration_ms} ms or less")
        random = Random(action.draws[1])
        for machine in list(cluster.machines.values()):
            if machine.process is not None:
                cluster.crash_machine(machine, lost_cache=power)
            self._scheduler.after(int(action.duration_ms * MS * random.random()), self._start_if_down, machine)
        return True

    def _start_if_down(self, machine: Machine) -> None:
        if not self._healed and machine.process is None:
            self._cluster.start_machine(machine)

    def _set_fuse(self, action: Action, fault: Callable[[BrokerProcess], None], verb: str) -> bool:
        process = self._process(action)
        if process is None or process.fuse is not None:
            return False
        process.fuse = 1 + int(40 * action.draws[2] ** 2)
        process.on_fuse = lambda: fault(process)
        self._note(action, f"broker {process.id} will {verb} after {process.fuse} effects")
        return True

    def _crash_step(self, action: Action) -> bool:
        return self._set_fuse(action, lambda process: self._kill(action, process, lost_cache=False), "crash")

    def _pause(self, action: Action) -> bool:
        process = self._process(action)
        if process is None or process.paused:
            return False
        self._stop(action, process)
        return True

    def _pause_step(self, action: Action) -> bool:
        return self._set_fuse(action, lambda process: self._stop(action, process), "pause")

    def _stop(self, action: Action, process: BrokerProcess) -> None:
        if process.paused or not process.alive:
            return
        self._note(action, f"broker {process.id} is paused for {action.duration_ms} ms")
        process.pause()

        def resume() -> None:
            if process.alive and process.paused:
                self._note(action, f"broker {process.id} resumes")
                process.resume()

        self._later(action, resume)

    def _shutdown(self, action: Action) -> bool:
        process = self._process(action)
        cluster = self._cluster
        if process is None or process.stopping or process.paused:
            return False
        machine = process.machine
        self._note(action, f"broker {machine.id} is shut down")

        def stopped() -> None:
            cluster.trace.note("fault", f"broker {machine.id} is down")
            self._scheduler.after(int(action.duration_ms * MS * 0.3), restart)

        def restart() -> None:
            if machine.process is None:
                cluster.start_machine(machine)

        process.shut_down(stopped)
        return True

    def _clock(self, action: Action) -> bool:
        process = self._process(action)
        if process is None:
            return False
        jump_ms = action.duration_ms if action.draws[2] < 0.5 else 0
        rate = 1000 if jump_ms else int(500 + 1500 * action.draws[3])
        self._note(action, f"the clock of broker {process.id} jumps by {jump_ms} ms and runs at {rate / 1000}")
        process.set_clock(jump_ms, rate)
        return True

    # Disks

    def _slow_disk(self, action: Action) -> bool:
        disk = self._machine(action.draws[0], action.draws[1]).disk
        disk.slow_ms = 1 + int(60 * action.draws[2])
        self._note(action, f"a disk is slow ({disk.slow_ms} ms) for {action.duration_ms} ms")

        def end() -> None:
            disk.slow_ms = 0

        self._later(action, end)
        return True

    def _disk_fail(self, action: Action) -> bool:
        machine = self._machine(action.draws[0], action.draws[1])
        if machine.process is None or machine.disk.failed:
            return False
        number, torn, survives = 1 + int(8 * action.draws[2]), action.draws[3] < 0.5, action.draws[4] < 0.5
        self._note(action, f"the disk of broker {machine.id} fails at its write number {number} from now")
        machine.disk.fail_write(number, torn, survives)
        self._later(action, self._restart_with_new_disk, machine)
        return True

    def _exhaust(self, action: Action) -> bool:
        """A broker's process has no descriptors or memory for some of its operations."""
        disk = self._machine(action.draws[0], action.draws[1]).disk
        disk.exhausted_every = 1 + int(4 * action.draws[2])
        disk.interrupts = action.draws[3] < 0.5
        self._note(
            action,
            f"broker {disk.broker} is exhausted at every {disk.exhausted_every}. operation for {action.duration_ms} ms",
        )

        def end() -> None:
            disk.exhausted_every = 0

        self._later(action, end)
        return True

    def _restart_with_new_disk(self, machine: Machine) -> None:
        cluster = self._cluster
        if not machine.disk.failed:
            return
        cluster.trace.note("fault", f"the disk of broker {machine.id} works again, the broker is restarted")
        if machine.process is not None:
            cluster.crash_machine(machine, lost_cache=False)
        machine.disk.repair()
        cluster.start_machine(machine)

    # The store

    def _expire(self, action: Action) -> bool:
        process = self._process(action)
        if process is None or process.link.session is None:
            return False
        self._note(action, f"the store ends the session of broker {process.id}")
        self._cluster.store.expire(process.link.session.id)
        return True

    def _store_cut(self, action: Action) -> bool:
        host = self._machine(action.draws[0], action.draws[1]).host
        links = []
        if action.draws[2] < 0.7:
            links.append((host, STORE))
        if action.draws[2] > 0.4:
            links.append((STORE, host))
        return self._cut_links(action, links, f"no link {' and '.join(f'from {a} to {b}' for a, b in links)}")

    def _store_down(self, action: Action) -> bool:
        store = self._cluster.store
        if not store.available:
            return False
        self._note(action, f"the store is not available for {action.duration_ms} ms")
        store.interrupt()
        self._later(action, store.resume)
        return True

    def _store_loss(self, action: Action) -> bool:
        process = self._process(action)
        if process is None:
            return False
        if action.draws[2] < 0.3:
            self._note(action, f"broker {process.id} loses its connection to the store")
            process.link.lose_connection()
        else:
            count = 1 + int(3 * action.draws[3])
            self._note(action, f"broker {process.id} loses the next {count} replies of the store")
            process.link.lose_replies(count)
        return True
