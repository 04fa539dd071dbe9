"""What goes wrong in an episode, drawn from a seed: the same seed, cell and number give the same faults."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from fencegate.clock import seeded
from fencegate.verify.real.record import ARMS

FIRST_S = 1.0
PAUSE_EVERY_S = 4.0
FEWEST, MOST = 2, 5
LONG_S = (2.4, 3.0, 3.6)
"""Longer than any lease that a worker takes."""
SHORT_S = (0.2, 0.8, 2.0)
LINE_FAULTS = ("delay", "drop", "cut", "cut after commit", "half-open: no requests", "half-open: no answers", "hold")
MOVES_S = (-3.5, -0.8, 0.8, 3.5)

WEIGHTS: Final = {
    "pause worker": 1,
    "kill worker": 1,
    "pause gateway": 2,
    "stop gateway in mid-write": 4,
    "kill gateway": 2,
    "pause replica": 2,
    "kill replica": 2,
    "line worker-replica": 2,
    "line worker-gateway": 2,
    "pause store": 2,
    "kill store": 2,
    "line replica-store": 3,
    "pause resource": 2,
    "kill resource": 2,
    "line gateway-resource": 3,
    "full disk of replica": 2,
    "full disk of gateway": 2,
}
"""How often each kind is drawn among those that a cell can do; those of APART come in every other episode."""
ALWAYS: Final = (
    "pause worker",
    "kill worker",
    "pause gateway",
    "stop gateway in mid-write",
    "kill gateway",
    "pause replica",
    "kill replica",
    "line worker-replica",
    "line worker-gateway",
)
APART: Final = ("clock of replica", "clock of store", "failover with loss")
"""At most one of these in an episode: after lost commits order rests on the clocks, which must not go back. And none in
every other one: where there is one, nobody judges who believed to hold a lock."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: `which` picks the target among those that are there."""

    at_s: float
    kind: str
    for_s: float
    which: int
    how: str = ""
    by_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.at_s:.2f} s: {self.kind}{': ' + self.how if self.how else ''} for {self.for_s:.1f} s"


def storm(seed: str, can: Iterable[str], length_s: float) -> tuple[Fault, ...]:
    """The faults of an episode, in order. A holder of each arm is paused every few seconds, whatever else goes wrong:
    that is what it is all about."""
    chance = seeded(seed)
    apart, able = sorted(set(can) & set(APART)), sorted(set(can) - set(APART))
    last_s = length_s - LONG_S[0]
    found = []
    at_s = FIRST_S
    while at_s < last_s:
        found += [_drawn(chance, "pause holder", at_s, arm) for arm in ARMS]
        at_s += PAUSE_EVERY_S * (0.8 + 0.4 * chance.random())
    others = chance.choices(able, [WEIGHTS[kind] for kind in able], k=chance.randint(FEWEST, MOST))
    if apart and chance.random() < 0.5:
        others[0] = chance.choice(apart)
    found += [_drawn(chance, kind, FIRST_S + chance.random() * (last_s - FIRST_S)) for kind in others]
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _drawn(chance: Any, kind: str, at_s: float, how: str = "") -> Fault:
    long = kind.startswith(("pause", "stop")) or chance.random() < 0.2
    if kind.startswith("line"):
        how = chance.choice(LINE_FAULTS)
    return Fault(
        at_s=at_s,
        kind=kind,
        for_s=chance.choice(LONG_S if long else SHORT_S),
        which=chance.randrange(1 << 30),
        how=how,
        by_s=chance.choice(MOVES_S) if kind.startswith("clock") else 0.0,
    )
