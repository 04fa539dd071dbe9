"""Who held a lock, from when to when, and how that ended: what was written of it, and who holds it still."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from fencegate.core.commands import Expire
from fencegate.core.errors import InvalidInput, StoreUnavailable
from fencegate.core.model import Hold
from fencegate.core.names import check_lock_key
from fencegate.core.ports import Unavailable
from fencegate.engine import Engine
from fencegate_lockservice.history_rows import Position, Row, acquired_us, decode_row, held_place, is_place, rows_of
from fencegate_lockservice.history_writer import MAX_PER_LOCK, HistoryWriter

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
CATCH_UP_S = 3.0
MAX_KEEP_IN_MEMORY_US = 3_600_000_000

Answer = dict[str, Any]


class _Past(NamedTuple):
    place: str
    row: Row


class History:
    """Reads the history of locks; `writer` is None where it is switched off, and then no answer says that it is whole.

    What was just committed is written before it is read, so that an answer never lags behind what its caller did.
    """

    def __init__(self, engine: Engine, writer: HistoryWriter | None) -> None:
        self._engine = engine
        self._store = engine.store
        self._writer = writer
        self._writing: asyncio.Task[None] | None = None
        self._max_per_lock = writer.max_per_lock if writer is not None else MAX_PER_LOCK

    @classmethod
    def over(cls, engine: Engine, keep_us: int) -> Self:
        """The history of this engine's store, kept for so long; 0 switches it off.

        In memory it is kept for an hour at most: there it costs what is dear, and is gone with the process anyway.
        """
        if not engine.store.capabilities.durable:
            keep_us = min(keep_us, MAX_KEEP_IN_MEMORY_US)
        return cls(engine, HistoryWriter(engine.store, engine.clock, keep_us) if keep_us else None)

    def start(self) -> None:
        """Write in the background from now on, not only when somebody reads."""
        if self._writer is not None:
            self._writing = asyncio.get_running_loop().create_task(self._writer.run())

    async def close(self) -> None:
        """Stop writing. What is not written yet stays in the change log, for whoever comes next."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])

    async def of(self, lock_key: str, *, limit: int = DEFAULT_LIMIT, cursor: str = "") -> Answer:
        """A page of the history of a lock, newest first."""
        check_lock_key(lock_key)
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidInput("limit", f"must be 1 to {MAX_LIMIT}")
        after, before = _read_cursor(cursor)
        wanted = max(0, min(limit, self._max_per_lock - before))
        try:
            found, position = await self._read(lock_key, after, wanted + 1)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from None
        page = found[:wanted]
        more = len(found) > len(page) and before + len(page) < self._max_per_lock
        until_us = acquired_us(after) if after else None
        from_us = page[-1].row.acquired_us if more else 0
        return {
            "lockKey": lock_key,
            "history": [_told(row) for _, row in page],
            "nextCursor": f"{page[-1].place}-{before + len(page)}" if more else None,
            "complete": position is not None and _whole(position, from_us, until_us),
        }

    async def _read(self, lock_key: str, after: str, wanted: int) -> tuple[list[_Past], Position | None]:
        """So many, in order. Those who hold the lock are looked at first, so that nobody slips through by ending."""
        held = await self._held(lock_key)
        position = await self._caught_up()
        over = await self._over(lock_key, after, wanted)
        still = {hold.who.lock_token for hold in await self._held(lock_key)} if held else set()
        ended = Counter(_identity(past.row) for past in over)
        found = over
        for number, hold in enumerate(held):
            row = _row(hold)
            if hold.who.lock_token not in still and ended[_identity(row)]:
                ended[_identity(row)] -= 1
                continue
            place = held_place(row, number)
            if place > after:
                found.append(_Past(place, row))
        return sorted(found)[:wanted], position

    async def _held(self, lock_key: str) -> Sequence[Hold]:
        seen = await self._engine.look(lock_key)
        if seen.record is not None and sum(not hold.pending for hold in seen.record.holds) > len(seen.holds):
            # One is over, and nobody has noticed yet: neither held nor in the history, it would be missing.
            await self._engine.run(Expire(lock_key))
        return seen.holds

    async def _caught_up(self) -> Position | None:
        """Where the writer stands; None when there is none, or it is too far behind to wait for."""
        if self._writer is None:
            return None
        try:
            async with asyncio.timeout(CATCH_UP_S):
                return await self._writer.catch_up()
        except (TimeoutError, Unavailable):
            return None

    async def _over(self, lock_key: str, after: str, wanted: int) -> list[_Past]:
        """What was written; an entry past its time is gone, whether or not the store has forgotten it yet."""
        prefix = rows_of(lock_key)
        keep_from_us = self._engine.now().earliest - self._writer.keep_us if self._writer is not None else 0
        found: list[_Past] = []
        while len(found) < wanted:
            page = await self._store.scan(prefix, prefix + after, wanted)
            for key, entry in page:
                after = key.removeprefix(prefix)
                row = decode_row(entry.value)
                if row.ended_us is not None and row.ended_us > keep_from_us:
                    found.append(_Past(after, row))
            if len(page) < wanted:
                break
        return found


def _read_cursor(cursor: str) -> tuple[str, int]:
    """The place after which to go on, and how many came before it."""
    if not cursor:
        return "", 0
    place, _, count = cursor.partition("-")
    if not is_place(place) or not (count.isascii() and count.isdigit() and len(count) <= 6):
        raise InvalidInput("cursor", "is not one that an answer gave as nextCursor")
    return place, int(count)


def _whole(position: Position, from_us: int, until_us: int | None) -> bool:
    """Whether nothing is missing of what was acquired in this time."""
    return not any(gap.to_us >= from_us and (until_us is None or gap.from_us <= until_us) for gap in position.gaps)


def _row(hold: Hold) -> Row:
    return Row(hold.who.owner_id, hold.token, hold.granted_us, shared=hold.who.terms.shared, slot=hold.slot)


def _identity(row: Row) -> tuple[object, ...]:
    return row.token, row.acquired_us, row.owner_id, row.slot


def _told(row: Row) -> Answer:
    told: Answer = {
        "ownerId": row.owner_id,
        "fencingToken": str(row.token),
        "mode": "shared" if row.shared else "exclusive",
        "acquiredAt": row.acquired_us // 1000,
        "endedAt": row.ended_us // 1000 if row.ended_us is not None else None,
        "ending": row.ending,
    }
    if row.slot is not None:
        told["slot"] = row.slot
    if row.reason is not None:
        told["reason"] = row.reason
    return told
