"""Settings of the brokers of Kafka 3.9 and 4.4 that a broker here refuses: what to write instead, or why."""

from __future__ import annotations

_EVENT_LOOP = "one event loop serves all connections of a broker"
_BUFFERS = "the system sizes the buffers of sockets"
_COORDINATION = "brokers elect their controller over what `coordination` names"
_ZOOKEEPER = 'write coordination = "zookeeper:HOST:PORT,.../ROOT"'
_VERSIONS = "brokers agree on versions by themselves"
_NO_PLUGINS = "brokers load no classes"
_NO_PURGATORY_PURGES = "requests that wait are removed when they are answered"
_PROMETHEUS = "write metrics.listener, which serves Prometheus"
_LOADS = "a coordinator sizes the reads of its partitions by itself"
_JITTER = "segments are rolled without jitter: what a roll leaves to be fsynced, threads of the background do"
_CHECKPOINTS = "write log.flush.offset.checkpoint.interval.ms, for the checkpoints of all offsets"
_OWN_TIMEOUTS = "connections between brokers have time-outs of their own"
_NO_TIERED_STORAGE = "there is no tiered storage"
_NO_KRAFT = "there is no metadata log: the state of the cluster is in what `coordination` names"
_NO_SHARE_GROUPS = "there are no share groups (KIP-932)"
_NO_STREAMS_GROUPS = "there are no streams groups (KIP-1071): Kafka Streams uses those of the classic protocol"
_NO_TOKENS = "there are no delegation tokens (KIP-48)"
_NO_KERBEROS = "there is no GSSAPI: write sasl.enabled.mechanisms"
_NO_LOGIN = "a broker does not log in: brokers prove the cluster's key (inter.broker.key.file) to each other"
_AT_ONCE = (
    "an assignment is made as soon as members or their topics change, above 2,000 members and partitions once a second"
)
_PEM = "keys and certificates are in PEM files: write ssl.keystore.location and ssl.truststore.location"
_OPENSSL = "TLS is that of OpenSSL"
_NO_ENCODER = "dynamic configs have no passwords to be encoded"
_ALTER_LOG_DIRS = "write replica.alter.log.dirs.io.max.bytes.per.second"
_OWN_ZOOKEEPER = "the client of ZooKeeper is kazoo, which has none such"
_ZOOKEEPER_PEM = "keys and certificates are in PEM files: write zookeeper.ssl.truststore.location"
_ADDED_PARTITIONS = "coordinators of transactions retry by themselves"

