"""The command line. Exit codes: 0 done, 1 refused or violated, 2 bad usage, 3 no server."""

import logging
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fencegate.core.errors import (
    FencegateError,
    InvalidInput,
    OutcomeUnknown,
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

fence = typer.Typer(help="Fences of protected resources.", no_args_is_help=True)
app.add_typer(fence, name="fence")

out = Console()
err = Console(stderr=True)

Url = Annotated[
    str | None,
    typer.Option("--url", help="The lock service (or a store URL); FENCEGATE_URL, else http://127.0.0.1:7420."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


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
    try:
        app()
    except FencegateError as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(error: FencegateError) -> NoReturn:
    err.print(f"[bold red]{error.wire_code}[/] {escape(error.detail)}", highlight=False, soft_wrap=True)
    if isinstance(error, StoreUnavailable | OutcomeUnknown):
        sys.exit(3)
    sys.exit(2 if isinstance(error, UnsafeConfiguration | InvalidInput) else 1)


@app.command()
def serve(
    listen: Annotated[str | None, typer.Option(help="HOST:PORT; loopback unless told otherwise.")] = None,
    role: Annotated[str | None, typer.Option(help="all, lockservice or gateway.")] = None,
    store: Annotated[list[str] | None, typer.Option(help="Where locks are kept: sqlite:///PATH or memory://.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for everything that is embedded.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings and resources.")] = None,
) -> None:
    """Serve locks and protected resources. With no arguments: on 127.0.0.1:7420, data under ./.fencegate."""
    from fencegate import settings
    from fencegate.serve import serve as run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if store and len(store) > 1:
        raise UnsafeConfiguration("store: this version keeps all locks in one store; give --store once")
    wanted = settings.read(listen=listen, role=role, store=store[0] if store else None, data=data, config=config)
    run(wanted, lambda line: print(line, flush=True))


@app.command()
def locks(
    prefix: Annotated[str, typer.Option(help="Only lock keys that start with this.")] = "",
    url: Url = None,
    json: Json = False,
) -> None:
    """List the locks that are held."""
    from fencegate.sync import connect

    with connect(url) as client:
        found = list(client.list(prefix=prefix))
    if json:
        _print_json({"locks": found})
        return
    table = Table("lock key", "owner", "token", "left", "waiters", title=None, header_style="bold")
    for lock in found:
        left = f"{lock['remainingMillis'] / 1000:.1f} s"
        table.add_row(
            escape(lock["lockKey"]), escape(lock["ownerId"]), lock["fencingToken"], left, str(lock["waiters"])
        )
    out.print(table if found else "No lock is held.")


@app.command()
def status(lock_key: str, url: Url = None, json: Json = False) -> None:
    """Show who holds a lock. Exit code 1 when nobody does."""
    from fencegate.sync import connect

    with connect(url) as client:
        lock = client.status(lock_key)
    if json:
        _print_json(lock)
    if not lock["locked"]:
        if not json:
            out.print(f"[green]free[/]  {escape(lock_key)}", highlight=False)
        sys.exit(1)
    if json:
        return
    out.print(f"[bold yellow]held[/]  {escape(lock_key)}", highlight=False)
    rows = {
        "owner": escape(lock["ownerId"]),
        "token": lock["fencingToken"],
        "left": f"{lock['remainingMillis'] / 1000:.1f} s",
        "held": f"{lock['reentrancyCount']} time(s)",
        "waiters": lock["waiters"],
    }
    for name, value in rows.items():
        out.print(f"  {name:<8}{value}", highlight=False)


@app.command("force-release")
def force_release(
    lock_key: str,
    reason: Annotated[str, typer.Option(help="Why; it is recorded.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Take a lock away from its holder. The holder's token stays valid until a successor's is seen."""
    from fencegate.sync import connect

    with connect(url) as client:
        answer = client.force_release(lock_key, reason)
    if json:
        _print_json(answer)
    else:
        out.print(f"[bold]released by force[/]  {escape(lock_key)}", highlight=False)


@app.command()
def demo(
    scenario: Annotated[str | None, typer.Argument(help="One of those that --list shows; gc-pause by default.")] = None,
    store: Annotated[str | None, typer.Option(help="A lock store of your own: sqlite:///PATH or memory://.")] = None,
    resource: Annotated[
        str | None, typer.Option(help="rows (default), objects, or one of your own: sqlite:///PATH, file:///FOLDER.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every scenario over every resource.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Say which scenarios there are.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page with the timelines as pictures.")] = None,
    json: Json = False,
) -> None:
    """Prove the point: a holder that was stopped past its lease writes, and the resource refuses."""
    from fencegate_demo.cli import Wanted, list_scenarios, run

    if list_:
        list_scenarios(json)
    else:
        sys.exit(run(Wanted(scenario, store, resource, everything, report, json)))


@fence.command("floor")
def fence_floor(
    resource: Annotated[str, typer.Argument(help="The name of the resource.")],
    value: Annotated[int, typer.Argument(help="Nothing below this token is accepted any more.")],
    data: Annotated[Path | None, typer.Option(help="Folder for everything that is embedded.")] = None,
    config: Annotated[Path | None, typer.Option(help="The TOML file that names the resource.")] = None,
) -> None:
    """Raise every fence of a resource, after a restore or a changed guard or mode; it is never lowered."""
    import asyncio

    from fencegate import settings
    from fencegate.gateway.resources import build

    known = settings.read(data=data, config=config).resources
    if resource not in known:
        raise InvalidInput("resource", f"there is no resource {resource!r}; there are {', '.join(known)}")
    wanted = build(known[resource])

    async def raise_floor() -> None:
        try:
            await wanted.raise_floor(value)
        finally:
            await wanted.close()

    asyncio.run(raise_floor())
    out.print(f"[bold]floor raised[/]  {resource} accepts nothing below {value}", highlight=False)


def _print_json(value: Any) -> None:
    from fencegate.web.json import dumps

    print(dumps(value).decode())
