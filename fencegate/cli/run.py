"""`fencegate run`: hold a lock while a command runs."""

import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from fencegate.cli.duration import duration
from fencegate.cli.options import Url, err
from fencegate.core.errors import LockHeld


def run(
    lock_key: Annotated[str, typer.Argument(metavar="KEY", help="The lock key, such as deploy:eu.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run; write -- before it.")],
    ttl: Annotated[
        float,
        typer.Option(
            parser=duration(1, 3600),
            metavar="TIME",
            show_default="30s",
            help="Length of the lease; it is renewed meanwhile.",
        ),
    ] = 30.0,
    wait: Annotated[
        float | None,
        typer.Option(parser=duration(), metavar="TIME", help="How long to wait for the lock; not at all by default."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            parser=duration(), metavar="TIME", show_default="10s", help="From SIGTERM to SIGKILL when the lock is lost."
        ),
    ] = 10.0,
    shared: Annotated[bool, typer.Option("--shared", help="Beside other shared holders; for reading only.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="One of N permits, not the whole lock.")] = None,
    priority: Annotated[int, typer.Option(metavar="N", help="Higher is served first among those who wait.")] = 0,
    url: Url = None,
) -> None:
    """Hold a lock while COMMAND runs, and stop COMMAND when the lock is lost.

    \b
    fencegate run cron:report -- ./report.sh           skip it if another runs
    fencegate run deploy:eu --wait 5m -- make deploy   wait for the other one
    fencegate run build --limit 3 --wait 1h -- make    at most three at once
    fencegate run cart --shared -- ./export.sh         beside other readers

    COMMAND finds FENCEGATE_LOCK_KEY, FENCEGATE_TOKEN and FENCEGATE_SEQUENCER
    (empty where tokens are not signed) in its environment, and FENCEGATE_FENCE
    with --limit. Send the token with each write.

    When the lock is lost, or can't be renewed in time, COMMAND and all that it
    started get SIGTERM, and SIGKILL after --grace or at the end of the lease,
    even if this process is itself paused or killed. Signals are passed on to
    COMMAND. What it leaves running in its process group is waited for, and
    ended after --grace.

    Exit code: COMMAND's own, 128+n for signal n, 127 not found, 126 can't be
    run; 1 when the lock could not be had or was lost, 2 bad usage, 3 no server.
    """
    from fencegate.run import Holder, Wanted

    if shared and limit is not None:
        raise typer.BadParameter("a permit is not shared; give --shared or --limit", param_hint="'--shared'")
    terms: dict[str, Any] = {"shared": True} if shared else {}
    terms |= {"limit": limit} if limit is not None else {}
    terms |= {"priority": priority} if priority else {}
    wanted = Wanted(lock_key, ttl, wait, grace, url, terms)
    try:
        code = Holder(wanted, command, _say).run()
    except LockHeld as held:
        owner = held.members.get("currentOwner")
        advice = "wait longer" if wait else "wait for it with --wait 60s"
        _say(f"{lock_key!r} is held" + (f" by {owner!r}" if owner else "") + f"; COMMAND was not run ({advice})")
        code = 1
    sys.exit(code)


def _say(text: str) -> None:
    err.print(f"[bold]fencegate:[/] {escape(text)}", highlight=False, soft_wrap=True)
