"""How a caller's transactions pass the fence: each by its first statement, and only while it is really there.

SQLAlchemy tells of what happens by events. They are listened to once for each engine, and for all sessions: to listen
to a single session or connection takes longer than most transactions.
"""

import contextlib
import functools
import logging
import weakref
from typing import Any

from sqlalchemy import Connection, Engine, RootTransaction, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql import before_statements, begin_psycopg, begin_sqlite
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.openness import FAILED, Openness, openness
from fencegate_adapters.sql.passing import ClaimFirst, Claims, drive, rules_of
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.protect.naming import forget, of_sqlite
from fencegate_adapters.sql.runner import Runner
from fencegate_adapters.sql.tables import FENCE_TABLES, create, missing

AUTOCOMMIT = "the connection is in AUTOCOMMIT: the fence would hold for one statement only"
ENDED = "the database ended the transaction, and the fence with it: roll back and begin again"
LATE_SNAPSHOT = (
    "this transaction had a snapshot before the fence was raised, and may not show what an older holder wrote: roll "
    "back and begin again"
)
ABORTED = "a statement of this transaction failed, and PostgreSQL has undone it as a whole: nothing was written"

log = logging.getLogger("fencegate.sql")

_prepared: weakref.WeakSet[Engine] = weakref.WeakSet()
_seen: Seen[Engine] = Seen()
_PASSAGES = "fencegate.passages"
"""In `Session.info`, and among the attributes of a `Connection`, whose own `info` is the driver's and outlives it."""


def prepare(bind: Engine | Connection) -> None:
    """Create the fence table where it is missing, in a transaction of its own: never in the caller's."""
    engine = bind.engine
    if engine in _prepared:
        return
    dialect = dialect_of(engine.dialect.name)
    try:
        with contextlib.ExitStack() as stack:
            connection = bind if isinstance(bind, Connection) else stack.enter_context(bind.connect())
            with connection.begin():
                absent = missing(connection, FENCE_TABLES)
            with connection.begin():
                create(connection, absent)
            if engine.dialect.name != "sqlite":
                with connection.begin(), contextlib.suppress(DBAPIError):
                    dialect.check(connection)
    except UnsafeConfiguration as unsafe:  # the data is the caller's, and so is the choice; both are lost together
        log.warning("%s", unsafe.detail)
    except SQLAlchemyError as error:
        raise ResourceUnavailable(f"the fence table can't be created: {cause(error)}") from error
    _listen(engine)
    _prepared.add(engine)


def roll_back_rest(connection: Connection) -> None:
    """After a COMMIT that failed SQLAlchemy holds the transaction to be over, while some databases keep it open."""
    if not connection.invalidated and dialect_of(connection.dialect.name).in_transaction(connection):
        connection.connection.rollback()


