"""The block of `fenced` on a connection of Django: one `transaction.atomic`, from entering the block to its end.

Django itself refuses to commit inside of it; an `atomic` inside of the block is a savepoint.
"""

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error, IntegrityError

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql.endings import check_allowed, ends
from fencegate_adapters.sql.leases import Leases, ensure_held
from fencegate_adapters.sql.openness import FAILED
from fencegate_adapters.sql.passage import ABORTED, ENDED, LATE_SNAPSHOT
from fencegate_adapters.sql.passing import Ask, ClaimFirst, Claims, drive, rules_of
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.passing.steps import Row, in_pyformat
from fencegate_adapters.sql.protect.naming import of_sqlite
from fencegate_adapters.sql.strings import check_strings
from fencegate_adapters.sql.tables import FENCE_TABLES, ddl

_BEGUN = (
    "this connection is in a transaction already, and what was done in it is not under the fence: fenced() goes "
    "outside of atomic(), and not where ATOMIC_REQUESTS has begun one (@transaction.non_atomic_requests)"
)
_NOT_DJANGOS = (
    "this connection is not the one that Django has for {!r} in this thread, where transaction.atomic() begins: what "
    "it did would not be under the fence"
)
ATTEMPTS = 4
_PASSED = "fencegate_passed"
_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS

