"""ClusterId: the id of the cluster, which the first broker that registers makes."""

from __future__ import annotations

import contextlib
import logging
import secrets
from base64 import urlsafe_b64encode

from kreplog.errors import CoordinationError, NodeExistsError
from kreplog.server.runtime.store import StoreLink
from kreplog.types import Create

_log = logging.getLogger("kreplog.server")

CLUSTER_ID = "/cluster_id"
"""Node of the cluster id, 22 random characters."""


class ClusterId:
    """The id of the cluster as it is stored. text: None until it has been read."""

    def __init__(self, store: StoreLink) -> None:
        self._store = store
        self.text: str | None = None

    async def load(self) -> None:
        """Read the cluster id, or create it; the next registration tries again if the store fails."""
        new_id = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        try:
            with contextlib.suppress(NodeExistsError):
                await self._store.multi((Create(CLUSTER_ID, new_id.encode()),))
            (node,) = await self._store.get_nodes((CLUSTER_ID,))
        except CoordinationError as error:
            _log.warning("the cluster id cannot be read yet: %s", error)
            return
        if node is not None:
            self.text = node.data.decode()
