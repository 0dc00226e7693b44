"""DynamicSettings: the settings of a broker in effect: its static ones, overridden by its dynamic configs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kreplog.config import TopicConfig
from kreplog.core.dynamic_configs import Parse, Synonym, effective, parsed, synonyms
from kreplog.core.messages import NO_CONFIGS, BrokerConfigs
from kreplog.core.topic_defaults import topic_defaults
from kreplog.core.topic_settings import Described, described
from kreplog.server.settings import NAMES_BY_TOPIC_FIELD, SETTINGS, BrokerSettings, default_value, given_value, replaced

_log = logging.getLogger("kreplog.server")

PARSERS: dict[str, Parse] = {name: setting.type.parse for name, setting in SETTINGS.items()}
"""The parser of every setting of a broker, by its name."""


class DynamicSettings:
    """The settings of one broker. static: those that it was started with. configs: the dynamic ones. current: those
    in effect."""

    def __init__(self, static: BrokerSettings) -> None:
        self.static = static
        self.configs = NO_CONFIGS
        self.current = static

    def take(self, configs: BrokerConfigs) -> None:
        """Apply other dynamic configs; those that cannot be applied are logged and ignored."""
        self.configs, ignored = parsed(configs, PARSERS)
        for reason in ignored:
            _log.warning("a dynamic config in the coordination store is ignored: %s", reason)
        values = {name: PARSERS[name](text) for name, text in effective(self.configs).items()}
        self.current = replaced(self.static, values)

    def synonyms(self, name: str) -> list[Synonym]:
        """The values of a setting by precedence; the first one counts."""
        value = (given_value(self.static, name),)
        static, default = (value, default_value(name)) if name in self.static.given else ((), value)
        return synonyms(name, self.configs, static, default, PARSERS[name])

    def topic_synonyms(self, field: str) -> list[Synonym]:
        """The same of the setting that topics have as this field of TopicConfig."""
        return self.synonyms(NAMES_BY_TOPIC_FIELD[field])

    def topic_settings(self, config: TopicConfig) -> Iterator[Described]:
        """The settings of a topic of this broker's metadata."""
        return described(config, self.topic_synonyms)

    def new_topic_settings(self, config: TopicConfig) -> Iterator[Described]:
        """The settings of a topic that is created with `config`, and has no metadata yet."""
        return self.topic_settings(config.with_defaults(topic_defaults(self.static.topic, self.configs.default)))

    def default_synonyms(self, name: str) -> list[Synonym]:
        """The same of a dynamic setting in the cluster-wide default, where no broker's own settings count."""
        configs = BrokerConfigs(default=self.configs.default)
        return synonyms(name, configs, (), default_value(name), PARSERS[name])