REFUSED = {
    "add.partitions.to.txn.retry.backoff.max.ms": _ADDED_PARTITIONS,
    "add.partitions.to.txn.retry.backoff.ms": _ADDED_PARTITIONS,
    "alter.config.policy.class.name": _NO_PLUGINS,
    "alter.log.dirs.replication.quota.window.num": _ALTER_LOG_DIRS,
    "alter.log.dirs.replication.quota.window.size.seconds": _ALTER_LOG_DIRS,
    "auto.include.jmx.reporter": _PROMETHEUS,
    "background.threads": _EVENT_LOOP,
    "broker.heartbeat.interval.ms": "write broker.session.timeout.ms",
    "broker.id.generation.enable": "every broker is given its broker.id",
    "client.quota.callback.class": _NO_PLUGINS,
    "config.providers": "a value is read as it is written; secrets may come from the environment",
    "control.plane.listener.name": "requests of controllers have the internal listener, which clients cannot reach",
    "controlled.shutdown.enable": "a broker that stops always moves its leaders away first",
    "controlled.shutdown.max.retries": "write controlled.shutdown.max.wait.ms",
    "controlled.shutdown.retry.backoff.ms": "write controlled.shutdown.max.wait.ms",
    "controller.listener.names": _COORDINATION,
    "controller.socket.timeout.ms": _OWN_TIMEOUTS,
    "cordoned.log.dirs": "a new replica goes to the log directory with the fewest",
    "create.topic.policy.class.name": _NO_PLUGINS,
    "delete.records.purgatory.purge.interval.requests": _NO_PURGATORY_PURGES,
    "delete.topic.enable": "topics can be deleted; `authorizer.class.name` and ACLs say by whom",
    "early.start.listeners": "all listeners open together",
    "eligible.leader.replicas.enable": "eligible leader replicas (KIP-966) are always on",
    "fetch.max.bytes": "a fetch gets as many bytes as its client allows",
    "fetch.purgatory.purge.interval.requests": _NO_PURGATORY_PURGES,
    "group.consumer.assignment.interval.ms": _AT_ONCE,
    "group.consumer.max.assignment.interval.ms": _AT_ONCE,
    "group.consumer.min.assignment.interval.ms": _AT_ONCE,
    "group.coordinator.append.linger.ms": "an append of a group has all that changed during the one before",
    "group.coordinator.background.threads": _EVENT_LOOP,
    "group.coordinator.cached.buffer.max.bytes": "coordinators keep no buffers",
    "group.coordinator.rebalance.protocols": "both protocols of consumer groups are always on",
    "group.coordinator.threads": _EVENT_LOOP,
    "initial.broker.registration.timeout.ms": _COORDINATION,
    "inter.broker.protocol.version": _VERSIONS,
    "kafka.metrics.polling.interval.secs": _PROMETHEUS,
    "kafka.metrics.reporters": _PROMETHEUS,
    "leader.imbalance.check.interval.seconds": "write leader.imbalance.check.interval.ms, in milliseconds",
    "log.dir": "write log.dirs",
    "log.dir.failure.timeout.ms": "the replicas of a log directory that fails are offline at once",
    "log.flush.scheduler.interval.ms": "write log.flush.interval.ms, for which each replica has a timer",
    "log.flush.start.offset.checkpoint.interval.ms": _CHECKPOINTS,
    "log.message.downconversion.enable": "batches are sent as they are stored",
    "log.message.format.version": _VERSIONS,
    "log.message.timestamp.difference.max.ms": (
        "write log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms"
    ),
    "log.preallocate": "segments are allocated piece by piece",
    "log.retention.hours": "write log.retention.ms, in milliseconds",
    "log.retention.minutes": "write log.retention.ms, in milliseconds",
    "log.roll.hours": "write log.roll.ms, in milliseconds",
    "log.roll.jitter.hours": _JITTER,
    "log.roll.jitter.ms": _JITTER,
    "log.segment.delete.delay.ms": "readers keep the files that they have open, which are deleted at once",
    "max.decompressed.message.bytes": "a batch may expand to 256 times its size, and always to 8 MiB",
    "max.request.partition.size.limit": "a response has as many partitions as its client allows, up to 2000",
    "metric.reporters": _PROMETHEUS,
    "metrics.num.samples": _PROMETHEUS,
    "metrics.recording.level": _PROMETHEUS,
    "metrics.sample.window.ms": _PROMETHEUS,
    "node.id": "write broker.id",
    "num.io.threads": _EVENT_LOOP,
    "num.network.threads": _EVENT_LOOP,
    "num.replica.alter.log.dirs.threads": _ALTER_LOG_DIRS,
    "offsets.commit.required.acks": "a commit waits for all in-sync replicas",
    "offsets.load.buffer.size": _LOADS,
    "offsets.topic.compression.codec": "committed offsets are stored uncompressed, and compacted",
    "principal.builder.class": _NO_PLUGINS,
    "process.roles": _COORDINATION,
    "producer.purgatory.purge.interval.requests": _NO_PURGATORY_PURGES,
    "queued.max.requests": "write queued.max.request.bytes or max.in.flight.requests.per.connection",
    "replica.high.watermark.checkpoint.interval.ms": _CHECKPOINTS,
    "replica.socket.receive.buffer.bytes": _BUFFERS,
    "replica.socket.timeout.ms": _OWN_TIMEOUTS,
    "request.timeout.ms": _OWN_TIMEOUTS,
    "reserved.broker.max.id": "every broker is given its broker.id",
    "sasl.client.callback.handler.class": _NO_PLUGINS,
    "sasl.jaas.config": "write sasl.enabled.mechanisms; users are made by `kreplog user`",
    "sasl.mechanism.controller.protocol": _COORDINATION,
    "sasl.mechanism.inter.broker.protocol": "brokers prove the cluster's key (inter.broker.key.file) to each other",
    "sasl.oauthbearer.scope": _NO_LOGIN,
    "sasl.server.callback.handler.class": _NO_PLUGINS,
    "security.providers": _NO_PLUGINS,
    "socket.connection.setup.timeout.max.ms": _OWN_TIMEOUTS,
    "socket.connection.setup.timeout.ms": _OWN_TIMEOUTS,
    "socket.listen.backlog.size": "it is that of the system, where that is lower than 512",
    "socket.receive.buffer.bytes": _BUFFERS,
    "socket.send.buffer.bytes": _BUFFERS,
    "ssl.allow.dn.changes": "listeners have the certificate of the broker's start",
    "ssl.allow.san.changes": "listeners have the certificate of the broker's start",
    "ssl.engine.factory.class": _NO_PLUGINS,
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.keystore.certificate.chain": _PEM,
    "ssl.keystore.key": _PEM,
    "ssl.keystore.password": "write ssl.key.password, since a keystore is a PEM file, whose key alone has one",
    "ssl.protocol": "write ssl.enabled.protocols",
    "ssl.provider": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "ssl.truststore.certificates": _PEM,
    "ssl.truststore.password": _PEM,
    "telemetry.max.bytes": "metrics of clients (KIP-714) are not taken",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "a transaction is aborted as soon as its timeout has passed"
    ),
    "transaction.partition.verification.enable": "a transactional batch is always verified",
    "transaction.state.log.load.buffer.size": _LOADS,
    "transaction.two.phase.commit.enable": "there are no two-phase commits (KIP-939)",
    "zookeeper.clientCnxnSocket": _OWN_ZOOKEEPER,
    "zookeeper.connect": _ZOOKEEPER,
    "zookeeper.connection.timeout.ms": "a broker waits 15 seconds for ZooKeeper when it starts",
    "zookeeper.max.in.flight.requests": _OWN_ZOOKEEPER,
    "zookeeper.metadata.migration.enable": _NO_KRAFT,
    "zookeeper.session.timeout.ms": "write broker.session.timeout.ms",
    "zookeeper.ssl.crl.enable": _OPENSSL,
    "zookeeper.ssl.keystore.type": _ZOOKEEPER_PEM,
    "zookeeper.ssl.ocsp.enable": _OPENSSL,
    "zookeeper.ssl.protocol": "write zookeeper.ssl.enabled.protocols",
    "zookeeper.ssl.truststore.password": _ZOOKEEPER_PEM,
    "zookeeper.ssl.truststore.type": _ZOOKEEPER_PEM,
}
"""By name: a setting that is none here."""

