"""Rows for people to read: a table, or each row by itself where the terminal is too narrow for one.

Nothing is cut off: a key or a token that ends in dots can't be copied.
"""

from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fencegate.cli.options import out

FOLDED_FROM = 8
"""Columns that may be folded get so much at least; what is narrower can't be read."""


def print_rows(
    columns: Sequence[str], rows: Sequence[Sequence[str]], whole: Collection[str], caption: str | None = None
) -> None:
    """Cells are markup. Those of the columns in `whole` are not folded."""
    if _needed(columns, rows, whole) > out.width:
        for row in rows:
            out.print(f"[bold]{row[0]}[/]", highlight=False, soft_wrap=True)
            for name, cell in list(zip(columns, row, strict=True))[1:]:
                out.print(f"  {name:<8}{cell}", highlight=False, soft_wrap=True)
        if caption:
            out.print(caption)
        return
    table = Table(header_style="bold", caption=caption)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in whole)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _needed(columns: Sequence[str], rows: Sequence[Sequence[str]], whole: Collection[str]) -> int:
    """The width of the table with everything folded as far as it may be."""
    cells = zip(columns, *([Text.from_markup(cell).plain for cell in row] for row in rows), strict=True)
    widths = [max(map(cell_len, column)) for column in cells]
    least = (width if name in whole else min(width, FOLDED_FROM) for name, width in zip(columns, widths, strict=True))
    return sum(least) + 3 * len(columns) + 1
