"""A real PostgreSQL, on a free port, with its data in a folder of its own."""

from fencegate_demo.startable.ports import free_port
from fencegate_demo.startable.postgres import DATABASE, USER, PostgresServer, binaries, missing, other_user

__all__ = ["DATABASE", "USER", "PostgresServer", "binaries", "free_port", "missing", "other_user"]
