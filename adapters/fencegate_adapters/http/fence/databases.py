"""What differs between the databases that can hold the fence: one small class for each."""

from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import ArgumentError

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters import mysql_settings
from fencegate_adapters.http.fence.tables import intents, marks, metadata

WAIT_MS = 5000
STALLED_MS = 10_000


# Built once: to build a statement costs more than to run it.
MARK = select(marks.c.token).where(marks.c.lock_key == bindparam("lock_key"), marks.c.mode == bindparam("mode"))


def _raising(new: Any) -> Any:
    return new.on_conflict_do_update(
        index_elements=[marks.c.lock_key, marks.c.mode],
        set_={"token": new.excluded.token},
        where=marks.c.token <= new.excluded.token,
    ).returning(marks.c.token)


_NOT_OVER = intents.c.deadline_us > bindparam("now_us")
_RAISE_SQLITE = _raising(sqlite.insert(marks))
_RAISE_POSTGRESQL = _raising(postgresql.insert(marks))
_new = mysql.insert(marks)
_RAISE_MYSQL = _new.on_duplicate_key_update(token=func.greatest(marks.c.token, _new.inserted.token))


class Database(Protocol):
    """One kind of database."""

    durability: str

    def prepare(self) -> None:
        """Make what has to be there before it can be connected to."""

    def engine(self) -> Engine:
        """An engine whose transactions are durable when they have committed."""

    def begin(self, connection: Connection, *, writes: bool) -> int:
        """The first statement of a transaction: bounds its waits, and tells the time that intents are judged by, in
        microseconds. All processes that share the fence share this clock."""

    def check(self, connection: Connection) -> None:
        """Raise UnsafeConfiguration when the database is set to lose what it has committed."""

    def raise_mark(self, connection: Connection, lock_key: bytes, mode: str, token: int) -> bool:
        """Raise the mark to `token`, unless it is higher: then False. Takes the row's lock until the commit."""

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        """Insert a row unless its primary key is there; returns whether it was inserted."""

    alive: ColumnElement[bool]
    """Whether an intent may still be under way, at `:now_us`."""


