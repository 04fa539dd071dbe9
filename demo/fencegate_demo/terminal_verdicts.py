"""The tables of verdicts at a terminal when there are several runs: a line for each place, and one for each use.

As narrow as a terminal is by default: a table that folds its words into three lines each is not read.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from fencegate_demo.exhibit import Exhibit
from fencegate_demo.wording import CELL_WORDS


def verdicts(exhibits: Sequence[Exhibit]) -> RenderableType:
    scenarios = [each for each in exhibits if not each.is_use]
    uses = [each for each in exhibits if each.is_use]
    return Group(*([_matrix(scenarios)] if scenarios else []), *([_uses(uses)] if uses else []))


def _matrix(scenarios: Sequence[Exhibit]) -> RenderableType:
    names = list(dict.fromkeys(each.name for each in scenarios))
    places = dict.fromkeys((each.resource, each.store) for each in scenarios)
    found = {(each.resource, each.store, each.name): each for each in scenarios}
    table = _table(Column("resource", overflow="fold"), Column("locks in", overflow="fold"), *names)
    for resource, store in places:
        table.add_row(resource, store, *(_cell(found.get((resource, store, name))) for name in names))
    return Group(table, Padding(Text(CELL_WORDS, "dim"), (0, 2)))


def _cell(shown: Exhibit | None) -> Text:
    if shown is None:
        return Text("broke off", "bold red")
    fenced, unfenced = shown.arms
    refused = f"{fenced.stale_writes - fenced.stale_accepted}/{fenced.stale_writes}"
    return Text.assemble(_proof(shown), f" {refused} ", (f"else {unfenced.stale_accepted} in", "dim"))


def _uses(uses: Sequence[Exhibit]) -> Table:
    table = _table(Column("use", no_wrap=True), Column("resource", no_wrap=True), "fenced", "unfenced, in the end")
    for each in uses:
        fenced, unfenced = each.arms
        table.add_row(each.name, each.resource, Text.assemble(_proof(each), " ", fenced.words), Text(unfenced.held))
    return table


def _proof(shown: Exhibit) -> tuple[str, str]:
    return ("✓", "green") if shown.proved else ("✗ NOT PROVED", "bold red")


def _table(*columns: Column | str) -> Table:
    return Table(*columns, header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0))
