"""PostgreSQL 13 or newer; our own connections go through psycopg."""

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError, DBAPIError

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate_adapters.sql.far_times import tell_far_times
from fencegate_adapters.sql.passing import Ask
from fencegate_adapters.sql.runner import Runner, driver_of
from fencegate_adapters.sql.strings import check_strings

IDLE_MS = 30_000
"""How long a transaction of ours may say nothing before the database ends it: one that was stopped lets go then."""
_DEFAULT_WAIT_MS = 5000
_OLDEST = 130000

_CONNECT = {
    "application_name": "fencegate",
    "connect_timeout": 5,
    "target_session_attrs": "read-write",  # a standby would show marks as they were
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

# Limits are those of the transaction, and leave nothing behind in a connection that a pooler gives to others.
_RAISE = """
INSERT INTO fencegate_fences AS fence (lock_key, mode, token)
SELECT claim.lock_key, %(mode)s, claim.token
FROM unnest(%(keys)s::bytea[], %(tokens)s::bigint[]) AS claim (lock_key, token)
ORDER BY claim.lock_key
ON CONFLICT (lock_key, mode) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
RETURNING lock_key
"""
_MARKS = "SELECT lock_key, token FROM fencegate_fences WHERE mode = %(mode)s AND lock_key = ANY (%(keys)s::bytea[])"
_LIMITS = """
SELECT set_config('lock_timeout', %(wait)s, true), set_config('idle_in_transaction_session_timeout', %(idle)s, true)
"""
_SETTINGS = """
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit')
"""


class PostgresqlDialect:
    """Many writers; a fence row keeps those of one lock key in order."""

    durability = (
        "marks and rows commit together in PostgreSQL (fsync, synchronous_commit): they survive a crash and a power "
        "loss; after a restore, or a failover to a standby that lagged, raise the floor"
    )
    writers = 4
    locks_floors = False

    def engine(self, url: URL, connections: int) -> Engine:
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise UnsafeConfiguration("PostgreSQL needs its driver: pip install 'fencegate[postgres]'") from None
        query = dict(url.query)
        # A pooler between us gives each transaction another connection, where a prepared statement may be unknown.
        prepare = query.pop("prepare_threshold", None)
        arguments = {name: value for name, value in _CONNECT.items() if name not in query}
        try:
            threshold = None if prepare is None else int(str(prepare))
            engine = create_engine(
                url.set(drivername="postgresql+psycopg", query=query),
                connect_args={**arguments, "client_encoding": "utf8", "prepare_threshold": threshold},
                isolation_level="READ COMMITTED",
                pool_size=connections,
                max_overflow=0,
                pool_timeout=10,
                pool_use_lifo=True,
            )
        except (ValueError, ArgumentError):
            raise UnsafeConfiguration("the URL of a PostgreSQL resource can't be read") from None
        event.listen(engine, "connect", _tell_times)
        event.listen(engine, "connect", tell_far_times)
        return engine

    def check(self, connection: Connection) -> None:
        check_strings(driver_of(connection))
        version, standby, *durable = connection.exec_driver_sql(_SETTINGS).one()
        if version < _OLDEST:
            raise UnsafeConfiguration(f"PostgreSQL {version // 10000} is too old: 13 or newer is needed")
        if standby:
            raise UnsafeConfiguration("the PostgreSQL server is a standby, which takes no writes: name the primary")
        for name, value in zip(("fsync", "full_page_writes", "synchronous_commit"), durable, strict=True):
            if value == "off":
                raise UnsafeConfiguration(f"PostgreSQL has {name}=off, with which a crash takes marks back: turn it on")

    def limit_wait(self, connection: Connection, wait_ms: int) -> None:
        connection.info["fencegate_wait_ms"] = wait_ms  # `raise_marks` says so to the database

    def raise_marks(self, connection: Connection, claims: Mapping[str, int], mode: str) -> dict[str, int]:
        if not self.in_transaction(connection):  # a group has set them on its way here
            # Not in the statement itself: it waits for the lock of the table before anything of it is done.
            self._limit(connection)
        keys = [key.encode() for key in claims]
        values = {"keys": keys, "tokens": list(claims.values()), "mode": mode}
        passed = {bytes(key).decode() for (key,) in connection.exec_driver_sql(_RAISE, values)}
        marks = {key: token for key, token in claims.items() if key in passed}
        above = [key.encode() for key in claims if key not in passed]
        if above:
            found = connection.exec_driver_sql(_MARKS, {"mode": mode, "keys": above})
            marks |= {bytes(key).decode(): token for key, token in found}
        return marks

    @staticmethod
    def _limit(connection: Connection) -> None:
        connection.exec_driver_sql(_LIMITS, {"idle": str(IDLE_MS), **_wait(connection)})

    def keep_out(self, connection: Connection) -> None:
        # Whoever passes a fence locks a row of this table, which conflicts with this.
        self._limit(connection)
        connection.exec_driver_sql("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        first, *_ = table.primary_key.columns
        insert = postgresql.insert(table).values(**values).on_conflict_do_nothing().returning(first)
        return connection.execute(insert).first() is not None

    def in_transaction(self, connection: Connection) -> bool:
        driver = driver_of(connection)
        if hasattr(driver, "pgconn"):  # psycopg
            return bool(driver.pgconn.transaction_status != 0)
        if hasattr(driver, "is_in_transaction"):  # asyncpg
            return bool(driver.is_in_transaction())
        if hasattr(driver, "get_transaction_status"):  # psycopg2
            return bool(driver.get_transaction_status() != 0)
        # Whoever has locked a fence has a number, and keeps it until the end.
        return Runner(connection)(Ask("SELECT pg_current_xact_id_if_assigned()"))[0][0] is not None

    def refusal(self, error: DBAPIError) -> InvalidInput:
        said: Any = getattr(error.orig, "diag", None)
        state = str(getattr(error.orig, "sqlstate", None) or "")
        if state == "23502":
            column = said.column_name or "row"
            return InvalidInput(column, "must not be null, and must be given when a row is replaced or created")
        if state == "23505":
            columns = _columns(said.message_detail)
            return InvalidInput(columns[0], f"another row has the same {' and '.join(columns)}")
        if state in ("23514", "23P01") and said.constraint_name:  # a row that no partition takes has none
            return InvalidInput("row", f"does not satisfy the constraint {said.constraint_name!r} of the table")
        if state == "23503":
            return InvalidInput("row", "names a row of another table that is not there, or is named by one")
        primary = said.message_primary if said is not None else None
        return InvalidInput("row", f"is refused by the database ({str(primary or error.orig)[:200]})")


def _tell_times(driver: Any, _record: object) -> None:
    """The driver can't read them in any other style. A pooler keeps the style with its client."""
    style = driver.pgconn.parameter_status(b"DateStyle")
    if style is not None and not style.startswith(b"ISO"):
        driver.execute("SET datestyle = 'ISO'")
        driver.commit()


def _wait(connection: Connection) -> dict[str, str]:
    return {"wait": str(max(1, int(connection.info.get("fencegate_wait_ms", _DEFAULT_WAIT_MS))))}


def _columns(detail: str | None) -> list[str]:
    """From 'Key (a, b)=(1, 2) already exists.': the names, and not the values."""
    found = re.match(r"Key \((.*?)\)=", detail or "", re.DOTALL)
    return [name.strip('"') for name in found[1].split(", ")] if found else ["row"]
