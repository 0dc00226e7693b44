"""The recording of a seed, and its page, which `kreplog simulate --html` writes."""

from __future__ import annotations

from pathlib import Path

from kreplog.replay.page import render
from kreplog.replay.recorder import Recorder
from kreplog.replay.recording import Recording
from kreplog.sim import simulate
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
        recording = _finished(self._recorder, result, options)
        recording.limit()
        self.path.write_text(render(recording), encoding="utf-8")


def record(seed: int) -> Recording:
    """The recording of a seed, as `kreplog simulate --seeds` runs it."""
    recorders: list[Recorder] = []
    options = Options()
    result = simulate.run_seed(seed, options, True, [lambda cluster: recorders.append(Recorder(cluster))])
    return _finished(recorders[0], result, options)


def _finished(recorder: Recorder, result: Result, options: Options) -> Recording:
    violated = ", ".join(dict.fromkeys(violation.kind for violation in result.violations))
    about = f"It violates: {violated}." if violated else "No guarantee is violated."
    mutated = f" The rule {options.mutation} is broken on purpose." if options.mutation is not None else ""
    return recorder.finish(
        f"Seed {result.seed} of the kreplog simulator",
        about + mutated,
        options.command(result.seed),
        result.violations,
    )
