"""A lease as its holder sees it: the rules of when it may still be believed, whichever face shows it.

A lease ends by this process's own clock, at a deadline counted from before the request that granted or renewed it
left. Nobody has to be asked for that, and no flag is trusted: whatever says "held" has just read the clock. A lease
that was lost once never comes back, not even by the answer to a renewal that succeeded.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import NoReturn

from fencegate.client.attachment import export_grant
from fencegate.client.grant import Grant
from fencegate.clock import Clock
from fencegate.core.errors import LockLost
from fencegate.core.token import Token


class LeaseState(StrEnum):
    """HELD; SUSPENDED: still held, but the last renewal failed; LOST; RELEASED."""

    HELD = "held"
    SUSPENDED = "suspended"
    LOST = "lost"
    RELEASED = "released"


_ALIVE = (LeaseState.HELD, LeaseState.SUSPENDED)


class LeaseCore:
    """What both faces of a lease share. Safe to use from any thread."""

    def __init__(self, grant: Grant, clock: Clock) -> None:
        self._clock = clock
        self._pid = os.getpid()
        self._mutex = threading.RLock()  # a signal handler may ask while its own thread is inside
        self._grant = grant
        self._state = LeaseState.HELD
        self._why = ""
        self._callbacks: list[Callable[[], None]] = []

    def __repr__(self) -> str:  # without the lockToken, which is a secret
        return f"<{type(self).__name__} {self.lock_key!r} token={self.token} {self.state.value}>"

    @property
    def lock_key(self) -> str:
        return self._grant.lock_key

    @property
    def token(self) -> Token:
        """The fencing token: send it with every write."""
        return self._grant.token

    @property
    def sequencer(self) -> str | None:
        """The signed fencing token; None where the lock service doesn't sign."""
        return self._grant.sequencer

    @property
    def lock_token(self) -> str:
        """The secret that proves ownership to the lock service."""
        return self._grant.lock_token

    @property
    def owner_id(self) -> str:
        return self._grant.owner_id

    @property
    def ttl(self) -> float:
        """Seconds that each renewal brings."""
        return self._grant.ttl_ms / 1000

    @property
    def state(self) -> LeaseState:
        if not self._is_ours():
            return LeaseState.LOST
        if self._state in _ALIVE and self._clock.monotonic_us() >= self._grant.deadline_us:
            self._lose("its deadline passed without a renewal")
        return self._state

    @property
    def held(self) -> bool:
        return self.state in _ALIVE

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, if no renewal succeeds before; 0.0 when the lease is over."""
        left_us = self._grant.deadline_us - self._clock.monotonic_us()
        return max(0.0, left_us / 1e6) if self.held else 0.0

    def ensure_held(self) -> None:
        """Raise LockLost unless the lease is held at this moment."""
        if not self.held:
            self._raise_lost()

    def headers(self) -> dict[str, str]:
        """The headers that a write carries to a protected resource; LockLost when it would come too late."""
        self.ensure_held()
        headers = {"Fencing-Token": self.sequencer or self.token.wire}
        if self.lock_key.isascii() and self.lock_key.isprintable():
            headers["Fencing-Lock"] = self.lock_key
        return headers

    def export(self) -> str:
        """The lease as text, for `locks.attach` in another process. It holds the secret lockToken.

        This process goes on renewing until it releases the lease, which ends it for the other one as well.
        """
        self.ensure_held()
        return export_grant(self._grant)

    def _raise_lost(self) -> NoReturn:
        raise LockLost(f"the lease of {self.lock_key!r} (token {self.token}) is over: {self._reason()}")

    def _reason(self) -> str:
        if not self._is_ours():
            return "it belongs to the process that this one was forked from"
        return "it was released" if self._state is LeaseState.RELEASED else self._why

    def _is_ours(self) -> bool:
        """Whether this process got the lease, and not the one that it was forked from."""
        return self._pid == os.getpid()

    # --- for the one who renews and releases ---

    def _extend(self, grant: Grant) -> None:
        """Take in a renewal; one that comes after the deadline comes too late."""
        with self._mutex:
            if self._state not in _ALIVE or self._clock.monotonic_us() >= self._grant.deadline_us:
                return
            deadline_us = max(self._grant.deadline_us, grant.deadline_us)  # a renewal never shortens
            self._grant = replace(grant, deadline_us=deadline_us)
            self._state = LeaseState.HELD

    def _suspend(self) -> None:
        with self._mutex:
            if self._state is LeaseState.HELD:
                self._state = LeaseState.SUSPENDED

    def _lose(self, why: str) -> None:
        self._end(LeaseState.LOST, why)

    def _give_up(self) -> bool:
        """Stop using the lease, before it is released; False when it was lost before that."""
        if self.held:
            self._end(LeaseState.RELEASED, "it was released")
        return self._state is LeaseState.RELEASED

    def _end(self, state: LeaseState, why: str) -> None:
        with self._mutex:
            if self._state not in _ALIVE:
                return
            self._state, self._why = state, why
            callbacks, self._callbacks = self._callbacks, []
        if state is LeaseState.LOST:
            for callback in callbacks:
                callback()

    def _when_lost(self, callback: Callable[[], None]) -> None:
        """Call this once when the lease is lost, on whichever thread notices; it must not block."""
        with self._mutex:
            if self._state in _ALIVE:
                self._callbacks.append(callback)
                return
        if self._state is LeaseState.LOST:
            callback()

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._mutex:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
