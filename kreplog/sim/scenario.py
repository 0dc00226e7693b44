"""Scenario files: a cluster is led through a story, step by step, and what its cores do stands below each step.

A file is a row of blocks with an empty line after each: a comment in plain words (`#`), commands, a line `----`, and
what the cores did. `run` carries out the commands and gives the text back with what they did this time; a test compares
the two, or rewrites the file. `expect` commands are not output: one that does not hold raises ScenarioError, so what
matters cannot be rewritten away, and at the end the simulator's checkers judge the whole story.

The commands, and how they are written, are described in tests/scenarios/README.md. Source: the datadriven tests of
etcd's raft.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from kreplog.errors import KreplogError
from kreplog.sim.disk import Disks
from kreplog.sim.scenario_arguments import ScenarioError
from kreplog.sim.scenario_clients import Clients
from kreplog.sim.scenario_cluster import ScenarioCluster
from kreplog.sim.scenario_facts import Facts
from kreplog.sim.scenario_steps import Steps

__all__ = ["ScenarioError", "run"]

RULE = "----"


def run(text: str) -> str:
    """Play `text`; the same text with what the cores did. Raises ScenarioError."""
    with Disks() as disks:
        play = _Play(disks)
        told = []
        for number, block in _blocks(text):
            told.append(_played(play, number, block))
        play.judge()
    return "\n".join(told)


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """(number of its first line, lines) of each block."""
    block: list[str] = []
    first = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            first = first if block else number
            block.append(line.rstrip())
        elif block:
            yield first, block
            block = []


def _played(play: _Play, first: int, block: Sequence[str]) -> str:
    source = block[: block.index(RULE)] if RULE in block else block
    commands = [(first + index, line) for index, line in enumerate(source) if not line.startswith("#")]
    play.lines.clear()
    for number, line in commands:
        try:
            play.do(line)
        except ScenarioError as error:
            told = "\n    ".join(play.lines[-30:])
            raise ScenarioError(f"line {number}: {line}\n  {error}\n  told in this block:\n    {told}") from error
        except (KreplogError, ValueError, KeyError, IndexError) as error:
            raise ScenarioError(f"line {number}: {line}\n  {type(error).__name__}: {error}") from error
    output = [RULE, *(play.lines or ["ok"])] if commands else []
    return "\n".join([*source, *output, ""])


class _Play:
    """One file being played."""

    def __init__(self, disks: Disks) -> None:
        self.cluster = ScenarioCluster(disks)
        self.lines = self.cluster.lines
        clients = Clients(self.cluster)
        self._owners = (Steps(self.cluster), clients, Facts(self.cluster, clients))

    def do(self, line: str) -> None:
        """Carry out one command line."""
        name, *words = shlex.split(line)
        for owner in self._owners:
            command = getattr(owner, "do_" + name.replace("-", "_"), None)
            if command is not None:
                command(words)
                return
        raise ScenarioError(f"there is no command {name}")

    def judge(self) -> None:
        """At the end: no core failed, and nothing that the checkers watch is wrong."""
        cluster = self.cluster
        at_rest = bool(cluster.machines) and cluster.unrest() is None
        found = [f"{kind}: {text}" for kind, text, _ in [*cluster.failures, *cluster.verdict(at_rest)]]
        if found:
            raise ScenarioError("at the end the checkers find\n  " + "\n  ".join(found))
