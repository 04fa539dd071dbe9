"""An event loop on the world's time, which runs one turn when it is told to, and has no files."""

import asyncio
import contextvars
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencegate.verify.sim.world import Process

BEGINNING_US = 1_800_000_000_000_000
_LAST_STEPS = 200

_enter, _running = events._set_running_loop, events._get_running_loop


class _Handle(events.Handle):
    """A callback to come, without what asyncio notes of it for debugging: they are made by the thousand."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None


class ProcessLoop(asyncio.BaseEventLoop):
    """The loop of one simulated process. What asyncio does in a turn for sockets and signals is left out: it was half
    of the cost of a simulation."""

    def __init__(self, process: "Process") -> None:
        super().__init__()
        self._process = process
        self._world = process.world
        self._turn: deque[events.Handle] = deque()
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def has_work(self) -> bool:
        return bool(self._turn)

    def time(self) -> float:
        return (self._world.now_us - BEGINNING_US) / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        handle = _Handle(callback, args, self, context)
        if not self._turn:
            self._process.stand_in_line()
        self._turn.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        self._world.at(BEGINNING_US + round(when * 1e6) + 1, self._process, timer)
        return timer

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks.append(task)
        return task

    def arriving(self, act: Callable[[], object]) -> events.Handle:
        """What a message does that will arrive."""
        return _Handle(act, (), self, None)

    def due(self, timer: events.Handle) -> bool:
        """The time of a timer, or of a message, has come; whether there is something to do for it."""
        if timer._cancelled:
            return False
        self._turn.append(timer)
        return True

    def step(self) -> None:
        """One turn: all that is there to do, and not what comes of it."""
        turn, before = self._turn, _running()
        self._thread_id = threading.get_ident()
        _enter(self)
        try:
            for _ in range(len(turn)):
                handle = turn.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            _enter(before)
            self._thread_id = None  # type: ignore[assignment]

    def unwind(self) -> None:
        """Cancel all that it was doing: what a process leaves behind at its death is no business of the simulation."""
        for _ in range(_LAST_STEPS):
            self._tasks = left = [task for task in self._tasks if not task.done()]
            if not left and not self._turn:
                break
            for task in left:
                task.cancel()
            self.step()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.clear()
        self._turn.clear()
        self.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a process does not care for, the simulation does not either."""

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """It stays where it is, and is passed over when its time comes."""
