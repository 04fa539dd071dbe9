"""Rows through the gateway: the fence is raised first, and row and mark commit together or not at all."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from sqlalchemy import Connection, Transaction, make_url
from sqlalchemy.exc import ArgumentError, DataError, IntegrityError, SQLAlchemyError

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import (
    FencegateError,
    InvalidInput,
    NotFound,
    PreconditionFailed,
    ResourceUnavailable,
    StaleToken,
    TooLarge,
    UnsafeConfiguration,
)
from fencegate.core.names import Guard, check_lock_key
from fencegate.core.ports import NO_CONDITIONS, Conditions, Guarantee, Key, Row, RowWrite, Seen, ShadowRefusal
from fencegate.core.token import Token
from fencegate.failpoint import reach
from fencegate_adapters.sql import fences
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.documents import Documents
from fencegate_adapters.sql.shape import Shape, etag_of
from fencegate_adapters.sql.table import UserTable
from fencegate_adapters.sql.tables import FENCE_TABLES, create, missing

T = TypeVar("T")
Written = tuple[list[Row | None], Seen]

READERS = 4
Refused = (PreconditionFailed, NotFound, InvalidInput, TooLarge)
"""What refuses a write after its token was admitted: the mark stays raised."""


class RowsResource:
    """Rows of a database. Without `table` any JSON object is a row; with it, the rows of that table are served."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        table: str | None = None,
        key: Sequence[str] = ("key",),
        guard_template: str = "{resource}:{key}",
        mode: Literal["enforce", "shadow"] = "enforce",
        max_row_bytes: int = 1024 * 1024,
        wait_ms: int = 5000,
        clock: Clock = SYSTEM,
    ) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise UnsafeConfiguration(f"resource {name!r}: its url is not one of a database") from None
        self._dialect = dialect_of(parsed.get_backend_name())
        self._shape: Shape = (
            Documents(name, max_row_bytes) if table is None else UserTable(name, table, tuple(key), max_row_bytes)
        )
        self.key_columns = self._shape.key_columns
        Guard(guard_template, name, self.key_columns)  # refuses a template that can't be filled in
        self._record = fences.Record(name, guard_template, self._shape.form, mode)
        self.guarantee = Guarantee("atomic", self._dialect.durability)
        self._engine = self._dialect.engine(parsed, self._dialect.writers + READERS)
        self._wait_us = wait_ms * 1000
        self._clock = clock
        self._writing = ThreadPoolExecutor(self._dialect.writers, f"fencegate-{name}-write")
        self._reading = ThreadPoolExecutor(READERS, f"fencegate-{name}-read")
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
        self._writing.shutdown()
        self._reading.shutdown()
        self._engine.dispose()

    # --- the resource contract ---------------------------------------------------------------------------------------

    async def claim(self, fence: str, token: int) -> Seen:
        def body(connection: Connection) -> Seen:
            return self._admit(connection, fence, token)

        return await self._change(fence, token, body)

    async def mark(self, fence: str) -> int:
        check_lock_key(fence)
        return await self._in(self._reading, lambda: self._transact(lambda connection: self._mark(connection, fence)))

    async def read(self, key: Key, fence: str, token: int | None = None) -> tuple[Row | None, Seen]:
        def plain(connection: Connection) -> tuple[Row | None, Seen]:
            row = self._shape.fetch(connection, key)
            return row, Seen(self._mark(connection, fence), etag_of(row))

        def fenced(connection: Connection) -> tuple[Row | None, Seen]:
            seen = self._admit(connection, fence, Token(token or 0))
            row = self._shape.fetch(connection, key)
            return row, Seen(seen.mark, etag_of(row), shadow=seen.shadow)

        if token is not None:
            return await self._change(fence, token, fenced)
        check_lock_key(fence)
        return await self._in(self._reading, lambda: self._transact(plain))

    async def write(self, fence: str, token: int, writes: Sequence[RowWrite]) -> Written:
        if not writes:
            raise InvalidInput("writes", "must not be empty")

        def body(connection: Connection) -> Written | FencegateError:
            seen = self._admit(connection, fence, token)
            try:
                with connection.begin_nested():
                    return self._apply(connection, writes, seen)
            except Refused as refusal:
                return refusal
            except (IntegrityError, DataError) as error:
                return self._dialect.refusal(error)

        return await self._change(fence, token, body, failpoint="resource.write")

    async def delete(self, key: Key, fence: str, token: int, conditions: Conditions = NO_CONDITIONS) -> Seen:
        _, seen = await self.write(fence, token, [RowWrite("delete", key, conditions=conditions)])
        return seen

    # --- inside a transaction ----------------------------------------------------------------------------------------

    def _admit(self, connection: Connection, fence: str, token: int) -> Seen:
        """The first step of every transaction that takes a token."""
        mark = fences.pass_fence(connection, self._dialect, fence, self._record.mode, token)
        floor = fences.floor_of(connection, self._record)
        try:
            return Seen(fences.admit(token, mark, floor))
        except StaleToken as stale:
            if self._record.mode == "enforce":
                raise
            return Seen(stale.highest, shadow=ShadowRefusal(token, stale.highest))

    def _mark(self, connection: Connection, fence: str) -> int:
        mark = fences.read_mark(connection, fence, self._record.mode)
        return max(mark, fences.floor_of(connection, self._record))

    def _apply(self, connection: Connection, writes: Sequence[RowWrite], seen: Seen) -> Written:
        rows: list[Row | None] = []
        for write in writes:
            old = self._shape.fetch(connection, write.key)
            new = self._apply_one(connection, write, old)
            seen = Seen(seen.mark, etag_of(new), created=old is None and new is not None, shadow=seen.shadow)
            rows.append(new)
        return rows, seen

    def _apply_one(self, connection: Connection, write: RowWrite, old: Row | None) -> Row | None:
        if not write.conditions.hold(etag_of(old)):
            raise PreconditionFailed("your own If-Match or If-None-Match did not hold: read again, then decide")
        if write.op == "put":
            self._shape.put(connection, write.key, old, write.value)
        elif old is None:
            raise NotFound(f"there is nothing under {'/'.join(write.key)}")
        elif write.op == "patch":
            self._shape.patch(connection, write.key, old, write.value)
        else:
            self._shape.delete(connection, write.key)
        return self._shape.fetch(connection, write.key)

    # --- around a transaction ----------------------------------------------------------------------------------------

    async def _change(
        self, fence: str, token: int, body: Callable[[Connection], T | FencegateError], failpoint: str = ""
    ) -> T:
        check_lock_key(fence)
        Token(token)
        deadline_us = self._clock.monotonic_us() + self._wait_us

        def work() -> T | FencegateError:
            try:
                return self._transact(body, deadline_us, failpoint)
            except InvalidInput:  # rolled back as a whole, by a constraint that is judged at COMMIT
                self._transact(lambda connection: self._admit(connection, fence, token))
                raise

        result = await self._in(self._writing, work)
        if isinstance(result, FencegateError):
            raise result
        return result

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._closed:
            raise ResourceUnavailable(f"resource {self._record.name!r} is closed")
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def _transact(self, body: Callable[[Connection], T], deadline_us: int | None = None, failpoint: str = "") -> T:
        """Run `body` in one transaction. A refusal that it returns is committed like a result: the mark stays."""
        left_us = self._wait_us if deadline_us is None else deadline_us - self._clock.monotonic_us()
        if left_us <= 0:
            raise ResourceUnavailable("others kept the database busy for too long: nothing was written; retry")
        committing = False
        outcome = "not-written"
        try:
            with self._engine.connect() as connection:
                self._dialect.limit_wait(connection, left_us // 1000)
                if failpoint:
                    reach(failpoint)
                transaction = connection.begin()
                result = body(connection)
                committing = True
                outcome = "not-written" if isinstance(result, FencegateError) else "unknown"
                _commit(transaction)
                return result
        except IntegrityError as error:
            raise self._dialect.refusal(error) from None
        except SQLAlchemyError as error:
            at = " while it committed" if committing else ""
            raise ResourceUnavailable(f"the database failed{at}: {cause(error)}", outcome=outcome) from error


def _commit(transaction: Transaction) -> None:
    try:
        transaction.commit()
    except BaseException:
        transaction.rollback()  # else the connection goes back to the pool as it is, its transaction open
        raise
