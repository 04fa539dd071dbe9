"""Who takes part in a trial: two holders, the gateway that A uses, and the list of what happened."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fencegate.clock import SYSTEM
from fencegate_demo.events import Event, Failed, Granted, Paused, Resumed, only
from fencegate_demo.processes import Child

ANSWER_WITHIN_S = 90.0
LEASES = 1.4
"""A pause lasts at least so many times the lease."""

_decode = msgspec.json.Decoder(Event).decode


class Holder:
    """Our end of a holder's process: commands go in, one event for each comes out."""

    def __init__(self, process: Child, heard: Callable[[Event], None]) -> None:
        self.process = process
        self._heard = heard

    async def do(self, *commands: str) -> None:
        """Have it carry out these commands, and wait until it has."""
        self.begin(*commands)
        await self.answers(len(commands))

    def begin(self, *commands: str) -> None:
        """Give it these commands; a stopped process finds them when it is continued."""
        self.process.send(*commands)

    async def answers(self, count: int) -> None:
        """Wait until so many of the commands are carried out."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                for _ in range(count):
                    await self._answer()
        except TimeoutError:
            raise self.process.failure(f"did not answer within {ANSWER_WITHIN_S:g} s") from None

    async def _answer(self) -> None:
        line = await self.process.line()
        if line is None:
            raise self.process.failure("ended before its part was done")
        event: Event = _decode(line)
        if isinstance(event, Failed):
            raise self.process.failure(f"can't go on: {event.why}")
        self._heard(event)


@dataclass(slots=True)
class Cast:
    a: Holder
    b: Holder
    gateway: Child
    """The gateway through which A reads and writes."""
    events: list[Event]
    """What happened so far."""
    heard: Callable[[Event], None]

    async def pause(self, process: Child) -> None:
        process.pause()
        await self.pauses_itself(process)

    async def pauses_itself(self, process: Child) -> None:
        await process.paused()
        self.heard(Paused(SYSTEM.monotonic_us(), process.name))

    def resume(self, process: Child) -> None:
        self.heard(Resumed(SYSTEM.monotonic_us(), process.name))
        process.resume()

    async def outlast_lease(self) -> None:
        """Let the pause go on until it is longer than the lease that A was given."""
        (lease,) = only(Granted, self.events, self.a.process.name)
        (pause,) = only(Paused, self.events)
        end_us = pause.at_us + int(LEASES * (lease.until_us - lease.asked_us))
        await asyncio.sleep(max(0, end_us - SYSTEM.monotonic_us()) / 1_000_000)
