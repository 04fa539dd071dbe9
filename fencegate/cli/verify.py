"""`fencegate verify`: the correctness campaign."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from fencegate.cli.options import STORES, Json


def verify(
    seconds: Annotated[
        float, typer.Option(help="How long to go on; what has proved nothing by then goes on for up to 45 s more.")
    ] = 30.0,
    store: Annotated[
        str | None,
        typer.Option(help=f"A lock store of your own: {STORES}; or one to start: sqlite, postgresql, mysql, redis, …"),
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(
            help="rows, objects, service; one to start: postgresql, mariadb, redis, redis-hashes, s3, azure; or one of "
            "your own by its URL."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every store and every resource that can be started here, a row each.")
    ] = False,
    simulate: Annotated[bool, typer.Option("--simulate", help="The simulation only.")] = False,
    real: Annotated[bool, typer.Option("--real", help="Real processes only.")] = False,
    seed: Annotated[int | None, typer.Option(help="Begin with this seed; by default where chance says.")] = None,
    runs: Annotated[
        int | None, typer.Option(help="At most so many simulated runs; with --seed and --runs 1 one is played again.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="How many processes simulate; one for each processor by default.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with timelines and plots.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="Where the history goes when a promise is broken; fencegate-verify-SEED.json.")
    ] = None,
    json: Json = False,
) -> None:
    """Try to break the promises: half the time in a simulation, half of it with real faults on real processes.

    Real: workers, lock service replicas and gateways are stopped past the lease,
    killed and started again; lines are delayed, cut and held; disks are full and
    clocks move; in two arms, with the resource's check and without. Of your own
    stores and resources nothing is stopped or killed, and nothing is left in them.

    Exits 1 when a promise was broken, with the seed and the history that show it, or when nothing was proved.
    """
    from fencegate.core.errors import InvalidInput
    from fencegate.verify.command import Wanted, run
    from fencegate.verify.real.campaign import Cells

    if simulate and (real or store or resource or everything):
        raise InvalidInput("simulate", "goes with neither --real nor --store, --resource or --all")
    if runs is not None and (real or store or resource or everything):
        raise InvalidInput(
            "runs", "counts simulated runs; it goes with neither --real nor --store, --resource or --all"
        )
    logging.disable(logging.CRITICAL)  # what fails in a campaign is meant to
    cells = Cells(store, resource, everything)
    wanted = Wanted(seconds, seed, runs, cells, not real, not simulate, report, history, json, jobs=jobs)
    raise typer.Exit(run(wanted))
