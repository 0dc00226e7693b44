"""Kafka's protocol: bytes in and messages out, messages in and bytes out. No sockets, threads or clocks.

    frames     sizes and headers: where a message begins, whose it is, which answer belongs to it
    versions   which APIs and versions are offered, to clients and between brokers
    produce, fetch   by the native codec, records never copied
    offsets    ListOffsets and OffsetForLeaderEpoch, to and from the messages of the cores
    brokers    what controllers and brokers say to each other
    cold       all other messages, as the library that knows them has them

What no Kafka peer may send raises PeerProtocolError and nothing else; it costs that peer its connection.
"""
