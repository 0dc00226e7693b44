"""GroupConfigCache: this broker's copy of the configs of groups. Until the first read its own settings count."""

from __future__ import annotations

import logging

from kreplog.config import GroupConfig
from kreplog.core import nodes
from kreplog.core.groups.group_configs import AppliedConfigs, GroupConfigs, applied, decode
from kreplog.server.runtime.store import StoreLink
from kreplog.server.runtime.whole_node_cache import WholeNodeCache

_log = logging.getLogger("kreplog.server")

_UNREAD = "; until then groups have the settings of this broker"


class GroupConfigCache(WholeNodeCache[AppliedConfigs]):
    """Keeps the configs of a coordinator's groups up to date. config: the broker's."""

    def __init__(self, store: StoreLink, configs: GroupConfigs, config: GroupConfig) -> None:
        super().__init__(
            store,
            nodes.GROUP_CONFIGS,
            "configs of groups",
            _UNREAD,
            lambda node: applied(decode(node), config),
            self._replace,
        )
        self._configs = configs

    def _replace(self, configs: AppliedConfigs) -> None:
        for reason in configs.deviations:
            _log.warning("configs of groups in the coordination store are not applied as they are: %s", reason)
        if configs.texts != self._configs.texts:
            _log.info("configs of %d groups are in effect", len(configs.texts))
        self._configs.replace(configs)
