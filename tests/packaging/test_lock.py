"""The locked environment of a release's tests: it has what the tests need, by exact versions with hashes."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.archives import ROOT
from tests.packaging.lock import HEAD, LOCKED, lock

LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")
TESTED = ("all", "bench", "demo", "dev", "docs")
"""The extras that `make setup` installs."""


def locked() -> dict[str, str]:
    """The versions by name; each line has a hash."""
    lines = [line for line in LOCKED.read_text().splitlines() if not line.startswith("#")]
    found = {}
    for line in lines:
        matched = LINE.fullmatch(line)
        assert matched, line
        found[matched[1]] = matched[2]
    assert len(found) == len(lines)
    return found


def needed() -> list[Requirement]:
    """Those of the extras, with those that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, waiting, found = set[str](), list(TESTED), list(map(Requirement, project["dependencies"]))
    while waiting:
        extra = waiting.pop()
        if extra not in extras:
            extras.add(extra)
            for requirement in map(Requirement, project["optional-dependencies"][extra]):
                if requirement.name == "kreplog":
                    waiting += requirement.extras
                else:
                    found.append(requirement)
    return [requirement for requirement in found if requirement.marker is None or requirement.marker.evaluate()]


def test_all_that_the_tests_need_is_locked_in_a_version_that_is_allowed() -> None:
    versions = locked()
    for requirement in needed():
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not locked: `make lock`"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} is locked at {version}"


def test_setup_can_install_the_lock() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^LOCKED_PIP = .* --no-deps --require-hashes$", makefile, re.MULTILINE)
    assert f"$(LOCKED_PIP) --no-build-isolation --requirement {LOCKED.relative_to(ROOT)}" in makefile


def reported(name: str, **info: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "version": "1"}, "download_info": {"archive_info": info}}


def test_a_lock_has_a_hash_of_each_package() -> None:
    pins = {"a-b": "1", "c": "1"}
    report = [reported("A_b", hashes={"sha256": "0" * 64}), reported("c", hashes={"sha256": "1" * 64})]
    text = lock(pins, report)
    assert text.startswith(HEAD[:20])
    assert text.endswith(f"a-b==1 --hash=sha256:{'0' * 64}\nc==1 --hash=sha256:{'1' * 64}\n")
    for short in (report[:1], [report[0], reported("c")], [report[0], reported("c", hashes={"md5": "1"})]):
        with pytest.raises(ValueError, match="no hash"):
            lock(pins, short)
