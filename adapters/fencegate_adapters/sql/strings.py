"""Refuses a connection of psycopg that would name other fences than everybody else's.

With `standard_conforming_strings=off` this driver doubles the backslash that bytes begin with in a parameter, too,
where nobody takes it away again: lock keys are bytes, and a stale holder would be judged by a fence that nobody has
raised.
"""

from typing import Any

from fencegate.core.errors import UnsafeConfiguration


def check_strings(driver: Any) -> None:
    """Asks the driver, which was told when it connected and is told of every change. Others than psycopg are right."""
    pgconn = getattr(driver, "pgconn", None)
    if pgconn is not None and pgconn.parameter_status(b"standard_conforming_strings") == b"off":
        raise UnsafeConfiguration(
            "the connection has standard_conforming_strings=off, with which psycopg sends other bytes than it is "
            "given, and the fence would be another one: turn it on, as it is by default"
        )
