"""The verdict: computed from what was sent, what was acknowledged, and what the resource holds at the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fencegate_demo.events import Event, Read, Wrote, only
from fencegate_demo.holdings import Holding

SUCCESSOR = "B"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one arm."""

    stale_writes: int
    """Writes that were answered when a holder with a higher token had already read or written."""
    stale_accepted: int
    """Those of them that were acknowledged, or are in the resource."""
    lost: tuple[str, ...]
    """Updates that were acknowledged, to whomever, and are not in the resource."""
    holding: Holding

    def as_json(self) -> dict[str, Any]:
        return {
            "staleWrites": self.stale_writes,
            "staleAccepted": self.stale_accepted,
            "lostUpdates": len(self.lost),
            "finalOwner": self.holding.owner,
            "finalUpdates": self.holding.updates,
        }


def judge(events: Sequence[Event], holding: Holding) -> Verdict:
    stale = stale_writes(events)
    accepted = [write for write in stale if write.acknowledged or write.update in holding.updates]
    lost = tuple(
        write.update for write in only(Wrote, events) if write.acknowledged and write.update not in holding.updates
    )
    return Verdict(len(stale), len(accepted), lost, holding)


def stale_writes(events: Sequence[Event]) -> list[Wrote]:
    """Writes with a token below that of a holder who had read before, or had a write accepted.

    They change what that holder has read, whether or not it had shown its token to the resource by then. This rests on
    who was answered when, not on what the gateway says about staleness: that is what is on trial.
    """
    seen: list[Read | Wrote] = [*only(Read, events), *(write for write in only(Wrote, events) if write.acknowledged)]
    return [
        write
        for write in only(Wrote, events)
        if any(other.token > write.token and other.at_us < write.at_us for other in seen)
    ]


def is_proved(fenced: Verdict, unfenced: Verdict) -> bool:
    """With the check nothing stale gets in and nothing is lost; without it, on the same workload, both happen.

    What B wrote must be there: a resource that refuses everybody proves nothing.
    """
    return (
        fenced.stale_writes > 0
        and fenced.stale_accepted == 0
        and not fenced.lost
        and fenced.holding.owner == SUCCESSOR
        and unfenced.stale_accepted > 0
        and len(unfenced.lost) > 0
    )
