"""MariaDB 10.5 and MySQL 8.0, or newer; our own connections go through PyMySQL."""

import re
import ssl
from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, insert
from sqlalchemy.exc import ArgumentError, DBAPIError

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate_adapters import mysql_settings
from fencegate_adapters.sql.passing import Ask
from fencegate_adapters.sql.runner import Runner, driver_of
from fencegate_adapters.sql.tables import FENCE_TABLES

IDLE_S = 30
_STRICT = "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS
TELLING = ("pymysql", "aiomysql")
"""Drivers that keep what the last answer told. (asyncmy has such a number too, and leaves it alone at some answers.)"""


class MysqlDialect:
    """Many writers; a fence row keeps those of one lock key in order."""

    durability = (
        "marks and rows commit together in InnoDB (innodb_flush_log_at_trx_commit=1): they survive a crash and a power "
        "loss; after a restore, or a failover to a replica that lagged, raise the floor"
    )
    writers = 4
    locks_floors = True

    def engine(self, url: URL, connections: int) -> Engine:
        try:
            import pymysql  # noqa: F401
        except ImportError:
            raise UnsafeConfiguration("MySQL needs its driver: pip install 'fencegate[mysql]'") from None
        try:
            engine = create_engine(
                url.set(drivername="mysql+pymysql", query={}),  # for both: "mariadb" refuses a server of MySQL
                connect_args=_arguments(url),
                isolation_level="READ COMMITTED",
                pool_size=connections,
                max_overflow=0,
                pool_timeout=10,
                pool_use_lifo=True,
                pool_recycle=IDLE_S // 2,  # before MySQL drops it for being idle
            )
        except (ValueError, ArgumentError):
            raise UnsafeConfiguration("the URL of a MySQL resource can't be read") from None
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", self._connected)
        return engine

    @staticmethod
    def _connect(dialect: Any, _record: object, arguments: Any, options: Any) -> Any:
        try:
            return dialect.connect(*arguments, **options)
        except RuntimeError as error:  # which no error of the driver's is
            if "'cryptography'" not in str(error):
                raise
            raise UnsafeConfiguration(
                "MySQL asks for the password in a way that needs TLS (?tls=verify), or: pip install cryptography"
            ) from None

    @staticmethod
    def _connected(driver: Any, _record: object) -> None:
        """Without strict mode a value that doesn't fit is cut, and the writer is told yes. Who stands still inside of a
        transaction keeps others out; MySQL has no limit for that but the one for idle connections."""
        with driver.cursor() as cursor:
            cursor.execute(f"SET SESSION sql_mode = '{_STRICT}', time_zone = '+00:00'")
            limit = "idle_transaction_timeout" if "MariaDB" in str(driver.get_server_info()) else "wait_timeout"
            cursor.execute(f"SET SESSION {limit} = {IDLE_S}")

    def check(self, connection: Connection) -> None:
        mysql_settings.check(connection, FENCE_TABLES)

    def limit_wait(self, connection: Connection, wait_ms: int) -> None:
        wait_s = max(1, -(-wait_ms // 1000))
        if connection.info.get("fencegate_wait_s") != wait_s:
            # Outside of a transaction, which SQLAlchemy would begin.
            Runner(connection)(Ask(f"SET SESSION innodb_lock_wait_timeout = {wait_s}"))
            connection.info["fencegate_wait_s"] = wait_s

    def raise_marks(self, connection: Connection, claims: Mapping[str, int], mode: str) -> dict[str, int]:
        # Not told by the count of rows, which says the same of a stale token and of an equal one: by what is there
        # afterwards, under the locks that the first statement took.
        keys = sorted(key.encode() for key in claims)
        values = [value for key in keys for value in (key, mode, claims[key.decode()])]
        connection.exec_driver_sql(
            f"INSERT INTO fencegate_fences (lock_key, mode, token) VALUES {_list('(%s, %s, %s)', keys)} "  # noqa: S608 - nothing but placeholders
            "ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))",
            tuple(values),
        )
        found = connection.exec_driver_sql(
            f"SELECT lock_key, token FROM fencegate_fences WHERE mode = %s AND lock_key IN ({_list('%s', keys)}) "  # noqa: S608
            "LOCK IN SHARE MODE",
            (mode, *keys),
        )
        return {bytes(key).decode(): int(token) for key, token in found}

    def keep_out(self, connection: Connection) -> None:
        # Whoever is past a fence has a lock on its row. (On the floors as well, but not on one that is not there yet.)
        # At this level the gaps are locked too, so that nobody passes by a new row.
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.exec_driver_sql("SELECT count(*) FROM fencegate_fences FOR UPDATE")

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        # The count is 0 when the row was there. Other errors than that are warnings under IGNORE: our own values fit.
        return connection.execute(insert(table).prefix_with("IGNORE").values(**values)).rowcount == 1

    def in_transaction(self, connection: Connection) -> bool:
        if connection.dialect.driver in TELLING:
            return bool(driver_of(connection).server_status & _IN_TRANSACTION)
        if not getattr(connection.dialect, "is_mariadb", False):
            raise UnsafeConfiguration("with MySQL use a driver that tells of transactions: PyMySQL, or aiomysql")
        return bool(Runner(connection)(Ask("SELECT @@in_transaction"))[0][0])

    def refusal(self, error: DBAPIError) -> InvalidInput:
        number, text = _told(error.orig)
        if number in (1048, 1364):
            column = (re.findall(r"'([^']*)'", text) or ["row"])[0]
            return InvalidInput(column, "must not be null, and must be given when a row is replaced or created")
        if number == 1267:  # of the comparison with a key, for a value is refused when it is assigned
            return InvalidInput("key", "holds a character that the character set of its column does not have")
        if number in (1062, 1586):
            index = (re.findall(r"for key '([^']*)'", text) or ["?"])[-1].rpartition(".")[2]
            return InvalidInput("row", f"another row has the same value in the unique index {index!r}")
        if number in (3819, 4025):
            constraint = (re.findall(r"[`']([^`']*)[`']", text) or ["?"])[0]
            return InvalidInput(
                "row", f"does not satisfy the constraint {constraint.rpartition('.')[2]!r} of the table"
            )
        if number in (1216, 1217, 1451, 1452):
            return InvalidInput("row", "names a row of another table that is not there, or is named by one")
        return InvalidInput("row", f"is refused by the database ({text[:200]})")


def _told(error: BaseException | None) -> tuple[int, str]:
    arguments = error.args if error is not None else ()
    number = arguments[0] if arguments and isinstance(arguments[0], int) else 0
    return number, str(arguments[-1]) if arguments else "no reason given"


def _arguments(url: URL) -> dict[str, Any]:
    """What the driver is told beside user, host and database. The options are those of a store's URL."""
    options = {name: str(value) for name, value in url.query.items()}
    arguments: dict[str, Any] = {"charset": "utf8mb4", "connect_timeout": 5, "read_timeout": 60, "write_timeout": 60}
    tls, ca, socket = options.pop("tls", "off"), options.pop("ca", None), options.pop("socket", None)
    options.pop("charset", None)
    if options or tls not in ("off", "verify") or (tls == "off" and ca):
        raise UnsafeConfiguration(
            "the URL of a MySQL resource has an option that is not known here: write it as "
            "mysql://USER:PASSWORD@HOST:3306/DATABASE?tls=verify&ca=FILE (or ?socket=FILE)"
        )
    if socket is not None:
        arguments["unix_socket"] = socket
    try:
        secured = {"ssl": ssl.create_default_context(cafile=ca)} if tls == "verify" else {"ssl_disabled": True}
    except OSError as error:
        raise UnsafeConfiguration(f"the file of certificates in `ca` can't be used: {error.strerror}") from None
    return arguments | secured


def _list(item: str, of: Any) -> str:
    return ", ".join([item] * len(of))