def database(url: str, clock: Clock) -> Database:
    """The database that `fence = "…"` names."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter of a port that is no number
        raise UnsafeConfiguration("fence: is not the URL of a database, such as sqlite:////var/lib/fence.db") from None
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return Sqlite(parsed, clock)
    if kind == "postgresql":
        return Postgres(parsed)
    if kind in ("mysql", "mariadb"):
        return Mysql(parsed)
    raise UnsafeConfiguration(f"fence: can't be in {kind[:32]}; there are sqlite, postgresql, mysql and mariadb")


class Sqlite:
    """One file on one machine, which may be shared by several processes there."""

    durability = "marks are kept in SQLite (WAL, synchronous=FULL), and survive a crash and a power loss"
    # The clock runs from boot: an intent that seems to begin in the future is of a boot before this one.
    alive = and_(_NOT_OVER, intents.c.began_us <= bindparam("now_us"))

    def __init__(self, url: URL, clock: Clock) -> None:
        if not url.database or url.database == ":memory:":
            raise UnsafeConfiguration("fence: a database in memory would forget its marks: name a file")
        if url.query:  # there are some by which it would forget, or be locked for one process only
            raise UnsafeConfiguration("fence: the URL of a file has no options: write sqlite:////path/to/file.db")
        self._url = url.set(drivername="sqlite")
        self._clock = clock

    def prepare(self) -> None:
        folder = Path(self._url.database or "").parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnsafeConfiguration(f"fence: {folder} can't be made ({error.strerror}); name another file") from None

    def engine(self) -> Engine:
        engine = create_engine(self._url, pool_size=4, max_overflow=0)
        event.listen(engine, "connect", self._connected)
        return engine

    @staticmethod
    def _connected(driver: Any, _record: object) -> None:
        driver.isolation_level = None  # `begin` says BEGIN
        for pragma in (f"busy_timeout={WAIT_MS}", "journal_mode=WAL", "synchronous=FULL"):
            driver.execute(f"PRAGMA {pragma}").close()

    def begin(self, connection: Connection, *, writes: bool) -> int:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        return self._clock.monotonic_us()

    def check(self, connection: Connection) -> None:
        journal = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
        if (journal, synchronous) != ("wal", 2):
            raise UnsafeConfiguration("fence: SQLite can't be made durable here; put the file on a local disk")

    def raise_mark(self, connection: Connection, lock_key: bytes, mode: str, token: int) -> bool:
        values = {"lock_key": lock_key, "mode": mode, "token": token}
        return connection.execute(_RAISE_SQLITE, values).first() is not None

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        new = sqlite.insert(table).values(**values).on_conflict_do_nothing().returning(*table.primary_key.columns)
        return connection.execute(new).first() is not None


class Postgres:
    """PostgreSQL 12 or newer, through psycopg."""

    durability = "marks are kept in PostgreSQL, and are as durable as its commits"
    alive: ColumnElement[bool] = _NOT_OVER

    # A gateway that stands still inside a transaction must not block the others.
    _BEGIN = text(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,"
        " set_config('lock_timeout', :wait_ms, true),"
        " set_config('idle_in_transaction_session_timeout', :stalled_ms, true)"
    ).bindparams(wait_ms=str(WAIT_MS), stalled_ms=str(STALLED_MS))

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")

    def prepare(self) -> None:
        pass

    def engine(self) -> Engine:
        # A snapshot of the whole transaction would hide the intents that were committed while it waited.
        return create_engine(
            self._url,
            pool_size=4,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            connect_args={"connect_timeout": WAIT_MS // 1000, "prepare_threshold": None},
        )

    def begin(self, connection: Connection, *, writes: bool) -> int:
        return int(connection.execute(self._BEGIN).scalar_one())

    def check(self, connection: Connection) -> None:
        for name in ("fsync", "synchronous_commit"):
            if connection.execute(text("SELECT current_setting(:name)"), {"name": name}).scalar_one() == "off":
                raise UnsafeConfiguration(f"fence: PostgreSQL has {name}=off and may lose marks; set it to on")

    def raise_mark(self, connection: Connection, lock_key: bytes, mode: str, token: int) -> bool:
        values = {"lock_key": lock_key, "mode": mode, "token": token}
        return connection.execute(_RAISE_POSTGRESQL, values).first() is not None

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        new = postgresql.insert(table).values(**values).on_conflict_do_nothing().returning(*table.primary_key.columns)
        return connection.execute(new).first() is not None


class Mysql:
    """MariaDB 10.5 or MySQL 8 and newer, through PyMySQL."""

    durability = "marks are kept in MySQL or MariaDB (InnoDB), and are as durable as its commits"
    alive: ColumnElement[bool] = _NOT_OVER

    _BEGIN = text("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)")

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="mysql+pymysql")

    def prepare(self) -> None:
        pass

    def engine(self) -> Engine:
        engine = create_engine(
            self._url,
            pool_size=4,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            connect_args={"connect_timeout": WAIT_MS // 1000, "read_timeout": 2 * WAIT_MS // 1000},
        )
        event.listen(engine, "connect", self._connected)
        return engine

    @staticmethod
    def _connected(driver: Any, _record: object) -> None:
        # As in PostgreSQL. MySQL has no limit but the one for idle connections, and such a one is noticed by the ping.
        limit = "idle_transaction_timeout" if "MariaDB" in str(driver.get_server_info()) else "wait_timeout"
        with driver.cursor() as cursor:
            cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {WAIT_MS // 1000}, {limit} = {STALLED_MS // 1000}")

    def begin(self, connection: Connection, *, writes: bool) -> int:
        return int(connection.execute(self._BEGIN).scalar_one())

    def check(self, connection: Connection) -> None:
        mysql_settings.check(connection, metadata.sorted_tables)

    def raise_mark(self, connection: Connection, lock_key: bytes, mode: str, token: int) -> bool:
        # Its count can't tell stale from accepted, so the mark is read under the lock that it took. INSERT IGNORE takes
        # a share lock on a row that is there, and two that go on from that to an UPDATE are a deadlock.
        values = {"lock_key": lock_key, "mode": mode, "token": token}
        connection.execute(_RAISE_MYSQL, values)
        return int(connection.execute(MARK, values).scalar_one()) == token

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        return connection.execute(insert(table).prefix_with("IGNORE").values(**values)).rowcount == 1
