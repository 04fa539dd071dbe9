"""The timeline as an inline SVG picture. Its colours are the page's, so that it follows light and dark."""

from collections.abc import Iterator
from html import escape

from fencegate_demo.timeline import Lane, Mark, Span, Timeline

WIDTH = 1120
NAME_WIDTH = 96
RIGHT = 16
TOP = 34
LANE_HEIGHT = 36
BAR_HEIGHT = 24
MARKS_HEIGHT = 50
AXIS_HEIGHT = 30
CHARACTER = 7.4
"""About as wide as a character of a label; a label that would not fit is replaced by a shorter one."""
STEP_US = 250_000
MARK_WIDTH = 26

SIGNS = {
    "accepted": '<path d="M-4.5 0.5 -1.5 3.5 4.5 -3.5"/>',
    "refused": '<path d="M-4.6 4.6 4.6 -4.6"/>',
    "corrupting": '<path d="M0 -5.5V1M0 4.6v.6"/>',
}


def draw(timeline: Timeline, title: str) -> str:
    return _Picture(timeline).drawn(title)


class _Picture:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._heights = [MARKS_HEIGHT if lane.marks else LANE_HEIGHT for lane in timeline.lanes]
        self._bottom = TOP + sum(self._heights)

    def drawn(self, title: str) -> str:
        parts = [*self._grid(), *self._end_of_lease()]
        top = TOP
        for lane, height in zip(self._timeline.lanes, self._heights, strict=True):
            parts += self._lane(lane, top, height)
            top += height
        size = f'viewBox="0 0 {WIDTH} {self._bottom + AXIS_HEIGHT}"'
        return f'<svg {size} role="img" aria-label="{escape(title)}">\n{_line(parts)}\n</svg>'

    def _x(self, at_us: int) -> float:
        return NAME_WIDTH + at_us / self._timeline.length_us * (WIDTH - NAME_WIDTH - RIGHT)

    def _grid(self) -> Iterator[str]:
        step_us = STEP_US
        while self._timeline.length_us > 16 * step_us:
            step_us *= 2
        for at_us in range(0, self._timeline.length_us, step_us):
            x = self._x(at_us)
            text = f"{at_us / 1_000_000:g} s"
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{self._bottom}"/>'
            yield f'<text class="tick" x="{x:.1f}" y="{self._bottom + 18}">{text}</text>'

    def _end_of_lease(self) -> Iterator[str]:
        first = self._timeline.lanes[0].spans[0]
        x = self._x(first.end_us)
        yield f'<line class="end" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{self._bottom}"/>'
        yield f'<text class="note" x="{x:.1f}" y="{TOP - 14}">the lease of {first.actor} has run out</text>'

    def _lane(self, lane: Lane, top: float, height: float) -> Iterator[str]:
        middle = top + LANE_HEIGHT / 2
        yield f'<line class="rule" x1="0" x2="{WIDTH}" y1="{top + height}" y2="{top + height}"/>'
        yield f'<text class="lane" x="0" y="{middle + 4.5:.1f}">{escape(lane.name)}</text>'
        for span in lane.spans:
            yield self._span(span, middle)
        for mark, x in zip(lane.marks, _apart([self._x(mark.at_us) for mark in lane.marks]), strict=True):
            yield _mark(mark, x, middle)

    def _span(self, span: Span, middle: float) -> str:
        x = self._x(span.start_us)
        width = max(self._x(span.end_us) - x, 1.0)
        label = next((label for label in span.labels if len(label) * CHARACTER + 14 <= width), "")
        said = f"{span.labels[0]}: {span.start_us / 1e6:.2f} s to {span.end_us / 1e6:.2f} s"
        kind = f"{span.kind} {_actor(span.actor)}"
        top = middle - BAR_HEIGHT / 2
        return (
            f'<g class="{kind}"><title>{escape(said)}</title>'
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="4"/>'
            f'<text x="{x + 8:.1f}" y="{middle + 4.5:.1f}">{escape(label)}</text></g>'
        )


def _apart(wanted: list[float]) -> list[float]:
    """So that no mark hides another: later than wanted, or earlier where the picture ends."""
    places: list[float] = []
    for x in wanted:
        places.append(max(x, places[-1] + MARK_WIDTH) if places else x)
    end = WIDTH - MARK_WIDTH / 2
    for number in reversed(range(len(places))):
        places[number] = min(places[number], end)
        end = places[number] - MARK_WIDTH
    return places


def _mark(mark: Mark, x: float, middle: float) -> str:
    said = f"{mark.label} {mark.kind} after {mark.at_us / 1e6:.2f} s"
    return (
        f'<g class="mark {mark.kind}" transform="translate({x:.1f} {middle - 2:.1f})"><title>{escape(said)}</title>'
        f'<circle r="9"/>{SIGNS[mark.kind]}<text y="25">{escape(mark.label)}</text></g>'
    )


def _actor(actor: str) -> str:
    return {"A": "a", "B": "b"}.get(actor, "other")


def _line(parts: list[str]) -> str:
    return "\n".join(parts)
