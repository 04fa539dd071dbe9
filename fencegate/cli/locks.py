"""`fencegate locks`, `status` and `force-release`: who holds what, and taking it away."""

import sys
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fencegate.cli.duration import duration
from fencegate.cli.options import Json, Url, out, print_json

MAX_HOLDERS = 50
_NUMBERS = frozenset({"token", "left", "waiters", "slot"})


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
        print_json({"locks": found})
        return
    table = _table("lock key", "owner", "mode", "token", "left", "waiters")
    for lock in found:
        holders = lock["holders"]
        others = f" [dim]+{len(holders) - 1}[/]" if len(holders) > 1 else ""
        left = f"{lock['remainingMillis'] / 1000:.1f} s"
        table.add_row(
            escape(lock["lockKey"]),
            escape(lock["ownerId"]) + others,
            _kind(lock),
            lock["fencingToken"],
            left,
            str(lock["waiters"]),
        )
    out.print(table if found else "No lock is held.")


def status(lock_key: str, url: Url = None, json: Json = False) -> None:
    """Show who holds a lock. Exit code 1 when nobody does."""
    from fencegate.sync import connect

    with connect(url) as client:
        lock = client.status(lock_key)
    if json:
        print_json(lock)
    if not lock["locked"]:
        if not json:
            out.print(f"[green]free[/]  {escape(lock_key)}", highlight=False, soft_wrap=True)
        sys.exit(1)
    if json:
        return
    out.print(f"[bold yellow]held[/]  {escape(lock_key)}", highlight=False, soft_wrap=True)
    rows = {
        "owner": escape(lock["ownerId"]),
        "mode": _kind(lock),
        "token": lock["fencingToken"],
        "left": f"{lock['remainingMillis'] / 1000:.1f} s",
        "held": f"{lock['reentrancyCount']} time(s)",
        "waiters": lock["waiters"],
    }
    if "revoked" in lock:
        revoked = lock["revoked"]
        rows["revoked"] = f"taken in {revoked['remainingMillis'] / 1000:.1f} s: {escape(revoked['reason'])}"
    for name, value in rows.items():
        out.print(f"  {name:<8}{value}", highlight=False, soft_wrap=True)
    if len(lock["holders"]) > 1 or "slot" in lock["holders"][0]:
        out.print(_holders(lock["holders"]))


def _table(*columns: str) -> Table:
    """Nothing is cut off where the terminal is narrow: a key or a token that ends in dots can't be copied."""
    table = Table(header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in _NUMBERS)
    return table


def _kind(lock: dict[str, Any]) -> str:
    """How it is held: the first of its holders tells for all."""
    if "slot" in lock["holders"][0]:
        return "permits"
    mode = str(lock["mode"])
    return f"{mode}, with all below it" if lock.get("hierarchical") else mode


def _holders(holders: list[dict[str, Any]]) -> Table:
    permits = "slot" in holders[0]
    table = _table("owner", "token", *(["slot", "fence"] if permits else []))
    for holder in holders[:MAX_HOLDERS]:
        slot = [str(holder["slot"]), escape(holder["fence"])] if permits else []
        table.add_row(escape(holder["ownerId"]), holder["fencingToken"], *slot)
    if len(holders) > MAX_HOLDERS:
        table.caption = f"and {len(holders) - MAX_HOLDERS} more: see --json"
    return table


def force_release(
    lock_key: str,
    reason: Annotated[str, typer.Option(help="Why; it is recorded.")],
    grace: Annotated[
        float,
        typer.Option(
            parser=duration(0, 3600),
            metavar="TIME",
            show_default="at once",
            help="Ask the holder first, and give it this long to finish and release.",
        ),
    ] = 0.0,
    url: Url = None,
    json: Json = False,
) -> None:
    """Take a lock away from its holder. The holder's token stays valid until a successor's is seen."""
    from fencegate.sync import connect

    with connect(url) as client:
        answer = client.force_release(lock_key, reason, grace=grace)
    if json:
        print_json(answer)
    elif "takenAt" in answer:
        at = datetime.fromtimestamp(answer["takenAt"] / 1000).strftime("%H:%M:%S")
        out.print(f"[bold]asked to release[/]  {escape(lock_key)}; taken by force at {at}", highlight=False)
    else:
        out.print(f"[bold]released by force[/]  {escape(lock_key)}", highlight=False)
