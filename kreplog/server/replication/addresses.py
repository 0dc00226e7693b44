"""BrokerAddresses: the internal endpoints of brokers, as this broker knows them."""

from __future__ import annotations

from kreplog.core import nodes
from kreplog.core.controller.controller import Controller
from kreplog.core.replication.metadata import MetadataCache
from kreplog.server.network.internal import Address
from kreplog.server.runtime.store import StoreLink


class BrokerAddresses:
    """Looks up internal endpoints in a broker's metadata, those of its controller, and the store."""

    def __init__(self, metadata: MetadataCache, controller: Controller, store: StoreLink) -> None:
        self._metadata = metadata
        self._controller = controller
        self._store = store

    def known(self, broker_id: int) -> Address | None:
        """A broker's internal endpoint by this broker's metadata, None if it is not in them."""
        broker = self._metadata.brokers.get(broker_id)
        return None if broker is None else broker.internal

    async def resolve(self, broker_id: int) -> Address | None:
        """A broker's internal endpoint by this broker's metadata, or else by its registration in the store; None if it
        is in neither. Raises CoordinationError."""
        known = self.known(broker_id)
        if known is not None:
            return known
        path = nodes.broker(broker_id)
        (node,) = await self._store.get_nodes((path,))
        if node is None:
            return None
        return nodes.decode_broker(path, node, -1).internal

    def controlled(self, broker_id: int) -> Address | None:
        """A broker's internal endpoint as this broker's controller knows it, None if it is not registered."""
        broker = self._controller.context.brokers.get(broker_id)
        return None if broker is None else broker.internal
