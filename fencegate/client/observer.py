"""Following a leader: who leads now, and then each change, in order."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from fencegate.client.attempt import repeated, worth_repeating
from fencegate.client.transport import Json
from fencegate.client.watch import Watcher, WatchEvent
from fencegate.core.token import Token

_ENDINGS = ("released", "expired", "forced")


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads. `token` orders leaders: a later one's is higher.

    `metadata` is what the leader said of itself; None also where a term was over before it could be asked for.
    """

    owner_id: str
    token: Token
    metadata: Mapping[str, Any] | None = None


class Following:
    """What an observer was told so far. It never goes back to an older leader, whatever arrives late."""

    def __init__(self) -> None:
        self._highest = 0
        self._present: Leader | None = None
        self._told = False

    def is_news(self, leader: Leader | None) -> bool:
        """Take this in; whether the observer has yet to be told."""
        if leader is not None and leader.token <= self._highest:
            return False
        if leader is None and self._told and self._present is None:
            return False
        self._told, self._present = True, leader
        if leader is not None:
            self._highest = leader.token
        return True

    def leads(self, token: Token | None) -> bool:
        return self._present is not None and self._present.token == token


class Observer:
    """An async iterator of Leader, or None while nobody leads: the present one first, then each change.

    It goes on by itself when the connection breaks, and misses no leader; only when it was away for longer than the
    lock service remembers, it goes on with the present one. It may be cancelled while it waits, and asked again.
    """

    def __init__(self, watcher: Watcher, look: Callable[[], Awaitable[Json]]) -> None:
        self._watcher = watcher
        self._look = look
        self._following = Following()
        self._must_look = True
        self._event: WatchEvent | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Leader | None:
        while True:
            changed, leader = await self._next()
            if changed:
                return leader

    async def begin(self) -> Self:
        """Follow from now on: returns when no leader can be missed any more."""
        await self._watcher.begin()
        return self

    async def aclose(self) -> None:
        """Stop following; whoever waits for a change gets the end of the iteration."""
        await self._watcher.aclose()

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _next(self) -> tuple[bool, Leader | None]:
        """One look or one event, and whether it brought a change. Cancelled, it is done again by the next call."""
        if self._must_look:
            await self._watcher.begin()  # before the look, so that nothing is missed in between
            leader = await self._present()
            self._must_look = False
            return self._following.is_news(leader), leader
        if self._event is None:
            self._event = await anext(self._watcher)
        event = self._event
        if event.kind == "reset":
            self._must_look, self._event = True, None
            return False, None
        told = await self._told(event)
        self._event = None
        return told

    async def _told(self, event: WatchEvent) -> tuple[bool, Leader | None]:
        token = event.token
        if event.kind == "acquired" and token is not None:
            present = await self._present()  # an event has no metadata
            still = present is not None and present.token == token
            leader = present if still else Leader(event.owner_id, token)
            return self._following.is_news(leader), leader
        if event.kind in _ENDINGS and self._following.leads(token):
            present = await self._present()
            if present is not None and present.token == token:  # one of several re-entrant holds ended
                return False, None
            return self._following.is_news(None), None
        return False, None

    async def _present(self) -> Leader | None:
        return leader_of(await repeated(self._look, worth_repeating))


def leader_of(status: Json) -> Leader | None:
    """The leader, as the status of its lock tells of it."""
    if not status.get("locked"):
        return None
    token = Token.parse(str(status["fencingToken"]))
    holders = status.get("holders") or [{}]
    return Leader(str(status["ownerId"]), token, holders[0].get("metadata"))
