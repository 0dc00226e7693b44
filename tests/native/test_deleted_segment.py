"""A segment that another program deletes under its writer: each call that needs it says which, and how to go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog.errors import StorageError

CONFIG = LogConfig(segment_bytes=300, retention_bytes=300)
COUNT = 30


CALLS: dict[str, Callable[[Log, int], object]] = {
    "retention": lambda log, offset: log.enforce_retention(),
    "size": lambda log, offset: log.size,
    "read": lambda log, offset: list(log.read()),
    "fetch": lambda log, offset: log.fetch(offset),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_segment_is_named_and_can_be_left_behind(tmp_path: Path, call: str) -> None:
    path = tmp_path / "t-0"
    with Log.open(path, CONFIG) as log:
        for _ in range(COUNT):
            log.append(b"record")
        missing = log.segments[1]
    with Log.open(path, CONFIG) as log:  # which looks at no segment but the newest before it has to
        Path(missing.path).unlink()
        for _ in range(2):
            with pytest.raises(
                StorageError, match=rf"t-0: another program has deleted .*{Path(missing.path).name}"
            ) as raised:
                CALLS[call](log, missing.base_offset)
        assert (raised.value.offset, raised.value.path) == (missing.base_offset, missing.path)
        assert f"delete_records_before({missing.next_offset})" in str(raised.value)
        log.delete_records_before(missing.next_offset)
        assert len(list(log.read())) == COUNT - missing.next_offset
        assert log.enforce_retention() > 0
