"""Is there an order of these operations that explains all that was seen? Wing and Gong's search, as Lowe improved it.

An operation took effect at one moment between its beginning and its end; one of unknown outcome at any moment after it
began, or never. The search takes, one after the other, an operation that could have come next, applies it to the model,
and goes back when it is stuck. What was tried is remembered by which operations were taken and the state they led to.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

FOREVER = 1 << 62
MOST_LOOKED_AT = 2_000_000


class Operation(Protocol):
    """One call, as the model sees it. `ended_us` is None when nobody knows whether it happened."""

    @property
    def begun_us(self) -> int: ...
    @property
    def ended_us(self) -> int | None: ...

    def apply(self, state: Any) -> Any:
        """The state after it; None when it can't have happened in this state."""


class Undecided(Exception):
    """Too many orders to look at."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """A place in the search: what was taken, the state it led to, and what is left to try there."""

    taken: int
    state: Any
    choices: tuple[int, ...]
    next: int


def is_linearizable(operations: Sequence[Operation], initial: Any = ()) -> bool:
    """Whether some order explains them. A state must be hashable, and never None."""
    ordered = sorted(operations, key=lambda operation: operation.begun_us)
    ends = [FOREVER if operation.ended_us is None else operation.ended_us for operation in ordered]
    required = sum(1 << place for place, operation in enumerate(ordered) if operation.ended_us is not None)
    seen: set[tuple[int, Any]] = {(0, initial)}
    stack = [_Frame(0, initial, _choices(ordered, ends, 0), 0)]
    while stack:
        frame = stack[-1]
        if frame.taken & required == required:
            return True
        if frame.next == len(frame.choices):
            stack.pop()
            continue
        stack[-1] = _Frame(frame.taken, frame.state, frame.choices, frame.next + 1)
        place = frame.choices[frame.next]
        state = ordered[place].apply(frame.state)
        if state is None:
            continue
        taken = frame.taken | (1 << place)
        if (taken, state) in seen:
            continue
        seen.add((taken, state))
        if len(seen) > MOST_LOOKED_AT:
            raise Undecided(f"more than {MOST_LOOKED_AT} orders of {len(ordered)} operations")
        stack.append(_Frame(taken, state, _choices(ordered, ends, taken), 0))
    return False


def _choices(ordered: Sequence[Operation], ends: Sequence[int], taken: int) -> tuple[int, ...]:
    """What could come next: began before anything that is left has ended. They are in the order of their beginnings, so
    that the search ends at the first that began too late."""
    found = []
    first_end = FOREVER
    for place in range((~taken & (taken + 1)).bit_length() - 1, len(ordered)):
        if taken >> place & 1:
            continue
        if ordered[place].begun_us > first_end:
            break
        found.append(place)
        if ends[place] < first_end:
            first_end = ends[place]
    return tuple([place for place in found if ordered[place].begun_us <= first_end])


def explain(operations: Sequence[Operation], initial: Any = ()) -> list[Operation] | None:
    """None when it is linearizable; else a smallest part that is not: without any one of these it would be.

    What something rests on stays with it (an operation may say so by `rests_on`): a read without the write that it saw
    can't be explained either, and explains nothing.
    """
    left = sorted(operations, key=lambda operation: operation.begun_us)
    if is_linearizable(left, initial):
        return None
    # The shortest beginning that can't be explained, with what came later left out; then one by one.
    low, high = 0, len(left)
    while low < high:
        middle = (low + high) // 2
        if is_linearizable(_standing(left[:middle], left), initial):
            low = middle + 1
        else:
            high = middle
    part = _standing(left[:high], left)
    place = len(part) - 1
    while place >= 0:  # from the end, so that what rests on something goes before it
        without = _standing(part[:place] + part[place + 1 :], part)
        if not is_linearizable(without, initial):
            part = without
        place = min(place, len(part)) - 1
    return part


def _standing(part: list[Operation], whole: Sequence[Operation]) -> list[Operation]:
    """Of this part, what did not lose all that it rested on in the whole."""
    rests = [operation for operation in part if any(_rests_on(operation, other) for other in whole)]
    while True:
        fallen = [operation for operation in rests if not any(_rests_on(operation, other) for other in part)]
        if not fallen:
            return part
        part = [operation for operation in part if operation not in fallen]
        rests = [operation for operation in rests if operation not in fallen]


def _rests_on(operation: Operation, other: Operation) -> bool:
    rests_on = getattr(operation, "rests_on", None)
    return rests_on is not None and bool(rests_on(other))
