"""`fencegate history`: who held a lock, from when to when, and how that ended."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fencegate.cli.options import Json, Url, out, print_json
from fencegate.client.history import LockHistory, PastHold

_COLOURS = {None: "bold yellow", "released": "green", "expired": "red", "forced": "bold red"}


def history(
    lock_key: Annotated[str, typer.Argument(metavar="KEY", help="The lock key, such as deploy:eu.")],
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest so many.")] = 20,
    url: Url = None,
    json: Json = False,
) -> None:
    """Tell who held a lock, newest first: from when to when, with which token, and how it ended."""
    from fencegate.sync import connect

    with connect(url) as client:
        found = client.history(lock_key, limit=limit)
    if json:
        print_json(_told(found))
        return
    out.print(_table(found) if found.holds else "Nobody is known to have held this lock.")
    if not found.complete:
        out.print("[yellow]Something may be missing[/]: the history was switched off, or behind, for some time.")


def _table(found: LockHistory) -> Table:
    table = Table("owner", "token", "from", "to", "ending", header_style="bold")
    for column in table.columns[1:4]:
        column.no_wrap = True
    for hold in found:
        ending = hold.ending or "held"
        how = f"[{_COLOURS.get(hold.ending, 'bold')}]{ending}[/]"
        if hold.reason:
            how += f" {escape(hold.reason)}"
        until = _time(hold.ended_at) if hold.ended_at is not None else ""
        table.add_row(escape(hold.owner_id) + _kind(hold), hold.token.wire, _time(hold.acquired_at), until, how)
    return table


def _kind(hold: PastHold) -> str:
    if hold.slot is not None:
        return f" [dim](slot {hold.slot})[/]"
    return " [dim](shared)[/]" if hold.mode == "shared" else ""


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _told(found: LockHistory) -> dict[str, Any]:
    """As the REST call tells it."""
    holds = []
    for hold in found:
        told: dict[str, Any] = {
            "ownerId": hold.owner_id,
            "fencingToken": hold.token.wire,
            "mode": hold.mode,
            "acquiredAt": round(hold.acquired_at * 1000),
            "endedAt": None if hold.ended_at is None else round(hold.ended_at * 1000),
            "ending": hold.ending,
        }
        told |= {name: value for name, value in (("slot", hold.slot), ("reason", hold.reason)) if value is not None}
        holds.append(told)
    return {"lockKey": found.lock_key, "history": holds, "complete": found.complete}
