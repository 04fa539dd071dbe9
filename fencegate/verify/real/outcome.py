"""What came of a cell: counts, times, and what was broken, with the history that shows it."""

from dataclasses import dataclass, field

import msgspec

from fencegate.core.errors import FencegateError
from fencegate.verify.history import History, Violation
from fencegate.verify.judge import lost_updates
from fencegate.verify.real.histories import Ledger, stale
from fencegate.verify.real.nemesis import Done
from fencegate.verify.real.record import ARMS, Arm


@dataclass(slots=True)
class ArmCount:
    """One arm, over all episodes."""

    writes: int = 0
    acknowledged: int = 0
    unknown: int = 0
    not_written: int = 0
    stale_writes: int = 0
    stale_accepted: int = 0
    lost_updates: int = 0

    @property
    def is_broken(self) -> bool:
        """Of the arm without the check: whether it shows what the check is for."""
        return self.stale_accepted > 0 or self.lost_updates > 0

    def add(self, ledger: Ledger) -> int:
        """Count an episode; how many updates it lost."""
        history = ledger.history
        self.writes += len(history.writes) + len(ledger.crossed.writes) + len(ledger.not_written)
        self.acknowledged += sum(write.told == "done" for write in history.writes)
        self.unknown += sum(write.told == "unknown" for write in history.writes)
        self.not_written += len(ledger.not_written)
        tried = stale(history) + stale(ledger.crossed)
        self.stale_writes += len(tried)
        self.stale_accepted += sum(write.told == "done" for write in tried)
        lost = len(lost_updates(history))
        self.lost_updates += lost
        return lost


@dataclass(frozen=True, slots=True)
class Spell:
    """A fault as it is drawn: seconds since the cell began."""

    kind: str
    words: str
    begun_s: float
    ended_s: float
    recovered_s: float | None
    """How long after its end the next fenced write was acknowledged."""


@dataclass(slots=True)
class Broken:
    """An episode that broke a promise."""

    episode: int
    arm: Arm
    violations: list[Violation]
    history: History
    faults: list[str]


@dataclass(slots=True)
class Outcome:
    """A cell, as far as it came."""

    store: str
    resource: str
    episodes: int = 0
    operations: int = 0
    counts: dict[Arm, ArmCount] = field(default_factory=lambda: {arm: ArmCount() for arm in ARMS})
    spells: list[Spell] = field(default_factory=list)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """Of each acknowledged fenced write: when it began, and how long it took; seconds."""
    lost: dict[Arm, list[tuple[float, int]]] = field(default_factory=lambda: {arm: [] for arm in ARMS})
    """After each episode: when, and how many updates it had lost."""
    broken: list[Broken] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    failed: str = ""
    """Why it broke off, or was not begun."""
    error: FencegateError | None = None
    missing: bool = False
    """Whether it was not begun because a server is not on this machine."""
    asked_s: float = 0.0
    took_s: float = 0.0
    """With starting and ending."""

    @property
    def name(self) -> str:
        return f"{self.resource}, locks in {self.store}"

    @property
    def fenced(self) -> ArmCount:
        return self.counts["fenced"]

    @property
    def unfenced(self) -> ArmCount:
        return self.counts["unfenced"]

    @property
    def ok(self) -> bool:
        return not self.broken and not self.fenced.stale_accepted and not self.fenced.lost_updates

    @property
    def proved(self) -> bool:
        """Nothing was broken, though the faults were such that without the check stale writes got in."""
        return self.ok and not self.failed and self.unfenced.is_broken and self.fenced.stale_writes > 0

    @property
    def why_not(self) -> str:
        if self.failed:
            return self.failed
        if not self.ok:
            return "a promise was broken"
        if not self.unfenced.is_broken:
            return "proves nothing: without the check no stale write got in either"
        if not self.fenced.stale_writes:
            return "proves nothing: no stale write was tried"
        return ""

    def recoveries(self) -> list[float]:
        return sorted(spell.recovered_s for spell in self.spells if spell.recovered_s is not None)


def spells(done: list[Done], fenced: History, began_us: int) -> list[Spell]:
    """The faults of an episode, with how long it took until writes went on."""
    ends = sorted(write.ended_us for write in fenced.writes if write.told == "done" and write.ended_us is not None)
    found = []
    for each in done:
        after = next((at_us for at_us in ends if at_us > each.ended_us), None)
        recovered_s = None if after is None else (after - each.ended_us) / 1e6
        begun_s, ended_s = (each.begun_us - began_us) / 1e6, (each.ended_us - began_us) / 1e6
        found.append(Spell(each.kind, each.words, begun_s, ended_s, recovered_s))
    return found


def saved(outcome: Outcome, broken: Broken, seed: int) -> bytes:
    """The history of a broken episode, to be looked at."""
    document = {
        "seed": seed,
        "store": outcome.store,
        "resource": outcome.resource,
        "episode": broken.episode,
        "arm": broken.arm,
        "violations": [str(each) for each in broken.violations],
        "faults": broken.faults,
        "history": msgspec.to_builtins(broken.history),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)
