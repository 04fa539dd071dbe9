"""How the MySQL store finds its tables, or makes them."""

import asyncio

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.mysql.address import Address
from fencegate_lockservice.stores.mysql.lines import READ_ONLY, Broken, Lines, Misconfigured, Refused
from fencegate_lockservice.stores.mysql.log import READ_WITHIN_S
from fencegate_lockservice.stores.mysql.statements import names, sql
from fencegate_lockservice.stores.sql.schema import NEWEST_MIGRATION, VERSION_TABLE, metadata

_DENIED = {1142, 1143}
"""Of a table, or of one of its columns."""


async def open_tables(address: Address, lines: Lines) -> None:
    """Unavailable when the server can't be reached, UnsafeConfiguration when what is found there is not for us."""
    try:
        found = await _migration(address, lines)
    except Misconfigured as error:
        raise UnsafeConfiguration(str(error)) from None
    if found is None:
        await _refuse_other_tables(lines, complete=False)
    elif found > NEWEST_MIGRATION:
        raise UnsafeConfiguration(
            f"{address.server}: the tables are of a newer release (migration {found}); upgrade this one too"
        )
    if found != NEWEST_MIGRATION:
        await asyncio.to_thread(_migrate, address)  # since Alembic waits where it stands
    await _refuse_other_tables(lines, complete=True)
    await _check_rights(address, lines)


async def _migration(address: Address, lines: Lines) -> str | None:
    """How far the tables were migrated; None when there is no note of that."""
    try:
        async with lines.line() as line:
            (rows,) = await line.run([sql("migrated", table=VERSION_TABLE)], READ_WITHIN_S)
    except Refused as error:
        if error.code in _DENIED:
            raise UnsafeConfiguration(f"{address.server}: {error}. {_grants(address)}") from None
        return None  # there is no such table
    except Broken as error:
        raise Unavailable(f"{address.server}: {error}") from None
    return rows[0][0] if rows else None


async def _check_rights(address: Address, lines: Lines) -> None:
    """UnsafeConfiguration when the user may not do all that a commit does: by statements that are about no row."""
    tries = [
        sql(right, table=table.name, column=f"`{next(iter(table.columns)).name}`")
        for table in metadata.tables.values()
        for right in ("may_insert", "may_update", "may_delete")
    ]
    try:
        async with lines.line() as line:
            await line.run(tries, READ_WITHIN_S)
    except Refused as error:
        if error.code in _DENIED:
            raise UnsafeConfiguration(f"{address.server}: {error}. {_grants(address)}") from None
        if error.code not in READ_ONLY:  # which is found, and told, as one of its settings
            raise Unavailable(f"{address.server}: {error}") from None
    except Broken as error:
        raise Unavailable(f"{address.server}: {error}") from None


def _grants(address: Address) -> str:
    return f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{address.database}`.* TO this user, who needs nothing else"


def _migrate(address: Address) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    from fencegate_lockservice.stores.sql.migrations import migrate

    url, arguments = address.for_sqlalchemy()
    engine = create_engine(url, connect_args=arguments, isolation_level="READ COMMITTED")
    try:
        migrate(engine)
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", "") or type(error).__name__)[:300]
        raise UnsafeConfiguration(
            f"{address.server}: the tables can't be made: {cause}. Let a user open the store once who may create tables"
        ) from None
    finally:
        engine.dispose()


async def _refuse_other_tables(lines: Lines, *, complete: bool) -> None:
    """UnsafeConfiguration when tables of our names are not ours, or can't be rolled back, or are not `complete`."""
    ours = names(metadata.tables)
    engines, columns = await lines.run([sql("engines", names=ours), sql("columns", names=ours)], READ_WITHIN_S)
    for table in metadata.tables.values():
        there = {column.lower() for name, column in columns if name == table.name}
        if there and not there.issuperset(table.columns.keys()):
            raise UnsafeConfiguration(
                f"the database has a table {table.name!r} that Fencegate did not make;"
                " give it a database of its own: mysql://…/fencegate"
            )
        if complete and not there:
            raise UnsafeConfiguration(
                f"the database has lost its table {table.name!r}: restore it, or begin with an empty database"
            )
    for name, engine in engines:
        if engine != "InnoDB":
            raise UnsafeConfiguration(
                f"the table {name!r} is kept by {engine}, which can't roll back: ALTER TABLE {name} ENGINE=InnoDB"
            )
