"""The block of `fenced` on a connection of psycopg: one transaction, from entering the block to its end.

It is a transaction of psycopg's, so that psycopg itself refuses `commit()` and `rollback()` inside of it: what came
after them would not be under the fence. A `connection.transaction()` inside of the block is a savepoint. Autocommit is
off inside: after a COMMIT or ROLLBACK as text each statement would be committed by itself, while so it waits for the
end of the block, which finds that out.
"""

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql.block_sqlalchemy import BEGUN, REFUSED_AT_COMMIT
from fencegate_adapters.sql.leases import Leases, ensure_held
from fencegate_adapters.sql.messages import close_unread
from fencegate_adapters.sql.passage import ABORTED, ENDED, LATE_SNAPSHOT
from fencegate_adapters.sql.passing import Ask, ClaimFirst, Claims, Steps, drive, drive_async, rules_of
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.passing.steps import Row, in_pyformat
from fencegate_adapters.sql.strings import check_strings
from fencegate_adapters.sql.tables import ddl

ATTEMPTS = 4
PIPELINE = (
    "this connection is in pipeline mode, where answers come later, and the fence has to be known first: open the "
    "pipeline inside of the block"
)
# What was set for the transaction that passed ends with it. After a COMMIT as text the driver begins another by itself,
# and its own state is then as if nothing had happened.
_STILL_THERE = "SELECT 1 WHERE starts_with(current_setting('fencegate.lock', true), :locks)"

_rules = rules_of("postgresql")
_seen: "WeakKeyDictionary[Any, Seen]" = WeakKeyDictionary()


class _Unsure(Exception):
    """The transaction keeps its first snapshot, and must begin again with care."""


def _check_idle(pgconn: Any) -> None:
    if pgconn.status == pq.ConnStatus.BAD:
        raise ResourceUnavailable("the fence can't be reached: the connection is closed; open another")
    if pgconn.transaction_status != pq.TransactionStatus.IDLE:
        raise UnsafeConfiguration(BEGUN)
    if pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise UnsafeConfiguration(PIPELINE)


class _Transaction(psycopg.Transaction):
    """Never a savepoint of one that another thread has begun meanwhile: to leave it would undo what the other did in
    it, and the other's passage if that came behind."""

    def _check_enter(self) -> None:
        """Asked by the driver where nobody else can use the connection."""
        _check_idle(self.pgconn)
        super()._check_enter()


class _AsyncTransaction(psycopg.AsyncTransaction):
    def _check_enter(self) -> None:
        _check_idle(self.pgconn)
        super()._check_enter()


class _Block:
    """What both kinds share."""

    def __init__(self, connection: Any, claims: Claims, leases: Sequence[Leases]) -> None:
        self._connection = connection
        self._claims = claims
        self._seen = _seen.setdefault(connection, Seen())
        self._leases = leases
        self._autocommit = False
        """Whether the caller has the connection in autocommit."""

    def _passing(self) -> Steps[bool]:
        return _rules.passing(self._claims, self._seen.all_of(self._claims), self._seen.careful)

    @property
    def _status(self) -> pq.TransactionStatus:
        return pq.TransactionStatus(self._connection.pgconn.transaction_status)

    def _check_end(self) -> Steps[None]:
        if self._status == pq.TransactionStatus.INERROR:
            raise ResourceUnavailable(ABORTED)
        if self._status != pq.TransactionStatus.INTRANS:
            raise ResourceUnavailable(ENDED, outcome="unknown")
        if not (yield Ask(_STILL_THERE, {"locks": self._claims.named.locks})):
            raise ResourceUnavailable(ENDED, outcome="unknown")
        ensure_held(self._leases)


def _at_commit(error: psycopg.Error) -> Exception:
    """What an error of COMMIT means."""
    if isinstance(error, psycopg.IntegrityError) or error.sqlstate in REFUSED_AT_COMMIT:
        return error
    return ResourceUnavailable(f"the database failed while it committed: {_said(error)}", outcome="unknown")


def _before_commit(error: BaseException) -> BaseException:
    """What an error of the last look means: nothing was written."""
    if not isinstance(error, psycopg.Error) or error.sqlstate in REFUSED_AT_COMMIT:
        return error
    meant = ResourceUnavailable(f"the database failed before it was told to commit: {_said(error)}")
    meant.__cause__ = error
    return meant


def _at_fence(error: psycopg.Error) -> ResourceUnavailable:
    return ResourceUnavailable(f"the fence can't be reached: {_said(error)}")


def _said(error: psycopg.Error) -> str:
    return " ".join((error.diag.message_primary or str(error)).split())[:200]


