"""`make wheel`: an sdist, and from it alone a wheel for each Python given; checked, tried, and only then in dist/."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.packaging.archives import ROOT, PackagingError, check_sdist, make_sdist, run
from tests.packaging.wheels import make_wheel, try_wheel


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="kreplog-wheel-") as name:
        try:
            archives = _make(Path(name), arguments)
        except PackagingError as error:
            sys.exit(f"make wheel: {error}")
        arguments.out.mkdir(parents=True, exist_ok=True)
        for archive in archives:
            print(shutil.move(archive, arguments.out / archive.name))


def _make(folder: Path, arguments: argparse.Namespace) -> list[Path]:
    print("Making the sdist", flush=True)
    sdist, sources = make_sdist(folder)
    check_sdist(sdist)
    archives = [sdist]
    extras = tuple(filter(None, arguments.extras.split(",")))
    for python in arguments.python or [sys.executable]:
        print(f"Making the wheel for {python}", flush=True)
        wheel = make_wheel(python, sources, folder)
        print(f"Trying {wheel.name}", flush=True)
        print(try_wheel(python, wheel, folder, extras), flush=True)
        archives.append(wheel)
    run(sys.executable, "-m", "twine", "check", "--strict", *archives, cwd=folder)
    return archives


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make wheel", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", help="interpreter with pip and C headers; may be repeated")
    parser.add_argument("--extras", default="cluster", help="extras that the wheels are tried with (default: cluster)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the archives (default: dist)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
