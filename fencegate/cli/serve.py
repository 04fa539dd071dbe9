"""`fencegate serve`: lock service and gateway in one process."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from fencegate.cli.options import STORES


def serve(
    listen: Annotated[str | None, typer.Option(help="HOST:PORT; loopback unless told otherwise.")] = None,
    role: Annotated[str | None, typer.Option(help="all, lockservice or gateway.")] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(help=f"Where locks are kept: {STORES}. Several: PREFIX=URL for each, * for all other keys."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for everything that is embedded.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings and resources.")] = None,
) -> None:
    """Serve locks and protected resources. With no arguments: on 127.0.0.1:7420, data under ./.fencegate."""
    from fencegate import settings
    from fencegate.serve import serve as run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for chatty in ("uvicorn", "alembic.runtime"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("fencegate.store").setLevel(logging.NOTSET)
    wanted = settings.read(listen=listen, role=role, store=store, data=data, config=config)
    run(wanted, lambda line: print(line, flush=True))
