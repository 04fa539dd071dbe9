"""The tables of the SQL stores, as SQLAlchemy sees them. Only migrations use it; commits go past SQLAlchemy.

Keys compare as bytes: `COLLATE "C"` in PostgreSQL, VARBINARY in MySQL (where `'a'` equals `'a '` otherwise). Values are
the bytes that were given, never parsed by the database. `version` is the id of the commit that wrote a row.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Index, Integer, MetaData, Table, Text, text
from sqlalchemy.dialects import mysql

MAX_KEY_BYTES = 2048
"""Below what an index entry may have: 2704 bytes in PostgreSQL, 3072 in InnoDB."""

VERSION_TABLE = "fencegate_migrations"
"""Where Alembic notes how far a database was migrated; not in anybody else's `alembic_version`."""

NEWEST_MIGRATION = "0001"
"""What this release needs. A database that has it is left alone: whoever opens it need not be allowed to change it."""

metadata = MetaData()

key_type = Text(collation="C").with_variant(mysql.VARBINARY(MAX_KEY_BYTES), "mysql", "mariadb")
value_type = Text().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
version_type = Text().with_variant(mysql.VARBINARY(64), "mysql", "mariadb")
time_type = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")

TABLE_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
TABLE_OPTIONS |= {name.replace("mysql", "mariadb"): value for name, value in TABLE_OPTIONS.items()}


def readable_text(characters: int) -> Text:
    """Text that a person reads and nothing compares."""
    return Text().with_variant(mysql.VARCHAR(characters), "mysql", "mariadb")


def _when_kept(table: str) -> Index:
    """Finds what is past its time; most rows have none."""
    return Index(f"{table}_by_keep_until", "keep_until", postgresql_where=text("keep_until IS NOT NULL"))


locks = Table(
    "distributed_locks",
    metadata,
    Column("lock_key", key_type, primary_key=True),
    # For people: filled from the record as it is written, and never judged by. NULL and 0 while nobody holds the lock.
    Column("namespace", readable_text(1024), nullable=False),
    Column("owner_id", readable_text(512)),
    Column("lock_token", readable_text(1024)),
    Column("fencing_token", BigInteger, nullable=False),  # the last one, also while the lock is free
    Column("expires_at", time_type),
    Column("reentrancy_count", Integer, nullable=False),
    Column("created_at", time_type, nullable=False),
    Column("updated_at", time_type, nullable=False),
    # What the lock service goes by.
    Column("version", version_type, nullable=False),
    Column("keep_until", BigInteger),  # Unix microseconds
    Column("record", value_type, nullable=False),
    _when_kept("distributed_locks"),
    **TABLE_OPTIONS,
)

entries = Table(
    "fencegate_entries",
    metadata,
    Column("key", key_type, primary_key=True),
    Column("version", version_type, nullable=False),
    Column("keep_until", BigInteger),
    Column("value", value_type, nullable=False),
    _when_kept("fencegate_entries"),
    **TABLE_OPTIONS,
)

log = Table(
    "fencegate_log",
    metadata,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("key", key_type, nullable=False),
    Column("event", value_type, nullable=False),
    **TABLE_OPTIONS,
)

meta = Table(
    "fencegate_meta",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # one row, 1
    Column("revision", BigInteger, nullable=False),  # the last one that was given out
    Column("compacted", BigInteger, nullable=False),  # lines up to here may be gone from the log
    Column("lines_written", BigInteger, nullable=False),
    Column("lines_dropped", BigInteger, nullable=False),
    **TABLE_OPTIONS,
)
