"""Driver: a log of the lower layer of an overlay, such as an image's of a container. Argument: directory."""

from __future__ import annotations

import sys
from pathlib import Path

from kreplog import Log


def main(where: Path) -> None:
    """The first writer has the log copied to the upper layer; a reader that is open then stays with the lower one."""
    path = where / "t-0"
    with Log.open(path, read_only=True) as early, Log.open(path) as writer:
        assert writer.append(b"above") == 1
        assert [record.value for record in early.read()] == [b"below"]
        with Log.open(path, read_only=True) as late:
            assert [record.value for record in late.follow(timeout=0)] == [b"below", b"above"]
            writer.append(b"above")
            assert late.wait(2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
