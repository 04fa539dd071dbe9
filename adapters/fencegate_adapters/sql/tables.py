"""The tables that Fencegate keeps in a protected database."""

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateTable

from fencegate_adapters.tables import IN_MYSQL, KeyBytes

# A MySQL TEXT ends at 64 KiB.
Document = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")

metadata = MetaData()

fences = Table(
    "fencegate_fences",
    metadata,
    Column("lock_key", KeyBytes, primary_key=True),
    Column("mode", String(16), primary_key=True),
    Column("token", BigInteger, nullable=False),
    sqlite_with_rowid=False,
    **IN_MYSQL,
)

resources = Table(
    "fencegate_resources",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("guard", Text, nullable=False),
    Column("form", Text, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("floor", BigInteger, nullable=False),
    **IN_MYSQL,
)

documents = Table(
    "rows",
    metadata,
    Column("resource", String(255), primary_key=True),
    Column("key", KeyBytes, primary_key=True),
    Column("document", Document, nullable=False),
    **IN_MYSQL,
)

FENCE_TABLES = (fences, resources)
OWN_TABLES = frozenset(metadata.tables)

_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(7420, 1)"


def ddl(kind: str) -> list[str]:
    """The statements that make the fence tables where they are missing, for connections that are not SQLAlchemy's. In
    one transaction."""
    dialects = {"sqlite": sqlite, "postgresql": postgresql, "mysql": mysql}
    dialect = dialects[kind].dialect()
    made = [str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)) for table in FENCE_TABLES]
    return [_ONE_AT_A_TIME, *made] if kind == "postgresql" else made


def create(connection: Connection, tables: list[Table]) -> None:
    """Create them, unless another did meanwhile. Not in the transaction that looked: two that both looked first would
    each wait for the other."""
    if tables and connection.dialect.name == "postgresql":  # where two who create one table may both fail
        connection.exec_driver_sql(_ONE_AT_A_TIME)
    for table in tables:
        connection.execute(CreateTable(table, if_not_exists=True))
