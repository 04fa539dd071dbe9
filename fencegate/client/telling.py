"""Telling callers what became of their hold: in order, never in the way of a renewal, and never in silence.

What is told is put on the caller's event loop, or on a thread of its own. What a callback raises is logged.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypedDict, TypeVar

from fencegate.client.life import LeaseState, Life

log = logging.getLogger("fencegate.client")

K = TypeVar("K", bound=Life)


class Reactions(TypedDict, Generic[K], total=False):
    """What a caller wants to be told of a hold, and by which callback."""

    on_lost: Callable[[K], None] | None
    """Called once when it is lost."""
    on_state: Callable[[K, LeaseState], None] | None
    """Called with each state that it comes to, from HELD to LOST or RELEASED."""
    on_revoked: Callable[[K], None] | None
    """Called once when somebody asks for it back; `.revoked` tells why, and when it will be taken."""


def wanted(reactions: "Reactions[K]") -> bool:
    """Whether a caller wants to be told of anything; what is given may be all of the terms."""
    return any(reactions.get(name) is not None for name in ("on_lost", "on_state", "on_revoked"))


class Teller(Protocol):
    """Runs callbacks one after the other; `tell` itself never blocks."""

    def tell(self, callback: Callable[[], object]) -> None: ...


def follow(life: K, reactions: "Reactions[K]", teller: Teller) -> None:
    """Have the caller told."""
    on_lost, on_state, on_revoked = reactions.get("on_lost"), reactions.get("on_state"), reactions.get("on_revoked")
    if on_lost is not None:
        life._when_lost(lambda: teller.tell(lambda: on_lost(life)))
    if on_revoked is not None:
        life._when_revoked(lambda: teller.tell(lambda: on_revoked(life)))
    if on_state is not None:
        life._when_state(lambda state: teller.tell(lambda: on_state(life, state)))


class LoopTeller:
    """Tells on an event loop, which is the caller's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def tell(self, callback: Callable[[], object]) -> None:
        soon(self._loop, lambda: _call(callback))


class ThreadTeller:
    """Tells on a thread of its own, which lives while there is something to tell.

    Not on the renewal thread, where a slow callback would cost every lease; and not on one for all, where it would
    keep the others from hearing.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may tell while its own thread is inside
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_running = False

    def tell(self, callback: Callable[[], object]) -> None:
        with self._mutex:
            self._waiting.append(callback)
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="fencegate-callbacks", daemon=True).start()
        except RuntimeError:
            log.warning("a callback was not called: the interpreter is shutting down, or has no thread left")
            self._is_running = False

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._is_running = False
                    return
                callback = self._waiting.popleft()
            _call(callback)


def soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Run this on the loop's own thread; a loop that is closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        log.exception("a callback of a hold raised; the hold goes on")
