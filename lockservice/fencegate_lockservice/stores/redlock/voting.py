"""Has the nodes vote: carries proposals and readings of registers to them, within a time."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

from fencegate.clock import Clock
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.redlock.copy import names_page
from fencegate_lockservice.stores.redlock.council import Council
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.members import View
from fencegate_lockservice.stores.redlock.node import ACCEPT, PREPARE, READ, Node
from fencegate_lockservice.stores.redlock.paxos import (
    Absent,
    Accept,
    Accepted,
    Answer,
    Ballots,
    Edit,
    Lost,
    Prepare,
    Promised,
    Proposal,
    Reading,
    Refused,
    Settled,
    Standing,
    Step,
)
from fencegate_lockservice.stores.redlock.polls import poll
from fencegate_lockservice.stores.redlock.register import Identity
from fencegate_lockservice.stores.redlock.untold import KEEP

SETTLE_WITHIN_S = 5.0
READ_WITHIN_S = 5.0
AGREE_WITHIN_S = 0.1
ANSWER_SOON_S = 0.2
AT_ONCE = 50
MAX_STANDING = 10_000
MAX_STANDING_BYTES = 32_000_000


class Standings:
    """The registers that were written last from here, so that the next commit of each needs one round."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Standing]] = {}
        self._bytes = 0

    def take(self, register: str, digest: str) -> Standing | None:
        """What is known, once: a ballot serves for one proposal."""
        kept_digest, standing = self._kept.pop(register, ("", None))
        self._bytes -= _size(standing)
        return standing if kept_digest == digest else None

    def keep(self, register: str, digest: str, standing: Standing) -> None:
        self.take(register, digest)
        self._kept[register] = (digest, standing)
        self._bytes += _size(standing)
        while len(self._kept) > MAX_STANDING or self._bytes > MAX_STANDING_BYTES:
            self.take(next(iter(self._kept)), "")


def _size(standing: Standing | None) -> int:
    return len(standing.value or b"") if standing is not None else 0


