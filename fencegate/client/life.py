"""What is held for a time: the rules of when it may still be believed, for leases, sessions and groups alike.

It ends by this process's own clock, at a deadline counted from before the request that granted or renewed it left.
Nobody has to be asked for that, and no flag is trusted: whatever says "held" has just read the clock. What was lost
once never comes back, not even by the answer to a renewal that succeeded.

A life may hang on another's: leases of a session, and of a group that is held as one, are renewed and end with it.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from typing import NoReturn

from fencegate.client.grant import Revocation
from fencegate.client.patience import within
from fencegate.client.transport import Transport
from fencegate.clock import Clock
from fencegate.core.errors import LockLost


class LeaseState(StrEnum):
    """HELD; SUSPENDED: still held, but the last renewal failed; LOST; RELEASED."""

    HELD = "held"
    SUSPENDED = "suspended"
    LOST = "lost"
    RELEASED = "released"


ALIVE = (LeaseState.HELD, LeaseState.SUSPENDED)
_IN_SILENCE = "its deadline passed without a renewal"
_HELD_LONG_ENOUGH = "it was held for as long as its max_hold allows"


_process = object()
"""Stands for this process: another one after a fork. (To ask the kernel for its number costs a call each time.)"""


def _after_fork_in_child() -> None:
    global _process
    _process = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Life(ABC):
    """Safe to use from any thread. What listens to it is called on whichever thread notices, and must not block.

    What is asked with each lock call is a method: a property takes twice as long to call.
    """

    # Most have none of these, and don't live long.
    _children: "dict[Life, None] | None" = None
    _revoked: Revocation | None = None
    _on_lost: tuple[Callable[[], None], ...] = ()
    _on_state: tuple[Callable[[LeaseState], None], ...] = ()
    _on_revoked: tuple[Callable[[], None], ...] = ()

    def __init__(
        self,
        clock: Clock,
        started_us: int,
        until_us: int,
        parent: "Life | None" = None,
        last_us: int | None = None,
    ) -> None:
        self._clock = clock
        self._born_in = _process
        # One for the whole family, so that nobody waits for a parent while its parent waits for him. Re-entrant: a
        # signal handler may ask while its own thread is inside.
        self._mutex: threading.RLock = parent._mutex if parent is not None else threading.RLock()
        self._parent = parent
        self._started_us = started_us
        self._until_us = until_us
        self._last_us = last_us
        self._why = _IN_SILENCE if last_us is None else _HELD_LONG_ENOUGH
        self._is_ending = last_us is not None
        self._state = LeaseState.HELD
        if parent is not None:
            with self._mutex:
                parent._children = parent._children or {}
                parent._children[self] = None
                self._follow(parent)

    # --- what holders ask ---

    @property
    def state(self) -> LeaseState:
        return self._look()

    @property
    def held(self) -> bool:
        return self._look() in ALIVE

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, if no renewal succeeds before; 0.0 when it is over."""
        left_us = self._deadline_us() - self._clock.monotonic_us()
        return max(0.0, left_us / 1e6) if self.held else 0.0

    @property
    def revoked(self) -> Revocation | None:
        """Why and when it will be taken away, once somebody asked for that and gave us time; else None."""
        return self._revoked

    @property
    def why_lost(self) -> str | None:
        """Why it was lost; None as long as it was not."""
        return self._reason() if self.state is LeaseState.LOST else None

    def ensure_held(self) -> None:
        """Raise LockLost unless it is held at this moment."""
        if not self.held:
            self._raise_lost()

    @property
    @abstractmethod
    def ttl(self) -> float:
        """Seconds that each renewal brings."""

    # --- what each kind says of itself ---

    @abstractmethod
    def _describe(self) -> str:
        """What it is, for messages."""

    @abstractmethod
    async def _send_renewal(self, transport: Transport) -> None:
        """Ask for more time, and take the answer in."""

    @abstractmethod
    def _send_release(self, transport: Transport) -> Awaitable[object]:
        """Tell the lock service that it is over. May be sent again."""

    def _release_within(self, transport: Transport, limit_s: float) -> Awaitable[object]:
        """The same, but OutcomeUnknown when it takes longer than that."""
        return within(self._send_release(transport), limit_s)

    def _leases(self) -> "Iterator[Life]":
        """The leases that this is, or that hang on it."""
        for child in list(self._children or ()):
            yield from child._leases()

    def _child_revoked(self, revoked: Revocation) -> None:
        """One that hangs on this will be taken away."""
        return

    # --- for the one who renews and releases ---

    def _look(self) -> LeaseState:
        """Its state, by the clock as it is now."""
        if self._born_in is not _process:
            return LeaseState.LOST
        if self._state in ALIVE:
            parent = self._parent
            if parent is not None and parent._look() not in ALIVE:
                self._follow(parent)
            if self._clock.monotonic_us() >= self._deadline_us():
                self._lose(self._why)
        return self._state

    def _deadline_us(self) -> int:
        until_us = self._until_us if self._parent is None else self._parent._deadline_us()
        if self._last_us is not None:
            until_us = min(until_us, self._last_us)
        return until_us if self._revoked is None else min(until_us, self._revoked.until_us)

    def _first_renewal_us(self) -> int:
        """When the first one is due, or the end of it comes before that."""
        return min(self._started_us + int(self.ttl * 1e6) // 3, self._deadline_us())

    def _live_on(self, started_us: int, until_us: int) -> bool:
        """Take in a renewal that left at `started_us`; False when it came after the deadline, and so too late."""
        with self._mutex:
            if self._state not in ALIVE or self._clock.monotonic_us() >= self._deadline_us():
                return False
            self._started_us = started_us
            self._until_us = max(self._until_us, until_us)  # a renewal never shortens
            if not self._is_ending:
                self._why = _IN_SILENCE
            self._turn_to(LeaseState.HELD)
            return True

    def _suspend(self, why: str = "") -> None:
        with self._mutex:
            if self._state in ALIVE:
                if why and not self._is_ending:
                    self._why = f"{_IN_SILENCE}; the last one failed: {why}"
                self._turn_to(LeaseState.SUSPENDED)

    def _end_at_deadline(self, why: str) -> None:
        """No renewal will bring more: it lasts until its deadline, and this is why it ends there."""
        with self._mutex:
            self._is_ending, self._why = True, why

    def _revoke(self, revoked: Revocation) -> None:
        """It will be taken away: this may shorten it, and tells whoever wants to know, once."""
        with self._mutex:
            if self._state not in ALIVE or self._revoked is not None:
                return
            self._revoked = revoked
            self._end_at_deadline(f"it was revoked ({revoked.reason})")
            for callback in self._on_revoked:
                callback()
            if self._parent is not None:
                self._parent._child_revoked(revoked)

    def _lose(self, why: str) -> None:
        self._end(LeaseState.LOST, why)

    def _is_released(self) -> bool:
        """Whether somebody gave it back: here, or in the process that this one was forked from."""
        return self._state is LeaseState.RELEASED

    def _give_up(self) -> bool:
        """Stop using it, before it is released; False when it was lost before that."""
        if self._look() in ALIVE:
            self._end(LeaseState.RELEASED, "it was released")
        return self._is_released()

    def _end(self, state: LeaseState, why: str) -> None:
        with self._mutex:
            if self._state not in ALIVE:
                return
            self._why = why
            self._turn_to(state)
            if self._parent is not None and self._parent._children:
                self._parent._children.pop(self, None)
            self._on_lost, self._on_state, self._on_revoked = (), (), ()

    def _turn_to(self, state: LeaseState) -> None:
        if state is self._state:
            return
        self._state = state
        if state is LeaseState.LOST:
            for callback in self._on_lost:
                callback()
        if self._on_state:
            for listener in self._on_state:
                listener(state)
        if self._children:
            for child in list(self._children):
                child._follow(self)

    def _follow(self, parent: "Life") -> None:
        with self._mutex:
            if parent._state is LeaseState.HELD and self._state in ALIVE:
                self._turn_to(LeaseState.HELD)
            elif parent._state is LeaseState.SUSPENDED:
                self._suspend()
            elif parent._state not in ALIVE:
                self._end(parent._state, f"{parent._describe()} is over: {parent._why}")

    def _when_lost(self, callback: Callable[[], None]) -> None:
        """Call this once when it is lost; at once when it was lost already."""
        with self._mutex:
            if self._state in ALIVE:
                self._on_lost += (callback,)
            elif self._state is LeaseState.LOST:
                callback()

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._mutex:
            self._on_lost = tuple(other for other in self._on_lost if other is not callback)

    def _when_state(self, listener: Callable[[LeaseState], None]) -> None:
        """Call this with its state now, and with each that it comes to."""
        with self._mutex:
            self._on_state += (listener,)
            listener(self._state)

    def _when_revoked(self, callback: Callable[[], None]) -> None:
        with self._mutex:
            self._on_revoked += (callback,)
            if self._revoked is not None:
                callback()

    def _raise_lost(self) -> NoReturn:
        raise LockLost(f"{self._describe()} is over: {self._reason()}")

    def _reason(self) -> str:
        if not self._is_ours():
            return "it belongs to the process that this one was forked from"
        return self._why

    def _is_ours(self) -> bool:
        """Whether this process got it, and not the one that it was forked from."""
        return self._born_in is _process
