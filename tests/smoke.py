"""What an installed kreplog must do anywhere; run as a script against a wheel, without pytest or the checkout."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import kreplog

NOT_BY_IMPORT = {"cramjam", "pandas", "pyarrow", "pyspark", "rich", "typer", "zstandard"}


def main() -> None:
    imported = NOT_BY_IMPORT & set(sys.modules)
    if imported:
        raise SystemExit(f"`import kreplog` imported {', '.join(sorted(imported))}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "smoke-0")
        with kreplog.Log.open(path) as log:
            first = log.append(b"one", key=b"k", timestamp_ms=1_000, headers=[("h", b"v")])
            more = log.append_many([b"two", b"three"])
            with log.appender(compression="lz4") as out:
                for _ in range(1_000):
                    out.append(b"four")
            log.flush()
        with kreplog.Log.open(path, read_only=True) as log:
            records = list(log.read())
            damages = log.verify().damages
    if (first, more, len(records), damages) != (0, range(1, 3), 1_003, ()):
        raise SystemExit(f"appended at {first} and {more}, read back {len(records)} records, damages: {damages}")
    expected = [b"one", b"two", b"three", *[b"four"] * 1_000]
    if [record.value for record in records] != expected or (records[0].key, records[0].timestamp_ms) != (b"k", 1_000):
        raise SystemExit("what was read is not what was appended")
    print(f"kreplog {kreplog.__version__} in {Path(kreplog.__file__).parent}: {len(records)} records back")


if __name__ == "__main__":
    main()
