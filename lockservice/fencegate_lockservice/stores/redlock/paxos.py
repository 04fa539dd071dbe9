"""CASPaxos, without any I/O: how one register is read, compared and written over independent nodes.

A node keeps, for each register, the highest ballot that it promised and the value that it accepted last, with the
ballot of that. A proposer has a majority promise a ballot, takes the value of the highest ballot among the answers,
applies its edit to it, and has a majority accept the result. Two majorities share a node, so whatever a majority
accepted is seen by every later proposer.

- A ballot is made by one proposer, for one value. It is text that sorts: microseconds, raised above all that was seen,
  then the proposer's own digits. No safety rests on the clock; a ballot that follows it is rarely refused.
- A node that accepts a ballot promises the proposer's next one in the same step. So whoever wrote a register last
  writes it again in one round (`Standing`).
- A value that only a minority accepted may be taken up by anybody later. So a proposal that was sent and not accepted
  by a majority is neither done nor refused, until a later value is there which tells of its past (`Edit.judge`); or
  all nodes said that they did nothing. That rests on an Accept reaching a node once at most, as it does on one line.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

NONE = ""
"""The ballot of a register that was never accepted."""


class Ballots:
    """The ballots of one proposer: each is given out once, and above all that were seen."""

    def __init__(self, proposer: int, now_us: Callable[[], int]) -> None:
        self._proposer = f"{proposer % 10**16:016d}"
        self._now_us = now_us
        self._last = 0

    def next(self) -> str:
        self._last = max(self._last + 1, self._now_us())
        return f"{self._last:016d}.{self._proposer}"

    def saw(self, ballot: str) -> None:
        self._last = max(self._last, int(ballot.partition(".")[0] or 0))


# --- what is said between a proposer and the nodes -------------------------------------------------------------------


class Prepare(NamedTuple):
    """Promise to accept nothing below this ballot, and tell what was accepted last."""

    ballot: str


class Accept(NamedTuple):
    """Accept this, unless a higher ballot was promised; and promise the next ballot of the same proposer."""

    ballot: str
    next_ballot: str
    value: bytes
    hint: bytes
    """What followers are told of this value."""


class Promised(NamedTuple):
    ballot: str
    value: bytes
    hint: bytes


class Accepted(NamedTuple):
    """The node accepted it."""


class Refused(NamedTuple):
    """The node promised this higher ballot to somebody, and did nothing."""

    promised: str


class Lost(NamedTuple):
    """The node did not answer: it may have done what it was asked."""


class Absent(NamedTuple):
    """The node was not asked, or said that it does not vote for us: it did nothing."""


Answer = Promised | Accepted | Refused | Lost | Absent


# --- a proposal ------------------------------------------------------------------------------------------------------


class Fit(Enum):
    """How an edit finds a value."""

    FITS = "it can be applied"
    THERE = "it was applied already, or there is nothing to apply"
    NEVER = "it does not fit, and was never applied"
    UNKNOWN = "it does not fit, and may have been applied before what is there now"


class Edit(Protocol):
    """What a proposal does to the value of a register (None: it has none yet)."""

    def judge(self, value: bytes | None) -> Fit: ...

    def apply(self, value: bytes | None) -> tuple[bytes, bytes]:
        """The new value, and the hint that goes with it. From now on, others may come to see it."""

    def withdraw(self) -> None:
        """What was applied last was accepted by no node, and never will be."""


class Standing(NamedTuple):
    """A majority has promised this ballot to us and accepted this value: the next proposal needs no prepare."""

    ballot: str
    value: bytes | None


class Settled(NamedTuple):
    """The end of a proposal. Whatever was found is accepted by a majority."""

    fit: Fit
    standing: Standing | None


class Beaten(NamedTuple):
    """No majority answers yes. With `rivals`, somebody else is at work: try again after a little while."""

    rivals: bool


Step = Prepare | Accept | Settled | Beaten


class Proposal:
    """One edit of one register, on its way through the nodes. Tell it every answer to its last message."""

    def __init__(self, nodes: int, edit: Edit, ballots: Ballots) -> None:
        self._nodes = nodes
        self._majority = nodes // 2 + 1
        self._edit = edit
        self._ballots = ballots
        self._asked: Prepare | Accept = Prepare(NONE)
        self._promises: list[Promised] = []
        self._yes: set[int] = set()
        self._no: set[int] = set()
        self._rivals = False
        self._over = False
        self._own = False
        """Whether what was asked for last is the edit itself."""
        self._untouched = True
        """Whether all who answered said that they did nothing."""
        self._outcome = Fit.THERE

    def begin(self, standing: Standing | None = None) -> Prepare | Accept:
        """The first message; and the next after having been beaten."""
        if standing is not None and self._edit.judge(standing.value) is Fit.FITS:
            return self._write_own(standing.ballot, standing.value)
        return self._ask(Prepare(self._ballots.next()))

    def hear(self, asked: Prepare | Accept, node: int, answer: Answer) -> Step | None:
        """What a node said to `asked`. Gives what to do next, once that is clear."""
        if asked is not self._asked or self._over or node in self._yes or node in self._no:
            return None  # too late to matter, or told twice
        if isinstance(answer, Refused):
            self._rivals = True
            self._ballots.saw(answer.promised)
        if not isinstance(answer, Refused | Absent) or _is_for(answer, asked):
            self._untouched = False
        if isinstance(answer, Refused | Lost | Absent):
            self._no.add(node)
            return self._beaten()
        self._yes.add(node)
        if isinstance(answer, Promised):
            self._promises.append(answer)
        if len(self._yes) < self._majority:
            return self._beaten()
        self._over = True
        return self._promised(asked) if isinstance(asked, Prepare) else self._accepted(asked)

    def hurry(self, asked: Prepare | Accept) -> Beaten | None:
        """Some nodes stay silent. Where others have refused, it is better to ask anew than to wait for those."""
        if asked is not self._asked or self._over or not self._rivals:
            return None
        self._over = True
        return Beaten(True)

    def _beaten(self) -> Beaten | None:
        if len(self._no) <= self._nodes - self._majority:
            return None
        if self._own and self._untouched and self._rivals:
            if len(self._no) < self._nodes:
                return None  # it is worth while to hear the others: if they refuse too, it surely never landed
            self._edit.withdraw()
        self._over = True
        return Beaten(self._rivals)

    def _promised(self, asked: Prepare) -> Step:
        newest = max(self._promises, key=lambda promise: promise.ballot)
        value = newest.value if newest.ballot != NONE else None
        fit = self._edit.judge(value)
        if fit is Fit.FITS:
            return self._write_own(asked.ballot, value)
        if all(promise.ballot == newest.ballot for promise in self._promises):
            return Settled(fit, Standing(asked.ballot, value))
        # Only some have it: it counts when a majority does, and others would find it or not by chance until then.
        return self._write(asked.ballot, newest.value, newest.hint, fit)

    def _accepted(self, asked: Accept) -> Settled:
        return Settled(self._outcome, Standing(asked.next_ballot, asked.value))

    def _write_own(self, ballot: str, value: bytes | None) -> Accept:
        accept = self._write(ballot, *self._edit.apply(value), Fit.THERE)
        self._own = True
        return accept

    def _write(self, ballot: str, value: bytes, hint: bytes, outcome: Fit) -> Accept:
        self._outcome = outcome
        accept = Accept(ballot, self._ballots.next(), value, hint)
        self._ask(accept)
        return accept

    def _ask(self, asked: Prepare | Accept) -> Prepare | Accept:
        self._asked = asked
        self._promises, self._yes, self._no = [], set(), set()
        self._rivals, self._over, self._own, self._untouched = False, False, False, True
        return asked


def _is_for(answer: Refused | Absent, asked: Prepare | Accept) -> bool:
    """Whether what was promised is the ballot that comes after this: then the node accepted it, and was asked twice."""
    return isinstance(answer, Refused) and isinstance(asked, Accept) and answer.promised == asked.next_ballot


# --- reading ---------------------------------------------------------------------------------------------------------


class Reading:
    """What nodes say of one register. A majority that accepted the same ballot tells the value, and nothing is written.

    Whatever was accepted by a majority before the first of them was asked is known to one of these at least.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._majority = nodes // 2 + 1
        self._counts: dict[str, int] = {}
        self._heard = 0
        self.value: bytes | None = None
        self.known = False

    def hear(self, ballot: str, value: bytes) -> None:
        if self.known:
            return
        self._heard += 1
        count = self._counts[ballot] = self._counts.get(ballot, 0) + 1
        if count >= self._majority:
            self.known = True
            self.value = value if ballot != NONE else None

    @property
    def hopeless(self) -> bool:
        """Whether it can't be known by asking further nodes: only a proposal brings them together."""
        most = max(self._counts.values(), default=0)
        return not self.known and most + self._nodes - self._heard < self._majority
