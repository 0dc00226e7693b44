"""Dynamic configs of a broker: applied before the rest of the controller's request, and to every open log."""

from __future__ import annotations

import pytest

from kreplog.core.effects import ConfigureBroker, ConfigureLog, Effect, OpenLog
from kreplog.core.messages import NO_CONFIGS, BrokerConfigs, LeaderAndIsrRequest, PartitionState, UpdateMetadataRequest
from kreplog.types import LeaderAndIsr
from tests.core.shell import TP, Shell

CONFIGS = BrokerConfigs((("log.retention.ms", "1"),), (("log.roll.ms", "2"),))
STATE = PartitionState(TP, "id", LeaderAndIsr(1, 1, (1,)), (1,), is_new=True)


def configured(shell: Shell, start: int) -> list[object]:
    return [effect for effect in shell.effects[start:] if isinstance(effect, ConfigureBroker | ConfigureLog)]


def test_a_log_is_opened_under_the_configs_of_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    performed: list[type[Effect]] = []
    perform = shell.perform

    def noted(effect: Effect) -> object:
        performed.append(type(effect))
        return perform(effect)

    monkeypatch.setattr(shell, "perform", noted)
    shell.request(LeaderAndIsrRequest(9, 1, 1, (STATE,), True, configs=CONFIGS))
    assert performed.index(ConfigureBroker) < performed.index(OpenLog)


def test_altered_configs_are_applied_to_open_logs_once() -> None:
    shell = Shell()
    shell.request(LeaderAndIsrRequest(9, 1, 1, (STATE,), True))
    start = len(shell.effects)
    for sequence in (1, 2):
        shell.request(UpdateMetadataRequest(9, 1, 1, (), sequence=sequence, configs=CONFIGS))
    assert configured(shell, start) == [ConfigureBroker(CONFIGS), ConfigureLog(TP, shell.partition.config)]
    start, others = len(shell.effects), BrokerConfigs(CONFIGS.own, (*CONFIGS.default, ("max.connections", "5")))
    shell.request(UpdateMetadataRequest(9, 1, 1, (), sequence=3, configs=others))
    assert configured(shell, start) == [ConfigureBroker(others)]
    shell.request(UpdateMetadataRequest(9, 1, 1, (), sequence=4, configs=CONFIGS))
    shell.request(UpdateMetadataRequest(9, 1, 1, (), sequence=1))
    assert shell.manager.configs == CONFIGS  # a late copy
    shell.request(UpdateMetadataRequest(9, 1, 1, (), sequence=5))
    assert shell.manager.configs == NO_CONFIGS
