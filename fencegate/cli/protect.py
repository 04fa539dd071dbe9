"""`fencegate protect`: have the database itself refuse writes without a token, or with a stale one."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fencegate.cli.options import err, out
from fencegate.core.token import MAX_TOKEN

if TYPE_CHECKING:
    from fencegate_adapters.sql.protect.plan import Plan


def protect(
    url: Annotated[str, typer.Argument(help="The database: postgresql://, mysql://, mariadb:// or sqlite:///PATH.")],
    table: Annotated[str, typer.Argument(help='TABLE or SCHEMA.TABLE; in "double quotes" where a name holds a dot.')],
    key: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="The key column; several times for a composite key.")
    ] = None,
    guard: Annotated[
        str, typer.Option(metavar="TEMPLATE", help="The lock that guards a row, of {table}, {key} and key columns.")
    ] = "{table}:{key}",
    floor: Annotated[
        int | None,
        typer.Option(metavar="VALUE", min=1, max=MAX_TOKEN, help="Nothing below this token is accepted any more."),
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Protect it although some writes can go round the triggers.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the SQL, and do nothing.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take away what was installed. Marks stay.")] = False,
) -> None:
    """Have the database refuse every write to a table whose transaction names no token, or a stale one.

    A transaction names its token: in PostgreSQL by
    set_config('fencegate.token', '34', true), in MySQL by SET @fencegate_token = 34.
    The gateway and fenced() do so by themselves; in SQLite only they can write.

    Exit code: 0 done; 1 refused, because writes could go round; 2 bad usage; 3 no
    database.
    """
    from fencegate_adapters.sql.protect import install
    from fencegate_adapters.sql.protect.wanted import Wanted, table_name

    if remove:
        plan = install.unprotect(url, table_name(table), dry_run=dry_run)
    elif not key:
        raise typer.BadParameter("name the key column of the table", param_hint="'--key'")
    else:
        wanted = Wanted(table_name(table), tuple(key), guard, floor, allow_gaps)
        plan = install.protect(url, wanted, dry_run=dry_run)
    _warn(plan)
    if plan.gaps and not allow_gaps:
        err.print("[bold red]REFUSED[/] nothing was done; close the gap, or give --allow-gaps", highlight=False)
        sys.exit(1)
    if dry_run:
        print(plan.script, end="")
    else:
        out.print(_done(plan, guard, remove), highlight=False, soft_wrap=True)


def _warn(plan: "Plan") -> None:
    for gap in plan.gaps:
        err.print(f"[bold yellow]gap[/]  {escape(gap)}", highlight=False, soft_wrap=True)
    for warning in plan.warnings:
        err.print(f"[yellow]note[/]  {escape(warning)}", highlight=False, soft_wrap=True)


def _done(plan: "Plan", guard: str, remove: bool) -> str:
    name = escape(str(plan.table))
    if remove:
        return (
            f"[bold]not protected any more[/]  {name}; its marks are kept, for a fence is never lowered"
            if plan.steps
            else f"[bold]nothing to do[/]  {name} is not protected"
        )
    lock = f"each write needs the token of the lock [bold]{escape(guard)}[/]"
    return f"[bold]protected[/]  {name}: {lock}" + ("" if plan.steps else "; it was already")
