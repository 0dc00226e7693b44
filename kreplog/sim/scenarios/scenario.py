"""Scenario files: commands to a simulated cluster, each followed by the lines that its cores report.

A file is a sequence of blocks separated by empty lines: a comment (`#`), commands, a line `----`, and the reported
lines. `run` executes the commands and returns the text with the lines of this run; a test compares the two, or rewrites
the file. An `expect` command prints nothing: if it does not hold it raises ScenarioError, so that a rewrite cannot hide
a failure, and at the end the simulator's checkers judge the whole run.

Commands and syntax: README.md beside this module. Source: the datadriven tests of etcd's raft.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kreplog.errors import KreplogError
from kreplog.sim.machines.disk import Disks
from kreplog.sim.scenarios.scenario_arguments import ScenarioError
from kreplog.sim.scenarios.scenario_clients import Clients
from kreplog.sim.scenarios.scenario_cluster import ScenarioCluster
from kreplog.sim.scenarios.scenario_commands import Commands
from kreplog.sim.scenarios.scenario_expectations import Expectations

__all__ = ["ScenarioError", "run"]

RULE = "----"


class Watcher(Protocol):
    """Observes the comments and commands of a scenario, as it is run."""

    def comment(self, text: str) -> None: ...

    def command(self, line: str) -> None:
        """Called before the command is executed."""


def run(text: str, watch: Callable[[ScenarioCluster], Watcher] | None = None) -> str:
    """Execute `text`; return it with the lines of this run. watch: called with the cluster before the first command.
    Raises ScenarioError."""
    with Disks() as disks:
        scenario = _Run(disks)
        if watch is not None:
            scenario.watcher = watch(scenario.cluster)
        blocks = []
        for number, block in _blocks(text):
            blocks.append(_executed(scenario, number, block))
        scenario.judge()
    return "\n".join(blocks)


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


def _executed(scenario: _Run, first: int, block: Sequence[str]) -> str:
    source = block[: block.index(RULE)] if RULE in block else block
    commands = [(first + index, line) for index, line in enumerate(source) if not line.startswith("#")]
    scenario.lines.clear()
    if scenario.watcher is not None and len(commands) < len(source):
        scenario.watcher.comment(" ".join(line.lstrip("# ") for line in source if line.startswith("#")))
    for number, line in commands:
        try:
            scenario.execute(line)
        except ScenarioError as error:
            lines = "\n    ".join(scenario.lines[-30:])
            raise ScenarioError(f"line {number}: {line}\n  {error}\n  reported in this block:\n    {lines}") from error
        except (KreplogError, ValueError, KeyError, IndexError) as error:
            raise ScenarioError(f"line {number}: {line}\n  {type(error).__name__}: {error}") from error
    output = [RULE, *(scenario.lines or ["ok"])] if commands else []
    return "\n".join([*source, *output, ""])


class _Run:
    """The execution of one scenario file."""

    def __init__(self, disks: Disks) -> None:
        self.cluster = ScenarioCluster(disks)
        self.lines = self.cluster.lines
        self.watcher: Watcher | None = None
        clients = Clients(self.cluster)
        self._owners = (Commands(self.cluster), clients, Expectations(self.cluster, clients))

    def execute(self, line: str) -> None:
        """Execute one command line."""
        if self.watcher is not None:
            self.watcher.command(line)
        name, *words = shlex.split(line)
        for owner in self._owners:
            command = getattr(owner, "do_" + name.replace("-", "_"), None)
            if command is not None:
                command(words)
                return
        raise ScenarioError(f"there is no command {name}")

    def judge(self) -> None:
        """At the end: raise ScenarioError if a core failed or the checkers find a violation."""
        cluster = self.cluster
        at_rest = bool(cluster.machines) and cluster.unrest() is None
        found = [f"{violation.kind}: {violation.text}" for violation in [*cluster.failures, *cluster.verdict(at_rest)]]
        if found:
            raise ScenarioError("at the end the checkers find\n  " + "\n  ".join(found))
