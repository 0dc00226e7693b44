"""Changed settings of topics, whether they are their own or the defaults that they inherit."""

from __future__ import annotations

from collections.abc import Iterable

from kreplog.core.controller.election_policies import apply_flush_setting
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.effects import Steps


def send_settings(machines: StateMachines, topics: Iterable[str]) -> Steps[None]:
    """Send the settings of `topics` in LeaderAndIsr, under the current leader epochs unless flush.messages requires
    another one; and elect leaders, since an unclean election may be allowed now."""
    context = machines.context
    partitions = [partition for name in topics for partition in context.partitions_of(name)]
    staying = [partition for partition in partitions if not context.is_pending_deletion(partition)]
    for partition in staying:
        machines.batch.add_leader_and_isr(partition)
    yield from machines.leader_and_isr.clear_obsolete_elr(staying)
    yield from machines.leader_and_isr.update(staying, apply_flush_setting)
    yield from machines.partitions.trigger_online()
    yield from machines.batch.send()
