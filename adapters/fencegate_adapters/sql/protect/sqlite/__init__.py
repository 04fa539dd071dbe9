"""SQLite: triggers that call a function which only connections of Fencegate have."""

from fencegate_adapters.sql.protect.sqlite.protector import SqliteProtector

__all__ = ["SqliteProtector"]
