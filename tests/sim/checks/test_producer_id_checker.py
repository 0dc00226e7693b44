"""The checker of producer ids finds a repetition."""

from __future__ import annotations

from kreplog.sim.checks.producer_id_checker import ProducerIdChecker


def test_an_id_that_is_given_twice_is_found() -> None:
    found: list[str] = []
    checker = ProducerIdChecker(lambda kind, text: found.append(text))
    for broker, producer_id in ((1, 0), (2, 2), (1, 1)):
        checker.given(broker, producer_id)
    assert found == []
    checker.given(2, 1)
    assert found == ["broker 2 hands out producer id 1, as broker 1 has"]
