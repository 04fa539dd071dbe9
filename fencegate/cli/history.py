"""`fencegate history`: who held a lock, from when to when, and how that ended."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fencegate.cli.options import Json, Url, out, print_json
from fencegate.cli.tables import print_rows

if TYPE_CHECKING:
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
    if found.holds:
        print_rows(("owner", "token", "from", "to", "ending"), list(map(_row, found)), ("token", "from", "to"))
    else:
        out.print("Nobody is known to have held this lock.")
    if not found.complete:
        out.print("[yellow]Something may be missing[/]: the history was switched off, or behind, for some time.")


def _row(hold: "PastHold") -> tuple[str, ...]:
    how = f"[{_COLOURS.get(hold.ending, 'bold')}]{hold.ending or 'held'}[/]"
    if hold.reason:
        how += f" {escape(hold.reason)}"
    return escape(hold.owner_id) + _kind(hold), hold.token.wire, *_times(hold), how


def _kind(hold: "PastHold") -> str:
    if hold.slot is not None:
        return f" [dim](slot {hold.slot})[/]"
    return " [dim](shared)[/]" if hold.mode == "shared" else ""


def _times(hold: "PastHold") -> tuple[str, str]:
    """In the reader's own time, to the second; the day is said twice only where it changed. JSON has the rest."""
    begin = datetime.fromtimestamp(hold.acquired_at)
    if hold.ended_at is None:
        return f"{begin:%m-%d %H:%M:%S}", ""
    end = datetime.fromtimestamp(hold.ended_at)
    until = f"{end:%H:%M:%S}" if end.date() == begin.date() else f"{end:%m-%d %H:%M:%S}"
    return f"{begin:%m-%d %H:%M:%S}", until


def _told(found: "LockHistory") -> dict[str, Any]:
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
