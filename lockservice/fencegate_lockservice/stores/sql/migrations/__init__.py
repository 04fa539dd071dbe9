"""Brings the tables of an SQL store to what this release needs; safe when many replicas start at once.

engine = create_engine("postgresql+psycopg://…")
migrate(engine, lambda connection: "locks")
"""

import threading
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.schema import CreateSchema

from fencegate.core.errors import UnsafeConfiguration
from fencegate_lockservice.stores.sql.schema import VERSION_TABLE, metadata

LOCK_WITHIN_S = 30
_ADVISORY_LOCK = 0x66656E6365  # "fence"
_one_at_a_time = threading.Lock()  # what Alembic gives to a migration, `op`, is one for the whole process


def migrate(engine: Engine, schema: Callable[[Connection], str] | None = None) -> None:
    """Upgrade to the newest version; does nothing where that is there already. In which `schema` of PostgreSQL is asked
    when nobody else makes tables: those who start at once must not choose two.

    PostgreSQL: all of it is one transaction under a transaction-scoped advisory lock, so it works through a pooler and
    leaves nothing behind when it is cut off. MySQL commits at every CREATE: a named lock keeps others out, and every
    migration can be run again over what it left half done.
    """
    with _one_at_a_time:
        _migrate(engine, schema)


def _migrate(engine: Engine, schema: Callable[[Connection], str] | None) -> None:
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            _take_postgresql_lock(connection)
            if schema is not None:
                _enter_schema(connection, schema(connection))
            _upgrade(connection)
        return
    with engine.connect() as connection:
        name = f"fencegate:{engine.url.database}"[:64]
        taken = connection.scalar(text("SELECT GET_LOCK(:name, :wait)"), {"name": name, "wait": LOCK_WITHIN_S})
        if taken != 1:
            raise UnsafeConfiguration("another replica has been migrating the database for very long: look there first")
        try:
            _upgrade(connection)
            connection.commit()
        finally:
            connection.rollback()
            connection.scalar(text("SELECT RELEASE_LOCK(:name)"), {"name": name})


def newest() -> str:
    """The version that this release needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def _take_postgresql_lock(connection: Connection) -> None:
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_WITHIN_S}s'"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})


def _enter_schema(connection: Connection, schema: str) -> None:
    # Looked for first: IF NOT EXISTS is refused to whoever may not make one, though it is there.
    there = connection.scalar(text("SELECT 1 FROM pg_namespace WHERE nspname = :schema"), {"schema": schema})
    if there is None:
        connection.execute(CreateSchema(schema, if_not_exists=True))
    quoted = '"' + schema.replace('"', '""') + '"'
    connection.execute(text("SELECT set_config('search_path', :path, true)"), {"path": f"{quoted}, pg_temp"})


def _upgrade(connection: Connection) -> None:
    found = inspect(connection)
    if not found.has_table(VERSION_TABLE):
        _refuse_foreign_tables(connection, found.get_table_names())
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _refuse_foreign_tables(connection: Connection, there: list[str]) -> None:
    """Tables of our names that we did not make: somebody else's data. (MySQL may have kept ours without their note.)"""
    foreign = sorted(set(there) & set(metadata.tables))
    if foreign and connection.dialect.name == "postgresql":
        raise UnsafeConfiguration(
            f"the database has a table {foreign[0]!r} that Fencegate did not make; "
            "give it a schema of its own: postgresql://…?schema=fencegate"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
