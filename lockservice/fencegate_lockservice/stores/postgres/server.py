"""How PostgreSQL is reached for the first time: what must be there, what is made, and what its settings mean."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Finding, Unavailable
from fencegate_lockservice.stores.postgres.link import Connection, in_one_line
from fencegate_lockservice.stores.postgres.reading import NO_SERVER, SERVER, Statements
from fencegate_lockservice.stores.postgres.rights import TO_USE, check_rights
from fencegate_lockservice.stores.postgres.url import Target

OPEN_WITHIN_S = 10.0
NEWEST_MIGRATION = "0001"
OLDEST_SERVER = 130000

# The tables that the search path finds come before its first schema: that may have been made after them, since a role
# finds the one of its own name first, and locks that are held would be looked for in empty tables.
_WHERE: LiteralString = """coalesce(%s, (
    SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = to_regclass('fencegate_migrations')), current_schema())
"""
_HELLO: LiteralString = f"""
SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),
    current_setting('transaction_isolation'), pg_is_in_recovery(), {_WHERE}
"""
_SETTINGS = """
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')
"""
_STANDBYS = "SELECT count(*) FROM pg_stat_replication"  # any role may count them, and only some see more

_NO_ENTRY = psycopg.errors.InvalidPassword | psycopg.errors.InvalidAuthorizationSpecification
# Who can't connect has no code of the error, only its text; in other languages it looks like an outage.
_NOT_LET_IN = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|not permitted to log in"
    r'|FATAL: (?:role|database) ".*?" does not exist|permission denied for database'
)


async def connect(target: Target) -> Connection:
    """A connection without any state of its own, so that a transaction-pooling proxy may stand in between."""
    return await AsyncConnection.connect(autocommit=True, prepare_threshold=None, **target.parameters)


async def prepare(target: Target, statements: Statements) -> None:
    """Check what is there, make what is missing, and have the statements use the schema of the tables."""
    try:
        found = await _tables(target)
        if found is None:
            await asyncio.to_thread(_migrate, target)
            found = await _tables(target)  # wherever they were made, by us or by somebody who was first
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise _explained(target, error) from None
    if found is None:
        raise Unavailable(f"{target.server}: the tables were made, and are gone again")
    statements.use(*found)


async def _tables(target: Target) -> tuple[str, LiteralString] | None:
    """The schema that has them, and what tells this server from another; None when they are still to be made."""
    async with asyncio.timeout(OPEN_WITHIN_S), await connect(target) as connection:
        schema = await _fitting_schema(target, connection)
        found = await _migration(connection, schema)
        if found is not None and found > NEWEST_MIGRATION:
            raise UnsafeConfiguration(
                f"{target.server}: the tables are of a newer release (migration {found}); upgrade this one too"
            )
        if found != NEWEST_MIGRATION:
            return None
        await check_rights(connection, schema, target.server)
        return schema, SERVER if await _tells_itself_apart(connection) else NO_SERVER


async def _fitting_schema(target: Target, connection: Connection) -> str:
    row = await (await connection.execute(_HELLO, [target.schema])).fetchone()
    assert row is not None
    version, encoding, isolation, standby, schema = row
    wrong = ""
    if version < OLDEST_SERVER:
        wrong = f"it is version {version // 10000}; 13 or newer is needed"
    elif encoding != "UTF8":
        wrong = f"the encoding of the database is {encoding}; create one with ENCODING 'UTF8'"
    elif isolation != "read committed":
        wrong = f"default_transaction_isolation is {isolation}; set it to 'read committed' for this role"
    elif standby:
        wrong = "it is a standby, which takes no writes; use the primary"
    elif schema is None:
        wrong = "no schema of its search_path exists; name one: ?schema=NAME"
    if wrong:
        raise UnsafeConfiguration(f"{target.server} can't be used: {wrong}")
    return str(schema)


async def _tells_itself_apart(connection: Connection) -> bool:
    """Any role may ask, unless somebody has forbidden it; what only speaks the protocol may not know."""
    try:
        await connection.execute(SQL("SELECT {}").format(SQL(SERVER)))
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.InternalError):
        return False
    return True


async def _migration(connection: Connection, schema: str) -> str | None:
    """How far the tables were migrated; None when there are none."""
    try:
        query = SQL("SELECT version_num FROM {}.fencegate_migrations").format(Identifier(schema))
        row = await (await connection.execute(query)).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return str(row[0]) if row else None


def _migrate(target: Target) -> None:
    """On a thread: Alembic and SQLAlchemy are only needed now."""
    from sqlalchemy import Connection, NullPool, create_engine
    from sqlalchemy.exc import DBAPIError

    from fencegate_lockservice.stores.sql.migrations import migrate

    def connect_blocking() -> Any:
        return psycopg.connect(prepare_threshold=None, **target.parameters)

    def schema(connection: Connection) -> str:
        return str(connection.exec_driver_sql(f"SELECT {_WHERE}", (target.schema,)).scalar_one())

    engine = create_engine("postgresql+psycopg://", creator=connect_blocking, poolclass=NullPool)
    try:
        migrate(engine, schema)
    except DBAPIError as error:
        raise error.orig if error.orig is not None else error from None
    finally:
        engine.dispose()


def _explained(target: Target, error: BaseException) -> Exception:
    text = in_one_line(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return UnsafeConfiguration(
            f"{target.server}: this role may not make or use the tables ({text}); GRANT USAGE, CREATE ON SCHEMA … TO"
            f" it, or name a schema that it owns: ?schema=NAME. Where the tables are there already, {TO_USE}"
        )
    if isinstance(error, _NO_ENTRY) or (isinstance(error, psycopg.OperationalError) and _NOT_LET_IN.search(text)):
        return UnsafeConfiguration(f"{target.server} can't be used: {text}")
    if isinstance(error, TimeoutError) and not isinstance(error, psycopg.Error):
        text = f"no answer within {OPEN_WITHIN_S:.0f} s"
    return Unavailable(f"{target.server} can't be reached: {text}")


async def is_direct(connection: Connection) -> bool:
    """Whether the server itself is at the other end, and not a pooler: only then can we LISTEN."""
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    return row is not None and row[0] == connection.info.backend_pid


async def inspect(target: Target) -> Sequence[Finding]:
    """What the settings of the server mean for locks in it."""
    try:
        async with asyncio.timeout(OPEN_WITHIN_S), await connect(target) as connection:
            settings: dict[str, str] = dict(await (await connection.execute(_SETTINGS)).fetchall())
            row = await (await connection.execute(_STANDBYS)).fetchone()
            direct = await is_direct(connection)
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise _explained(target, error) from None
    return findings(settings, row[0] if row else 0, direct)


def findings(settings: dict[str, str], standbys: int, direct: bool) -> list[Finding]:
    """The same, of settings that were read; `direct` says that no pooler is in between."""
    found = [_durability(settings)]
    if settings["full_page_writes"] != "on":
        found.append(Finding("warning", "full_page_writes is off: a crash may tear pages", "set full_page_writes = on"))
    found.append(_replication(settings, standbys))
    if not direct:
        found.append(
            Finding("fine", "a connection pooler is in between: changes of other replicas are polled, not notified")
        )
    return found


def _durability(settings: dict[str, str]) -> Finding:
    if settings["fsync"] != "on":
        return Finding("unsafe", "fsync is off: a crash of the machine loses granted locks", "set fsync = on")
    if settings["synchronous_commit"] == "off":
        return Finding(
            "warning",
            "synchronous_commit is off: every commit of ours turns it on for itself, but what else is committed there,"
            " a fence too, may be lost in a crash",
            "ALTER ROLE, or DATABASE, … SET synchronous_commit = on",
        )
    setting = f"synchronous_commit = {settings['synchronous_commit']}"
    return Finding("fine", f"every commit is flushed before it is answered ({setting})")


def _replication(settings: dict[str, str], standbys: int) -> Finding:
    advice = (
        "set synchronous_standby_names, or know that after a failover order rests on the clocks: tokens still only "
        "grow, but a lock whose grant was lost may be granted again while its holder still works: fence the resource"
    )
    if settings["synchronous_standby_names"]:
        if settings["synchronous_commit"] == "local":
            what = "synchronous_commit is local: commits do not wait for the standby"
            return Finding("warning", what, "set synchronous_commit = on for this role")
        return Finding("fine", "commits wait for a synchronous standby")
    if standbys:
        what = f"{standbys} standby(s) replicate asynchronously: a failover loses commits"
        return Finding("warning", what, advice)
    return Finding("fine", "no standby replicates from here")
