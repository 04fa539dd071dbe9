"""The command line. Exit codes: 0 done, 1 refused or violated, 2 bad usage, 3 no server."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from fencegate.cli import demo, doctor, fence, history, locks, protect, run, serve, verify, watch
from fencegate.cli.options import err
from fencegate.core.errors import (
    FencegateError,
    InvalidInput,
    OutcomeUnknown,
    ResourceUnavailable,
    StoreUnavailable,
    UnsafeConfiguration,
)

app = typer.Typer(
    name="fencegate",
    help="Distributed locks whose stale holders are refused by the resource itself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# In the order in which `fencegate --help` lists them.
app.command()(serve.serve)
app.command()(run.run)
app.command()(locks.locks)
app.command()(locks.status)
app.command("force-release")(locks.force_release)
app.command()(watch.watch)
app.command()(history.history)
app.command()(protect.protect)
app.command()(doctor.doctor)
app.command()(demo.demo)
app.command()(verify.verify)
app.add_typer(fence.app, name="fence")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"fencegate {version('fencegate')}")
        raise typer.Exit


@app.callback()
def fencegate(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """Distributed locks whose stale holders are refused by the resource itself."""


def main() -> None:
    """Run a command; errors are said in one line, never as a traceback."""
    with _quietly(), _showing_everything():
        try:
            try:
                app()
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except FencegateError as error:
            _fail(error)
        except KeyboardInterrupt:
            sys.exit(130)
        except OSError as error:
            _say_nothing_more()
            if not isinstance(error, BrokenPipeError):  # nobody wants to read on
                err.print(f"[bold red]FAILED[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            sys.exit(1)


@contextmanager
def _quietly() -> Iterator[None]:
    """What is amiss in a store is for serve and doctor. Whoever calls the command line in a process that goes on finds
    its logging as it was, whatever a command made of it."""
    store = logging.getLogger("fencegate.store")
    level, disabled = store.level, logging.root.manager.disable
    store.setLevel(logging.ERROR)
    try:
        yield
    finally:
        store.setLevel(level)
        logging.disable(disabled)


@contextmanager
def _showing_everything() -> Iterator[None]:
    """A terminal that can't show a sign of a lock key shows its number."""
    stdout = sys.stdout
    if not isinstance(stdout, TextIOWrapper) or stdout.encoding.lower() in ("utf-8", "utf8"):
        yield
        return
    errors = stdout.errors
    with suppress(OSError):  # a file of another kind
        stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError):  # nor is there anybody to show it to when a pipe is closed
            stdout.reconfigure(errors=errors)


def _say_nothing_more() -> None:
    """What could not be written, to a disk that is full, is tried once more when the process ends."""
    with suppress(OSError, AttributeError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _fail(error: FencegateError) -> NoReturn:
    err.print(f"[bold red]{error.wire_code}[/] {escape(error.detail)}", highlight=False, soft_wrap=True)
    if isinstance(error, StoreUnavailable | OutcomeUnknown | ResourceUnavailable):
        sys.exit(3)
    sys.exit(2 if isinstance(error, UnsafeConfiguration | InvalidInput) else 1)
