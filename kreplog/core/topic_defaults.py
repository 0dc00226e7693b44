"""Defaults of topics: the settings that a topic without its own inherits from the cluster.

They concern all replicas of a partition alike: a leader and its controller must agree on min.insync.replicas, a leader
and its followers on flush.messages. So they are of the cluster, not of a broker, and the controller applies them:

    the cluster-wide default, else the static setting of the controller, else the built-in default.

With a partition, brokers receive the settings that count, and which of them its topic inherits.
Source: Kafka's ServerTopicConfigSynonyms; KIP-966 for min.insync.replicas, which no broker has of its own.
"""

from __future__ import annotations

from dataclasses import replace

from kreplog.config import SETTINGS_OF_TOPICS, TopicConfig
from kreplog.core.messages import Configs
from kreplog.core.setting_values import field_type


def topic_defaults(static: TopicConfig, default: Configs) -> TopicConfig:
    """Values of settings that a topic does not have.

    static: of the controller. default: the cluster-wide dynamic configs, of which a value that is not allowed, such
    as a newer version's, is ignored."""
    for name, text in default:
        field = SETTINGS_OF_TOPICS.get(name)
        if field is None:
            continue
        try:
            static = replace(static, **{field: field_type(static, field).parse(text)})
        except ValueError:
            continue
    return static
