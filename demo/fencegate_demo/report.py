"""The report: one self-contained page, without scripts or anything fetched from elsewhere."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from fencegate.clock import SYSTEM
from fencegate_demo.stage import Outcome, Result
from fencegate_demo.svg import SIGNS, draw
from fencegate_demo.timeline import Timeline, TokenNames, draw_up, tokens_of
from fencegate_demo.wording import ARMS, SIGN_WORDS, conclusion, outcome_in_words, rows

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
    return (
        f'<ul class="legend">{items}</ul>\n<p class="soft">A1 is the first update of A, and so on; {names.legend}.</p>'
    )


def _section(result: Result, names: TokenNames) -> str:
    run = result.run
    timelines = draw_up([outcome.events for outcome in result.outcomes], names)
    figures = "\n".join(map(_figure, result.outcomes, timelines))
    return f"""<section>
<h2>{escape(run.scenario.name)} over {escape(run.resource)}</h2>
<p>{escape(run.scenario.summary[:1].upper() + run.scenario.summary[1:])}.</p>
{figures}
{_table(result)}
</section>"""


def _figure(outcome: Outcome, timeline: Timeline) -> str:
    arm, words = outcome.trial.arm, outcome_in_words(outcome)
    good = outcome.verdict.stale_accepted == 0 and not outcome.verdict.lost
    return f"""<figure>
<figcaption><b>{arm}</b> <span class="{"good" if good else "bad"}">{escape(words)}</span>
<span class="soft">({ARMS[arm]})</span></figcaption>
{draw(timeline, f"{arm}: {words}")}
</figure>"""


def _table(result: Result) -> str:
    lines = "\n".join(
        f'<tr><th scope="row">{escape(row.name)}</th><td>{escape(row.fenced)}</td>'
        f"<td{_BAD if row.bad else ''}>{escape(row.unfenced)}</td></tr>"
        for row in rows(result)
    )
    state = "<b class=good>proved</b>" if result.proved else "<b class=bad>not proved</b>"
    head = f"<thead><tr><th>{state}</th><th>fenced</th><th>unfenced</th></tr></thead>"
    return f"<table>{head}<tbody>\n{lines}\n</tbody></table>"
