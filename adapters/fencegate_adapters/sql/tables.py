"""The tables that Fencegate keeps in a protected database."""

from sqlalchemy import BigInteger, Column, Connection, LargeBinary, MetaData, String, Table, Text, inspect
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from fencegate.core.names import MAX_LOCK_KEY_BYTES

# Bytes, not text: by the rules of a collation 'a' may equal 'A', or 'a ', and two fences would be one.
KeyBytes = LargeBinary(MAX_LOCK_KEY_BYTES).with_variant(mysql.VARBINARY(MAX_LOCK_KEY_BYTES), "mysql", "mariadb")

metadata = MetaData()

fences = Table(
    "fencegate_fences",
    metadata,
    Column("lock_key", KeyBytes, primary_key=True),
    Column("mode", String(16), primary_key=True),
    Column("token", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

resources = Table(
    "fencegate_resources",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("guard", Text, nullable=False),
    Column("form", Text, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("floor", BigInteger, nullable=False),
)

documents = Table(
    "rows",
    metadata,
    Column("resource", String(255), primary_key=True),
    Column("key", KeyBytes, primary_key=True),
    Column("document", Text, nullable=False),
)

FENCE_TABLES = (fences, resources)
OWN_TABLES = frozenset(metadata.tables)


def missing(connection: Connection, tables: tuple[Table, ...]) -> list[Table]:
    """Those that are not there; look before you create, since not everybody may create tables."""
    there = inspect(connection)
    return [table for table in tables if not there.has_table(table.name)]


def create(connection: Connection, tables: list[Table]) -> None:
    """Create them, unless another did meanwhile. Not in the transaction that looked: two that both looked first would
    each wait for the other."""
    for table in tables:
        connection.execute(CreateTable(table, if_not_exists=True))
