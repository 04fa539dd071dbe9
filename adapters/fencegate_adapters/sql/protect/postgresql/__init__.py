"""PostgreSQL: functions in a schema of their own, and triggers on the table that call them."""

from fencegate_adapters.sql.protect.postgresql.protector import PostgresqlProtector

__all__ = ["PostgresqlProtector"]
