"""`fencegate doctor`: what makes this set-up unsafe, before it does."""

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fencegate.cli.options import STORES, Json, out, print_json

if TYPE_CHECKING:
    from fencegate.doctor import Examined
    from fencegate.settings import Settings

_SIGNS = {
    "fine": "[green]✓[/]",
    "warning": "[yellow]![/]",
    "unsafe": "[bold red]✗[/]",
    "unreachable": "[bold red]?[/]",
}
_WORDS = {
    "fine": "[green]fine[/]",
    "warning": "[yellow]fine, with warnings[/]",
    "unsafe": "[bold red]unsafe[/]",
    "unreachable": "[bold red]can't be reached[/]",
}
SHORT = 50
_EXIT = {"fine": 0, "warning": 0, "unsafe": 1, "unreachable": 3}


def doctor(
    store: Annotated[
        list[str] | None, typer.Option(help=f"A lock store, or PREFIX=URL, as for serve: {STORES}.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for everything that is embedded.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings and resources.")] = None,
    accept_routes: Annotated[
        bool, typer.Option("--accept-routes", help="Have the stores remember these routes. Stop every replica first.")
    ] = False,
    retired: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A store that had routes and has none any more.")
    ] = None,
    gone: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="A store that had routes and is no more.")
    ] = None,
    json: Json = False,
) -> None:
    """Check settings, lock stores and resources for what makes them unsafe.

    It is told what `serve` is told: the same flags, variables and file.

    Exit code: 0 fine, or warnings only; 1 unsafe; 2 bad settings; 3 something
    can't be reached.
    """
    import asyncio

    from fencegate import settings
    from fencegate.doctor import examine, worst

    wanted = settings.read(store=store, data=data, config=config)
    if accept_routes:
        table = asyncio.run(_accept(wanted, retired or [], gone or []))
        if not json:
            out.print(f"[bold]routes accepted[/]  {escape(_routes(table))}", highlight=False, soft_wrap=True)
    elif retired or gone:
        raise typer.BadParameter("--retired and --gone go with --accept-routes", param_hint="'--accept-routes'")
    examined = asyncio.run(examine(wanted))
    level = worst(examined)
    if json:
        print_json({"level": level, "examined": [each.as_json() for each in examined]})
    else:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that can't show a sign still shows the rest
        for each in examined:
            _show(each)
        out.print(f"{_SIGNS[level]} {_WORDS[level]}")
    sys.exit(_EXIT[level])


async def _accept(wanted: "Settings", retired: list[str], gone: list[str]) -> dict[str, str]:
    from contextlib import AsyncExitStack

    from fencegate.clock import SYSTEM
    from fencegate_lockservice.opening import reach
    from fencegate_lockservice.route_change import accept
    from fencegate_lockservice.stores import close_store

    async with AsyncExitStack() as opened:
        stores = {}
        for url in (*wanted.store.stores, *retired):
            stores[url] = await reach(url)
            opened.push_async_callback(close_store, stores[url])
        current = {url: stores[url] for url in wanted.store.stores}
        others = {url: stores[url] for url in retired if url not in current}
        return await accept(current, wanted.store, SYSTEM, retired=others, gone=gone)


def _routes(table: dict[str, str]) -> str:
    return ", ".join(f"{prefix!r} in {store}" for prefix, store in table.items())


def _show(examined: "Examined") -> None:
    title = f"[bold]{examined.kind}[/]  {escape(examined.name)}  [dim]{escape(examined.what_for)}[/]"
    out.print(title, highlight=False, soft_wrap=True)
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(width=2, justify="right")
    table.add_column(overflow="fold")
    if examined.unreachable is not None:
        table.add_row(_SIGNS["unreachable"], f"[red]{escape(examined.unreachable)}[/]")
    for finding in examined.findings:
        advice = f"\n[cyan]→ {escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(_SIGNS[finding.level], escape(finding.what) + advice)
    facts = [f"{name} {value}" for name, value in examined.facts.items()]
    short = [fact for fact in facts if len(fact) < SHORT]
    for fact in [", ".join(short), *(fact for fact in facts if fact not in short)]:
        if fact:
            table.add_row("", f"[dim]{escape(fact)}[/]")
    out.print(table)
    out.print()
