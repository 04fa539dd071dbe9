"""How a caller's transactions pass the fence: each by its first statement, and only while it is really there."""

from sqlalchemy import Connection, RootTransaction
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql import begin_psycopg, begin_sqlite, hearing
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.homes import home_of, prepare
from fencegate_adapters.sql.openness import FAILED, Openness, openness
from fencegate_adapters.sql.passing import ClaimFirst, Claims, drive, rules_of
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.protect.naming import name_to_sqlite
from fencegate_adapters.sql.runner import Runner

AUTOCOMMIT = "the connection is in AUTOCOMMIT: the fence would hold for one statement only"
ENDED = "the database ended the transaction, and the fence with it: roll back and begin again"
LATE_SNAPSHOT = (
    "this transaction had a snapshot before the fence was raised, and may not show what an older holder wrote: roll "
    "back and begin again"
)
ABORTED = "a statement of this transaction failed, and PostgreSQL has undone it as a whole: nothing was written"


def roll_back_rest(connection: Connection) -> None:
    """After a COMMIT that failed SQLAlchemy holds the transaction to be over, while some databases keep it open."""
    if not connection.invalidated and dialect_of(connection.dialect.name).in_transaction(connection):
        connection.connection.rollback()


class Passage:
    """The passage of leases through their fences, on every connection of one block."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._passed: dict[Connection, tuple[RootTransaction, Openness] | None] = {}
        """The connections of the block, each with the transaction in which it passed last, and how to ask of it."""
        self._passing = False

    def begun(self, connection: Connection, *, alone: bool) -> None:
        """A session took this connection and began. `alone`: nobody else is told of it."""
        if connection in self._passed:
            self.pass_(connection)
            return
        try:
            root = connection.get_transaction()
            if root is not None:
                self._pass(connection, root, ahead=alone)
        finally:
            self.watch(connection)  # last: the database may be at work meanwhile

    def watch(self, connection: Connection) -> None:
        """Look at each statement, because a caller may swallow our error and go on, or begin anew by itself."""
        passed = self._passed
        passed.setdefault(connection)
        if len(passed) > 1:  # a session takes a new one each time
            for done in [known for known in passed if known.closed]:
                hearing.leave(done, self)
                del passed[done]
        hearing.join(connection, self)

    def end(self, session: Session | Connection) -> None:
        if isinstance(session, Session):
            hearing.leave(session, self)
        for connection in self._passed:
            hearing.leave(connection, self)
        self._passed.clear()

    def check_open(self) -> None:
        """The transactions that passed must still be there: some errors make a database roll back by itself. One that
        did not pass yet has to do so now."""
        for connection in list(self._passed):
            root = connection.get_transaction()
            if root is None:
                continue
            status = self._status(connection, root)
            if status == FAILED:
                raise ResourceUnavailable(ABORTED)
            if status is None and root.is_active:
                self._pass(connection, root)  # begun by hand, and a cursor of the driver's own is met by nobody

    def pass_(self, connection: Connection) -> None:
        """Pass, unless this transaction has passed already."""
        root = connection.get_transaction()
        if root is None or self._passing:  # none yet: a hook of the caller's, which says BEGIN itself
            return
        if self._status(connection, root) is None:
            self._pass(connection, root)

    def _status(self, connection: Connection, root: RootTransaction) -> int | None:
        """Of a transaction that has passed; None when it has not, and nothing has happened in it."""
        passed = self._passed[connection]
        if passed is None or passed[0] is not root:
            return None
        try:
            status = passed[1]()
        except SQLAlchemyError as error:
            raise ResourceUnavailable(f"the fence can't be reached: {cause(error)}") from error
        if status == 0:
            raise ResourceUnavailable(ENDED, outcome="unknown")
        return status

    def _pass(self, connection: Connection, root: RootTransaction, *, ahead: bool = False) -> None:
        home = home_of(connection.engine)
        if not home.prepared:
            prepare(connection.engine)  # by another connection: this one is in the caller's transaction
        passed = self._passed.get(connection)
        self._passed[connection] = is_open = None
        self._passing = True
        try:
            if passed is None or passed[0] is not root:  # else that was tried, and the answer has come just now
                is_open = self._pass_quickly(connection, home.seen, ahead=ahead)
            if is_open is None:
                self._raise_fences(connection, home.seen)
                is_open = openness(connection)
                if not is_open():
                    raise UnsafeConfiguration(AUTOCOMMIT)
        except SQLAlchemyError as error:
            home.prepared = False
            raise ResourceUnavailable(f"the fence can't be reached: {cause(error)}") from error
        finally:
            self._passing = False
        if connection.dialect.name == "sqlite":
            name_to_sqlite(connection, self._claims.tokens_by_key, root)
        self._passed[connection] = root, is_open

    def _pass_quickly(self, connection: Connection, seen: Seen, *, ahead: bool) -> Openness | None:
        """What mostly does, in as few steps as possible. None: pass in the usual way."""
        claims, driver = self._claims, connection.dialect.driver
        if driver == "pysqlite":
            return begin_sqlite.begins(connection, claims)
        if driver not in begin_psycopg.DRIVERS:
            return None
        if not seen.all_of(claims):
            if not begin_psycopg.raises(connection, claims):
                return None
            seen.add(claims)
        return begin_psycopg.begins(connection, claims, fresh=not seen.careful, ahead=ahead)

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
        self._passed[connection] = None
        Runner(connection)(after)
