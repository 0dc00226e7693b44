"""The topics that a member is subscribed to, by the metadata that consumers send: an untrusted text of Kafka's clients.

    int16 version, int32 n, n times a topic name (int16 length, UTF-8), and more that is not needed here.

Source: Kafka, ConsumerProtocolSubscription.
"""

from __future__ import annotations

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members are consumers of topics."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics; None if these bytes are no subscription."""
    if len(metadata) < 6:
        return None
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    at, topics = 6, []
    if count < 0 or count > (len(metadata) - at) // 2:
        return None
    for _ in range(count):
        length = int.from_bytes(metadata[at : at + 2], "big", signed=True)
        at += 2
        if length < 0 or length > len(metadata) - at:
            return None
        try:
            topics.append(metadata[at : at + length].decode())
        except UnicodeDecodeError:
            return None
        at += length
        if len(metadata) - at < 2 and len(topics) < count:
            return None
    return frozenset(topics)
