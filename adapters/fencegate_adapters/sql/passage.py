"""How a caller's transactions pass the fence: each by its first statement, and only while it is really there."""

import contextlib
import weakref

from sqlalchemy import Connection, Engine, RootTransaction, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql import fences
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.tables import FENCE_TABLES, create, missing

_prepared: weakref.WeakSet[Engine] = weakref.WeakSet()


def prepare(bind: Engine | Connection) -> None:
    """Create the fence table where it is missing, in a transaction of its own: never in the caller's."""
    engine = bind.engine
    if engine in _prepared:
        return
    dialect_of(engine.dialect.name)
    try:
        with contextlib.ExitStack() as stack:
            connection = bind if isinstance(bind, Connection) else stack.enter_context(bind.connect())
            with connection.begin():
                absent = missing(connection, FENCE_TABLES)
            with connection.begin():
                create(connection, absent)
    except SQLAlchemyError as error:
        raise ResourceUnavailable(f"the fence table can't be created: {cause(error)}") from error
    _prepared.add(engine)


def roll_back_rest(connection: Connection) -> None:
    """After a COMMIT that failed SQLAlchemy holds the transaction to be over, while some databases keep it open."""
    if not connection.invalidated and dialect_of(connection.dialect.name).in_transaction(connection):
        connection.connection.rollback()


class Passage:
    """The passage of one lease through its fence, on every connection of one block."""

    def __init__(self, lock_key: str, token: int) -> None:
        self._lock_key = lock_key
        self._token = token
        self._watched: dict[Connection, RootTransaction | None] = {}
        """The connections of the block, each with the transaction in which it passed last."""
        self._passing = False

    def after_begin(self, _session: Session, _transaction: object, connection: Connection) -> None:
        """An event of Session: it took a connection and began."""
        self.watch(connection)
        self._pass(connection)

    def watch(self, connection: Connection) -> None:
        """Look at each statement, because a caller may swallow our error and go on, or begin anew by itself."""
        if connection in self._watched:
            return
        for done in [known for known in self._watched if known.closed]:  # a session takes a new one each time
            self._unwatch(done)
        self._watched[connection] = None
        event.listen(connection, "before_cursor_execute", self._before_cursor_execute)

    def forget(self) -> None:
        for connection in list(self._watched):
            self._unwatch(connection)

    def _unwatch(self, connection: Connection) -> None:
        event.remove(connection, "before_cursor_execute", self._before_cursor_execute)
        del self._watched[connection]

    def check_open(self) -> None:
        """The transactions that passed must still be there: some errors make a database roll back by itself."""
        for connection, root in self._watched.items():
            if root is not None and root is connection.get_transaction():
                self._check_open(connection)

    def _before_cursor_execute(self, connection: Connection, *_: object) -> None:
        self._pass(connection)

    def _pass(self, connection: Connection) -> None:
        root = connection.get_transaction()
        if self._passing or root is None:  # none yet: a hook of the caller's, which says BEGIN itself
            return
        if root is self._watched[connection]:
            self._check_open(connection)
            return
        dialect = dialect_of(connection.dialect.name)
        prepare(connection.engine)
        self._passing = True
        try:
            mark = fences.pass_fence(connection, dialect, self._lock_key, "enforce", self._token)
            fences.admit(self._token, mark, fences.highest_floor(connection))
        except SQLAlchemyError as error:
            _prepared.discard(connection.engine)
            raise ResourceUnavailable(f"the fence can't be reached: {cause(error)}") from error
        finally:
            self._passing = False
        if not dialect.in_transaction(connection):
            raise UnsafeConfiguration("the connection is in AUTOCOMMIT: the fence would hold for one statement only")
        self._watched[connection] = root

    def _check_open(self, connection: Connection) -> None:
        if not dialect_of(connection.dialect.name).in_transaction(connection):
            detail = "the database ended the transaction, and the fence with it: roll back and begin again"
            raise ResourceUnavailable(detail, outcome="unknown")
