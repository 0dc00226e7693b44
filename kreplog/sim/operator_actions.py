"""OperatorActions: what operators do in a plan: elections, reassignments, configs, topics, partitions, new brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kreplog.config import TopicConfig
from kreplog.core.events import RetentionDue
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.sim.action_targets import ActionTargets
from kreplog.sim.faults import OWN_TOPICS, Action, drawn_default
from kreplog.sim.machines.scheduler import MS
from kreplog.types import NO_LEADER, TopicPartition

SPOIL_AFTER_MS = 300
"""How long after dynamic configs are written they become unreadable: a controller has sent them by then, usually."""

UNNEEDED_SHARE = 0.3
"""The share of the requests for unclean elections that are of any partition."""

LOOK_MS = 50
"""Between an operator's looks for a partition without a leader."""


class OperatorActions(ActionTargets):
    """Actions of operators, who request most of them by the cluster's administrator."""

    def _depose(self, action: Action) -> bool:
        """Operators delete /controller, so that another is elected; the old controller notices it later than the new
        one."""
        self._note(action, "/controller is deleted")
        return self._cluster.admin.depose()

    def _preferred(self, action: Action) -> bool:
        self._note(action, "a preferred leader election is requested")
        return self._cluster.admin.elect_preferred()

    def _unclean_election(self, action: Action) -> bool:
        """Request an unclean election of a partition: of one without a leader, waiting for such; or of any, which has a
        leader mostly and keeps it."""
        if action.draws[0] < UNNEEDED_SHARE:
            partitions = self._client_partitions()
            return self._elect_unclean(action, partitions[int(action.draws[1] * len(partitions)) :][:1])

        def look(left_ms: int) -> None:
            if not self._healed and not self._elect_unclean(action, self._leaderless(action)) and left_ms > 0:
                self._scheduler.after(LOOK_MS * MS, look, left_ms - LOOK_MS)

        look(action.duration_ms)
        return True

    def _leaderless(self, action: Action) -> list[TopicPartition]:
        """The partitions without a leader in the store, from a drawn one on."""
        leader_of = self._cluster.leader_of
        found = [partition for partition in self._client_partitions() if leader_of(partition) == NO_LEADER]
        return found[int(action.draws[1] * len(found)) :]

    def _client_partitions(self) -> list[TopicPartition]:
        """All but those of coordinators and transactions, whose guarantees are not of single partitions."""
        return [partition for partition in self._cluster.partitions() if partition.topic not in OWN_TOPICS]

    def _elect_unclean(self, action: Action, partitions: Sequence[TopicPartition]) -> bool:
        done = bool(partitions) and self._cluster.admin.elect_unclean(partitions)
        if done:
            self._note(action, f"an unclean election of {', '.join(map(str, partitions))} is requested", *partitions)
        return done

    def _reorder(self, action: Action) -> bool:
        """Give a partition another preferred leader, and elect it: leadership moves without a failure."""
        cluster = self._cluster
        partition = self._partition(action.draws[0])
        replicas = cluster.admin.replicas_of(partition) if partition is not None else ()
        if partition is None or len(replicas) < 2:
            return False
        turn = 1 + int(action.draws[1] * (len(replicas) - 1))
        target = replicas[turn:] + replicas[:turn]
        self._note(action, f"{partition} is reassigned to {list(target)}", partition)
        done = cluster.admin.reassign(partition, target)
        self._scheduler.after(int(300 * MS * action.draws[2]), cluster.admin.elect_preferred)
        return done

    def _reassign(self, action: Action) -> bool:
        cluster = self._cluster
        partition = self._partition(action.draws[0])
        if partition is None:
            return False
        brokers = list(cluster.machines)
        count = max(1, min(len(brokers), len(cluster.admin.replicas_of(partition))))
        turn = int(action.draws[2] * len(brokers))
        step = 1 + int(action.draws[3] * 2)
        order = [brokers[(turn + step * index) % len(brokers)] for index in range(len(brokers))]
        target = tuple(dict.fromkeys(order + brokers))[:count]
        self._note(action, f"{partition} is reassigned to {list(target)}", partition)
        done = cluster.admin.reassign(partition, target)
        if action.draws[1] < 0.2:
            self._scheduler.after(int(200 * MS * action.draws[4]), self._cancel_reassignment, action, partition)
        return done

    def _cancel_reassignment(self, action: Action, partition: TopicPartition) -> None:
        if self._cluster.admin.reassign(partition, None):
            self._note(action, f"the reassignment of {partition} is cancelled", partition)

    def _settings(self, action: Action) -> bool:
        """Change min.insync.replicas or flush.messages; where the power may fail only one of the two, which keeps the
        guarantee."""
        cluster, plan = self._cluster, self._cluster.plan
        names = cluster.topic_names()
        if not names:
            return False
        name = names[int(action.draws[0] * len(names))]
        config, first = cluster.config_of(name), cluster.topic_plan(name).config
        fragile = plan.all_flush or any(kind in plan.kinds for kind in ("power", "rejoin", "new_disk"))
        if first.flush_messages == 1 if fragile else action.draws[1] < 0.6:
            config = replace(config, min_insync_replicas=3 - min(2, config.min_insync_replicas), inherited=())
        else:
            default = TopicConfig().flush_messages
            config = replace(config, flush_messages=default if config.flush_messages == 1 else 1, inherited=())
        self._note(action, f"topic {name} gets new settings")
        return cluster.admin.configure(name, config)

    def _broker_config(self, action: Action) -> bool:
        """Alter the dynamic configs of a broker, or the cluster-wide default, which are of two settings."""
        brokers = [*self._cluster.machines, None]
        subject = brokers[int(action.draws[0] * len(brokers))]
        name = "log.retention.ms" if action.draws[1] < 0.5 else "log.segment.bytes"
        value = None if action.draws[2] < 0.3 else str(1000 + int(1000 * action.draws[3]))
        resource = "all brokers" if subject is None else f"broker {subject}"
        self._note(action, f"the dynamic config {name} of {resource} is {'deleted' if value is None else value}")
        return self._cluster.admin.configure_broker(subject, name, value)

    def _default_config(self, action: Action) -> bool:
        """Alter the cluster-wide default of a setting that topics inherit, or the number of fetchers."""
        name, value = drawn_default(action.draws)
        self._note(action, f"the cluster-wide default of {name} is {'deleted' if value is None else value}")
        return self._cluster.admin.configure_broker(None, name, value)

    def _unreadable_config(self, action: Action) -> bool:
        """The dynamic configs of a broker, or the cluster-wide default, become unreadable, and are repaired later."""
        admin, brokers = self._cluster.admin, [*self._cluster.machines, None]
        subject = brokers[int(action.draws[0] * len(brokers))]
        resource = "all brokers" if subject is None else f"broker {subject}"

        def spoil() -> None:
            if not self._healed and admin.spoil_broker_config(subject):
                self._note(action, f"the dynamic configs of {resource} become unreadable for {action.duration_ms} ms")
                self._later(action, admin.repair_broker_configs)

        self._scheduler.after(SPOIL_AFTER_MS * MS, spoil)
        return admin.configure_broker(subject, "log.retention.ms", str(1000 + int(1000 * action.draws[1])))

    def _delete_records(self, action: Action) -> bool:
        cluster = self._cluster
        partition = self._partition(action.draws[0])
        if partition is None:
            return False
        leader = cluster.leader_of(partition)
        replica = cluster.replica_of(leader, partition) if leader in cluster.machines else None
        if replica is None:
            return False
        offset = -1 if action.draws[1] < 0.3 else int(action.draws[2] * (replica.log.leo + 2))
        records = "all committed records" if offset < 0 else f"records below {offset}"
        self._note(action, f"an operator requests the deletion of {records} of {partition}", partition)
        return cluster.records_deleted(partition, offset, 100 + int(500 * action.draws[3]))

    def _retention(self, action: Action) -> bool:
        """Retention deletes records on one broker; the others may do so at another time, or to another size."""
        process = self._process(action)
        if process is None:
            return False
        process.disk.retention_bytes = int(4000 * action.draws[2])
        self._note(action, f"broker {process.id} keeps {process.disk.retention_bytes} bytes of each replica")
        for partition in process.disk.on_disk():
            if partition.topic not in OWN_TOPICS:
                process.replicas.put(RetentionDue(partition))
        return True

    def _topic(self, action: Action) -> bool:
        self._note(action, "a topic is created, or deleted, or both")
        return self._cluster.admin.change_topics(action.draws, action.duration_ms)

    def _grow(self, action: Action) -> bool:
        return self._change_partitions(action, self._cluster.topic_names(), "a topic")

    def _grow_internal(self, action: Action) -> bool:
        return self._change_partitions(action, sorted(INTERNAL_TOPICS), "an internal topic, if that is not refused,")

    def _change_partitions(self, action: Action, names: Sequence[str], topic: str) -> bool:
        admin = self._cluster.admin
        if action.draws[2] < 0.3:
            self._note(action, f"{topic} loses its last partition")
            return admin.remove_partition(names, action.draws[0])
        self._note(action, f"{topic} gets one more partition")
        return admin.add_partition(names, action.draws[0], action.draws[1])

    def _broker(self, action: Action) -> bool:
        cluster = self._cluster
        if len(cluster.machines) >= 6:
            return False
        self._note(action, "a broker is added")
        cluster.add_machine()
        return True
