"""The locked environment of a release's tests: exact versions with hashes, of what `.venv` has: `make lock`.

Written to tests/packaging/locked.txt, from which `make setup LOCKED=1` installs: pip refuses any other archive. Hashes
are those of the archives for this Python and kind of machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

LOCKED = Path(__file__).parent / "locked.txt"
_LEFT_OUT = ("kreplog", "pip")
"""What is installed by other means."""

HEAD = (
    "# Written by `make lock`, for {python} on {platform}; installed by `make setup LOCKED=1`.\n"
    "# The tests of a release run with these archives and no others.\n"
)


def main() -> None:
    """Write the lock of this environment, with the hashes of the archives that pip would install."""
    pins = installed()
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
    reported = subprocess.run(
        [*command, "--report=-", "--requirement=/dev/stdin"],
        input="".join(f"{name}=={version}\n" for name, version in pins.items()),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    LOCKED.write_text(lock(pins, json.loads(reported.stdout)["install"]))
    print(f"{len(pins)} packages are locked in {LOCKED}")


def installed() -> dict[str, str]:
    """The versions of all packages here, by name in order."""
    found = {canonicalize_name(each.metadata["Name"]): each.version for each in distributions()}
    return {name: found[name] for name in sorted(found) if name not in _LEFT_OUT}


def lock(pins: Mapping[str, str], report: Iterable[Mapping[str, Any]]) -> str:
    """The text of the file. report: the packages of pip's installation report. Raises ValueError if it lacks one, or
    the hash of one."""
    hashes = {
        (str(canonicalize_name(each["metadata"]["name"])), each["metadata"]["version"]): each["download_info"]
        .get("archive_info", {})
        .get("hashes", {})
        .get("sha256")
        for each in report
    }
    lines = []
    for name, version in pins.items():
        digest = hashes.get((name, version))
        if digest is None:
            raise ValueError(f"the index has no hash of an archive of {name} {version} for this machine")
        lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    python = f"CPython {sys.version_info.major}.{sys.version_info.minor}"
    return HEAD.format(python=python, platform=sysconfig.get_platform()) + "".join(lines)


if __name__ == "__main__":
    main()
