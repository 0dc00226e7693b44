"""Lessons: the scenarios of `kreplog/sim/scenarios` as texts, in groups; nothing of the simulator is imported."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from importlib.resources import files
from typing import NamedTuple

from kreplog.errors import UsageError

GROUPS = {
    "A leader fails": ("leader-fails-*", "two-leaders-*", "f1-*", "f2-*", "f3-*", "f6-*"),
    "The ISR and the high watermark": ("follower-*", "f13-*", "f14-*", "f16-*", "f17-*", "f18-*", "f31-*", "kip-*"),
    "Controllers and registrations": ("failure-*", "f27-*", "f28-*", "f29-*", "f30-*", "controller-*", "state-*"),
    "Placement": ("fifteen-*", "add-*"),
}
"""Names of scenarios, as patterns, by the title of their group."""

_FILES = files("kreplog.sim.scenarios")


class Heading(NamedTuple):
    """The heading of a lesson. sentence: the first of its comment."""

    title: str
    sentence: str


def names(group: str) -> list[str]:
    """Names of a group's lessons, in its order."""
    known = sorted(file.name.removesuffix(".txt") for file in _FILES.iterdir() if file.name.endswith(".txt"))
    return [name for pattern in GROUPS[group] for name in known if fnmatch(name, pattern)]


def text_of(name: str) -> str:
    """The scenario of a lesson. Raises UsageError."""
    if not any(name in names(group) for group in GROUPS):
        raise UsageError(f"there is no lesson {name!r}")
    return _FILES.joinpath(f"{name}.txt").read_text(encoding="utf-8")


def heading(name: str) -> Heading:
    """The heading of a lesson. Raises UsageError."""
    return heading_of(name, text_of(name))


def heading_of(name: str, text: str) -> Heading:
    """The heading of the scenario `name`, as in "f3-kip-279", with that text."""
    words = re.sub(r"\bkip-(\d+)", r"KIP-\1", name)
    flaw = re.match(r"f(\d+)-", words)
    words = words[flaw.end() :] if flaw is not None else words
    words = re.sub(r"(?<!KIP)-", " ", words)
    title = words[:1].upper() + words[1:] + (f" (F{flaw[1]})" if flaw is not None else "")
    comment = re.match(r"(?:#.*\n)*", text)
    assert comment is not None
    about = " ".join(line.lstrip("# ") for line in comment[0].splitlines())
    sentence = re.match(r".*?[.](?= |$)", about)
    return Heading(title, about if sentence is None else sentence[0])
