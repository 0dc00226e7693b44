"""`python -m kreplog`: the `kreplog` command, also where its script is not on PATH."""

from __future__ import annotations

from kreplog.cli import main

if __name__ == "__main__":
    main()
