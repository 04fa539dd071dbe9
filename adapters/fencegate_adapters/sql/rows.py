"""Rows through the gateway: the fence is raised first, and row and mark commit together or not at all."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import InvalidInput, ResourceUnavailable, UnsafeConfiguration
from fencegate.core.names import Guard, check_lock_key
from fencegate.core.ports import NO_CONDITIONS, Conditions, Guarantee, Key, Row, RowWrite, Seen
from fencegate.core.token import Token
from fencegate_adapters.sql import fences
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.documents import Documents
from fencegate_adapters.sql.groups import Groups
from fencegate_adapters.sql.marks import FenceTable, Marks
from fencegate_adapters.sql.shape import Shape, etag_of
from fencegate_adapters.sql.table import UserTable
from fencegate_adapters.sql.tables import FENCE_TABLES, create
from fencegate_adapters.sql.token_column import TokenColumn
from fencegate_adapters.sql.transactions import CommitFailed, Transactions, refused
from fencegate_adapters.sql.work import Done, Work
from fencegate_adapters.sql.writer import Writer
from fencegate_adapters.tables import missing

T = TypeVar("T")

READERS = 4


class RowsResource:
    """Rows of a database. Without `table` any JSON object is a row; with it, the rows of that table are served."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        table: str | None = None,
        key: Sequence[str] = ("key",),
        token_column: str | None = None,
        guard_template: str = "{resource}:{key}",
        mode: Literal["enforce", "shadow"] = "enforce",
        max_row_bytes: int = 1024 * 1024,
        wait_ms: int = 5000,
        clock: Clock = SYSTEM,
    ) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):  # the latter of a port that is no number
            raise UnsafeConfiguration(f"resource {name!r}: its url is not one of a database") from None
        self._dialect = dialect_of(parsed.get_backend_name())
        self._shape = _shape(name, table, tuple(key), max_row_bytes, token_column, mode)
        self.key_columns = self._shape.key_columns
        guard = Guard(guard_template, name, self.key_columns)  # refuses a template that can't be filled in
        self._record = fences.Record(name, guard_template, self._shape.form, mode)
        self._marks: Marks = FenceTable(self._dialect, self._record)
        if token_column is not None and isinstance(self._shape, UserTable):
            in_rows = TokenColumn(self._dialect, self._record, guard, self._shape, token_column)
            if mode == "enforce":  # marks of shadow mode are kept apart, in the fence table
                self._marks = in_rows
        self.guarantee = Guarantee("atomic", self._dialect.durability)
        # One thread for what is done together, and some for what is not; unless the database has one writer only.
        others = self._dialect.writers if self._dialect.writers > 1 else 0
        self._engine = self._dialect.engine(parsed, 1 + others + READERS)
        self._wait_us = wait_ms * 1000
        self._clock = clock
        self._writing = ThreadPoolExecutor(1, f"fencegate-{name}-write")
        self._others = ThreadPoolExecutor(others, f"fencegate-{name}-alone") if others else self._writing
        self._reading = ThreadPoolExecutor(READERS, f"fencegate-{name}-read")
        self._transactions = Transactions(self._engine, self._dialect)
        self._writer = Writer(self._transactions, self._dialect, self._shape, self._marks, self._record, clock)
        self._groups = Groups(self._writer.together, self._writer.alone, self._writing, self._others)
        self._closed = False

    # --- opening and closing -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._in(self._writing, self._open)

    def _open(self) -> None:
        self._make_tables()
        self._transact(self._check_recorded)

    def _make_tables(self) -> None:
        absent = self._transact(lambda connection: missing(connection, (*FENCE_TABLES, *self._shape.tables)))
        self._transact(lambda connection: create(connection, absent))

    def _check_recorded(self, connection: Connection) -> None:
        first_time = fences.remember(connection, self._dialect, self._record)  # first, for it takes the lock
        self._dialect.check(connection)
        self._shape.bind(connection)
        if first_time and self._shape.unmarked(connection):
            lost = f"resource {self._record.name!r} has rows but no marks: they were lost."
            raise UnsafeConfiguration(f"{lost} {fences.cure(self._record)}")
        fences.floor_of(connection, self._record)

    async def raise_floor(self, value: int) -> None:
        floor = Token(value)
        await self._in(self._writing, lambda: self._raise_floor(floor))

    def _raise_floor(self, floor: int) -> None:
        self._make_tables()
        self._transact(lambda connection: fences.raise_floor(connection, self._dialect, self._record, floor))

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._groups.close()
        for threads in (self._writing, self._others, self._reading):
            threads.shutdown()
        self._engine.dispose()

    # --- the resource contract ---------------------------------------------------------------------------------------

    async def claim(self, fence: str, token: int) -> Seen:
        return (await self._done(self._work(fence, token))).seen

    async def mark(self, fence: str) -> int:
        check_lock_key(fence)
        return await self._in(self._reading, lambda: self._transact(lambda connection: self._mark(connection, fence)))

    async def read(self, key: Key, fence: str, token: int | None = None) -> tuple[Row | None, Seen]:
        if token is not None:
            done = await self._done(self._work(fence, token, reads=key))
            return done.rows[0], done.seen

        def plain(connection: Connection) -> tuple[Row | None, Seen]:
            checked = self._shape.checked(key)
            try:
                row = self._shape.fetch(connection, [checked]).get(checked)
            except DBAPIError as error:
                if not refused(error):
                    raise
                raise self._dialect.refusal(error) from None
            return row, Seen(self._mark(connection, fence), etag_of(row))

        check_lock_key(fence)
        return await self._in(self._reading, lambda: self._transact(plain))

    async def write(self, fence: str, token: int, writes: Sequence[RowWrite]) -> tuple[list[Row | None], Seen]:
        if not writes:
            raise InvalidInput("writes", "must not be empty")
        return await self._done(self._work(fence, token, writes=tuple(writes)))

    async def delete(self, key: Key, fence: str, token: int, conditions: Conditions = NO_CONDITIONS) -> Seen:
        _, seen = await self.write(fence, token, [RowWrite("delete", key, conditions=conditions)])
        return seen

    # --- what takes a token ------------------------------------------------------------------------------------------

    def _work(self, fence: str, token: int, writes: tuple[RowWrite, ...] = (), reads: Key | None = None) -> Work:
        check_lock_key(fence)
        Token(token)
        work = Work(fence, token, self._clock.monotonic_us() + self._wait_us, writes=writes, reads=reads)
        if isinstance(self._marks, TokenColumn):
            for key in work.keys:
                self._marks.check_guarded(key, fence)
            work.lonely |= any(write.op == "delete" for write in writes)  # its mark goes to the fence table
        return work

    async def _done(self, work: Work) -> Done:
        self._check_open()
        self._groups.add(work)
        return await work.outcome()

    # --- what takes none ---------------------------------------------------------------------------------------------

    def _mark(self, connection: Connection, fence: str) -> int:
        return max(self._marks.read(connection, fence), fences.floor_of(connection, self._record))

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def _check_open(self) -> None:
        if self._closed:
            raise ResourceUnavailable(f"resource {self._record.name!r} is closed")

    def _transact(self, body: Callable[[Connection], T]) -> T:
        try:
            return self._transactions.run(body, self._wait_us // 1000)
        except CommitFailed as failed:
            raise ResourceUnavailable(str(failed), outcome="unknown") from failed
        except IntegrityError as error:
            raise self._dialect.refusal(error) from None
        except SQLAlchemyError as error:
            raise ResourceUnavailable(f"the database failed: {cause(error)}") from error


def _shape(
    name: str, table: str | None, key: tuple[str, ...], max_row_bytes: int, token_column: str | None, mode: str
) -> Shape:
    if table is not None:
        return UserTable(name, table, key, max_row_bytes, token_column, marks_rows=mode == "enforce")
    if token_column is not None:
        raise UnsafeConfiguration(f"resource {name!r}: token_column names a column of a table; documents have none")
    return Documents(name, max_row_bytes)
