"""The history of a lock: who held it, from when to when, and how that ended."""

from collections.abc import Iterator
from dataclasses import dataclass

from fencegate.client.connection import Connection
from fencegate.client.reading import read
from fencegate.client.transport import Json
from fencegate.core.errors import InvalidInput
from fencegate.core.names import check_lock_key
from fencegate.core.token import Token

DEFAULT_LIMIT = 100
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class PastHold:
    """One hold of a lock. Re-entrant ones are told one by one, and share their token."""

    owner_id: str
    token: Token
    mode: str
    """`exclusive` or `shared`."""
    slot: int | None
    """Which of the permits it was, where the lock is one of so many."""
    acquired_at: float
    """In Unix seconds."""
    ended_at: float | None
    """In Unix seconds; None while it is held."""
    ending: str | None
    """`released`, `expired` or `forced`; None while it is held."""
    reason: str | None
    """Why it was released by force."""


@dataclass(frozen=True, slots=True)
class LockHistory:
    """The holds of a lock, newest first."""

    lock_key: str
    holds: tuple[PastHold, ...]
    complete: bool
    """False when something may be missing in the time that these holds cover."""

    def __iter__(self) -> Iterator[PastHold]:
        return iter(self.holds)

    def __len__(self) -> int:
        return len(self.holds)


async def history(connection: Connection, lock_key: str, limit: int) -> LockHistory:
    """The newest `limit` holds, in as many pages as that takes."""
    check_lock_key(lock_key)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidInput("limit", "must be a whole number, 1 or more")
    transport = await connection.transport()
    holds: list[PastHold] = []
    complete, cursor = True, ""
    while True:

        async def page(cursor: str = cursor, wanted: int = min(_PAGE, limit - len(holds))) -> Json:
            return await transport.history(lock_key, limit=wanted, cursor=cursor)

        answer = await read(connection, page)
        holds += [_past_hold(told) for told in answer["history"]]
        complete = complete and answer["complete"]
        cursor = answer.get("nextCursor") or ""
        if not cursor or len(holds) >= limit:
            return LockHistory(lock_key, tuple(holds), complete)


def _past_hold(told: Json) -> PastHold:
    ended_ms = told["endedAt"]
    return PastHold(
        told["ownerId"],
        Token.parse(told["fencingToken"]),
        told["mode"],
        told.get("slot"),
        told["acquiredAt"] / 1000,
        None if ended_ms is None else ended_ms / 1000,
        told["ending"],
        told.get("reason"),
    )
