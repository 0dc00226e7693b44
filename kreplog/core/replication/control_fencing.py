"""ControlFencing: which of the controller's requests a broker applies, refuses, or verifies against the store first.

request                                              result
of an older controller epoch                         STALE_CONTROLLER_EPOCH (F26)
for an earlier registration of this broker           STALE_BROKER_EPOCH (KIP-380, F26)
for a registration that is not known here (yet)      BROKER_NOT_AVAILABLE: the controller sends it again
of a newer controller epoch than any so far          held until the store confirms that epoch
with a lower sequence number than one applied        NONE, not applied: a late copy of a request sent again
any other                                            applied
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from kreplog.core import nodes
from kreplog.core.effects import Reply, StateChange, Steps, SubmitMulti, SubmitRead
from kreplog.core.events import StoreReplied
from kreplog.core.messages import ControlRequest, refusal_of
from kreplog.errors import CoordinationError, ErrorCode
from kreplog.types import NO_EPOCH, Check

_SYNC_TAG = ("controller epoch", "sync")
_READ_TAG = ("controller epoch", "read")


class ControlFencing:
    """The epochs of one broker. controller_epoch: the highest that was confirmed. broker_epoch: of this broker's last
    registration; `fenced` while it does not stand. last_sequence: of the last request applied."""

    def __init__(self) -> None:
        self.controller_epoch = -1
        self.broker_epoch = -1
        self.fenced = True
        self.last_sequence = 0
        self._unverified: list[tuple[Hashable, ControlRequest]] = []
        self._verifying = 0  # of them, those that the read in flight decides on

    def registered(self, broker_epoch: int) -> None:
        self.broker_epoch = max(self.broker_epoch, broker_epoch)
        self.fenced = False

    def refusal(self, request: ControlRequest) -> ErrorCode:
        """NONE if neither epoch of the request is a reason to refuse it."""
        if self._is_stale_controller(request.controller_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._is_stale_registration(request.broker_epoch):
            return ErrorCode.STALE_BROKER_EPOCH
        if not self._knows_registration(request.broker_epoch):
            return ErrorCode.BROKER_NOT_AVAILABLE
        return ErrorCode.NONE

    def _is_stale_controller(self, controller_epoch: int) -> bool:
        return controller_epoch < self.controller_epoch

    def _is_stale_registration(self, broker_epoch: int) -> bool:
        """Whether a request is for an earlier process of this broker, or for a registration that has ended (KIP-380,
        F26)."""
        return broker_epoch <= self.broker_epoch if self.fenced else broker_epoch < self.broker_epoch

    def _knows_registration(self, broker_epoch: int) -> bool:
        """A process without registration cannot know whether a request is for it or for an earlier process (F16), and
        the controller may learn of a registration before the broker does."""
        return not self.fenced and broker_epoch == self.broker_epoch

    def is_late_copy(self, request: ControlRequest) -> bool:
        """The request was sent again and the other copy has been applied: it must not undo what came after that. No
        sender waits for the response."""
        if request.sequence < self.last_sequence:
            return True
        self.last_sequence = request.sequence
        return False

    # Controller epochs that the store has yet to confirm

    def is_unverified(self, controller_epoch: int) -> bool:
        """Whether the epoch is new here: its sender may be a controller that was never elected."""
        return controller_epoch > self.controller_epoch

    def verify(self, reply_to: Hashable, request: ControlRequest) -> Steps[None]:
        """Hold the request until the store has confirmed its controller epoch."""
        self._unverified.append((reply_to, request))
        if not self._verifying:
            yield from self._read_controller_epoch()

    def _read_controller_epoch(self) -> Steps[None]:
        """ZooKeeper's reads may be stale; after a write of the same session, here one that changes nothing, they are
        not."""
        self._verifying = len(self._unverified)
        yield SubmitMulti(_SYNC_TAG, (Check(nodes.CONTROLLER_EPOCH),))
        yield SubmitRead(_READ_TAG, (nodes.CONTROLLER_EPOCH,))

    def store_replied(
        self, event: StoreReplied, handle: Callable[[Hashable, ControlRequest], Steps[None]]
    ) -> Steps[None]:
        """`handle` the requests that were held at the read and whose controller epoch the store confirms, and those
        that arrived since, which may be held again."""
        if event.tag != _READ_TAG:
            return
        held, self._unverified = self._unverified[: self._verifying], self._unverified[self._verifying :]
        self._verifying = 0
        elected, error = NO_EPOCH, event.error
        if error is None and event.results[0] is not None:
            try:
                elected = nodes.decode_number(nodes.CONTROLLER_EPOCH, event.results[0])
            except CoordinationError as damaged:
                error = damaged
        for reply_to, request in held:
            if error is not None:
                yield Reply(reply_to, refusal_of(request, ErrorCode.BROKER_NOT_AVAILABLE))  # it is sent again
            elif request.controller_epoch > elected:
                name = f"{type(request).__name__} of controller epoch {request.controller_epoch}"
                yield StateChange(
                    "error", f"{name} refused: the latest controller epoch in the coordination store is {elected}"
                )
                yield Reply(reply_to, refusal_of(request, ErrorCode.STALE_CONTROLLER_EPOCH))
            else:
                self._follow_controller(request.controller_epoch)
                yield from handle(reply_to, request)
        later, self._unverified = self._unverified, []
        for reply_to, request in later:
            yield from handle(reply_to, request)

    def _follow_controller(self, controller_epoch: int) -> None:
        if controller_epoch > self.controller_epoch:
            self.controller_epoch, self.last_sequence = controller_epoch, 0