REFUSED_FAMILIES = {
    "controller.quorum.": _COORDINATION,
    "delegation.token.": _NO_TOKENS,
    "errors.deadletterqueue.": _NO_SHARE_GROUPS,
    "follower.fetch.last.tiered.": _NO_TIERED_STORAGE,
    "group.share.": _NO_SHARE_GROUPS,
    "group.streams.": _NO_STREAMS_GROUPS,
    "log.local.retention.": _NO_TIERED_STORAGE,
    "log.remote.": _NO_TIERED_STORAGE,
    "metadata.": _NO_KRAFT,
    "password.encoder.": _NO_ENCODER,
    "remote.": _NO_TIERED_STORAGE,
    "sasl.kerberos.": _NO_KERBEROS,
    "sasl.login.": _NO_LOGIN,
    "sasl.oauthbearer.allow.unverified.": "write sasl.oauthbearer.expected.audience, which every token must name",
    "sasl.oauthbearer.assertion.": _NO_LOGIN,
    "sasl.oauthbearer.client.credentials.": _NO_LOGIN,
    "sasl.oauthbearer.jwt.": _NO_PLUGINS,
    "sasl.oauthbearer.token.endpoint.": _NO_LOGIN,
    "share.": _NO_SHARE_GROUPS,
}
"""The same by the beginning of the names."""


def refusal(name: str) -> str | None:
    """Why a setting is none here; None for what is no setting of Kafka's either."""
    if name in REFUSED:
        return REFUSED[name]
    return next((reason for start, reason in REFUSED_FAMILIES.items() if name.startswith(start)), None)
