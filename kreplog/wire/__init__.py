"""Kafka's protocol: bytes in and messages out, messages in and bytes out. No sockets, threads or clocks.

    frames            sizes and headers: where a message begins, whose it is, which response belongs to which request
    versions          which APIs and versions are offered, to clients and between brokers
    produce, fetch    by the native codec, records never copied
    offsets           ListOffsets and OffsetForLeaderEpoch, to and from the messages of `core`
    delete_records    DeleteRecords, likewise
    control_messages  LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown, likewise
    nesting           partitions by topic, as the messages nest them
    generic           all other messages, as kafka-python's classes
    handshake         mutual authentication of brokers, before the first frame

Bytes that no Kafka peer may send raise PeerProtocolError and nothing else; they cost that peer its connection.
"""
