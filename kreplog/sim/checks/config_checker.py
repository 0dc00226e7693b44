"""UnreadableConfigs: a controller that has read the dynamic configs of a node keeps them while the node is unreadable.

configs forgotten   a broker that has those of a controller is sent others by it, until the node is repaired

A controller that is elected meanwhile cannot know them: brokers have their static settings under it. It may know them
later, while a request of before that is still on its way to a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kreplog.core.messages import BrokerConfigs, Configs


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """The configs that the node had, and the epoch of the controller that has read them."""

    configs: Configs
    controller_epoch: int


class UnreadableConfigs:
    """The nodes of dynamic configs that are unreadable now, by the broker that they are of, None for all brokers.
    violate: called with the kind of a violation and its text."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._unreadable: dict[int | None, _Unreadable] = {}
        self._epochs: dict[int, int] = {}  # by broker, of the controller whose configs it has

    def __contains__(self, subject: int | None) -> bool:
        return subject in self._unreadable

    def spoilt(self, subject: int | None, configs: Configs, controller_epoch: int) -> None:
        """A node has become unreadable."""
        self._unreadable[subject] = _Unreadable(configs, controller_epoch)

    def repaired(self, subject: int | None) -> None:
        """A node is readable again, as it was."""
        del self._unreadable[subject]

    def items(self) -> list[tuple[int | None, Configs]]:
        """The unreadable nodes, and the configs that they had."""
        return [(subject, node.configs) for subject, node in self._unreadable.items()]

    def configs_of(self, subject: int | None) -> Configs:
        """The configs that an unreadable node had."""
        return self._unreadable[subject].configs

    def taken(self, broker: int, controller_epoch: int, before: BrokerConfigs, after: BrokerConfigs) -> None:
        """A broker has applied other configs, which a controller of that epoch has sent."""
        same_controller = self._epochs.get(broker) == controller_epoch
        self._epochs[broker] = controller_epoch
        if not same_controller:
            return
        for subject, former, current in ((broker, before.own, after.own), (None, before.default, after.default)):
            node = self._unreadable.get(subject)
            if node is not None and controller_epoch == node.controller_epoch and former == node.configs != current:
                resource = "the cluster-wide default" if subject is None else "its own configs"
                text = f"broker {broker} gets {dict(current)} for {resource}, whose unreadable node had {dict(former)}"
                self._violate("configs forgotten", text)
