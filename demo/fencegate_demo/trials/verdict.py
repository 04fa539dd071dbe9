"""The verdict on a use: what was tried with a stale token, what came of it, and what the resource holds in the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fencegate_demo.trials.events import Event, Killed, Stumbled, Touched, only
from fencegate_demo.trials.use import Findings


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one arm."""

    stale_writes: int
    """Writes that were answered when the resource had already seen a higher token of the same lock."""
    stale_accepted: int
    """Those of them that the resource did."""
    killed: int
    findings: Findings

    @property
    def wrong(self) -> Sequence[str]:
        return self.findings.wrong

    def as_json(self) -> dict[str, Any]:
        return {
            "staleWrites": self.stale_writes,
            "staleAccepted": self.stale_accepted,
            "killed": self.killed,
            **self.findings.facts,
            "wrong": list(self.wrong),
        }


def judge(events: Sequence[Event], findings: Findings) -> Verdict:
    stale = stale_writes(events)
    stumbled = [f"{each.actor} failed: {each.why}" for each in only(Stumbled, events)]
    return Verdict(
        len(stale),
        sum(write.accepted for write in stale),
        len(only(Killed, events)),
        Findings(findings.facts, [*findings.wrong, *stumbled]),
    )


def stale_writes(events: Sequence[Event]) -> list[Touched]:
    """Writes with a token below one that the resource had accepted before, under the same lock.

    This rests on who was answered when, not on what the resource says about staleness: that is what is on trial.
    """
    touched = only(Touched, events)
    return [
        write
        for write in touched
        if write.kind == "write"
        and any(
            other.accepted
            and other.lock_key == write.lock_key
            and other.token > write.token
            and other.at_us < write.at_us
            for other in touched
        )
    ]


def is_proved(fenced: Verdict, unfenced: Verdict) -> bool:
    """With the check nothing stale gets in and nothing is wrong; without it, on the same workload, both happen."""
    return (
        fenced.killed > 0
        and fenced.stale_writes > 0
        and fenced.stale_accepted == 0
        and not fenced.wrong
        and unfenced.stale_accepted > 0
        and len(unfenced.wrong) > 0
    )
