"""What a server of MySQL or MariaDB must be set to, so that it keeps the marks that it has committed."""

from collections.abc import Iterable

from sqlalchemy import Connection, Table, bindparam, text

from fencegate.core.errors import UnsafeConfiguration

_SETTINGS = text("SELECT @@innodb_flush_log_at_trx_commit, @@global.read_only, @@log_bin, @@sync_binlog")
_ENGINES = text(
    "SELECT table_name, engine FROM information_schema.tables "
    "WHERE table_schema = DATABASE() AND table_name IN :names AND engine <> 'InnoDB' ORDER BY table_name"
).bindparams(bindparam("names", expanding=True))


def check(connection: Connection, tables: Iterable[Table]) -> None:
    """UnsafeConfiguration, when marks in these tables may be lost, or be half written."""
    flush, read_only, binlog, sync_binlog = connection.execute(_SETTINGS).one()
    if flush != 1:
        raise UnsafeConfiguration(
            f"MySQL has innodb_flush_log_at_trx_commit={flush}, with which a crash takes marks back: set it to 1"
        )
    if binlog and sync_binlog != 1:
        raise UnsafeConfiguration(
            f"MySQL has log_bin and sync_binlog={sync_binlog}, with which a crash takes marks back: set it to 1"
        )
    if str(read_only).upper() not in ("0", "OFF"):
        raise UnsafeConfiguration("the MySQL server is read-only: name the primary")
    for name, engine in connection.execute(_ENGINES, {"names": [table.name for table in tables]}):
        raise UnsafeConfiguration(
            f"{name} is kept by {engine}, which can't roll back: ALTER TABLE {name} ENGINE=InnoDB"
        )
