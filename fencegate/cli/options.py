"""What the commands share: options that mean the same everywhere, and how they print."""

from typing import Annotated, Any

import typer
from rich.console import Console

STORES = "sqlite:///PATH, redis://, postgresql://, mysql://, etcd://, zookeeper://, redlock:// or memory://"

out = Console()
err = Console(stderr=True)

Url = Annotated[
    str | None,
    typer.Option("--url", help="The lock service, or a store as for serve; FENCEGATE_URL, else http://127.0.0.1:7420."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def print_json(value: Any) -> None:
    from fencegate.web.json import dumps

    print(dumps(value).decode(), flush=True)  # whatever becomes of the process at its end, it was told
