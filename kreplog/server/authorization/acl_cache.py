"""AclCache: this broker's copy of the ACLs. A broker that has read none yet refuses its clients."""

from __future__ import annotations

import logging

from kreplog.core import nodes
from kreplog.core.security.acl_requests import decode
from kreplog.core.security.authorizer import AclIndex, Authorizer
from kreplog.server.runtime.store import StoreLink
from kreplog.server.runtime.whole_node_cache import WholeNodeCache
from kreplog.types import Node

_log = logging.getLogger("kreplog.server")

_REFUSING = "; until then this broker refuses its clients"

_LOCKED_OUT = (
    "there are no ACLs, and super.users is empty: every request of clients is denied; name a super user in the "
    "settings, or add ACLs with kreplog acl add --offline"
)


class AclCache(WholeNodeCache[AclIndex]):
    """Keeps the ACLs of an authorizer up to date."""

    def __init__(self, store: StoreLink, authorizer: Authorizer) -> None:
        super().__init__(store, nodes.ACLS, "ACLs", _REFUSING, _index, self._replace)
        self._authorizer = authorizer

    def _replace(self, index: AclIndex) -> None:
        if self.is_ready and index.acls == self._authorizer.acls:
            return
        self._authorizer.replace(index)
        if self._authorizer.denies_everything:
            _log.warning(_LOCKED_OUT)
        else:
            _log.info("%d ACLs are in effect", len(index.acls))


def _index(node: Node | None) -> AclIndex:
    return AclIndex(decode(node))
