"""One entry at work in this replica: what is asked of it, who waits for it here, and who wants it among others."""

import asyncio
from dataclasses import dataclass, replace

import msgspec

from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    ForceRelease,
    Granted,
    GrantedAll,
    Outcome,
    Pending,
    Queued,
    Refused,
    Release,
    Renew,
)
from fencegate.core.errors import FencegateError, OutcomeUnknown, ShuttingDown, StoreUnavailable
from fencegate.engine.answer import Answer

Awaited = asyncio.Future[Outcome] | Answer[Outcome]
Asked = tuple[Command, Awaited, bool]
"""A command, where its outcome is awaited, and whether whoever asked stands here when it is queued."""
Given = Granted | GrantedAll | Pending


@dataclass(slots=True, eq=False)
class Poll:
    """One caller who waits here: what it asked, to ask again if the place is lost, and where it hears of the grant."""

    command: Acquire | AcquireAll
    granted: asyncio.Future[Given] | Answer[Given]
    queued: bool = False
    """Whether it was given a place, so that it has to be asked for again when that is gone."""
    asking: bool = False
    """Whether it is being asked for again."""

    @property
    def attempt(self) -> str:
        command = self.command
        return command.attempt if isinstance(command, Acquire) else command.parts[0].attempt

    def hear(self, outcome: Outcome) -> None:
        """What came of it; a refusal that is not final leaves it waiting, for it will be asked for again."""
        self.asking = False
        if isinstance(outcome, Queued):
            self.queued = True
        elif self.queued and not self.granted.done():
            if isinstance(outcome, Granted | GrantedAll | Pending):
                self.granted.set_result(outcome)
            elif isinstance(outcome, Refused) and is_final(outcome.error):
                self.granted.set_exception(outcome.error)


def again(command: Acquire) -> Acquire:
    """The same command, brought a second time or late: what became of the first may be written in the past."""
    return replace(command, fresh=False) if command.fresh else command


def is_final(error: FencegateError) -> bool:
    """Whether a refusal says for sure that nothing was done, and nothing waits."""
    return not isinstance(error, OutcomeUnknown | StoreUnavailable | ShuttingDown)


NOBODY: frozenset[str] = frozenset()


class Lane(msgspec.Struct, eq=False):
    """See the head of this file. One commit is in flight at a time; what comes meanwhile is folded into the next."""

    entry: str
    asked: list[Asked] = []
    busy: bool = False
    waiting: dict[str, dict[str, Poll]] = {}
    """The polls that wait here, by request and attempt."""
    gates: "list[Convoy]" = []
    """Commands about several entries that need this one next."""
    gate_is_next: bool = False
    alone: int = 0
    """How many of those that were asked go one by one, each in a commit of its own."""
    coming: frozenset[str] = NOBODY
    """The requests that will stand here if the commands at work queue them."""
    stirred: bool = False
    """Whether others changed this while a command was at work that may leave somebody standing here."""

    def serves(self, request: str) -> bool:
        """Whether somebody waits here for this, or will when what is at work is committed."""
        return request in self.waiting or request in self.coming

    def expect(self, asked: list[Asked]) -> None:
        """Know who of these comes to stand here."""
        coming = [one[0] for one in asked if one[2] and not one[1].done()]
        self.coming = frozenset([command.who.request for command in coming if isinstance(command, Acquire)])

    def stand(self, command: Acquire, loop: asyncio.AbstractEventLoop) -> None:
        """Have a place at which whoever asked this hears of the grant."""
        poll = Poll(again(command), Answer(loop), queued=True)
        self.waiting.setdefault(command.who.request, {})[command.attempt] = poll

    def take(self) -> list[Asked]:
        """Everything that was asked meanwhile; renewals and releases first, for they must not come too late."""
        if self.alone:
            self.alone -= 1
            return [self.asked.pop(0)]
        asked, self.asked = self.asked, []
        if len(asked) > 1:
            asked.sort(key=lambda item: not isinstance(item[0], Renew | Release | ForceRelease))
        return asked

    def part(self, asked: list[Asked]) -> None:
        """Ask again for each of these by itself: together they are too much."""
        self.asked[:0] = asked
        self.alone += len(asked)


@dataclass(slots=True, eq=False)
class Convoy:
    """A command about several entries: it takes their lanes one after the other, in the order of their names, so that
    two of them never wait for each other."""

    asked: Asked
    entries: list[str]
    lanes: list[Lane]
