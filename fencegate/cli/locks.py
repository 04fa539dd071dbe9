"""`fencegate locks`, `status` and `force-release`: who holds what, and taking it away."""

import sys
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from fencegate.cli.duration import duration
from fencegate.cli.options import Json, Url, out, print_json
from fencegate.cli.tables import print_rows

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
    if not found:
        out.print("No lock is held.")
        return
    print_rows(("lock key", "owner", "mode", "token", "left", "waiters"), list(map(_row, found)), _NUMBERS)


def _row(lock: dict[str, Any]) -> tuple[str, ...]:
    holders = lock["holders"]
    others = f" [dim]+{len(holders) - 1}[/]" if len(holders) > 1 else ""
    return (
        escape(lock["lockKey"]),
        escape(lock["ownerId"]) + others,
        _kind(lock),
        lock["fencingToken"],
        f"{lock['remainingMillis'] / 1000:.1f} s",
        str(lock["waiters"]),
    )


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
        _print_holders(lock["holders"])


def _kind(lock: dict[str, Any]) -> str:
    """How it is held: the first of its holders tells for all."""
    if "slot" in lock["holders"][0]:
        return "permits"
    mode = str(lock["mode"])
    return f"{mode}, with all below it" if lock.get("hierarchical") else mode


def _print_holders(holders: list[dict[str, Any]]) -> None:
    permits = "slot" in holders[0]
    rows = []
    for holder in holders[:MAX_HOLDERS]:
        slot = [str(holder["slot"]), escape(holder["fence"])] if permits else []
        rows.append([escape(holder["ownerId"]), holder["fencingToken"], *slot])
    more = f"and {len(holders) - MAX_HOLDERS} more: see --json" if len(holders) > MAX_HOLDERS else None
    print_rows(["owner", "token", *(["slot", "fence"] if permits else [])], rows, _NUMBERS, more)


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
