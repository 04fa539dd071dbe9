"""What an acquire asks for: one lock, or several at once. The two ways to put it on the wire."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fencegate.client.grant import Grant, Mode, granted, unreadable
from fencegate.client.group import Grants
from fencegate.client.terms import Wish
from fencegate.client.transport import Json, Transport
from fencegate.core.errors import InvalidInput
from fencegate.core.names import check_lock_key

G = TypeVar("G")

LockChoice = str | tuple[str, Mode]
"""One of several: a lock key, or a lock key and its mode."""


class Ask(Protocol[G]):
    """An acquire as it is sent, read, and taken back. `body` is the wish's, with requestId and waiting."""

    @property
    def wish(self) -> Wish: ...

    def send(self, transport: Transport, body: Json) -> Awaitable[Json]: ...

    def read(self, body: Json, reply: Json, started_us: int, since_us: int) -> G: ...

    async def take_back(self, transport: Transport, grant: G) -> None: ...


@dataclass(frozen=True, slots=True)
class OneLock:
    lock_key: str
    wish: Wish

    def send(self, transport: Transport, body: Json) -> Awaitable[Json]:
        return transport.acquire(self.lock_key, body)

    def read(self, body: Json, reply: Json, started_us: int, since_us: int) -> Grant:
        return granted(self.lock_key, body, reply, started_us, since_us)

    async def take_back(self, transport: Transport, grant: Grant) -> None:
        await transport.release(grant.lock_key, grant.release_body())


@dataclass(frozen=True, slots=True)
class SeveralLocks:
    locks: tuple[tuple[str, Mode], ...]
    wish: Wish

    def send(self, transport: Transport, body: Json) -> Awaitable[Json]:
        locks = [{"lockKey": lock_key, "mode": mode} for lock_key, mode in self.locks]
        return transport.multi_acquire({"locks": locks, **body})

    def read(self, body: Json, reply: Json, started_us: int, since_us: int) -> Grants:
        try:
            parts = {part["lockKey"]: part for part in reply["locks"]}
            return tuple(granted(lock_key, body, parts[lock_key], started_us, since_us) for lock_key, _ in self.locks)
        except (KeyError, TypeError) as error:
            raise unreadable("several locks", error) from error

    async def take_back(self, transport: Transport, grant: Grants) -> None:
        locks = [{"lockKey": part.lock_key, "lockToken": part.lock_token} for part in grant]
        await transport.multi_release({"locks": locks, "ownerId": grant[0].owner_id})


def chosen(choices: "tuple[LockChoice, ...]") -> tuple[tuple[str, Mode], ...]:
    """The locks that a caller names, each with its mode; InvalidInput when one is named twice, or none at all."""
    modes: dict[str, Mode] = {}
    for choice in choices:
        lock_key, mode = (choice, None) if isinstance(choice, str) else choice
        if mode not in (None, "exclusive", "shared"):
            raise InvalidInput("mode", "must be exclusive or shared")
        if check_lock_key(lock_key) in modes:
            raise InvalidInput("locks", f"{lock_key!r} is named twice")
        modes[lock_key] = mode or "exclusive"
    if not modes:
        raise InvalidInput("locks", "name at least one lock")
    return tuple(modes.items())
