"""The top of the report when there are several runs: one table of verdicts, from which each leads to its pictures."""

from collections.abc import Sequence
from html import escape

from fencegate_demo.exhibit import Exhibit
from fencegate_demo.plan import NotRun
from fencegate_demo.wording import CELL_WORDS


def overview(exhibits: Sequence[Exhibit], not_run: Sequence[NotRun]) -> str:
    scenarios = [each for each in exhibits if not each.is_use]
    uses = [each for each in exhibits if each.is_use]
    parts = [_matrix(scenarios) if scenarios else "", _uses(uses) if uses else "", _not_run(not_run) if not_run else ""]
    return f'<div class="overview">{"".join(parts)}</div>'


def anchor(shown: Exhibit) -> str:
    text = f"{shown.name}-{shown.resource}-{shown.store}"
    return "".join(sign if sign.isalnum() and sign.isascii() else "-" for sign in text)


def _matrix(scenarios: Sequence[Exhibit]) -> str:
    names = list(dict.fromkeys(each.name for each in scenarios))
    places = dict.fromkeys((each.resource, each.store) for each in scenarios)
    found = {(each.resource, each.store, each.name): each for each in scenarios}
    head = "".join(f"<th>{escape(name)}</th>" for name in ("resource", "locks in", *names))
    lines = "\n".join(
        f'<tr><th scope="row">{escape(resource)}</th><td>{escape(store)}</td>'
        f"{''.join(_cell(found.get((resource, store, name))) for name in names)}</tr>"
        for resource, store in places
    )
    words = f'<p class="soft">{CELL_WORDS[:1].upper()}{CELL_WORDS[1:]}.</p>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table>{words}"


def _cell(shown: Exhibit | None) -> str:
    if shown is None:
        return '<td class="soft">broke off</td>'
    fenced, unfenced = shown.arms
    refused = fenced.stale_writes - fenced.stale_accepted
    return (
        f'<td><a class="{"good" if shown.proved else "bad"}" href="#{anchor(shown)}">{"✓" if shown.proved else "✗"} '
        f"{refused} of {fenced.stale_writes} refused</a> "
        f'<span class="soft">else {unfenced.stale_accepted} in</span></td>'
    )


def _uses(uses: Sequence[Exhibit]) -> str:
    lines = "\n".join(
        f'<tr><th scope="row">{escape(each.name)}</th><td>{escape(each.resource)}</td><td>'
        f'<a class="{"good" if each.proved else "bad"}" href="#{anchor(each)}">{"✓" if each.proved else "✗"} '
        f'{escape(each.arms[0].words)}</a></td><td class="soft">{escape(each.arms[1].held)}</td></tr>'
        for each in uses
    )
    head = "<th>use</th><th>resource</th><th>fenced</th><th>unfenced, in the end</th>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table>"


def _not_run(not_run: Sequence[NotRun]) -> str:
    lines = "\n".join(
        f'<tr><th scope="row">{escape(each.what)}</th><td class="{"bad" if each.bad else "soft"}">{escape(each.why)}'
        "</td></tr>"
        for each in not_run
    )
    return f"<table><thead><tr><th>not run</th><th>why</th></tr></thead><tbody>\n{lines}\n</tbody></table>"
