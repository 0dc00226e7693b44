"""Observation of a scenario's cluster: `show` reports its state, `expect` compares it with given values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kreplog.core import nodes
from kreplog.core.replication.role import Role
from kreplog.sim.brokers.traced_broker import describe_assignment, describe_state
from kreplog.sim.scenarios.scenario_arguments import ScenarioError, broker_name, joined, shown
from kreplog.sim.scenarios.scenario_clients import Clients
from kreplog.sim.scenarios.scenario_cluster import ScenarioCluster
from kreplog.types import LeaderAndIsr, TopicPartition


class Expectations:
    """The commands `show` and `expect`: the present state of the store, the brokers and the clients."""

    def __init__(self, cluster: ScenarioCluster, clients: Clients) -> None:
        self.cluster = cluster
        self._clients = clients

    def do_show(self, words: Sequence[str]) -> None:
        """show t-0; show leaders t; show load t; show controller."""
        silent, self.cluster.silent = self.cluster.silent, False
        match words:
            case ["leaders", name]:
                self._show_leaders(name)
            case ["load", name]:
                self._show_load(name)
            case ["controller"]:
                self.cluster.report(f"the controller is {broker_name(self.cluster.controller())}")
            case _:
                for word in words:
                    self._show(TopicPartition.parse(word))
        self.cluster.silent = silent

    def _show(self, partition: TopicPartition) -> None:
        report = self.cluster.report
        state = self.cluster.state_of(partition)
        topic = self.cluster.topics().get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            report(f"{partition} does not exist")
            return
        assigned = topic.partitions[partition.partition]
        described = "no state" if state is None else describe_state(state)
        report(f"{partition} {describe_assignment(assigned)}: {described}")
        for broker in assigned.replicas:
            replica = self.cluster.replica_of(broker, partition)
            if replica is None:
                down = self.cluster.machines[broker].process is None
                report(f"  b{broker} {'is down' if down else 'has no replica'}")
                continue
            log = replica.log
            records = " ".join(self._log(broker, partition))
            epochs = " ".join(f"{epoch}@{start}" for epoch, start in log.epochs) or "none"
            role = f"{replica.role.name.lower()} in epoch {replica.leader_epoch}"
            report(
                f"  b{broker} {role}: [{log.log_start}, {log.leo}) {records or 'empty'}; "
                f"high watermark {replica.high_watermark}, epochs {epochs}"
            )

    def _show_leaders(self, name: str) -> None:
        """The partitions of a topic that each broker leads."""
        led: dict[int, list[str]] = {}
        for partition in self.cluster.partitions():
            if partition.topic == name:
                led.setdefault(self.cluster.leader_of(partition), []).append(str(partition.partition))
        for broker, partitions in sorted(led.items()):
            self.cluster.report(f"{broker_name(broker)} leads {len(partitions)}: {' '.join(partitions)}")

    def _show_load(self, name: str) -> None:
        for broker in sorted(self.cluster.machines):
            replicas, leaders = self._load(name, broker)
            self.cluster.report(f"b{broker} has {replicas} replicas and leads {leaders}")

    def _load(self, name: str, broker: int) -> tuple[int, int]:
        """The number of replicas of a topic on a broker, and of its partitions that the broker leads."""
        partitions = [partition for partition in self.cluster.partitions() if partition.topic == name]
        replicas = sum(
            broker in assigned for partition, assigned in self.cluster.assignment().items() if partition.topic == name
        )
        return replicas, sum(self.cluster.leader_of(partition) == broker for partition in partitions)

    def do_expect(self, words: Sequence[str]) -> None:
        """expect SUBJECT .. = VALUES; the README lists the subjects."""
        if words[0] in ("said", "never"):
            found = any(words[1] in line for line in self.cluster.all_lines)
            if found != (words[0] == "said"):
                raise ScenarioError(f"{words[1]!r} was {'never said' if not found else 'said'}")
            return
        if words[0] == "rest":
            if (unrest := self.cluster.unrest()) is not None:
                raise ScenarioError(f"not at rest: {unrest[0]}")
            return
        if "=" not in words:
            raise ScenarioError("an expectation needs an = between subject and values, with a space on either side")
        at = words.index("=")
        (kind, *of), wanted = words[:at], [word for word in words[at + 1 :] if word != "none"]
        for subject, values in self._observed(kind, of):
            if values != wanted:
                raise ScenarioError(f"{kind} {subject} is {joined(values)}, not {joined(wanted)}")

    def _observed(self, kind: str, of: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """(subject, observed values) for each partition, replica, broker or client of an expectation."""
        match kind:
            case "log" | "start" | "hw" | "epochs" | "role" | "believes":
                partition = TopicPartition.parse(of[0])
                for word in of[1:]:
                    yield f"{partition} on b{word}", self._of_replica(kind, int(word), partition)
            case "leader" | "epoch" | "isr" | "elr" | "replicas":
                for word in of:
                    yield word, self._of_partition(kind, TopicPartition.parse(word))
            case "load" | "leads":
                for word in of[1:]:
                    yield f"{of[0]} of b{word}", [str(self._load(of[0], int(word))[kind == "leads"])]
            case "acked" | "waiting" | "refused":
                producer = self._clients.producers[of[0]]
                waiting = [value for batch in producer.waiting for value in batch.values]
                yield of[0], {"acked": producer.acked, "refused": producer.refused}.get(kind, waiting)
            case "consumed":
                yield of[0], self._clients.consumed.get(of[0], [])
            case "controller":
                yield "", shown([self.cluster.controller()])
            case "controller-epoch":
                node = self.cluster.store.store.peek(nodes.CONTROLLER_EPOCH)
                yield "", [] if node is None else [node.data.decode()]
            case "topics":
                yield "", sorted(self.cluster.topics())
            case "disk":
                for word in of:
                    yield f"of b{word}", list(map(str, self.cluster.machines[int(word)].disk.on_disk()))
            case _:
                raise ScenarioError(f"there is no expectation {kind}")

    def _of_replica(self, kind: str, broker: int, partition: TopicPartition) -> list[str]:
        replica = self.cluster.replica_of(broker, partition)
        if replica is None:
            return []
        match kind:
            case "log":
                return self._log(broker, partition)
            case "start":
                return [str(replica.log.log_start)]
            case "hw":
                return [str(replica.high_watermark)]
            case "epochs":
                return [f"{epoch}@{start}" for epoch, start in replica.log.epochs]
            case "role":
                return [replica.role.name.lower()]
            case _:
                return shown(replica.isr)

    def _of_partition(self, kind: str, partition: TopicPartition) -> list[str]:
        if kind == "replicas":
            return shown(self.cluster.assignment().get(partition, ()))
        state = self.cluster.state_of(partition) or LeaderAndIsr(-1, -1, ())
        match kind:
            case "leader":
                return shown([state.leader])
            case "epoch":
                return [str(state.leader_epoch)]
            case "isr":
                return shown(state.isr)
            case _:
                return shown(state.elr)

    def _log(self, broker: int, partition: TopicPartition) -> list[str]:
        log = self.cluster.machines[broker].disk.log(partition)
        replica = self.cluster.replica_of(broker, partition)
        if log is None or replica is None or replica.role is Role.OFFLINE:
            return []
        found = log.state()
        return self.cluster.values(log.read(found.log_start, found.leo, 1 << 30))
