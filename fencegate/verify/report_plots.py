"""The pictures of the report, as inline SVG. Their colours are the page's, so that they follow light and dark."""

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil, floor, log10

from fencegate.verify.real.outcome import Outcome, Spell

WIDTH = 1120
LEFT = 150
RIGHT = 24
ROW = 18
AXIS = 34
LATENCY_HEIGHT = 150
CURVE_HEIGHT = 220
MOST_DOTS = 2500
QUICK_S = 0.001
FAMILIES = {"pause": "pause", "stop": "pause", "kill": "kill", "line": "line"}
"""How a kind of fault is drawn, by its first word; all others are `other`."""
LANES = ("worker", "gateway", "replica", "store", "resource", "lines")


def family(kind: str) -> str:
    return FAMILIES.get(kind.partition(" ")[0], "other")


def lane(kind: str) -> str:
    """Whom it is done to."""
    if kind.startswith("line"):
        return "lines"
    whom = kind.rpartition(" ")[2]
    if kind.startswith("stop"):
        return "gateway"
    if kind.startswith("failover"):
        return "store"
    return "worker" if whom == "holder" else whom


def timeline(outcome: Outcome) -> str:
    """The faults of a cell, and below them how long each acknowledged write took."""
    length_s = max(outcome.seconds, *(spell.ended_s for spell in outcome.spells), 1.0)
    top = 10.0
    bars: list[str] = []
    for name in LANES:
        rows = _rows([spell for spell in outcome.spells if lane(spell.kind) == name])
        if not rows:
            continue
        bars.append(f'<text class="lane" x="0" y="{top + ROW / 2 + 4:.1f}">{escape(name)}</text>')
        for row in rows:
            bars += [_span(spell, top + ROW / 2, length_s) for spell in row]
            top += ROW
        bars.append(f'<line class="rule" x1="0" x2="{WIDTH}" y1="{top:.1f}" y2="{top:.1f}"/>')
    dots_top, dots_bottom = top + 14, top + 14 + LATENCY_HEIGHT
    grid = _seconds(length_s, 10, dots_bottom)
    dots = _latencies(outcome, length_s, dots_top, dots_bottom)
    return _svg(dots_bottom + AXIS, [*grid, *bars, *dots], f"faults and write latencies of {outcome.name}")


def _rows(found: Sequence[Spell]) -> list[list[Spell]]:
    """One below the other where they overlap."""
    rows: list[list[Spell]] = []
    for spell in sorted(found, key=lambda each: each.begun_s):
        free = next((row for row in rows if row[-1].ended_s <= spell.begun_s), None)
        if free is None:
            rows.append([spell])
        else:
            free.append(spell)
    return rows


def _x(at_s: float, length_s: float) -> float:
    return LEFT + at_s / length_s * (WIDTH - LEFT - RIGHT)


def _span(spell: Spell, middle: float, length_s: float) -> str:
    x = _x(spell.begun_s, length_s)
    width = max(_x(spell.ended_s, length_s) - x, 2.0)
    again = "" if spell.recovered_s is None else f"; the next write was acknowledged {spell.recovered_s:.2f} s later"
    said = f"{spell.begun_s:.1f} s: {spell.words}{again}"
    return (
        f'<rect class="fault {family(spell.kind)}" x="{x:.1f}" y="{middle - 6:.1f}" width="{width:.1f}" height="12" '
        f'rx="2"><title>{escape(said)}</title></rect>'
    )


def _latencies(outcome: Outcome, length_s: float, top: float, bottom: float) -> list[str]:
    worst_s = max((took for _, took in outcome.latencies), default=1.0)
    decades = max(1, ceil(log10(max(worst_s, 0.01) / QUICK_S)))
    height = bottom - top

    def y(took_s: float) -> float:
        return bottom - log10(max(took_s, QUICK_S) / QUICK_S) / decades * height

    parts = [f'<text class="lane" x="0" y="{top + 12:.1f}">write latency</text>']
    for power in range(decades + 1):
        value_s = QUICK_S * 10**power
        words = f"{value_s * 1000:g} ms" if value_s < 1 else f"{value_s:g} s"
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value_s):.1f}" y2="{y(value_s):.1f}"/>'
        )
        parts.append(f'<text class="tick end-tick" x="{LEFT - 8}" y="{y(value_s) + 4:.1f}">{words}</text>')
    during = sorted((spell.begun_s, spell.ended_s) for spell in outcome.spells)
    for at_s, took_s in _thinned(outcome.latencies):
        kind = "during" if any(begun <= at_s <= ended for begun, ended in during) else "calm"
        parts.append(f'<circle class="dot {kind}" cx="{_x(at_s, length_s):.1f}" cy="{y(took_s):.1f}" r="2"/>')
    return parts


