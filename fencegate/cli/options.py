"""What the commands share: options that mean the same everywhere, and how they print."""

import json
import sys
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

    text = dumps(value).decode()
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")  # none where it was closed
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text))  # in ASCII; what is replaced by another sign would be another key
    print(text, flush=True)  # whatever becomes of the process at its end, it was told