class Passage:
    """The passage of leases through their fences, on every connection of one block."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._watched: dict[Connection, tuple[RootTransaction, Openness] | None] = {}
        """The connections of the block, each with the transaction in which it passed last, and how to ask of it."""
        self._passing = False

    def begin(self, session: Session) -> None:
        """From now on, whatever the session begins has to pass."""
        _listen_to_sessions()
        _join(session.info, self)

    def watch(self, connection: Connection) -> None:
        """Look at each statement, because a caller may swallow our error and go on, or begin anew by itself."""
        if connection not in self._watched:
            for done in [known for known in self._watched if known.closed]:  # a session takes a new one each time
                self._unwatch(done)
            before_statements.listen(connection.engine, _before_statement)
            self._watched[connection] = None
            _join(vars(connection), self)

    def end(self, session: Session | Connection) -> None:
        if isinstance(session, Session):
            _leave(session.info, self)
        for connection in list(self._watched):
            self._unwatch(connection)

    def _unwatch(self, connection: Connection) -> None:
        _leave(vars(connection), self)
        del self._watched[connection]
        if not connection.closed and not connection.invalidated and connection.dialect.name == "sqlite":
            forget(connection.info)  # else the pool does that

    def check_open(self) -> None:
        """The transactions that passed must still be there: some errors make a database roll back by itself. One that
        did not pass yet has to do so now."""
        for connection, passed in list(self._watched.items()):
            root = connection.get_transaction()
            if root is not None and root.is_active and (passed is None or passed[0] is not root):
                self.pass_(connection)  # begun by hand, and a cursor of the driver's own is met by nobody
            elif passed is not None and passed[0] is root:
                status = passed[1]()
                if not status:
                    raise ResourceUnavailable(ENDED, outcome="unknown")
                if status == FAILED:
                    raise ResourceUnavailable(ABORTED)

    def pass_(self, connection: Connection) -> None:
        """Pass, unless this transaction has passed already."""
        root = connection.get_transaction()
        if self._passing or root is None:  # none yet: a hook of the caller's, which says BEGIN itself
            return
        passed = self._watched[connection]
        if passed is not None and passed[0] is root:
            if not passed[1]():
                raise ResourceUnavailable(ENDED, outcome="unknown")
            return
        if connection.engine not in _prepared:
            prepare(connection.engine)  # by another connection: this one is in the caller's transaction
        self._passing = True
        try:
            driver = connection.connection.driver_connection
            self._raise_fences(connection, driver, connection.dialect.name)
        except SQLAlchemyError as error:
            _prepared.discard(connection.engine)
            raise ResourceUnavailable(f"the fence can't be reached: {cause(error)}") from error
        finally:
            self._passing = False
        is_open = openness(connection, driver)
        if not is_open():
            raise UnsafeConfiguration(AUTOCOMMIT)
        self._watched[connection] = root, is_open

    def _raise_fences(self, connection: Connection, driver: Any, kind: str) -> None:
        claims, engine = self._claims, connection.engine
        if kind == "sqlite":
            if not begin_sqlite.begins(connection, driver, claims):
                drive(rules_of(kind).passing(claims, seen=False), Runner(connection))
            of_sqlite(connection.info, connection.connection.create_function, claims.tokens)
            return
        seen = _seen.all_of(engine, claims)
        if not seen and begin_psycopg.raises(connection, driver, claims):
            _seen.add(engine, claims)
            seen = True
        if seen and begin_psycopg.begins(connection, driver, claims):
            return
        untouched = not dialect_of(kind).in_transaction(connection)
        careful = untouched and engine in _seen.careful
        try:
            sure = drive(rules_of(kind).passing(claims, seen, careful), Runner(connection))
            claimed = True
        except ClaimFirst:
            sure = claimed = False
        if not sure:
            (self._begin_again if untouched else self._ask_another)(connection, claimed)
            _seen.careful.add(engine)
        if not seen:
            _seen.add(engine, claims)

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
        if after is None or self._watched.get(connection) is None or connection.invalidated:
            return
        self._watched[connection] = None
        Runner(connection)(after)


# --- events ----------------------------------------------------------------------------------------------------------


@functools.cache
def _listen_to_sessions() -> None:
    event.listen(Session, "after_begin", _after_begin, insert=True)  # before the caller's own


_heard: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def _listen(engine: Engine) -> None:
    if engine in _heard:
        return
    if rules_of(engine.dialect.name).after is not None:
        event.listen(engine, "commit", _before_commit)
        event.listen(engine, "rollback", _before_rollback)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "checkin", _forget_tokens)
    _heard.add(engine)


def _after_begin(session: Session, _transaction: object, connection: Connection) -> None:
    """The session took a connection and began."""
    for passage in session.info.get(_PASSAGES, ()):
        passage.watch(connection)
        passage.pass_(connection)


def _before_statement(connection: Connection) -> None:
    for passage in vars(connection).get(_PASSAGES, ()):
        passage.pass_(connection)


def _before_commit(connection: Connection) -> None:
    try:
        for passage in vars(connection).get(_PASSAGES, ()):
            passage.forget_settings(connection)
    except SQLAlchemyError as error:
        detail = f"the database failed before it was told to commit: {cause(error)}"
        raise ResourceUnavailable(detail) from error


def _before_rollback(connection: Connection) -> None:
    with contextlib.suppress(SQLAlchemyError):  # the connection is gone, and what it remembered too
        for passage in vars(connection).get(_PASSAGES, ()):
            passage.forget_settings(connection)


def _forget_tokens(_driver: object, record: ConnectionPoolEntry) -> None:
    """Nobody who takes the connection from the pool may write with the tokens of the last one."""
    forget(record.info)


def _join(registry: dict[Any, Any], passage: Passage) -> None:
    registry[_PASSAGES] = (*registry.get(_PASSAGES, ()), passage)


def _leave(registry: dict[Any, Any], passage: Passage) -> None:
    left = registry.pop(_PASSAGES, ())
    if len(left) > 1:
        registry[_PASSAGES] = tuple(one for one in left if one is not passage)
