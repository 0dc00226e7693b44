"""The page of a seed, which `kreplog simulate --html` writes."""

from __future__ import annotations

from pathlib import Path

from kreplog.replay.page import render
from kreplog.replay.recorder import Recorder
from kreplog.sim.cluster import Cluster
from kreplog.sim.simulate import Options, Result


class PageFile:
    """The page of a seed (kreplog.sim.report.SeedFile)."""

    option = "--html"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._recorder: Recorder | None = None

    def watch(self, cluster: Cluster) -> None:
        self._recorder = Recorder(cluster)

    def write(self, result: Result, options: Options) -> None:
        assert self._recorder is not None
        violated = ", ".join(dict.fromkeys(violation.kind for violation in result.violations))
        about = f"It violates: {violated}." if violated else "No guarantee is violated."
        mutated = f" The rule {options.mutation} is broken on purpose." if options.mutation is not None else ""
        recording = self._recorder.finish(
            f"Seed {result.seed} of the kreplog simulator",
            about + mutated,
            options.command(result.seed),
            result.violations,
        )
        recording.limit()
        self.path.write_text(render(recording), encoding="utf-8")
