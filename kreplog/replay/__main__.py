"""The page of a replay on stdout, made by a process of its own: a run in the simulator takes a processor for seconds.

    python -m kreplog.replay seed N
    python -m kreplog.replay lesson NAME
    python -m kreplog.replay logs SINCE UNTIL ID=FOLDER...

SINCE, UNTIL: as broker_logs.record, in ISO 8601, "" for none. FOLDER: of the log files of the broker with that id.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from kreplog.errors import KreplogError
from kreplog.replay import broker_logs
from kreplog.replay.page import render
from kreplog.replay.recording import Recording


def _recording(words: list[str]) -> Recording:
    match words:
        case ["seed", number]:
            from kreplog.replay import seed_page

            return seed_page.record(int(number))
        case ["lesson", name]:
            from kreplog.replay import lessons

            return lessons.record(name)
        case ["logs", since, until, *folders]:
            pairs = [folder.partition("=") for folder in folders]
            times = [datetime.fromisoformat(text) if text else None for text in (since, until)]
            return broker_logs.record({int(broker): Path(path) for broker, _, path in pairs}, *times)
    raise SystemExit(__doc__)


def main() -> None:
    try:
        recording = _recording(sys.argv[1:])
    except (KreplogError, OSError) as error:
        sys.exit(str(error))
    recording.limit()
    sys.stdout.buffer.write(render(recording).encode())


main()