class FencedPsycopg(_Block):
    """`with fenced(connection, lease):`"""

    _transaction: _Transaction

    def __enter__(self) -> "psycopg.Connection[Any]":
        _check_idle(self._connection.pgconn)
        check_strings(self._connection)
        self._autocommit = self._connection.autocommit
        try:
            if self._autocommit:
                self._connection.set_autocommit(False)
            return self._enter()
        except BaseException:
            self._restore()
            raise

    def _enter(self) -> "psycopg.Connection[Any]":
        for _ in range(ATTEMPTS):
            try:
                self._begin()
            except _Unsure:
                self._seen.careful = True
            except ClaimFirst:
                self._seen.careful = True
                self._claim()
            except psycopg.errors.UndefinedTable:
                self._create()
            except psycopg.Error as error:
                raise _at_fence(error) from error
            else:
                connection: psycopg.Connection[Any] = self._connection
                return connection
        raise ResourceUnavailable(LATE_SNAPSHOT)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        refusal: BaseException | None = None
        is_rollback = False
        if error is None:
            try:
                drive(self._check_end(), self._run)
            except BaseException as found:
                refusal = error = _before_commit(found)
                kind, at = type(refusal), refusal.__traceback__
        try:
            is_rollback = self._transaction.__exit__(kind, error, at)  # psycopg.Rollback is no error
        except psycopg.Error as failed:
            if error is None:
                raise _at_commit(failed) from failed
            error.add_note(f"and the rollback failed: {_said(failed)}")
        finally:
            close_unread(self._connection)
            self._restore()
        if refusal is not None:
            raise refusal
        return is_rollback

    def _restore(self) -> None:
        if self._autocommit:
            with contextlib.suppress(psycopg.Error):  # the connection is gone
                self._connection.set_autocommit(True)

    def _run(self, ask: Ask) -> list[Row]:
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:  # whatever the caller's rows are
            cursor.execute(in_pyformat(ask.statement), ask.values)
            return cursor.fetchall() if cursor.description else [(cursor.rowcount,)]

    def _begin(self) -> None:
        transaction = _Transaction(self._connection)
        begun = transaction.__enter__()
        try:
            if begun.savepoint_name:  # a release of the driver that does not ask
                raise UnsafeConfiguration(BEGUN)
            sure = drive(self._passing(), self._run)
            if not sure:
                raise _Unsure
        except BaseException as error:
            transaction.__exit__(type(error), error, error.__traceback__)
            close_unread(self._connection)
            raise
        self._transaction = transaction
        self._seen.add(self._claims)

    def _claim(self) -> None:
        try:
            with _Transaction(self._connection):
                drive(_rules.claiming(self._claims), self._run)
        except psycopg.Error as error:
            raise _at_fence(error) from error

    def _create(self) -> None:
        try:
            with _Transaction(self._connection):
                for statement in ddl("postgresql"):
                    self._run(Ask(statement))
        except psycopg.Error as error:
            raise ResourceUnavailable(f"the fence table can't be created: {_said(error)}") from error


class FencedAsyncPsycopg(_Block):
    """`async with fenced(connection, lease):`"""

    _transaction: _AsyncTransaction

    async def __aenter__(self) -> "psycopg.AsyncConnection[Any]":
        _check_idle(self._connection.pgconn)
        check_strings(self._connection)
        self._autocommit = self._connection.autocommit
        try:
            if self._autocommit:
                await self._connection.set_autocommit(False)
            return await self._enter()
        except BaseException:
            await self._restore()
            raise

    async def _enter(self) -> "psycopg.AsyncConnection[Any]":
        for _ in range(ATTEMPTS):
            try:
                await self._begin()
            except _Unsure:
                self._seen.careful = True
            except ClaimFirst:
                self._seen.careful = True
                await self._claim()
            except psycopg.errors.UndefinedTable:
                await self._create()
            except psycopg.Error as error:
                raise _at_fence(error) from error
            else:
                connection: psycopg.AsyncConnection[Any] = self._connection
                return connection
        raise ResourceUnavailable(LATE_SNAPSHOT)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        refusal: BaseException | None = None
        is_rollback = False
        if error is None:
            try:
                await drive_async(self._check_end(), self._run)
            except BaseException as found:
                refusal = error = _before_commit(found)
                kind, at = type(refusal), refusal.__traceback__
        try:
            is_rollback = await self._transaction.__aexit__(kind, error, at)
        except psycopg.Error as failed:
            if error is None:
                raise _at_commit(failed) from failed
            error.add_note(f"and the rollback failed: {_said(failed)}")
        finally:
            close_unread(self._connection)
            await self._restore()
        if refusal is not None:
            raise refusal
        return is_rollback

    async def _restore(self) -> None:
        if self._autocommit:
            with contextlib.suppress(psycopg.Error):
                await self._connection.set_autocommit(True)

    async def _run(self, ask: Ask) -> list[Row]:
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(in_pyformat(ask.statement), ask.values)
            return await cursor.fetchall() if cursor.description else [(cursor.rowcount,)]

    async def _begin(self) -> None:
        transaction = _AsyncTransaction(self._connection)
        begun = await transaction.__aenter__()
        try:
            if begun.savepoint_name:  # a release of the driver that does not ask
                raise UnsafeConfiguration(BEGUN)
            sure = await drive_async(self._passing(), self._run)
            if not sure:
                raise _Unsure
        except BaseException as error:
            await transaction.__aexit__(type(error), error, error.__traceback__)
            close_unread(self._connection)
            raise
        self._transaction = transaction
        self._seen.add(self._claims)

    async def _claim(self) -> None:
        try:
            async with _AsyncTransaction(self._connection):
                await drive_async(_rules.claiming(self._claims), self._run)
        except psycopg.Error as error:
            raise _at_fence(error) from error

    async def _create(self) -> None:
        try:
            async with _AsyncTransaction(self._connection):
                for statement in ddl("postgresql"):
                    await self._run(Ask(statement))
        except psycopg.Error as error:
            raise ResourceUnavailable(f"the fence table can't be created: {_said(error)}") from error
