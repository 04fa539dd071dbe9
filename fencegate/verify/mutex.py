"""The model of a fenced mutex: who may be told that they hold it, with which token, as operations to find an order of.

A hold is two operations: the acquire, somewhere between being asked for and being told; and its end, at the moment when
its holder stopped believing in it. (When the lock service ended it is nobody's business here: what counts is that no
two believe at once.) An acquire that was asked for and never answered is no operation: nobody believes in it, and all
that it may have done is to use up a token.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fencegate.verify.history import Hold
from fencegate.verify.linearizable import Operation

State = tuple[int, bool, frozenset[int]]
"""The last token, whether whoever holds it shares it, and the holders, by number."""
FREE: State = (0, False, frozenset())


@dataclass(frozen=True, slots=True)
class AcquireOf:
    """Somebody was told that they hold it. With no end it may have happened or not, and is not required."""

    client: str
    number: int
    token: int
    begun_us: int
    ended_us: int | None
    shared: bool = False

    def apply(self, state: tuple[()] | State) -> State | None:
        last, is_shared, holders = state or FREE
        if self.shared:
            fits = is_shared or not holders
            rises = self.token >= last if holders else self.token > last or (is_shared and self.token == last)
        else:
            fits, rises = not holders, self.token > last
        return (max(last, self.token), self.shared, holders | {self.number}) if fits and rises else None

    def rests_on(self, other: object) -> bool:
        """On its end: without that it would be held for ever."""
        return isinstance(other, EndOf) and other.number == self.number

    def __str__(self) -> str:
        how = "shares it" if self.shared else "has it"
        return f"{self.client} {how} with {self.token}, asked at {self.begun_us}, told at {self.ended_us}"


@dataclass(frozen=True, slots=True)
class EndOf:
    """A holder stopped believing: it began to release it, or its lease ran out by its own clock, or it died."""

    client: str
    number: int
    token: int
    begun_us: int
    ended_us: int | None

    def apply(self, state: tuple[()] | State) -> State | None:
        last, is_shared, holders = state or FREE
        return (last, is_shared, holders - {self.number}) if self.number in holders else None

    def rests_on(self, other: object) -> bool:
        return isinstance(other, AcquireOf) and other.number == self.number

    def __str__(self) -> str:
        return f"{self.client} ({self.token}) believes in it until {self.begun_us}"


def mutexes(holds: Iterable[Hold]) -> dict[str, list[Operation]]:
    """The operations on each lock."""
    found: dict[str, list[Operation]] = defaultdict(list)
    for number, hold in enumerate(holds):
        until_us = hold.believed_until_us
        # Over before it was told, for a holder who was stopped meanwhile: nobody ever believed in it.
        over_us = max(until_us, hold.granted_us)
        acquire = AcquireOf(hold.client, number, hold.token, hold.asked_us, hold.granted_us, hold.shared)
        found[hold.lock_key] += [acquire, EndOf(hold.client, number, hold.token, until_us, over_us)]
    return found
