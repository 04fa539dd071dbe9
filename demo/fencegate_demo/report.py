"""The report: one self-contained page, without scripts or anything fetched from elsewhere."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from fencegate.clock import SYSTEM
from fencegate_demo.exhibit import ArmShown, Exhibit, concluded, exhibit, token_names
from fencegate_demo.overview import anchor, overview
from fencegate_demo.plan import NotRun
from fencegate_demo.stage import Result
from fencegate_demo.svg import SIGNS, draw
from fencegate_demo.timeline import TokenNames
from fencegate_demo.trials.stage import UseResult
from fencegate_demo.wording import SIGN_WORDS

MANY = 12
_BAD = ' class="bad"'
_PATTERN = (
    '<svg style="position:absolute;width:0;height:0;min-width:0" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" fill="var(--card)"/><rect width="3" height="7" fill="var(--hatch)" opacity=".45"/>'
    "</pattern></defs></svg>"
)
_BAR = 'x="1" y="3" width="28" height="14" rx="3"'
_LEGEND = (
    (f'<g class="lease a"><rect {_BAR}/></g>', "holds the lock"),
    (f'<g class="waits b"><rect {_BAR}/></g>', "waits"),
    (f'<g class="paused"><rect {_BAR}/></g>', "stopped (SIGSTOP)"),
    (f'<g class="seen b"><rect {_BAR}/></g>', "highest token that the fence has seen"),
    *(
        (f'<g class="mark {kind}" transform="translate(15 10)"><circle r="8.5"/>{SIGNS[kind]}</g>', words)
        for kind, words in SIGN_WORDS.items()
    ),
)


def page(results: Sequence[Result | UseResult], not_run: Sequence[NotRun] = ()) -> str:
    """The whole page about these runs."""
    names = token_names(results)
    exhibits = [exhibit(result, names) for result in results]
    stores = ", ".join(dict.fromkeys(each.store for each in exhibits if each.store))
    proved = all(each.proved for each in exhibits) and not any(each.bad for each in not_run)
    state = "proved" if proved else "failed"
    made = datetime.fromtimestamp(SYSTEM.now_us() / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    sections = "\n".join(_sections(exhibits))
    verdicts = overview(exhibits, not_run) if len(exhibits) > 1 or not_run else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fencegate: the demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
{files(__package__).joinpath("report.css").read_text(encoding="utf-8")}</style></head><body>{_PATTERN}<main>
<h1>A lock tells you that you may write.<br>A fence tells the resource that you may not.</h1>
<p>{_opening(exhibits)}</p>
<p class="conclusion {state}">{escape(concluded(results, not_run))}</p>
{verdicts}
{_legend(names, exhibits)}
{sections}
<footer>Holders, workers, lock service and gateways were real processes, and every pause was a SIGSTOP longer than the
lease. The verdict is computed from what was acknowledged and what the resource held at the end, read from the resource
itself.
<br>Locks in: {escape(stores or "sqlite")}. Made on {made}.</footer>
</main></body></html>
"""


def _opening(exhibits: Sequence[Exhibit]) -> str:
    if all(each.is_use for each in exhibits):
        return (
            "Workers A, B, C and K do the same work at once. A is stopped in the middle of it, K is killed, and A goes "
            "on when the others are done."
        )
    return "Two holders, A and B, update the same value under the same lock. A is overtaken in its sleep."


def _legend(names: TokenNames, exhibits: Sequence[Exhibit]) -> str:
    items = "".join(f'<li><svg viewBox="0 0 30 20">{sign}</svg>{words}</li>' for sign, words in _LEGEND)
    first = "A is a write of A" if all(each.is_use for each in exhibits) else "A1 is the first update of A"
    return f'<ul class="legend">{items}</ul>\n<p class="soft">{first}, and so on; {names.legend}.</p>'


def _sections(exhibits: Sequence[Exhibit]) -> Iterator[str]:
    first = {each.name: each for each in reversed(exhibits)}
    first_use = next((each for each in exhibits if each.is_use), None)
    many = len(exhibits) > MANY
    for each in exhibits:
        if many and each is first_use:
            yield "<h2>In use</h2>"
        yield _section(each, folded=many and (each.is_use or each is not first[each.name]))


def _section(shown: Exhibit, *, folded: bool) -> str:
    """The pictures of a run; where there are many, those that look alike are folded away."""
    title = f"{escape(shown.name)} over {escape(shown.resource)}"
    if shown.store not in ("", "sqlite"):
        title += f", locks in {escape(shown.store)}"
    pictures = "\n".join([*map(_figure, shown.arms), _table(shown)])
    about = f"<p>{escape(shown.summary[:1].upper() + shown.summary[1:])}.{_program(shown)}</p>"
    if folded:  # the anchor is inside, so that a browser that is sent there unfolds it
        words = f'<b>{title}</b> <span class="{"good" if shown.proved else "bad"}">{escape(shown.arms[0].words)}</span>'
        inside = f'<section id="{anchor(shown)}">{about}\n{pictures}</section>'
        return f"<details><summary>{words}</summary>\n{inside}</details>"
    return f'<section id="{anchor(shown)}">\n<h2>{title}</h2>\n{about}\n{pictures}\n</section>'


def _program(shown: Exhibit) -> str:
    if shown.program is None:
        return ""
    return f" The program to copy: <code>fencegate_demo/uses/{escape(shown.program.name)}</code>."


def _figure(arm: ArmShown) -> str:
    return f"""<figure>
<figcaption><b>{arm.arm}</b> <span class="{"good" if arm.good else "bad"}">{escape(arm.words)}</span>
<span class="soft">({escape(arm.what)})</span></figcaption>
{draw(arm.timeline, f"{arm.arm}: {arm.words}")}
</figure>"""


def _table(shown: Exhibit) -> str:
    lines = "\n".join(
        f'<tr><th scope="row">{escape(row.name)}</th><td>{_lines(row.fenced)}</td>'
        f"<td{_BAD if row.bad else ''}>{_lines(row.unfenced)}</td></tr>"
        for row in shown.rows
    )
    state = "<b class=good>proved</b>" if shown.proved else "<b class=bad>not proved</b>"
    head = f"<thead><tr><th>{state}</th><th>fenced</th><th>unfenced</th></tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>\n{lines}\n</tbody></table></div>'


def _lines(text: str) -> str:
    return "<br>".join(map(escape, text.splitlines()))
