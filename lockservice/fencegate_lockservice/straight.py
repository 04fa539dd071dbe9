"""Plain locks for whoever is in this process: what `LockApi` does with a plain body, without the body.

JSON-shaped bodies and answers are for HTTP. Making, checking and reading them cost a client of its own process more
than the state machine and the commit do.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fencegate.core.commands import Release
from fencegate.core.model import Hold
from fencegate.engine import Engine
from fencegate_lockservice.answers import remaining_ms
from fencegate_lockservice.asking import KEEP_PLACE_US, Asking


class Straight:
    """See the head of this file. Names and durations were judged by whoever calls."""

    __slots__ = ("_asking", "_engine")

    def __init__(self, engine: Engine, asking: Asking) -> None:
        self._engine = engine
        self._asking = asking

    def acquire(
        self,
        lock_key: str,
        owner_id: str,
        ttl_ms: int,
        request_id: str,
        wait_ms: int,
        fresh: bool,
        limit_s: float,
        standing: Callable[[], None] | None = None,
    ) -> Coroutine[Any, Any, Hold]:
        """`fresh`: the request id was made for this call, which is its first. `standing` is called when it waits."""
        command = self._asking.plain(lock_key, owner_id, ttl_ms, request_id, wait_ms, fresh)
        if command.who.special is not None or "/" in lock_key:
            return self._engine.acquire(command, wait_ms * 1000, KEEP_PLACE_US, limit_s, standing)
        return self._engine.acquire_plainly(command, wait_ms * 1000, KEEP_PLACE_US, limit_s, standing)

    def release(self, lock_key: str, lock_token: str, owner_id: str, limit_s: float) -> Coroutine[Any, Any, None]:
        return self._engine.release(Release(lock_key, lock_token, owner_id), limit_s)

    def remaining_ms(self, hold: Hold) -> int:
        return remaining_ms(hold.expires_us, self._engine.now())
