"""MySQL and MariaDB: procedures in the database, and triggers on the table that call them."""

from fencegate_adapters.sql.protect.mysql.protector import MysqlProtector

__all__ = ["MysqlProtector"]
