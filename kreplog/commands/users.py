"""`kreplog user`: add, list and remove users, who authenticate themselves at SASL listeners.

With --cluster they are written to the coordination store, also before any broker of the cluster runs, which --offline
says; with --bootstrap, or --command-config, over the Kafka protocol. A password comes from a prompt, a file or stdin,
never from an argument, which others see.
"""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from kreplog.client import user_admin
from kreplog.cluster import store_requests
from kreplog.commands.connecting import admin_client, stored_cluster
from kreplog.commands.options import App, AsJson, Bootstrap, CommandConfig, Offline, OptionalDir, print_json
from kreplog.core.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS
from kreplog.errors import UsageError
from kreplog.types import counted, printable

MECHANISMS = tuple(SCRAM_MECHANISMS)

user_app = App("Add, list and remove users, who authenticate themselves at SASL listeners.")

User = Annotated[str, typer.Argument(help="Name of the user.")]


@user_app.command()
def add(
    user: User,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", help="File whose only line is the password; by default a prompt, or stdin."),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", help="SCRAM-SHA-256 or SCRAM-SHA-512; may be repeated (default: both)."),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", min=MIN_ITERATIONS, max=MAX_ITERATIONS, help="Rounds of PBKDF2.")
    ] = MIN_ITERATIONS,
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Add a user, or change the password of one; connections that are open stay so."""
    password = _password(password_file)
    credentials = user_admin.new_credentials(user, password, mechanism or MECHANISMS, iterations)
    local = stored_cluster(cluster, bootstrap, command_config, offline=offline)
    if local is not None:
        with local.store_session() as session:
            store_requests.put_user(session, credentials)
    else:
        with admin_client(cluster, bootstrap, command_config) as admin:
            user_admin.put_user(admin, credentials)
    if as_json:
        print_json({"user": user, "mechanisms": list(mechanism or MECHANISMS), "iterations": iterations})
    else:
        print(f"user {printable(user)} has credentials of {' and '.join(mechanism or MECHANISMS)}")


@user_app.command("list")
def list_all(
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List the users, with the mechanisms of their credentials."""
    local = stored_cluster(cluster, bootstrap, command_config, offline=offline)
    if local is not None:
        with local.store_session() as session:
            found = store_requests.users_in(session)
    else:
        with admin_client(cluster, bootstrap, command_config) as admin:
            found = user_admin.users(admin)
    if as_json:
        print_json({"users": [{"name": user, "iterations": given} for user, given in sorted(found.items())]})
        return
    for user, given in sorted(found.items()):
        print(f"{printable(user)}: {', '.join(f'{name} ({rounds:,} iterations)' for name, rounds in given.items())}")
    if not found:
        print("there is no user")


@user_app.command()
def remove(
    user: User,
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Remove a user, whose open connections stay until they have to authenticate themselves again."""
    local = stored_cluster(cluster, bootstrap, command_config, offline=offline)
    if local is not None:
        with local.store_session() as session:
            store_requests.remove_user(session, user)
    else:
        with admin_client(cluster, bootstrap, command_config) as admin:
            user_admin.remove_user(admin, user)
    if as_json:
        print_json({"user": user})
    else:
        print(f"user {printable(user)} removed")


def _password(file: Path | None) -> str:
    """Raises UsageError."""
    if file is None and sys.stdin.isatty():
        password = getpass("Password: ")
        if getpass("The same again: ") != password:
            raise UsageError("the passwords differ: nothing was changed")
        lines = [password]
    else:
        source = "stdin" if file is None else str(file)
        try:
            lines = (sys.stdin.read() if file is None else file.read_text(encoding="utf-8")).splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(f"{source} is not UTF-8") from error
        except OSError as error:
            raise UsageError(f"the password cannot be read from {source}: {error.strerror}") from error
        if len(lines) != 1:
            raise UsageError(f"{source} has {counted(len(lines), 'line')}: it needs one, the password")
    if not lines[0]:
        raise UsageError("the password is empty")
    return lines[0]
