"""What nodes tell of commits, until enough of them did: in the order in which the commits of one register were made.

Whatever comes after another in a register is heard of after it, from one node at least. So when a commit is to be told
while an older one of its register waits, neither is told: whoever follows looks for itself, and does so again if the
older one lands after all.
"""

from collections.abc import Callable, Sequence

import msgspec

from fencegate.clock import Clock

KEEP = 20_000
"""How many commits are remembered."""
GIVE_UP_AFTER_US = 5_000_000
OLD_AFTER_US = 30_000_000
"""More than two clocks may differ that are used."""

Lines = list[tuple[str, bytes]]


class Hint(msgspec.Struct, array_like=True, frozen=True):
    """What goes with a value: the lines of the commit that made it."""

    commit_id: str
    register: str
    lines: Lines
    made_us: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Hint).decode


def hint(commit_id: str, register: str, lines: Sequence[tuple[str, bytes]], made_us: int = 0) -> bytes:
    """A hint as bytes; none where there is nothing to tell."""
    return _encode(Hint(commit_id, register, list(lines), made_us)) if lines else b""


class _Waiting:
    """A commit that too few nodes told of yet. `lines` is None when it is too late to tell them in order."""

    __slots__ = ("lines", "register", "since_us")

    def __init__(self, since_us: int, register: str, lines: Lines) -> None:
        self.since_us = since_us
        self.register = register
        self.lines: Lines | None = lines


class Untold:
    """See the head of this file. `tell` is given lines, `lost` is called where some can't be told."""

    def __init__(self, majority: int, clock: Clock, tell: Callable[[Lines], None], lost: Callable[[], None]) -> None:
        self._majority = majority
        self._clock = clock
        self._tell = tell
        self._lost = lost
        self._seen: dict[str, set[int]] = {}
        """The nodes that told of a commit."""
        self._waiting: dict[str, _Waiting] = {}
        self._order: dict[str, dict[str, None]] = {}
        """Those of each register that may still be told, oldest first."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def heard(self, number: int, packed: bytes) -> None:
        """A node told of a commit, maybe not for the first time."""
        hint = _decode(packed)
        nodes = self._seen.get(hint.commit_id)
        if nodes is None:
            nodes = self._seen[hint.commit_id] = set()
            waiting = self._waiting[hint.commit_id] = _Waiting(self._clock.monotonic_us(), hint.register, hint.lines)
            if 0 < hint.made_us < self._clock.now_us() - OLD_AFTER_US:
                waiting.lines = None  # an old value was brought to nodes that had missed it: it may have been told
            else:
                self._order.setdefault(hint.register, {})[hint.commit_id] = None
            self._bound()
        nodes.add(number)
        if len(nodes) >= self._majority:
            self.landed(hint.commit_id)

    def landed(self, commit_id: str) -> None:
        """Tell of it, unless that was done."""
        waiting = self._waiting.get(commit_id)
        if waiting is None:
            return
        older = []
        for other in self._order.get(waiting.register, ()):
            if other == commit_id:
                break
            older.append(other)
        self._drop(commit_id)
        if waiting.lines is not None and not older:
            self._tell(waiting.lines)
            return
        for other in older if waiting.lines is not None else ():
            self._waiting[other].lines = None
            self._unorder(other)
        self._lost()

    def older_than(self, microseconds: int) -> dict[str, str]:
        """Commits that have waited for so long, and their registers."""
        before_us = self._clock.monotonic_us() - microseconds
        return {name: found.register for name, found in self._waiting.items() if found.since_us <= before_us}

    def give_up(self) -> None:
        """What is not found after so long never landed; or so much came after it that nobody can tell."""
        old = self.older_than(GIVE_UP_AFTER_US)
        for commit_id in old:
            self._drop(commit_id)
            self._seen.pop(commit_id, None)  # it is heard of anew when somebody takes it up
        if old:
            self._lost()

    def _drop(self, commit_id: str) -> bool:
        if commit_id not in self._waiting:
            return False
        self._unorder(commit_id)
        del self._waiting[commit_id]
        return True

    def _unorder(self, commit_id: str) -> None:
        register = self._waiting[commit_id].register
        order = self._order.get(register, {})
        order.pop(commit_id, None)
        if not order:
            self._order.pop(register, None)

    def _bound(self) -> None:
        if len(self._seen) > KEEP:
            for old in list(self._seen)[: KEEP // 4]:
                del self._seen[old]
                if self._drop(old):
                    self._lost()
