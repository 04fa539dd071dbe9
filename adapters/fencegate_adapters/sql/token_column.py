"""The mark in the row itself: a column of the caller's table, where each row has a lock of its own.

A row that is there has its mark in the column, and a holder's next write touches nothing else. What is not there can't
hold a mark, so the fence table does: a delete leaves the mark there in the same transaction, and whoever finds no row,
or one that nobody has marked, passes the fence table first and then looks again. Nobody who holds a row's lock waits
for its fence, so the two can't wait for each other.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, select, tuple_, update

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate.core.names import Guard
from fencegate.core.ports import Key
from fencegate_adapters.sql import fences
from fencegate_adapters.sql.dialect import Dialect
from fencegate_adapters.sql.protect.naming import name_tokens
from fencegate_adapters.sql.table import UserTable

_HOLE = re.compile(r"\{([^{}]*)\}")
_LIMITS = """
SELECT set_config('lock_timeout', %(wait)s, true), set_config('idle_in_transaction_session_timeout', '30000', true)
"""


class TokenColumn:
    """Marks of the rows of one table. `guard` must give each row a lock of its own."""

    def __init__(self, dialect: Dialect, record: fences.Record, guard: Guard, table: UserTable, column: str) -> None:
        self._dialect = dialect
        self._record = record
        self._guard = guard
        self._rows = table
        self._column = column
        self._pattern = _pattern(guard)
        self._statements: dict[str, Any] = {}

    # --- which row -------------------------------------------------------------------------------------------------

    def key_of(self, fence: str) -> Key:
        """The key of the row that this lock guards."""
        found = self._pattern.fullmatch(fence)
        if found is None:
            raise InvalidInput("lockKey", f"{fence!r} guards no row of this resource")
        text = found[1]
        return (text,) if len(self._rows.key_columns) == 1 else tuple(text.split("/"))

    def check_guarded(self, key: Key, fence: str) -> None:
        """One lock, one row: with a mark in each row, a lock over two of them would be held to neither's."""
        if self.key_of(fence) != key:
            raise InvalidInput("key", "is not the row that this lock guards; a part of a key must hold no '/' here")

    # --- marks -----------------------------------------------------------------------------------------------------

    def raise_one(self, connection: Connection, fence: str, token: int, *, deletes: bool) -> int:
        key = self._rows.checked(self.key_of(fence))
        self._begin(connection, int(connection.info.get("fencegate_wait_ms", 5000)))
        if not deletes:
            mark = self._mark(connection, key, lock=True)
            if mark:
                return self._raise(connection, {key: (mark, token)})[key]
        above = fences.pass_fence(connection, self._dialect, fence, self._record.mode, token)
        if above > token:
            return above
        mark = self._mark(connection, key, lock=True)
        return token if mark is None else self._raise(connection, {key: (mark, token)})[key]

    def raise_free(
        self, connection: Connection, claims: Mapping[str, int], *, wait_ms: int
    ) -> tuple[dict[str, int], int]:
        self._begin(connection, wait_ms)
        name_tokens(connection, claims)
        fence_of = {}
        for fence in claims:
            with contextlib.suppress(InvalidInput):  # which is told to it alone
                fence_of[self._rows.checked(self.key_of(fence))] = fence
        if not fence_of:
            return {}, fences.floor_of(connection, self._record)
        found = self._marks(connection, list(fence_of), "free")
        marked = {key: (mark, claims[fence_of[key]]) for key, mark in found.items() if mark and key in fence_of}
        marks = self._raise(connection, marked)
        return {fence_of[key]: mark for key, mark in marks.items()}, fences.floor_of(connection, self._record)

    def read(self, connection: Connection, fence: str) -> int:
        # In this order: a row that is deleted meanwhile has left its mark in the fence table.
        mark = self._mark(connection, self._rows.checked(self.key_of(fence)))
        return max(mark or 0, fences.read_mark(connection, fence, self._record.mode))

    # --- statements ------------------------------------------------------------------------------------------------

    def _begin(self, connection: Connection, wait_ms: int) -> None:
        """Who raises a floor keeps out whoever is at the fences: this makes us one of them."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(_LIMITS, {"wait": str(max(1, wait_ms))})
            connection.exec_driver_sql("LOCK TABLE fencegate_fences IN ROW SHARE MODE")
        elif self._dialect.writers == 1:
            self._dialect.keep_out(connection)

    def _mark(self, connection: Connection, key: Key, *, lock: bool = False) -> int | None:
        """The mark in the row, 0 when nobody has marked it; None when there is no row."""
        found = self._marks(connection, [key], "locked" if lock else "plain")
        for spelled in found:
            if spelled != key:
                raise InvalidInput("key", f"is spelled {'/'.join(spelled)!r} in the table: use that")
        return found.get(key)

    def _marks(self, connection: Connection, keys: list[Key], how: str) -> dict[Key, int]:
        values = [self._rows.key_values(key) for key in keys]
        parameters = {"keys": values if len(self._rows.key_columns) > 1 else [value for (value,) in values]}
        found = connection.execute(self._select(how), parameters)
        return {self._rows.spelled(row[:-1]): int(row[-1] or 0) for row in found}

    def _select(self, how: str) -> Any:
        if how not in self._statements:
            table = self._rows.columns.table
            keys = [table.c[name] for name in self._rows.key_columns]
            named = keys[0] if len(keys) == 1 else tuple_(*keys)
            query = select(*keys, table.c[self._column]).where(named.in_(bindparam("keys", expanding=True)))
            if how != "plain":
                query = query.order_by(*keys).with_for_update(skip_locked=how == "free")
            self._statements[how] = query
        return self._statements[how]

    def _raise(self, connection: Connection, marks: Mapping[Key, tuple[int, int]]) -> dict[Key, int]:
        """Of rows that are locked: each with its mark, and the token that it is shown."""
        low = [
            {"fencegate_token": token, **self._rows.named(key)} for key, (mark, token) in marks.items() if mark < token
        ]
        if low:
            table = self._rows.columns.table
            column = table.c[self._column]
            guarded = (column.is_(None)) | (column <= bindparam("fencegate_token"))
            statement = update(table).where(*self._rows.by_key, guarded).values({column: bindparam("fencegate_token")})
            connection.execute(statement, low)
        return {key: max(pair) for key, pair in marks.items()}


def _pattern(guard: Guard) -> re.Pattern[str]:
    """How the lock key of a row is spelled, with the key as the only group."""
    row_holes = [hole for hole in _HOLE.findall(guard.template) if hole != "resource"]
    own = row_holes == ["key"] or (len(guard.columns) == 1 and row_holes == list(guard.columns))
    if not own:
        raise UnsafeConfiguration(
            f"resource {guard.resource!r}: with token_column each row needs a lock of its own, and the guard "
            f"{guard.template!r} may cover several: name {{key}} in it once, or leave token_column out"
        )
    parts = [
        ("(.+)" if hole else re.escape(text.replace("{resource}", guard.resource)))
        for text, hole in _parts(guard.template, row_holes[0])
    ]
    return re.compile("".join(parts), re.DOTALL)


def _parts(template: str, hole: str) -> list[tuple[str, bool]]:
    before, _, after = template.partition(f"{{{hole}}}")
    return [(before, False), (hole, True), (after, False)]
