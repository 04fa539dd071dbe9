"""The report: one self-contained page, without scripts or anything fetched from elsewhere."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from fencegate.clock import SYSTEM
from fencegate_demo.stage import Outcome, Result
from fencegate_demo.svg import draw
from fencegate_demo.timeline import TokenNames, draw_up, tokens_of
from fencegate_demo.wording import ARMS, conclusion, outcome_in_words, rows

_BAD = ' class="bad"'
_PATTERN = (
    '<svg style="position:absolute;width:0;height:0;min-width:0" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" fill="var(--card)"/><rect width="3" height="7" fill="var(--hatch)" opacity=".45"/>'
    "</pattern></defs></svg>"
)
_LEGEND = (
    ('<g class="lease a"><rect width="30" height="14" y="3" rx="3"/></g>', "holds the lock"),
    ('<g class="waits b"><rect width="29" height="14" x=".5" y="3" rx="3"/></g>', "waits"),
    ('<g class="paused"><rect width="29" height="14" x=".5" y="3" rx="3"/></g>', "stopped (SIGSTOP)"),
    ('<g class="seen b"><rect width="28" height="14" x="1" y="3" rx="3"/></g>', "highest token that the fence has seen"),
    ('<g class="mark accepted" transform="translate(15 10)"><circle r="8"/><path d="M-4 .5-1 3.5 4-3"/></g>', "accepted"),
    (
        '<g class="mark refused" transform="translate(15 10)"><circle r="8"/><path d="M-4 4 4-4"/></g>',
        "refused: 412 STALE_TOKEN",
    ),
    (
        '<g class="mark corrupting" transform="translate(15 10)"><circle r="8"/><path d="M0-5V1M0 4.4v.4"/></g>',
        "stale, yet accepted",
    ),
)


def page(results: Sequence[Result], store: str) -> str:
    """The whole page about these runs."""
    names = TokenNames(
        token for result in results for outcome in result.outcomes for token in tokens_of(outcome.events)
    )
    state = "proved" if all(result.proved for result in results) else "failed"
    made = datetime.fromtimestamp(SYSTEM.now_us() / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    sections = "\n".join(_section(result, names) for result in results)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fencegate: the demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
{files(__package__).joinpath("report.css").read_text(encoding="utf-8")}</style></head><body>{_PATTERN}<main>
<h1>A lock tells you that you may write.<br>A fence tells the resource that you may not.</h1>
<p>Two holders, A and B, update the same value under the same lock. A is overtaken in its sleep.</p>
<p class="conclusion {state}">{escape(conclusion(results))}</p>
{_legend(names)}
{sections}
<footer>Holders, lock service and gateways were real processes, and every pause was a SIGSTOP longer than the lease. The
verdict is computed from what was acknowledged and what the resource held at the end, read from the resource itself.
<br>Lock store: {escape(store)}. Made on {made}.</footer>
</main></body></html>
"""


def _legend(names: TokenNames) -> str:
    items = "".join(f'<li><svg viewBox="0 0 30 20">{sign}</svg>{words}</li>' for sign, words in _LEGEND)
    return f'<ul class="legend">{items}</ul>\n<p class="soft">A1 is A’s first update, and so on; {names.legend}.</p>'


def _section(result: Result, names: TokenNames) -> str:
    run = result.run
    figures = "\n".join(_figure(outcome, names) for outcome in result.outcomes)
    return f"""<section>
<h2>{escape(run.scenario.name)} over {escape(run.resource)}</h2>
<p>{escape(run.scenario.summary[:1].upper() + run.scenario.summary[1:])}.</p>
{figures}
{_table(result)}
</section>"""


def _figure(outcome: Outcome, names: TokenNames) -> str:
    arm, words = outcome.trial.arm, outcome_in_words(outcome)
    good = outcome.verdict.stale_accepted == 0 and not outcome.verdict.lost
    picture = draw(draw_up(outcome.events, names), f"{arm}: {words}")
    return f"""<figure>
<figcaption><b>{arm}</b> <span class="{"good" if good else "bad"}">{escape(words)}</span>
<span class="soft">({ARMS[arm]})</span></figcaption>
{picture}
</figure>"""


def _table(result: Result) -> str:
    lines = "\n".join(
        f'<tr><th scope="row">{escape(row.name)}</th><td>{escape(row.fenced)}</td>'
        f"<td{_BAD if row.bad else ''}>{escape(row.unfenced)}</td></tr>"
        for row in rows(result)
    )
    state = "<b class=good>proved</b>" if result.proved else "<b class=bad>not proved</b>"
    return f"<table><thead><tr><th>{state}</th><th>fenced</th><th>unfenced</th></tr></thead><tbody>\n{lines}\n</tbody></table>"
