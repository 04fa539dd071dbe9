"""`fencegate watch`: what happens to locks, as it happens."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fencegate.cli.options import Json, Url, out, print_json

if TYPE_CHECKING:
    from fencegate.client.watch import WatchEvent

_COLOURS = {"acquired": "green", "expired": "red", "forced": "red", "revoked": "red", "reset": "bold red"}


def watch(
    prefix: Annotated[str | None, typer.Option(help="Only lock keys that start with this.")] = None,
    key: Annotated[str | None, typer.Option(help="Only this lock.")] = None,
    since: Annotated[int | None, typer.Option(help="Begin after the event of this id; from now on by default.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Follow what happens to locks, until interrupted. With --json, one object a line."""
    from fencegate.sync import connect

    with connect(url) as client, client.watch(key, prefix=prefix, since=since) as events:
        for event in events:
            if json:
                print_json(_told(event))
            else:
                out.print(_line(event), highlight=False, soft_wrap=True)
            out.file.flush()


def _told(event: "WatchEvent") -> dict[str, str | int]:
    """As the server's stream tells it."""
    told: dict[str, str | int] = {"event": event.kind, "id": str(event.id)}
    if event.kind != "reset":
        told |= {"lockKey": event.lock_key, "ownerId": event.owner_id, "at": round(event.at * 1000)}
    if event.token is not None:
        told["fencingToken"] = event.token.wire
    if event.reason is not None:
        told["reason"] = event.reason
    return told


def _line(event: "WatchEvent") -> str:
    colour = _COLOURS.get(event.kind, "bold")
    if event.kind == "reset":
        return f"[{colour}]reset[/]     {escape(event.reason or '')}"
    at = datetime.fromtimestamp(event.at).strftime("%H:%M:%S.%f")[:-3]
    token = event.token.wire if event.token is not None else ""
    parts = [f"{at}  [{colour}]{event.kind:<9}[/] {escape(event.lock_key)}  {escape(event.owner_id)}", token]
    return "  ".join(part for part in [*parts, escape(event.reason or "")] if part)
