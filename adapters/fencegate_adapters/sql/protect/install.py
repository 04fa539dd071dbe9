"""`protect` and `unprotect`: look at the database, and do what is missing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.protect.mysql import MysqlProtector
from fencegate_adapters.sql.protect.plan import Plan, Protector
from fencegate_adapters.sql.protect.postgresql import PostgresqlProtector
from fencegate_adapters.sql.protect.sqlite import SqliteProtector
from fencegate_adapters.sql.protect.wanted import TableName, Wanted

_PROTECTORS: dict[str, Protector] = {
    "mariadb": MysqlProtector(),
    "mysql": MysqlProtector(),
    "postgresql": PostgresqlProtector(),
    "sqlite": SqliteProtector(),
}


def protect(url: str, wanted: Wanted, *, dry_run: bool = False) -> Plan:
    """Protect a table. What it returns was done, unless it has gaps that were not allowed, or `dry_run` was asked."""
    return _planned(url, lambda protector, connection: protector.plan(connection, wanted), dry_run, wanted.allow_gaps)


def unprotect(url: str, table: TableName, *, dry_run: bool = False) -> Plan:
    """Take away what `protect` installed for a table. Marks and floors stay: a fence is never lowered."""
    return _planned(url, lambda protector, connection: protector.plan_removal(connection, table), dry_run, True)


def _planned(url: str, make: Callable[[Protector, Connection], Plan], dry_run: bool, gaps_allowed: bool) -> Plan:
    with _connected(url, dry_run) as (protector, connection):
        plan = make(protector, connection)
        if not dry_run and (gaps_allowed or not plan.gaps):
            for step in plan.steps:
                # Without parameters, so that a percent sign in a name is one.
                connection.execution_options(no_parameters=True).exec_driver_sql(step)
        return plan


@contextmanager
def _connected(url: str, dry_run: bool) -> Iterator[tuple[Protector, Connection]]:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter of a port that is no number
        raise UnsafeConfiguration("the URL is not one of a database: postgresql://…, mysql://…, sqlite:///…") from None
    dialect_of(parsed.get_backend_name())  # refuses what is not supported
    protector = _PROTECTORS[parsed.get_backend_name()]
    engine = protector.engine(parsed, reads_only=dry_run)
    try:
        with engine.connect() as connection, connection.begin():
            if not dry_run:
                protector.take_turn(connection)
            yield protector, connection
    except OperationalError as error:
        raise ResourceUnavailable(f"the database can't do this now: {cause(error)}") from error
    except SQLAlchemyError as error:
        raise UnsafeConfiguration(f"the database refuses: {cause(error)}") from error
    finally:
        engine.dispose()
