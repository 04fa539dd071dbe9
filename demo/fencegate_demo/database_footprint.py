"""Leaving nothing behind in a user's own database: our rows, and the tables that were made for them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, delete, func, inspect, make_url, select
from sqlalchemy.exc import SQLAlchemyError

from fencegate.core.errors import ResourceUnavailable
from fencegate.core.ports import Key
from fencegate.gateway.resources import ResourceSettings, SqlSettings
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.tables import documents, fences, resources
from fencegate_demo.remote_footprint import Keys


@contextmanager
def traceless_database(settings: SqlSettings, corners: Sequence[ResourceSettings], keys: Keys) -> Iterator[None]:
    """Around whatever writes `keys` of these resources, all of them in the database of `settings`."""
    with _told(), settings.needs(settings.extra):
        url = make_url(settings.url)
        engine = dialect_of(url.get_backend_name()).engine(url, 1)
        tables = _tables(engine)
    try:
        yield
    finally:
        with _told():
            _forget_rows(engine, corners, keys(), tables)
            engine.dispose()


@contextmanager
def _told() -> Iterator[None]:
    """A database that fails is told in words."""
    try:
        yield
    except SQLAlchemyError as error:
        raise ResourceUnavailable(f"the database failed: {' '.join(cause(error).split())}") from None


def _forget_rows(engine: Engine, corners: Sequence[ResourceSettings], keys: Sequence[Key], tables: set[str]) -> None:
    """Remove our rows, and those of our tables that were not among `tables` and are empty again."""
    names = [settings.name for settings in corners]
    locks = [settings.guard_rule.lock_key(key).encode() for settings in corners for key in keys]
    with engine.begin() as connection:
        there = _tables(connection)
        for table, ours in (
            (documents, documents.c.resource.in_(names)),
            (fences, fences.c.lock_key.in_(locks)),
            (resources, resources.c.name.in_(names)),
        ):
            if table.name in there:
                connection.execute(delete(table).where(ours))
                if table.name not in tables and not connection.scalar(select(func.count()).select_from(table)):
                    table.drop(connection)


def _tables(bind: Engine | Connection) -> set[str]:
    return set(inspect(bind).get_table_names())
