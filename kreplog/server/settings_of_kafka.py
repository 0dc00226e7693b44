"""Settings of Kafka's server.properties that a broker here refuses: what to write instead, or why it needs none."""

from __future__ import annotations

_EVENT_LOOP = "one event loop serves all connections of a broker"
_BUFFERS = "the system sizes the buffers of sockets"
_COORDINATION = "brokers elect their controller over what `coordination` names"
_ZOOKEEPER = 'write coordination = "zookeeper:HOST:PORT,.../ROOT"'
_VERSIONS = "brokers agree on versions by themselves"
_NO_PLUGINS = "brokers load no classes"
_NO_PURGATORY_PURGES = "requests that wait are removed when they are answered"

REFUSED = {
    "alter.config.policy.class.name": _NO_PLUGINS,
    "background.threads": _EVENT_LOOP,
    "broker.id.generation.enable": "every broker is given its broker.id",
    "client.quota.callback.class": _NO_PLUGINS,
    "control.plane.listener.name": "requests of controllers have the internal listener, which clients cannot reach",
    "controlled.shutdown.enable": "a broker that stops always moves its leaders away first",
    "controlled.shutdown.max.retries": "write controlled.shutdown.max.wait.ms",
    "controller.listener.names": _COORDINATION,
    "controller.quorum.bootstrap.servers": _COORDINATION,
    "controller.quorum.voters": _COORDINATION,
    "create.topic.policy.class.name": _NO_PLUGINS,
    "delete.topic.enable": "topics can be deleted; `authorizer.class.name` and ACLs say by whom",
    "fetch.purgatory.purge.interval.requests": _NO_PURGATORY_PURGES,
    "group.coordinator.rebalance.protocols": "both protocols of consumer groups are always on",
    "inter.broker.protocol.version": _VERSIONS,
    "kafka.metrics.reporters": "write metrics.listener, which serves Prometheus",
    "leader.imbalance.check.interval.seconds": "write leader.imbalance.check.interval.ms, in milliseconds",
    "log.dir": "write log.dirs",
    "log.message.format.version": _VERSIONS,
    "log.message.timestamp.difference.max.ms": (
        "write log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms"
    ),
    "log.preallocate": "segments are allocated piece by piece",
    "log.retention.hours": "write log.retention.ms, in milliseconds",
    "log.retention.minutes": "write log.retention.ms, in milliseconds",
    "log.roll.hours": "write log.roll.ms, in milliseconds",
    "log.segment.delete.delay.ms": "readers keep the files that they have open, which are deleted at once",
    "metric.reporters": "write metrics.listener, which serves Prometheus",
    "node.id": "write broker.id",
    "num.io.threads": _EVENT_LOOP,
    "num.network.threads": _EVENT_LOOP,
    "principal.builder.class": _NO_PLUGINS,
    "process.roles": _COORDINATION,
    "producer.purgatory.purge.interval.requests": _NO_PURGATORY_PURGES,
    "queued.max.requests": "write queued.max.request.bytes or max.in.flight.requests.per.connection",
    "remote.log.storage.system.enable": "there is no tiered storage",
    "sasl.mechanism.inter.broker.protocol": "brokers prove the cluster's key (inter.broker.key.file) to each other",
    "socket.listen.backlog.size": "it is that of the system, where that is lower than 512",
    "socket.receive.buffer.bytes": _BUFFERS,
    "socket.send.buffer.bytes": _BUFFERS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "a transaction is aborted as soon as its timeout has passed"
    ),
    "zookeeper.connect": _ZOOKEEPER,
    "zookeeper.connection.timeout.ms": "a broker waits 15 seconds for ZooKeeper when it starts",
    "zookeeper.session.timeout.ms": "write broker.session.timeout.ms",
}