_prepared: set[tuple[str, ...]] = set()
_seen: weakref.WeakKeyDictionary[Any, Seen] = weakref.WeakKeyDictionary()
_of_drivers: weakref.WeakKeyDictionary[Any, tuple[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()
"""By Django's connection: that of sqlite3, which can't be referred to weakly, and what it is known to have."""


class _Unsure(Exception):
    """The transaction keeps its first snapshot, and must begin again with care."""


class FencedDjango:
    """`with fenced(connection, lease):`, where `connection` is `django.db.connection`, or one of `connections`."""

    def __init__(self, connection: Any, claims: Claims, leases: Sequence[Leases]) -> None:
        alias = getattr(connection, "alias", None)
        if alias is None:
            raise TypeError("fenced() takes django.db.connection, or one of django.db.connections")
        self._connection = connections[alias]
        if isinstance(connection, BaseDatabaseWrapper) and connection is not self._connection:
            raise UnsafeConfiguration(_NOT_DJANGOS.format(alias))
        self._ended = False
        """By a statement of the caller's."""
        self._rules = rules_of(self._connection.vendor)
        self._claims = claims
        self._leases = leases
        self._seen = _seen.setdefault(self._connection, Seen())

    def __enter__(self) -> Any:
        connection = self._connection
        connection.ensure_connection()
        check_strings(connection.connection)
        if _begun(connection):
            raise UnsafeConfiguration(_BEGUN)
        try:
            self._prepare()
            for _ in range(ATTEMPTS):
                try:
                    self._begin()
                    return connection
                except _Unsure:
                    self._seen.careful = True
                except ClaimFirst:
                    self._seen.careful = True
                    with transaction.atomic(using=connection.alias):
                        drive(self._rules.claiming(self._claims), self._run)
        except Error as error:
            _prepared.discard(_name(connection))
            raise ResourceUnavailable(f"the fence can't be reached: {_said(error)}") from error
        raise ResourceUnavailable(LATE_SNAPSHOT)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            try:
                self._check_end()
            except BaseException as refusal:
                self._leave(type(refusal), refusal, refusal.__traceback__)
                raise
        try:
            self._leave(kind, error, at)
        except IntegrityError:
            raise
        except Error as failed:
            if error is not None:
                error.add_note(f"and the rollback failed: {_said(failed)}")
                return
            detail = f"the database failed while it committed: {_said(failed)}"
            raise ResourceUnavailable(detail, outcome="unknown") from failed

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._before_statements.close()
        self._name_to_sqlite({})
        if self._rules.after is not None:
            with contextlib.suppress(Error):  # the connection is gone, and what it remembered too
                self._forget(self._rules.after)
        self._atomic.__exit__(kind, error, at)

    def _forget(self, after: Ask) -> None:
        """By the driver's own cursor: Django lets none of its own say a word in a transaction that it marks for a
        rollback, as it does after an error of `save()`."""
        connection = self._connection
        with connection.wrap_database_errors, connection.connection.cursor() as cursor:
            cursor.execute(after.statement)

    def _check_end(self) -> None:
        if self._connection.needs_rollback:
            raise ResourceUnavailable("Django marks this transaction for a rollback: nothing was written")
        if self._ended or _is_over(self._connection) or not self._is_still_there():
            raise ResourceUnavailable(ENDED, outcome="unknown")
        if _has_failed(self._connection):
            raise ResourceUnavailable(ABORTED)
        ensure_held(self._leases)

    def _begin(self) -> None:
        atomic = transaction.atomic(using=self._connection.alias)
        atomic.__enter__()
        try:
            seen = self._seen
            if not drive(self._rules.passing(self._claims, seen.all_of(self._claims), seen.careful), self._run):
                raise _Unsure
            if not _tells(self._connection):
                self._run(Ask(f"SAVEPOINT {_PASSED}"))
        except BaseException as error:
            atomic.__exit__(type(error), error, error.__traceback__)
            raise
        self._atomic = atomic
        self._before_statements = contextlib.ExitStack()
        self._before_statements.enter_context(self._connection.execute_wrapper(self._execute))
        self._name_to_sqlite(self._claims.tokens)
        self._seen.add(self._claims)

    def _is_still_there(self) -> bool:
        """Where the driver can't tell (mysqlclient): a savepoint ends with its transaction, and no other has it."""
        if not _tells(self._connection):
            try:
                self._run(Ask(f"RELEASE SAVEPOINT {_PASSED}"))
            except Error:
                return False
        return True

    def _execute(self, execute: Any, sql: Any, params: Any, many: bool, context: Mapping[str, Any]) -> Any:
        """Around every statement of the block: after a COMMIT as text, or DDL in MySQL, the driver begins another
        transaction by itself, and that is not under the fence."""
        if self._ended or _is_over(self._connection):
            raise ResourceUnavailable(ENDED, outcome="unknown")
        check_allowed(self._connection.vendor, str(sql))
        try:
            return execute(sql, params, many, context)
        except Error:
            self._ended = self._ended or not _looks_again(self._connection)
            raise
        finally:
            self._ended = self._ended or ends(self._connection.vendor, str(sql))

    def _run(self, ask: Ask) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(in_pyformat(ask.statement), dict(ask.values) or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else [(cursor.rowcount,)]

    def _name_to_sqlite(self, tokens: Mapping[str, int]) -> None:
        """For the triggers of `fencegate protect`."""
        driver = self._connection.connection
        if self._connection.vendor == "sqlite" and driver is not None:
            known = _of_drivers.get(self._connection)
            if known is None or known[0] is not driver:
                known = _of_drivers[self._connection] = (driver, {})
            of_sqlite(known[1], driver.create_function, tokens)

    def _prepare(self) -> None:
        name = _name(self._connection)
        if name in _prepared:
            return
        with self._connection.cursor() as cursor:
            there = set(self._connection.introspection.table_names(cursor))
        if not {table.name for table in FENCE_TABLES} <= there:
            with transaction.atomic(using=self._connection.alias):
                for statement in ddl(self._connection.vendor):
                    self._run(Ask(statement))
        _prepared.add(name)


def _begun(connection: Any) -> bool:
    """The transaction in which a TestCase of Django runs is not the caller's."""
    blocks = getattr(connection, "atomic_blocks", [])
    if connection.in_atomic_block:
        return not (blocks and all(getattr(block, "_from_testcase", False) for block in blocks))
    return not connection.get_autocommit()


def _tells(connection: Any) -> bool:
    """Whether the driver itself knows if there is a transaction: of those to MySQL, PyMySQL does."""
    return connection.vendor != "mysql" or isinstance(getattr(connection.connection, "server_status", None), int)


def _is_over(connection: Any) -> bool:
    """Whether the database is in no transaction any more, as far as the driver can tell."""
    driver = connection.connection
    if connection.vendor == "sqlite":
        return not driver.in_transaction
    if hasattr(driver, "pgconn"):  # psycopg
        return bool(driver.pgconn.transaction_status == 0)
    if hasattr(driver, "get_transaction_status"):  # psycopg2
        return bool(driver.get_transaction_status() == 0)
    return _tells(connection) and not driver.server_status & _IN_TRANSACTION


def _has_failed(connection: Any) -> bool:
    """Whether a statement has failed in PostgreSQL, which answers COMMIT with a rollback then, and no error."""
    driver = connection.connection
    if hasattr(driver, "pgconn"):
        return bool(driver.pgconn.transaction_status == FAILED)
    return hasattr(driver, "get_transaction_status") and bool(driver.get_transaction_status() == FAILED)


def _looks_again(connection: Any) -> bool:
    """A deadlock rolls everything back, and PyMySQL does not learn that from an error. False: it can't be asked."""
    if connection.vendor == "mysql" and _tells(connection):
        try:
            connection.connection.ping(reconnect=False)
        except Exception:
            return False
    return True


def _name(connection: Any) -> tuple[str, ...]:
    settings = connection.settings_dict
    return (connection.vendor, *(str(settings.get(part, "")) for part in ("HOST", "PORT", "NAME", "USER")))


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
