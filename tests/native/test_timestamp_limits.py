"""message.timestamp.before.max.ms and after.max.ms: what a producer's records may differ from the clock (KIP-937)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, LogConfig
from kreplog._native.batch import build
from kreplog._native.encoded import InspectedBatches
from kreplog.errors import ErrorCode, InvalidTimestampError

HOUR = 3_600_000
LIMITED = LogConfig(message_timestamp_before_max_ms=2 * HOUR, message_timestamp_after_max_ms=HOUR)
NO_TIMESTAMP = -1


@pytest.mark.parametrize("given", [bytes, InspectedBatches])
@pytest.mark.parametrize(
    "differences, refused",
    [((-2.5, 0), "before"), ((0, 1.5, 0), "after"), ((-1.5, 0.5), None), ((-2e12, 0), "before"), ((0, 2e12), "after")],
)
def test_records_beyond_the_limits_are_refused(
    folder: Path, given: Callable[[bytes], Any], differences: tuple[float, ...], refused: str | None
) -> None:
    now = time.time_ns() // 1_000_000
    batch = build([b"x"] * len(differences), timestamps_ms=[now + int(hours * HOUR) for hours in differences])
    with Log.open(folder / "topic-0", LIMITED) as log:
        if refused is None:
            log.append_batches(given(batch))
        else:
            with pytest.raises(InvalidTimestampError, match=rf"topic-0: .*message.timestamp.{refused}.max.ms") as error:
                log.append_batches(given(batch))
            assert (error.value.kafka_code, log.log_end_offset) == (ErrorCode.INVALID_TIMESTAMP, 0)
        log.configure(replace(LIMITED, message_timestamp_type="LogAppendTime"))
        log.append_batches(given(batch))


def test_records_without_a_timestamp_and_logs_without_limits(folder: Path) -> None:
    without, ancient = build([b"x"], timestamps_ms=[NO_TIMESTAMP]), build([b"x"] * 2, timestamps_ms=[0, 2**62])
    with Log.open(folder / "topic-0", LIMITED) as log:
        log.append_batches(without)
        log.configure(LogConfig())
        log.append_batches(ancient)
        assert log.log_end_offset == 3
