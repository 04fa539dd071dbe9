"""Where the marks of a resource are: in the fence table, beside what they protect."""

from collections.abc import Mapping
from typing import Protocol

from sqlalchemy import Connection, bindparam, select

from fencegate_adapters.sql import begin_psycopg, fences
from fencegate_adapters.sql.dialect import Dialect
from fencegate_adapters.sql.protect.naming import name_tokens, named
from fencegate_adapters.sql.tables import fences as fence_table

_NAMED = (
    select(fence_table.c.lock_key, fence_table.c.token)
    .where(fence_table.c.mode == bindparam("mode"), fence_table.c.lock_key.in_(bindparam("keys", expanding=True)))
    .order_by(fence_table.c.lock_key)
)
_FREE = _NAMED.with_for_update(skip_locked=True, key_share=True)

# The limits are set on the way: what follows in the transaction must not wait for long, nor may the whole stand still.
# That of waiting comes before the statement, which waits for the lock of the table before anything of it is done.
# The record comes along: whoever changes it holds a lock on the fence table that this statement waits for before it
# looks at anything (`Dialect.keep_out`). BEGIN goes along: the driver would send it by itself and wait for the answer,
# and a thread that has waited must get at the interpreter again, which the event loop keeps busy just then.
_FREE_POSTGRESQL = b"""
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = %(wait)d;
WITH limits AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout', '30000', true),
        set_config('fencegate.lock', %(locks)s, true), set_config('fencegate.token', %(tokens)s, true)
), free AS MATERIALIZED (
    SELECT fence.lock_key, fence.token
    FROM limits, fencegate_fences AS fence
    WHERE fence.mode = %(mode)s AND fence.lock_key = ANY (ARRAY[%(keys)s]::bytea[])
    ORDER BY fence.lock_key
    FOR NO KEY UPDATE OF fence SKIP LOCKED
)
SELECT encode(lock_key, 'hex'), token, NULL, NULL, NULL, NULL FROM free
UNION ALL
SELECT NULL, floor, name, guard, form, mode FROM fencegate_resources WHERE name = %(name)s
"""


def _bytes_spelled(value: str) -> bytes:
    return rb"E'\\x%b'" % value.encode().hex().encode()


def _spelled(value: str) -> bytes:
    """In hexadecimal nothing has to be quoted, and no encoding to be known."""
    return b"convert_from(%b, 'UTF8')" % _bytes_spelled(value)


class Marks(Protocol):
    """How fences are raised, as the first step of a transaction, and under locks that hold until it ends."""

    def raise_one(self, connection: Connection, fence: str, token: int, *, deletes: bool) -> int:
        """Raise a fence to `token` unless it is higher, and wait for it as long as that takes; the mark it has now."""

    def raise_free(
        self, connection: Connection, claims: Mapping[str, int], *, wait_ms: int
    ) -> tuple[dict[str, int], int]:
        """The same for several, without waiting: those that another transaction holds are left out. And the floor.

        The transaction names these tokens then, for the triggers of a table that is protected.
        """

    def read(self, connection: Connection, fence: str) -> int:
        """The mark as it was committed last; 0 when there is none."""


class FenceTable:
    """A row of the fence table for each lock key."""

    def __init__(self, dialect: Dialect, record: fences.Record) -> None:
        self._dialect = dialect
        self._record = record
        self._mode = record.mode

    def raise_one(self, connection: Connection, fence: str, token: int, *, deletes: bool) -> int:
        return fences.pass_fence(connection, self._dialect, fence, self._mode, token)

    def raise_free(
        self, connection: Connection, claims: Mapping[str, int], *, wait_ms: int
    ) -> tuple[dict[str, int], int]:
        marks, floor = self._lock_free(connection, claims, wait_ms)
        absent = [fence for fence in claims if fence not in marks]
        locked = self._select(connection, absent) if absent and self._dialect.writers > 1 else {}
        low = {fence: token for fence, token in claims.items() if fence not in locked and marks.get(fence, 0) < token}
        if low:
            marks |= self._dialect.raise_marks(connection, low, self._mode)
        return marks, floor

    def read(self, connection: Connection, fence: str) -> int:
        return fences.read_mark(connection, fence, self._mode)

    def _lock_free(self, connection: Connection, claims: Mapping[str, int], wait_ms: int) -> tuple[dict[str, int], int]:
        if connection.dialect.name == "postgresql":
            return self._lock_free_at_once(connection, claims, wait_ms)
        if self._dialect.writers == 1:
            self._dialect.keep_out(connection)  # one writer at a time: then nothing is locked by others
        name_tokens(connection, claims)
        marks = self._select(connection, list(claims), lock=True)
        return marks, fences.floor_of(connection, self._record)

    def _lock_free_at_once(
        self, connection: Connection, claims: Mapping[str, int], wait_ms: int
    ) -> tuple[dict[str, int], int]:
        names = named(claims)
        message = _FREE_POSTGRESQL % {
            b"wait": max(1, wait_ms),  # 0 would be no limit
            b"mode": _spelled(self._mode),
            b"keys": b", ".join(map(_bytes_spelled, claims)),
            b"locks": _spelled(names.locks),
            b"tokens": _spelled(names.tokens),
            b"name": _spelled(self._record.name),
        }
        found = begin_psycopg.rows_of(connection, message)
        floor = fences.checked_floor(self._record, next((row[1:] for row in found if row[0] is None), None))
        return {bytes.fromhex(row[0]).decode(): int(row[1] or 0) for row in found if row[0] is not None}, floor

    def _select(self, connection: Connection, names: list[str], *, lock: bool = False) -> dict[str, int]:
        parameters = {"mode": self._mode, "keys": [name.encode() for name in names]}
        found = connection.execute(_FREE if lock else _NAMED, parameters)
        return {bytes(name).decode(): int(token) for name, token in found}