class Voting:
    """One proposal at a time for a register, in the order in which they are asked for."""

    def __init__(self, nodes: Sequence[Node], keys: Keys, clock: Clock, council: Council) -> None:
        self._nodes = nodes
        self._keys = keys
        self._clock = clock
        self._council = council
        self._majority = len(nodes) // 2 + 1
        self._ballots = Ballots(int(clock.random_id(8), 16), clock.now_us)
        self._standings = Standings()
        self._turns: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    # --- writing ---

    async def settle(self, register: str, edit: Edit) -> Settled:
        """Bring an edit to its end. TimeoutError or Unavailable when that can't be done; some may know of it then."""
        async with asyncio.timeout(SETTLE_WITHIN_S), self._turn(register):
            proposal = Proposal(len(self._nodes), edit, self._ballots)
            for number in count():
                view = self._council.view()
                standing = self._standings.take(register, view.digest)
                step: Step = proposal.begin(standing)
                while isinstance(step, Prepare | Accept):  # both of one view: promises of another count for nothing
                    step = await self._exchange(view, register, proposal, step)
                if isinstance(step, Settled):
                    if step.standing is not None:
                        self._standings.keep(register, view.digest, step.standing)
                    return step
                if not step.rivals:
                    await self._council.looked()
                await asyncio.sleep(self._clock.jitter() * min(0.25, 0.004 * 2**number))
        raise AssertionError("it was settled, or given up")

    async def _exchange(self, view: View, register: str, proposal: Proposal, asked: Prepare | Accept) -> Step:
        """Send a message to all who vote; gives what follows from their answers."""
        done: asyncio.Future[Step] = asyncio.get_running_loop().create_future()

        def tell(number: int, answer: Answer) -> None:
            try:
                step = proposal.hear(asked, number, answer)
            except Exception as error:  # the edit can't be applied: whoever waits must hear of it
                done.set_exception(error)
                return
            if step is not None:
                done.set_result(step)

        def heard(number: int, future: "asyncio.Future[Any]") -> None:
            answer = _answer(future)
            if isinstance(answer, Lost | Absent):
                self._council.poke()
            if not done.done():
                tell(number, answer)

        for node in self._nodes:
            if node.number in view.voters:
                future = self._send(node, view, register, asked)
                future.add_done_callback(partial(heard, node.number))
            elif not done.done():
                tell(node.number, Absent())

        def hurry() -> None:
            step = proposal.hurry(asked)
            if step is not None and not done.done():
                done.set_result(step)

        patience = asyncio.get_running_loop().call_later(ANSWER_SOON_S, hurry)
        try:
            return await done
        finally:
            patience.cancel()

    def _send(self, node: Node, view: View, register: str, asked: Prepare | Accept) -> "asyncio.Future[Any]":
        keys = [self._keys.node, self._keys.index, self._keys.register(register)]
        head = (view.digest, view.identity(node.number), register, asked.ballot)
        if isinstance(asked, Prepare):
            return node.vote(PREPARE, keys, *head)
        return node.vote(ACCEPT, [*keys, self._keys.changes], *head, asked.next_ballot, asked.value, asked.hint, KEEP)

    @asynccontextmanager
    async def _turn(self, register: str) -> AsyncIterator[None]:
        lock, users = self._turns.setdefault(register, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._turns[register]

    # --- reading ---

    async def read(self, registers: Sequence[str]) -> dict[str, bytes | None]:
        """The values of these registers, linearizable. Unavailable when a majority can't tell."""
        found: dict[str, bytes | None] = {}
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                for start in range(0, len(registers), AT_ONCE):
                    some = registers[start : start + AT_ONCE]
                    while (readings := await self._read_some(some)) is None:
                        await self._council.looked()
                        await asyncio.sleep(self._clock.jitter() * 0.02)
                    found |= {name: reading.value for name, reading in readings.items() if reading.known}
                    unknown = [name for name in some if not readings[name].known]
                    settled = await asyncio.gather(*(self._agree(name) for name in unknown))
                    found |= dict(zip(unknown, settled, strict=True))
        except TimeoutError:
            raise Unavailable("a majority of the nodes does not answer in time") from None
        return found

    async def _agree(self, register: str) -> bytes | None:
        settled = await self.settle(register, Identity())
        assert settled.standing is not None
        return settled.standing.value

    async def _read_some(self, registers: Sequence[str]) -> Mapping[str, Reading] | None:
        """What the nodes say of these; None when it takes another view to ask them."""
        view = self._council.view()
        readings = {name: Reading(len(self._nodes)) for name in registers}
        keys = [self._keys.node, *(self._keys.register(name) for name in registers)]
        asked = {
            number: self._nodes[number].vote(READ, keys, view.digest, view.identity(number)) for number in view.voters
        }
        counted: set[int] = set()
        voices: set[int] = set()

        def enough(answers: Mapping[int, Any]) -> bool:
            for number in answers.keys() - counted:
                counted.add(number)
                answer = answers[number]
                if answer[0] == b"found":
                    voices.add(number)
                    for place, reading in enumerate(readings.values()):
                        reading.hear(answer[2 + 4 * place].decode(), answer[3 + 4 * place])
            return all(reading.known or reading.hopeless for reading in readings.values())

        def heard(answers: Mapping[int, Any]) -> bool:
            return enough(answers) or len(voices) >= self._majority

        answers = await poll(asked, READ_WITHIN_S, heard)
        if not enough(answers):  # they don't agree yet: the others may tell, but one that hangs is not waited for
            await poll(asked, AGREE_WITHIN_S, enough)
        if len(voices) < self._majority:
            self._council.poke()
            return None
        return readings

    async def names(self, lower: bytes, upper: bytes, limit: int) -> tuple[list[str], bytes | None]:
        """The names of registers between these bounds, in order, and up to where all of them are there."""
        names, end = await names_page(self._nodes, self._keys, self._council.view(), lower, upper, limit)
        return [name.decode() for name in names], end


def _answer(future: "asyncio.Future[Any]") -> Answer:
    """What a node said, in the words of `paxos`."""
    if future.cancelled() or future.exception() is not None:
        return Lost()
    kind, *rest = future.result()
    if kind == b"promised":
        return Promised(rest[0].decode(), rest[1], rest[2])
    if kind == b"accepted":
        return Accepted()
    if kind == b"refused":
        return Refused(rest[0].decode())
    return Absent()
