"""The `kreplog` command: the way to all others, and how it ends.

Exit codes: 0 done; 1 damage found, a promise broken, or what was asked could not be done; 2 the command was used
wrongly.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import kreplog
from kreplog.commands import log
from kreplog.commands.options import App, AsJson
from kreplog.errors import KreplogError, OffsetOutOfRangeError, UsageError

app = App()
app.add_typer(log.app, name="log", help="Look at, check, mend and fill one partition directory.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with `arguments` (None: those of the process) and leave by SystemExit with the exit code.

    A KreplogError or OSError becomes one line on stderr, without a traceback; so do the log's warnings."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(format="kreplog: %(message)s")
    try:
        app(arguments, prog_name="kreplog")
    except (KreplogError, OSError) as error:
        print(f"kreplog: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError | OffsetOutOfRangeError) else 1)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"kreplog {kreplog.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and leave."),
    ] = False,
) -> None:
    """Kafka's replicated log as a Python package."""


@app.command()
def simulate(
    seeds: Annotated[str, typer.Option("--seeds", help="One seed, or first:stop.")] = "0:100",
    brokers: Annotated[str, typer.Option("--brokers", help="Brokers at the start, one number or a range.")] = "3..5",
    faults: Annotated[str, typer.Option("--faults", help="Kinds of fault a seed may draw, or all, or none.")] = "all",
    log: Annotated[str, typer.Option("--log", help="model, native or both-by-seed.")] = "both-by-seed",
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the first failing seed, or the last one, as JSON.")
    ] = None,
    mutate: Annotated[str | None, typer.Option("--mutate", help="Turn this rule wrong; it should be found.")] = None,
    list_mutations: Annotated[bool, typer.Option("--list-mutations", help="Print the rules, one a line.")] = False,
    only: Annotated[str | None, typer.Option("--only", help="Of the seed's faults only these, by number.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = 1,
    keep_going: Annotated[bool, typer.Option("--keep-going", "-k", help="Do not stop at a seed that fails.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a cluster in virtual time under seeded faults and check every promise; leaves with 1 when one is broken."""
    from kreplog.sim import mutations, report

    if list_mutations:
        print(json.dumps(mutations.names()) if as_json else "\n".join(mutations.names()))
        return
    options = report.options_of(brokers, faults, log, mutate, only)
    if not report.run(report.seeds_of(seeds), options, jobs, trace, as_json, keep_going):
        raise typer.Exit(1)


def _mount(name: str, help: str) -> None:
    """A group of commands that need the extra `cluster`; it is imported when one of them is called."""

    @app.command(
        name,
        help=help,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def run(context: typer.Context) -> None:
        try:
            from kreplog.commands import clusters
        except ModuleNotFoundError as error:
            raise UsageError(
                f"kreplog {name} needs {error.name}, which is not installed: pip install 'kreplog[cluster]'"
            ) from error
        clusters.run(name, context.args)


_mount("broker", "Run one broker.")
_mount("cluster", "Make, start, stop and see a cluster of brokers on this host.")
_mount("topic", "Make, list, describe, alter and delete topics.")
_mount("partition", "Move partitions between brokers; give leadership back.")
_mount("produce", "Produce a record for each line of a file or of stdin.")
_mount("consume", "Print the records of a topic.")
