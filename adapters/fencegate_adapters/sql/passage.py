"""How a caller's transactions pass the fence: each by its first statement, and only while it is really there."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, RootTransaction, TwoPhaseTransaction
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql import begin_psycopg, begin_sqlite, hearing
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.homes import Home, home_of, prepare
from fencegate_adapters.sql.leases import Leases
from fencegate_adapters.sql.openness import FAILED, Openness, check_not_failed, is_silent, openness
from fencegate_adapters.sql.passing import ClaimFirst, Claims, drive, rules_of
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.protect.naming import held_of
from fencegate_adapters.sql.runner import Runner

AUTOCOMMIT = "the connection is in AUTOCOMMIT: the fence would hold for one statement only"
ENDED = "the database ended the transaction, and the fence with it: roll back and begin again"
TWO_PHASES = (
    "a transaction of two phases can't be fenced with this driver, where the second is a statement like any other, "
    "behind the end of the transaction that passed: use psycopg, or psycopg2"
)
LATE_SNAPSHOT = (
    "this transaction had a snapshot before the fence was raised, and may not show what an older holder wrote: roll "
    "back and begin again"
)
ABORTED = "a statement of this transaction failed, and PostgreSQL has undone it as a whole: nothing was written"


def roll_back_rest(connection: Connection) -> None:
    """After a COMMIT that failed SQLAlchemy holds the transaction to be over, while some databases keep it open."""
    if connection.closed or connection.invalidated:
        return
    if dialect_of(connection.dialect.name).in_transaction(connection):
        try:
            connection.connection.rollback()
        except connection.dialect.loaded_dbapi.Error as error:  # one of two phases, which drivers don't end like that
            connection.invalidate(error)


_Passed = tuple[RootTransaction, Openness] | None
"""The transaction in which a connection passed last, and how to ask of it."""

_QUICKLY: dict[str, Callable[[Connection, RootTransaction, Claims, Seen, bool], Openness | None]] = {
    "pysqlite": begin_sqlite.passes,
    "aiosqlite": begin_sqlite.passes,
} | dict.fromkeys(begin_psycopg.DRIVERS, begin_psycopg.passes)
"""By driver: what mostly does, in as few steps as possible. None: pass in the usual way."""


def _over() -> int:
    return 0


def _status(connection: Connection, passed: _Passed) -> int | None:
    """Of the transaction, while it is the one that passed; None when another is, or when it has not passed after all,
    and nothing has happened in it."""
    if passed is None or (not passed[0].is_active and connection.get_transaction() is not passed[0]):
        return None
    try:
        status = passed[1]()
    except (SQLAlchemyError, connection.dialect.loaded_dbapi.Error, ValueError) as error:  # of drivers: it is closed
        raise ResourceUnavailable(f"the fence can't be reached: {cause(error)}") from error
    if status == 0:
        raise ResourceUnavailable(ENDED, outcome="unknown")
    return status


def _is_prepared(connection: Connection, root: TwoPhaseTransaction) -> bool:
    """Whether it is there, behind its first phase: it passed, nothing can be added, and MySQL has put it aside."""
    return connection.get_transaction() is root and root._is_prepared


class Passage:
    """The passage of leases through their fences, on every connection of one block."""

    __slots__ = ("_claims", "_leases", "_passed", "_passing", "_session", "refused")

    def __init__(self, session: Any, claims: Claims, leases: Sequence[Leases]) -> None:
        self._session = session
        self._claims = claims
        self._leases = leases
        self._passed: dict[Connection, _Passed] = {}
        """Of the connections of the block."""
        self._passing = False
        self.refused: Callable[[BaseException], None] | None = None
        """Is told of each refusal, which the caller may swallow."""

    def begun(self, connection: Connection, alone: bool) -> None:
        """A session took this connection and began. `alone`: nobody else is told of it."""
        if connection in self._passed:
            self.pass_(connection)
            return
        home = home_of(connection.engine)
        try:
            root = connection.get_transaction()
            if root is not None:
                self._pass(connection, home, root, alone)
        finally:
            self.watch(connection, home)  # last: the database may be at work meanwhile

    def watch(self, connection: Connection, home: Home) -> None:
        """Look at each statement, because a caller may swallow our error and go on, or begin anew by itself."""
        passed = self._passed
        passed.setdefault(connection)
        if len(passed) > 1:  # a session takes a new one each time
            for done in [known for known in passed if known.closed]:
                hearing.leave(done, self)
                del passed[done]
        hearing.join(connection, home, self)

    def end(self, session: Session | Connection) -> None:
        hearing.leave(session, self)
        for connection in self._passed:
            hearing.leave(connection, self)
        self._passed.clear()

    def check_open(self) -> None:
        """The transactions that passed must still be there: some errors make a database roll back by itself. One that
        did not pass yet has to do so now."""
        for connection, passed in self._passed.items():
            if passed is not None and type(passed[0]) is TwoPhaseTransaction and _is_prepared(connection, passed[0]):
                continue
            status = _status(connection, passed)
            if status is None:
                root = connection.get_transaction()
                if root is not None and root.is_active:  # begun by hand, and a cursor of the driver is met by nobody
                    self._pass(connection, home_of(connection.engine), root)
            elif status == FAILED:
                raise ResourceUnavailable(ABORTED)
            elif is_silent(connection):
                check_not_failed(connection)

    def committing(self, connection: Connection) -> None:
        """A transaction that was refused has to pass after all: whoever swallows our error may go on with a cursor of
        the driver, which is met by nobody, and commit by hand."""
        root, passed = connection.get_transaction(), self._passed.get(connection)
        if root is not None and (passed is None or passed[0] is not root):
            self._pass(connection, home_of(connection.engine), root)
            self.forget_settings(connection)

    def pass_(self, connection: Connection) -> None:
        """Pass, unless this transaction has passed already."""
        if _status(connection, self._passed[connection]) is None and not self._passing:
            root = connection.get_transaction()
            if root is not None:  # else a hook of the caller's says BEGIN itself
                self._pass(connection, home_of(connection.engine), root)

    def ended(self, connection: Connection) -> None:
        """A statement has ended this transaction: what is there now is another, even if the driver misses none."""
        passed = self._passed.get(connection)
        if passed is not None and passed[0] is connection.get_transaction():
            self._passed[connection] = passed[0], _over

    def along(self, connection: Connection, cursor: Any) -> AbstractContextManager[None, bool] | None:
        """What a statement with parameters, about to be executed by this cursor, may be put into: then it takes the
        passage along, and goes on behind it when it was not executed. None: pass before it."""
        passed = self._passed[connection]
        if passed is None or connection.get_transaction() is not passed[0]:
            return None
        is_open = passed[1]
        return is_open if isinstance(is_open, begin_psycopg.Straightly) and is_open.takes_along(cursor) else None

    def _pass(self, connection: Connection, home: Home, root: RootTransaction, ahead: bool = False) -> None:
        known = self._passed
        passed = known.get(connection)
        known[connection] = is_open = None
        try:
            if isinstance(root, TwoPhaseTransaction) and is_silent(connection):
                raise UnsafeConfiguration(TWO_PHASES)
            if not home.prepared:
                prepare(connection.engine)  # by another connection: this one is in the caller's transaction
            if passed is not None and passed[0] is root and isinstance(passed[1], begin_psycopg.Straightly):
                passed[1].roll_back()  # that was tried, and the answer has come just now
            else:
                quickly = _QUICKLY.get(connection.dialect.driver)
                if quickly is not None:
                    is_open = quickly(connection, root, self._claims, home.seen, ahead)
            if is_open is None:
                is_open = self._pass_as_usual(connection, root, home.seen)
        except BaseException as error:
            hearing.hear_commit(connection)
            meant = error
            if isinstance(error, SQLAlchemyError):
                home.prepared = False
                meant = ResourceUnavailable(f"the fence can't be reached: {cause(error)}")
            if self.refused is not None:
                self.refused(meant)
            if meant is error:
                raise
            raise meant from error
        known[connection] = root, is_open

    def _pass_as_usual(self, connection: Connection, root: RootTransaction, seen: Seen) -> Openness:
        self._passing = True
        try:
            self._raise_fences(connection, seen)
            is_open = openness(connection)
            if not is_open():
                raise UnsafeConfiguration(AUTOCOMMIT)
        finally:
            self._passing = False
        if connection.dialect.name == "sqlite":
            held = held_of(connection.info, connection.connection.create_function)
            held.tokens, held.transaction = self._claims.tokens_by_key, weakref.ref(root)
        return is_open

    def _raise_fences(self, connection: Connection, seen: Seen) -> None:
        claims, kind = self._claims, connection.dialect.name
        if kind == "sqlite":
            drive(rules_of(kind).passing(claims, seen=False), Runner(connection))
            return
        untouched = not dialect_of(kind).in_transaction(connection)
        try:
            sure = drive(
                rules_of(kind).passing(claims, seen.all_of(claims), untouched and seen.careful), Runner(connection)
            )
            claimed = True
        except ClaimFirst:
            sure = claimed = False
        if not sure:
            (self._begin_again if untouched else self._ask_another)(connection, claimed)
            seen.careful = True
        seen.add(claims)

    def _begin_again(self, connection: Connection, claimed: bool) -> None:
        """Nothing was done in the transaction yet, so nobody misses it."""
        rules, run = rules_of(connection.dialect.name), Runner(connection)
        connection.connection.rollback()
        if not claimed:
            drive(rules.claiming(self._claims), run)
            connection.connection.commit()
        try:
            drive(rules.passing(self._claims, seen=True, careful=True), run)
        except ClaimFirst:
            raise ResourceUnavailable(LATE_SNAPSHOT) from None

    def _ask_another(self, connection: Connection, claimed: bool) -> None:
        """To roll back would take away what somebody has set for this transaction before us."""
        rules = rules_of(connection.dialect.name)
        separate = connection.engine.connect().execution_options(isolation_level="READ COMMITTED")
        with separate as another, another.begin():
            if claimed:
                drive(rules.floor(self._claims), Runner(another))
            else:
                drive(rules.passing(self._claims, seen=False), Runner(another))
        if not claimed:
            raise ResourceUnavailable(LATE_SNAPSHOT)

    def forget_settings(self, connection: Connection) -> None:
        """The transaction is about to end, and the connection may go to somebody else."""
        after = rules_of(connection.dialect.name).after
        if after is None or self._passed.get(connection) is None or connection.invalidated:
            return
        Runner(connection)(after)
