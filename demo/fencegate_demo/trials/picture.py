"""The timeline of a use, about the lock over which its worker was stopped: who held it, and what the resource said."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fencegate_demo.events import Paused, Resumed
from fencegate_demo.timeline import Lane, Mark, MarkKind, Span, SpanKind, Timeline, TokenNames
from fencegate_demo.trials.events import Began, Done, Event, Killed, Stumbled, Touched, only
from fencegate_demo.trials.stage import ROLES, SHORT_S
from fencegate_demo.trials.verdict import stale_writes

TAIL_US = 1_200_000
"""How long the picture goes on after the last event: the writes come close together at the end, and need room."""
KILLED_US = 400_000
"""How long the end of a killed worker is shown."""


def tokens_of(events: Iterable[Event]) -> set[int]:
    return {touch.token for touch in only(Touched, events)}


def draw_up(arms: Sequence[Sequence[Event]], name: TokenNames) -> list[Timeline]:
    """The pictures of the arms, all of the same length, so that they can be compared."""
    timelines = [_Frame.of(events, name).drawn() for events in arms]
    length_us = max(timeline.length_us for timeline in timelines)
    return [replace(timeline, length_us=length_us) for timeline in timelines]


@dataclass(frozen=True, slots=True)
class _Frame:
    events: Sequence[Event]
    name: TokenNames
    start_us: int
    end_us: int
    touched: Sequence[Touched]
    """What was done under the lock that the picture is about."""

    @classmethod
    def of(cls, events: Sequence[Event], name: TokenNames) -> "_Frame":
        (pause,) = only(Paused, events, "A")
        before = [touch for touch in only(Touched, events, "A") if touch.at_us <= pause.at_us]
        touched = [touch for touch in only(Touched, events) if touch.lock_key == before[-1].lock_key]
        start_us = min(began.at_us for began in only(Began, events))
        return cls(events, name, start_us, max(event.at_us for event in events) + TAIL_US, touched)

    def drawn(self) -> Timeline:
        lanes = [
            Lane("lock", self._leases()),
            *(Lane(f"worker {actor}", self._worker(actor)) for actor in ROLES),
            Lane("fence", self._seen()),
            Lane("resource", (), self._writes()),
        ]
        return Timeline(self.end_us - self.start_us, lanes)

    def _leases(self) -> list[Span]:
        first = self._first_touches()
        ends_us = [*(touch.at_us for touch in first[1:]), self.end_us]
        return [
            self._span(
                touch.at_us,
                min(next_us, self._over_us(touch)),
                "lease",
                touch.actor,
                f"{touch.actor} holds it · token {self.name(touch.token)}",
                f"{touch.actor} · {self.name(touch.token)}",
                touch.actor,
            )
            for touch, next_us in zip(first, ends_us, strict=True)
        ]

    def _over_us(self, touch: Touched) -> int:
        """When the lease under which this was done was over: given back, or not renewed any more."""
        stops: list[Event] = [*only(Paused, self.events, touch.actor), *only(Killed, self.events, touch.actor)]
        stops_us = [stop.at_us for stop in stops if stop.at_us >= touch.at_us]
        if stops_us and touch.actor in ("A", "K"):
            return min(stops_us) + int(SHORT_S * 1_000_000)
        return max(each.at_us for each in self.touched if each.token == touch.token)

    def _seen(self) -> list[Span]:
        """The highest token that the resource has been shown, and by whom."""
        first = [touch for touch in self._first_touches() if touch.accepted]
        ends_us = [*(touch.at_us for touch in first[1:]), self.end_us]
        return [
            self._span(
                touch.at_us, end_us, "seen", touch.actor, f"has seen {self.name(touch.token)}", self.name(touch.token)
            )
            for touch, end_us in zip(first, ends_us, strict=True)
        ]

    def _first_touches(self) -> list[Touched]:
        """The first of each token, in their order."""
        first: dict[int, Touched] = {}
        for touch in self.touched:
            first.setdefault(touch.token, touch)
        return [first[token] for token in sorted(first)]

    def _worker(self, actor: str) -> list[Span]:
        """Waits for the lock, runs, is stopped for a while or killed."""
        (began,) = only(Began, self.events, actor)
        killed, touched = only(Killed, self.events, actor), only(Touched, self.events, actor)
        ends: list[Event] = [*killed, *only(Done, self.events, actor), *only(Stumbled, self.events, actor)]
        end_us = ends[0].at_us if ends else self.end_us
        in_us = touched[0].at_us if touched else end_us
        waits = ("starts",) if actor == "A" else ("waits for the lock", "waits")  # nobody is there before A
        spans = [self._span(began.at_us, in_us, "waits", actor, *waits)]
        if killed:
            return [*spans, self._span(in_us, end_us + KILLED_US, "runs", actor, "killed (SIGKILL)", "killed")]
        for pause, resumed in zip(only(Paused, self.events, actor), only(Resumed, self.events, actor), strict=False):
            told = f"stopped for {(resumed.at_us - pause.at_us) / 1e6:.1f} s (SIGSTOP)"
            spans.append(self._span(in_us, pause.at_us, "runs", actor, "runs"))
            spans.append(self._span(pause.at_us, resumed.at_us, "paused", actor, told, "stopped"))
            in_us = resumed.at_us
        return [*spans, self._span(in_us, end_us, "runs", actor, "runs")]

    def _writes(self) -> list[Mark]:
        stale = stale_writes(self.touched)

        def kind(write: Touched) -> MarkKind:
            if not write.accepted:
                return "refused"
            return "corrupting" if write in stale else "accepted"

        return [
            Mark(write.at_us - self.start_us, kind(write), write.actor, write.actor)
            for write in self.touched
            if write.kind == "write"
        ]

    def _span(self, start_us: int, end_us: int, kind: SpanKind, actor: str, *labels: str) -> Span:
        end_us = min(end_us, self.end_us)
        return Span(start_us - self.start_us, end_us - self.start_us, kind, actor, labels)
