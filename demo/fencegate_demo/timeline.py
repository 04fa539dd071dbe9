"""The timeline as data, made from what happened: lanes with spans and marks. Terminal and report draw the same one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fencegate_demo.events import Event, Granted, Paused, Read, Released, Resumed, Wrote, only
from fencegate_demo.verdict import stale_writes

SpanKind = Literal["lease", "runs", "waits", "paused", "seen"]
MarkKind = Literal["accepted", "refused", "corrupting"]
TAIL_US = 400_000
"""How long the picture goes on after the last event, so that its labels have room."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasts. `labels` say what, the longest first: show the first that fits."""

    start_us: int
    end_us: int
    kind: SpanKind
    actor: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A write, at the time of its answer."""

    at_us: int
    kind: MarkKind
    actor: str
    label: str


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    spans: Sequence[Span] = ()
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """Times count from its start."""

    length_us: int
    lanes: Sequence[Lane]


class TokenNames:
    """Tokens for people: without the digits that all of them start with, so that their order can still be seen."""

    def __init__(self, tokens: Iterable[int]) -> None:
        digits = [str(token) for token in tokens]
        self.hidden = ""
        for column in zip(*digits, strict=False):
            if len(set(column)) > 1:
                break
            self.hidden += column[0]
        if digits and len(self.hidden) > len(digits[0]) - 4:
            self.hidden = self.hidden[:-4]

    def __call__(self, token: int) -> str:
        return "…" + str(token).removeprefix(self.hidden) if self.hidden else str(token)

    @property
    def legend(self) -> str:
        return f"fencing tokens are shown without the {self.hidden} that they all start with" if self.hidden else ""


def tokens_of(events: Iterable[Event]) -> set[int]:
    return {event.token for event in only(Granted, events)}


def draw_up(arms: Sequence[Sequence[Event]], name: TokenNames) -> list[Timeline]:
    """The pictures of the arms, all of the same length, so that they can be compared."""
    timelines = [_draw_up(events, name) for events in arms]
    length_us = max(timeline.length_us for timeline in timelines)
    return [replace(timeline, length_us=length_us) for timeline in timelines]


def _draw_up(events: Sequence[Event], name: TokenNames) -> Timeline:
    """Who held the lock, who was stopped, who wrote, and what the resource made of it."""
    start_us = min(grant.asked_us for grant in only(Granted, events))
    end_us = max(event.at_us for event in events) + TAIL_US
    frame = _Frame(events, name, start_us, end_us)
    gateways = sorted({pause.actor for pause in only(Paused, events)} - {"A", "B"})
    lanes = [
        Lane("lock", frame.leases()),
        Lane("holder A", frame.holder("A")),
        *(Lane(gateway, frame.paused(gateway)) for gateway in gateways),
        Lane("holder B", frame.holder("B")),
        Lane("fence", frame.seen()),
        Lane("resource", (), frame.writes()),
    ]
    return Timeline(end_us - start_us, lanes)


@dataclass(frozen=True, slots=True)
class _Frame:
    events: Sequence[Event]
    name: TokenNames
    start_us: int
    end_us: int

    def leases(self) -> list[Span]:
        return [
            self._span(
                grant.at_us,
                min(grant.until_us, self._gone_us(grant.actor)),
                "lease",
                grant.actor,
                f"{grant.actor} holds it · token {self.name(grant.token)}",
                f"{grant.actor} · {self.name(grant.token)}",
                grant.actor,
            )
            for grant in only(Granted, self.events)
        ]

    def seen(self) -> list[Span]:
        """The highest token that the resource has been shown, and by whom: in a claim, a fenced read or a write."""
        first = [self._first_shown(grant) for grant in only(Granted, self.events)]
        ends_us = [*(shown.at_us for shown in first[1:]), self.end_us]
        return [
            self._span(
                shown.at_us, end_us, "seen", shown.actor, f"has seen {self.name(shown.token)}", self.name(shown.token)
            )
            for shown, end_us in zip(first, ends_us, strict=True)
        ]

    def _first_shown(self, grant: Granted) -> Granted | Read | Wrote:
        reads = [read for read in only(Read, self.events, grant.actor) if read.fenced]
        writes = [write for write in only(Wrote, self.events, grant.actor) if write.acknowledged]
        shown: list[Granted | Read | Wrote] = [*([grant] if grant.claimed else []), *reads, *writes]
        return min(shown, key=lambda event: event.at_us)

    def holder(self, actor: str) -> list[Span]:
        """Waits for the lock, then runs; a pause, and a wait for an answer that is long, are cut out of that."""
        (grant,) = only(Granted, self.events, actor)
        gaps = [*self.paused(actor), *self._unanswered(actor)]
        spans = [self._span(grant.asked_us, grant.at_us, "waits", actor, "waits for the lock", "waits")]
        at_us = grant.at_us - self.start_us
        for gap in sorted(gaps, key=lambda span: span.start_us):
            spans += [self._runs(actor, at_us, gap.start_us), gap]
            at_us = gap.end_us
        return [*spans, self._runs(actor, at_us, self._gone_us(actor) - self.start_us, late=bool(gaps))]

    def _gone_us(self, actor: str) -> int:
        """When this holder was done; one that never released goes on believing."""
        return next((event.at_us for event in only(Released, self.events, actor)), self.end_us)

    def paused(self, actor: str) -> list[Span]:
        pauses, ends = only(Paused, self.events, actor), only(Resumed, self.events, actor)
        return [
            self._span(
                pause.at_us,
                end.at_us,
                "paused",
                actor,
                f"stopped for {(end.at_us - pause.at_us) / 1e6:.1f} s (SIGSTOP)",
                "stopped",
            )
            for pause, end in zip(pauses, ends, strict=True)
        ]

    def _unanswered(self, actor: str) -> list[Span]:
        """Writes that were in a gateway while it was stopped."""
        gateway_pauses = [pause for pause in only(Paused, self.events) if pause.actor not in ("A", "B")]
        return [
            self._span(write.sent_us, write.at_us, "waits", actor, f"has sent {write.update}, no answer yet", "waits")
            for write in only(Wrote, self.events, actor)
            if any(write.sent_us < pause.at_us < write.at_us for pause in gateway_pauses)
        ]

    def writes(self) -> list[Mark]:
        stale = stale_writes(self.events)

        def kind(write: Wrote) -> MarkKind:
            if not write.acknowledged:
                return "refused"
            return "corrupting" if write in stale else "accepted"

        return [
            Mark(write.at_us - self.start_us, kind(write), write.actor, write.update)
            for write in only(Wrote, self.events)
        ]

    def _runs(self, actor: str, start_us: int, end_us: int, *, late: bool = False) -> Span:
        labels = ("believes that it still holds the lock", "believes it holds", "runs") if late else ("runs",)
        return Span(start_us, end_us, "runs", actor, labels)

    def _span(self, start_us: int, end_us: int, kind: SpanKind, actor: str, *labels: str) -> Span:
        end_us = min(end_us, self.end_us)
        return Span(start_us - self.start_us, end_us - self.start_us, kind, actor, labels)
