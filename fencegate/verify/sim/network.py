"""Messages between processes: each takes a while, and some are lost, late, or come twice."""

from asyncio import Future, TimerHandle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fencegate.verify.sim.world import Process, World


@dataclass(frozen=True, slots=True)
class Weather:
    """How often each thing happens to a message, from 0 to 1."""

    lost: float = 0.0
    """The request never arrives."""
    unheard: float = 0.0
    """It arrives, and its answer is lost."""
    late: float = 0.0
    """It arrives, long after whoever sent it gave up."""
    twice: float = 0.0
    """It arrives a second time, later."""


CALM = Weather()
ANSWER_WITHIN_S = 1.0
USUAL_US, USUAL_SPREAD_US = 100, 2_900
LATE_US, LATE_SPREAD_US = 500_000, 5_500_000


class Network:
    """Who reaches whom, and how long it takes. `cut` holds pairs of names that can't hear each other."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.cut: set[frozenset[str]] = set()

    def reach(self, one: str, other: str) -> bool:
        return not self.cut or frozenset((one, other)) not in self.cut

    def delay_us(self) -> int:
        return USUAL_US + int(self.world.chance.random() * USUAL_SPREAD_US)

    def _late_us(self) -> int:
        return LATE_US + int(self.world.chance.random() * LATE_SPREAD_US)

    def send(self, sender: str, receiver: str, act: Callable[[], None], *, once: bool = False) -> None:
        """A message on its way. `once`: whatever else becomes of it, it does not arrive a second time."""
        weather = self.weather
        if not self.reach(sender, receiver):
            return
        if weather is CALM:
            self.world.after(self.delay_us(), act)
            return
        chance = self.world.chance
        if chance.random() < weather.lost:
            return
        late = chance.random() < weather.late
        self.world.after(self._late_us() if late else self.delay_us(), act)
        if chance.random() < weather.twice and not once:
            self.world.after(self._late_us(), act)

    def answer(self, sender: str, receiver: Process, act: Callable[[], None]) -> None:
        unheard = self.weather.unheard
        if self.reach(sender, receiver.name) and not (unheard and self.world.chance.random() < unheard):
            receiver.deliver_after(self.delay_us(), act)

    async def ask(
        self, caller: Process, server: str, serve: Callable[[], Any], unanswered: Exception, *, once: bool = False
    ) -> Any:
        """Have a server that is no process (its steps are atomic) do something; its answer, if it comes in time."""
        answer = caller.loop.create_future()
        timer = self.ask_then(caller, server, serve, unanswered, partial(settle, answer), once=once)
        try:
            return await answer
        finally:
            timer.cancel()

    def ask_then(
        self,
        caller: Process,
        server: str,
        serve: Callable[[], Any],
        unanswered: Exception,
        heard: Callable[[Any, BaseException | None], None],
        *,
        once: bool = False,
    ) -> TimerHandle:
        """The same, told by a call: of the answer, of a second one, and of none in time, unless that timer is
        cancelled."""
        timer = caller.loop.call_later(ANSWER_WITHIN_S, heard, None, unanswered)

        def arrived() -> None:
            try:
                result, error = serve(), None
            except Exception as raised:
                result, error = None, raised
            self.answer(server, caller, lambda: heard(result, error))

        self.send(caller.name, server, arrived, once=once)
        return timer


def settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
