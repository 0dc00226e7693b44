"""TopicConfigHistory: the settings that topics have had in a run, their own and those that they inherit."""

from __future__ import annotations

from kreplog.config import BUILT_IN_DEFAULTS, TopicConfig
from kreplog.core import nodes
from kreplog.core.topic_defaults import topic_defaults
from kreplog.errors import CoordinationError
from kreplog.types import Node


class TopicConfigHistory:
    """All settings that each topic was to have, by its id, the newest last."""

    def __init__(self) -> None:
        self._defaults = BUILT_IN_DEFAULTS
        self._own: dict[str, TopicConfig] = {}
        self._all: dict[str, list[TopicConfig]] = {}

    def of(self, topic_id: str) -> list[TopicConfig]:
        """The list itself, which grows."""
        return self._all.setdefault(topic_id, [TopicConfig()])

    def created(self, topic_id: str, config: TopicConfig) -> None:
        """A topic is about to be created with its own settings."""
        self._own[topic_id] = config
        self._all[topic_id] = [config.with_defaults(self._defaults)]

    def written(self, topic_id: str, config: TopicConfig) -> list[str]:
        """Own settings were written; returns the id if others count now."""
        self._own[topic_id] = config
        effective = config.with_defaults(self._defaults)
        configs = self._all.setdefault(topic_id, [effective])
        if configs[-1] == effective:
            return []
        configs.append(effective)
        return [topic_id]

    def default_written(self, path: str, node: Node) -> list[str]:
        """The cluster-wide default was written; returns the ids of topics for which others count now. While it is
        unreadable it is as before."""
        try:
            self._defaults = topic_defaults(BUILT_IN_DEFAULTS, nodes.decode_broker_config(path, node))
        except CoordinationError:
            return []
        return [changed for topic_id, config in self._own.items() for changed in self.written(topic_id, config)]
