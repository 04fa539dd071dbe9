"""The first tables. A migration that was released is never changed: the next one changes what it made.

Every step can be run again over what it left half done, since MySQL commits at each CREATE.
"""

from pathlib import Path

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, inspect, text

from fencegate_lockservice.stores.sql.schema import (
    TABLE_OPTIONS,
    key_type,
    readable_text,
    time_type,
    value_type,
    version_type,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _locks()
    _entries()
    _log()
    _meta()
    if op.get_context().dialect.name == "postgresql":
        op.get_bind().exec_driver_sql((Path(__file__).parent / "v0001_commit.sql").read_text(encoding="utf-8"))


def _locks() -> None:
    op.create_table(
        "distributed_locks",
        Column("lock_key", key_type, primary_key=True),
        Column("namespace", readable_text(1024), nullable=False),
        Column("owner_id", readable_text(512)),
        Column("lock_token", readable_text(1024)),
        Column("fencing_token", BigInteger, nullable=False),
        Column("expires_at", time_type),
        Column("reentrancy_count", Integer, nullable=False),
        Column("created_at", time_type, nullable=False),
        Column("updated_at", time_type, nullable=False),
        Column("version", version_type, nullable=False),
        Column("keep_until", BigInteger),
        Column("record", value_type, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    if op.get_context().dialect.name == "postgresql":
        # A row is written over and over: leave room for it on its page. (SQLAlchemy 2.0 has no option for that.)
        op.execute("ALTER TABLE distributed_locks SET (fillfactor = 70)")
    _index_when_kept("distributed_locks")


def _entries() -> None:
    op.create_table(
        "fencegate_entries",
        Column("key", key_type, primary_key=True),
        Column("version", version_type, nullable=False),
        Column("keep_until", BigInteger),
        Column("value", value_type, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    _index_when_kept("fencegate_entries")


def _log() -> None:
    op.create_table(
        "fencegate_log",
        Column("revision", BigInteger, primary_key=True, autoincrement=False),
        Column("line", Integer, primary_key=True, autoincrement=False),
        Column("key", key_type, nullable=False),
        Column("event", value_type, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )


def _meta() -> None:
    op.create_table(
        "fencegate_meta",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("revision", BigInteger, nullable=False),
        Column("compacted", BigInteger, nullable=False),
        Column("lines_written", BigInteger, nullable=False),
        Column("lines_dropped", BigInteger, nullable=False),
        if_not_exists=True,
        **TABLE_OPTIONS,
    )
    op.execute(
        "INSERT INTO fencegate_meta (id, revision, compacted, lines_written, lines_dropped) SELECT 1, 0, 0, 0, 0"
        " WHERE NOT EXISTS (SELECT 1 FROM fencegate_meta WHERE id = 1)"
    )


def _index_when_kept(table: str) -> None:
    name = f"{table}_by_keep_until"
    if name in {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}:
        return  # asked for, since MySQL knows no CREATE INDEX IF NOT EXISTS
    op.create_index(name, table, ["keep_until"], postgresql_where=text("keep_until IS NOT NULL"))