def _rung(y: float) -> str:
    return f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _thinned(points: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    """Not more than can be seen; of those that stand together the slowest is kept."""
    if len(points) <= MOST_DOTS:
        return points
    size = ceil(len(points) / MOST_DOTS)
    ordered = sorted(points)
    return [max(ordered[at : at + size], key=lambda point: point[1]) for at in range(0, len(ordered), size)]


def _seconds(length_s: float, top: float, bottom: float) -> list[str]:
    parts = []
    step_s = _step(length_s / 10)
    at_s = 0.0
    while at_s <= length_s:
        x = _x(at_s, length_s)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 20}">{at_s:g} s</text>')
        at_s += step_s
    return parts


def _step(about: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power: float = 10 ** floor(log10(max(about, 1e-9)))
    return float(next(each * power for each in (1, 2, 5, 10) if each * power >= about))


def lost(outcomes: Sequence[Outcome]) -> str:
    """Acknowledged updates that were lost, added up over the campaign, in both arms."""
    curves: dict[str, list[tuple[float, int]]] = {"fenced": [(0.0, 0)], "unfenced": [(0.0, 0)]}
    began_s = 0.0
    for outcome in outcomes:
        for arm in ("fenced", "unfenced"):
            for at_s, count in outcome.lost[arm]:
                curves[arm].append((began_s + at_s, curves[arm][-1][1] + count))
        began_s += outcome.seconds
    length_s = max(began_s, 1.0)
    most = max(1, *(points[-1][1] for points in curves.values()))
    top, bottom = 26.0, 26.0 + CURVE_HEIGHT
    step = max(1.0, _step(most / 5))
    highest = step * ceil(most / step)

    def y(count: float) -> float:
        return bottom - count / highest * CURVE_HEIGHT

    parts = []
    level = 0.0
    while level <= highest:
        parts.append(_rung(y(level)))
        parts.append(f'<text class="tick end-tick" x="{LEFT - 8}" y="{y(level) + 4:.1f}">{level:g}</text>')
        level += step
    parts += _seconds(length_s, top, bottom)
    for arm, points in curves.items():
        path = f"M{_x(0, length_s):.1f} {y(0):.1f}"
        for at_s, total in points[1:]:
            path += f"H{_x(at_s, length_s):.1f}V{y(total):.1f}"
        path += f"H{_x(length_s, length_s):.1f}"
        parts.append(f'<path class="curve {arm}" d="{path}"><title>{arm}: {points[-1][1]}</title></path>')
        words = f"{arm}: {points[-1][1]}"
        parts.append(f'<text class="name {arm}" x="{WIDTH - RIGHT - 4}" y="{y(points[-1][1]) - 7:.1f}">{words}</text>')
    return _svg(bottom + AXIS, parts, "acknowledged updates lost, fenced and unfenced")


def recoveries(outcomes: Sequence[Outcome]) -> str:
    """How long after the end of each fault the next fenced write was acknowledged, by kind of fault."""
    by_kind: dict[str, list[float]] = {}
    for outcome in outcomes:
        for spell in outcome.spells:
            if spell.recovered_s is not None:
                by_kind.setdefault(spell.kind, []).append(spell.recovered_s)
    if not by_kind:
        return ""
    left = 210
    worst_s = max(max(times) for times in by_kind.values())
    decades = max(1, ceil(log10(max(worst_s, 0.01) / QUICK_S)))

    def x(took_s: float) -> float:
        return left + log10(max(took_s, QUICK_S) / QUICK_S) / decades * (WIDTH - left - RIGHT)

    top = 10
    bottom = top + ROW * len(by_kind)
    parts = []
    for power in range(decades + 1):
        value_s = QUICK_S * 10**power
        words = f"{value_s * 1000:g} ms" if value_s < 1 else f"{value_s:g} s"
        parts.append(f'<line class="grid" x1="{x(value_s):.1f}" x2="{x(value_s):.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(value_s):.1f}" y="{bottom + 20}">{words}</text>')
    for number, (kind, times) in enumerate(sorted(by_kind.items())):
        middle = top + ROW * number + ROW / 2
        median_s = sorted(times)[len(times) // 2]
        parts.append(
            f'<text x="0" y="{middle + 4:.1f}">{escape(kind)} <tspan class="soft">({len(times)})</tspan></text>'
        )
        parts += [f'<circle class="dot during" cx="{x(each):.1f}" cy="{middle:.1f}" r="3"/>' for each in times]
        parts.append(
            f'<line class="median" x1="{x(median_s):.1f}" x2="{x(median_s):.1f}" y1="{middle - 8}" y2="{middle + 8}">'
            f"<title>median {median_s:.2f} s</title></line>"
        )
    return _svg(bottom + AXIS, parts, "recovery times by kind of fault")


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}"'
    return f'<svg {size} role="img" aria-label="{escape(title)}">\n' + "\n".join(parts) + "\n</svg>"
