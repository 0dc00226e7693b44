"""The `kreplog` command: its subcommands, and its exit status.

Exit status: 0 success; 1 failure, or damage or a violation found; 2 wrong usage.
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
from kreplog.commands import cursors, log, topic_folders
from kreplog.commands.options import App, AsJson
from kreplog.errors import KreplogError, OffsetOutOfRangeError, RegistrationRefusedError, UsageError

REFUSED = 78
"""Exit status of a broker that its cluster refuses for its version or its id, EX_CONFIG of sysexits.h: to start it
again, as it is, does not help."""

app = App()
app.add_typer(log.app, name="log", help="Inspect, verify, recover and append to one partition directory.")
app.add_typer(cursors.app, name="cursor", help="List and reset the cursors of a topic in a folder.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with `arguments` (None: those of the process); ends with SystemExit.

    KreplogErrors and OSErrors become a line on stderr, without a traceback; so do the log's warnings."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(format="kreplog: %(message)s")
    try:
        app(arguments, prog_name="kreplog")
    except (KreplogError, OSError) as error:
        print(f"kreplog: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(_exit_status(error))


def _exit_status(error: Exception) -> int:
    if isinstance(error, RegistrationRefusedError):
        return REFUSED
    return 2 if isinstance(error, UsageError | OffsetOutOfRangeError) else 1


def _print_version(given: bool) -> None:
    if given:
        print(f"kreplog {kreplog.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """Kafka's replicated log as a Python package."""


@app.command()
def simulate(
    seeds: Annotated[str, typer.Option("--seeds", "--seed", help="A seed, or FIRST:STOP (exclusive).")] = "0:100",
    brokers: Annotated[str, typer.Option("--brokers", help="Number of brokers, or MIN..MAX.")] = "3..5",
    faults: Annotated[str, typer.Option("--faults", help="Kinds of faults, comma-separated; all; or none.")] = "all",
    log: Annotated[
        str, typer.Option("--log", help="Log implementation: model, native, or both-by-seed.")
    ] = "both-by-seed",
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write a trace of the first failing seed, or else of the last, as JSON."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write the same seed as a page to step through, in one file for any browser."),
    ] = None,
    mutate: Annotated[
        str | None, typer.Option("--mutate", help="Break this rule on purpose: seeds should fail.")
    ] = None,
    list_mutations: Annotated[
        bool, typer.Option("--list-mutations", help="List the rules that --mutate can break.")
    ] = False,
    only: Annotated[str | None, typer.Option("--only", help="Inject only these faults of the seed, by number.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of processes.")] = 1,
    keep_going: Annotated[bool, typer.Option("--keep-going", "-k", help="Continue after a seed that fails.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a cluster in virtual time under random faults, and check every guarantee.

    Exits with status 1 if a guarantee is violated."""
    from kreplog.replay.seed_page import PageFile
    from kreplog.sim import mutations, report

    if list_mutations:
        print(json.dumps(mutations.names()) if as_json else "\n".join(mutations.names()))
        return
    options = report.options_of(brokers, faults, log, mutate, only)
    files: list[report.SeedFile] = []
    if trace is not None:
        files.append(report.TraceFile(trace))
    if html is not None:
        files.append(PageFile(html))
    if not report.run(report.seeds_of(seeds), options, jobs, files, as_json, keep_going):
        raise typer.Exit(1)


def _mount(name: str, help: str) -> None:
    """A group of commands that need the extra `cluster`; imported when one of them is called."""

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
            if name == "topic" and any(text.startswith(("-f", "--folder")) for text in context.args):
                topic_folders.app(context.args, prog_name="kreplog topic")
            raise UsageError(
                f"kreplog {name} needs {error.name}, which is not installed: pip install 'kreplog[cluster]'"
            ) from error
        clusters.run(name, context.args)


_mount("broker", "Run a broker of a cluster on this host, and change settings of running ones.")
_mount("cluster", "Create, start, stop and extend a cluster of brokers on this host, and show its status.")
_mount("topic", "Create, list, describe, alter and delete topics.")
_mount("partition", "Reassign partitions to brokers, move replicas between log directories, and elect leaders.")
_mount("group", "List, describe and delete consumer groups, and reset their offsets.")
_mount("transaction", "List, describe and abort transactions.")
_mount("acl", "List, add and remove ACLs: who may do what.")
_mount("user", "Add, list and remove users, who authenticate themselves at SASL listeners.")
_mount("quota", "List, set and remove client quotas: how much of a broker clients may use.")
_mount("produce", "Produce a record for each line of a file or stdin.")
_mount("consume", "Print the records of a topic.")
_mount("console", "Show a cluster in the browser, as it changes.")
_mount("top", "Show a cluster in the terminal, as it changes.")
_mount("trace", "Trace a running cluster for some seconds, as a page to step through.")
