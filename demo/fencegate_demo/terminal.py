"""The timeline and the verdict for people at a terminal: readable in colour, and without."""

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fencegate_demo.exhibit import ArmShown, Exhibit, concluded, exhibit, token_names
from fencegate_demo.plan import NotRun
from fencegate_demo.stage import Result
from fencegate_demo.terminal_verdicts import verdicts
from fencegate_demo.timeline import Lane, Mark, Span, Timeline, TokenNames
from fencegate_demo.trials.stage import UseResult
from fencegate_demo.wording import SIGN_WORDS

NAME_COLUMNS = 11
MAX_COLUMNS = 132
MANY = 12
"""More pictures than this are for the report."""
EDGES = {"lease": ("┣", "┫"), "seen": ("├", "┤")}
FILL = {"lease": "━", "runs": "─", "waits": "┈", "paused": "░", "seen": "─"}
SIGN = {"accepted": "✓", "refused": "⊘", "corrupting": "!"}
MARK_STYLE = {"accepted": "green", "refused": "bold red", "corrupting": "bold white on red"}
ACTOR_STYLE = {"A": "yellow", "B": "cyan"}


def show(console: Console, results: Sequence[Result | UseResult], not_run: Sequence[NotRun] = ()) -> None:
    """Everything that there is to see about these runs. Among several, uses are told in the table only; among many, so
    are scenarios after the first of each."""
    names = token_names(results)
    exhibits = [exhibit(result, names) for result in results]
    several = len(exhibits) > 1
    for each in _drawn_ones(exhibits):
        console.print(_run(each, min(console.width, MAX_COLUMNS)))
    console.print(Padding(_legend(names), (0, 2)))
    console.print(Padding(verdicts(exhibits) if several or not_run else _verdict(exhibits[0]), (1, 0, 0, 0)))
    if not_run:
        console.print(Padding(_not_run(not_run), (0, 0, 1, 0)))
    proved = all(each.proved for each in exhibits) and not any(each.bad for each in not_run)
    console.print(Padding(Text(concluded(results, not_run), "bold green" if proved else "bold red"), (1, 2)))


def _drawn_ones(exhibits: Sequence[Exhibit]) -> list[Exhibit]:
    if len(exhibits) == 1:
        return list(exhibits)
    scenarios = [each for each in exhibits if not each.is_use]
    if len(exhibits) <= MANY:
        return scenarios
    return list({each.name: each for each in reversed(scenarios)}.values())[::-1]


def _not_run(not_run: Sequence[NotRun]) -> Table:
    table = Table("not run", "why", header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for each in not_run:
        table.add_row(Text(each.what, "bold red" if each.bad else ""), Text(each.why, "red" if each.bad else "dim"))
    return table


def _run(shown: Exhibit, columns: int) -> RenderableType:
    parts: list[RenderableType] = []
    for arm in shown.arms:
        parts += [_heading(arm), *_drawn(arm.timeline, columns - 6), Text()]
    title = Text.assemble((shown.name, "bold"), " over ", (shown.resource, "bold"))
    if shown.store not in ("", "sqlite"):
        title.append(f", locks in {shown.store}")
    panel = Panel(
        Group(*parts[:-1]), title=title, title_align="left", width=columns, padding=(1, 2), border_style="dim"
    )
    if shown.program is None:
        return panel
    return Group(panel, Text.assemble("  the program to copy: ", (str(shown.program), "bold"), "\n", style="dim"))


def _heading(arm: ArmShown) -> Text:
    return Text.assemble(
        (f"{arm.arm:<{NAME_COLUMNS}}", "bold"),
        (arm.words, "green" if arm.good else "bold red"),
        (f"\n{'':<{NAME_COLUMNS}}{arm.what}", "dim"),
    )


def _drawn(timeline: Timeline, columns: int) -> list[Text]:
    columns -= NAME_COLUMNS
    lines = [
        Text.assemble((f"{lane.name:<{NAME_COLUMNS}}", "bold"), _lane(lane, timeline, columns))
        for lane in timeline.lanes
    ]
    return [*lines, Text.assemble(" " * NAME_COLUMNS, (_axis(timeline, columns), "dim"))]


def _lane(lane: Lane, timeline: Timeline, columns: int) -> Text:
    def column(at_us: int) -> int:
        return at_us * columns // timeline.length_us

    line = Text(" " * columns)
    for span in lane.spans:
        start, end = column(span.start_us), column(span.end_us)
        if end > start:
            line = _over(line, start, Text(_filled(span, end - start), _style(span)))
    signs = [_sign(mark) for mark in lane.marks]
    for start, sign in zip(_places([column(mark.at_us) for mark in lane.marks], signs, columns), signs, strict=True):
        line = _over(line, start, sign)
    return line


def _places(wanted: Sequence[int], signs: Sequence[Text], columns: int) -> list[int]:
    """Where the signs go so that none hides another: later than wanted, or earlier where the line ends."""
    places, free = [], 0
    for start, sign in zip(wanted, signs, strict=True):
        places.append(max(start, free))
        free = places[-1] + len(sign) + 1
    end = columns
    for number in reversed(range(len(places))):
        places[number] = max(0, min(places[number], end - len(signs[number])))
        end = places[number] - 1
    return places


def _over(line: Text, start: int, text: Text) -> Text:
    return Text.assemble(line[:start], text, line[start + len(text) :])


def _filled(span: Span, columns: int) -> str:
    fill = FILL[span.kind]
    first, last = EDGES.get(span.kind, (fill, fill))
    label = next((f" {label} " for label in span.labels if len(label) + 4 <= columns), "")
    return f"{first}{label}".ljust(columns - 1, fill)[: columns - 1] + last


def _style(span: Span) -> str:
    if span.kind == "paused":
        return "bright_black"
    actor = ACTOR_STYLE.get(span.actor, "default")
    return f"bold {actor}" if span.kind == "lease" else actor


def _sign(mark: Mark) -> Text:
    return Text(f"{SIGN[mark.kind]}{mark.label}", MARK_STYLE[mark.kind])


def _axis(timeline: Timeline, columns: int) -> str:
    step_us = 500_000 if timeline.length_us <= 6_000_000 else 2_000_000
    line = ""
    for at_us in range(0, timeline.length_us, step_us):
        at = at_us * columns // timeline.length_us
        text = "0 s" if at_us == 0 else f"{at_us / 1_000_000:.1f}"
        if len(line) <= at <= columns - len(text):
            line = line.ljust(at) + text
    return line


def _legend(names: TokenNames) -> Text:
    parts: list[tuple[str, str]] = []
    for kind, words in SIGN_WORDS.items():
        parts += [(SIGN[kind], MARK_STYLE[kind]), (f" {words}   ", "dim")]
    return Text.assemble(*parts, (f"\n{names.legend}", "dim"))


def _verdict(shown: Exhibit) -> Table:
    table = Table("", "fenced", "unfenced", header_style="bold", box=None, padding=(0, 2))
    for name, fenced, unfenced, bad in shown.rows:
        table.add_row(name, fenced, Text(unfenced, "bold red" if bad else ""))
    return table
