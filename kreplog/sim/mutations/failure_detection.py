"""Mutations of failure detection and of registration after it."""

from __future__ import annotations

from kreplog.core import failures
from kreplog.core.controller.broker_changes import BrokerChanges
from kreplog.core.effects import Steps
from kreplog.core.events import Event, WatchFired
from kreplog.core.failures import FailureDetector
from kreplog.core.registration import Registration, RegistrationState
from kreplog.sim.mutations.mutation import MutationGroup, Patch

MUTATIONS = MutationGroup()


@MUTATIONS.add("silent-peer-presumed-dead", harmless=True)
def _silent_peer_presumed_dead() -> list[Patch]:
    """A single broker presumes an unreachable peer dead, whether refused or silent."""
    return [
        (FailureDetector, "_is_evidence", lambda self, peer, refused: True),
        (failures, "is_majority", lambda reporters, registered, suspect: True),
    ]


@MUTATIONS.add("ended-registration-counts")
def _ended_registration_counts() -> list[Patch]:
    """A controller keeps brokers whose registration has ended in its context."""
    return [(BrokerChanges, "_remove_broker", lambda self, broker: None)]


@MUTATIONS.add("presumed-dead-not-registered-again")
def _presumed_dead_not_registered_again() -> list[Patch]:
    """A live broker that was presumed dead does not register again while its session lasts."""
    right = Registration.step

    def step(self: Registration, event: Event, now_ms: int) -> Steps[None]:
        if not (isinstance(event, WatchFired) and self.state is RegistrationState.REGISTERED):
            yield from right(self, event, now_ms)

    return [(Registration, "step", step)]
