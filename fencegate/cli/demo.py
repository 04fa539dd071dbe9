"""`fencegate demo`: the proof, with real processes."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fencegate.cli.options import STORES, Json


def demo(
    scenario: Annotated[str | None, typer.Argument(help="One of those that --list shows; gc-pause by default.")] = None,
    store: Annotated[
        str | None,
        typer.Option(help=f"A lock store of your own: {STORES}; or one to start: postgresql, mysql, redis, redlock, …"),
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(
            help="rows (default), objects, service; one to start: postgresql, mariadb, redis, redis-hashes, s3, azure; "
            "or one of your own by its URL: sqlite, postgresql, mysql, mariadb, file, s3, az, gs, redis."
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Every scenario over every store and resource that can be started here; every use."),
    ] = False,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="With --all: start no database or other server.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Say which scenarios there are.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page with the timelines as pictures.")] = None,
    json: Json = False,
) -> None:
    """Prove the point: a holder that was stopped past its lease writes, and the resource refuses."""
    from fencegate_demo.cli import Wanted, list_scenarios, run
    from fencegate_demo.plan import Wishes

    if list_:
        list_scenarios(json)
    else:
        sys.exit(run(Wanted(Wishes(scenario, store, resource, everything, embedded), report, json)))
