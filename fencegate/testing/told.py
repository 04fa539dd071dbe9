"""What callers were told about their locks, and the judge of it: whatever happened, no promise may be broken.

Times are microseconds of one monotonic clock, read by the callers themselves: before they asked, and after they heard.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter

from fencegate.core.model import Hold


@dataclass(slots=True, eq=False)
class Grant:
    """A lock that a caller was told to hold, from `told_us` until it let go or its own time was up."""

    lock_key: str
    request: str
    hold: Hold
    asked_us: int
    """When it asked for the first time."""
    told_us: int
    until_us: int
    """When it stops to believe that it holds the lock: counted from before the call that granted or renewed it."""
    through: str = ""
    """The replica that said so."""

    def __str__(self) -> str:
        return (
            f"{self.lock_key} token {self.hold.token} request {self.request}: asked {self.asked_us},"
            f" held {self.told_us} to {self.until_us}"
        )


@dataclass(slots=True)
class Told:
    """See the head of this file."""

    grants: list[Grant] = field(default_factory=list)
    outages: list[tuple[int, int]] = field(default_factory=list)
    """From when to when nothing reached the store: who asked and heard within can't have been granted anything."""
    clocks_moved: bool = False
    """Leases ended sooner or later than was said, so that only the tokens keep holders apart."""
    _by_token: dict[tuple[str, int], Grant] = field(default_factory=dict)
    _by_request: dict[str, Grant] = field(default_factory=dict)

    def granted(self, grant: Grant) -> None:
        """Somebody was told, for the first time or again, that they hold a lock."""
        before = self._by_request.setdefault(grant.request, grant)
        assert (before.hold.token, before.hold.who) == (grant.hold.token, grant.hold.who), (
            f"one request was granted twice: {before} and {grant}"
        )
        other = self._by_token.setdefault((grant.lock_key, grant.hold.token), grant)
        assert other.request == grant.request, f"two grants have one token: {other} and {grant}"
        if before is grant:
            self.grants.append(grant)

    def judge(self) -> None:
        """Fails when what was told can't be true all together."""
        by_key = defaultdict(list)
        for grant in self.grants:
            by_key[grant.lock_key].append(grant)
        for grants in by_key.values():
            _judge_order(grants)
            if not self.clocks_moved:
                _judge_exclusion(grants)
        for begin_us, end_us in self.outages:
            for grant in self.grants:
                within = begin_us <= grant.asked_us and grant.told_us <= end_us
                assert not within, f"granted while the store was out of reach ({begin_us} to {end_us}): {grant}"


def _judge_order(grants: list[Grant]) -> None:
    """Who was told before another asked has the smaller token."""
    told = sorted(grants, key=attrgetter("told_us"))
    highest: Grant | None = None
    number = 0
    for grant in sorted(grants, key=attrgetter("asked_us")):
        while told[number].told_us < grant.asked_us:
            if highest is None or told[number].hold.token > highest.hold.token:
                highest = told[number]
            number += 1
        assert highest is None or highest.hold.token < grant.hold.token, f"tokens went back: {highest}, then {grant}"


def _judge_exclusion(grants: list[Grant]) -> None:
    """Nobody believes to hold a lock while another does."""
    held = [grant for grant in grants if grant.told_us < grant.until_us]
    held.sort(key=attrgetter("told_us"))
    for before, after in pairwise(held):
        assert before.until_us <= after.told_us, f"two held one lock at once: {before}, and {after}"
