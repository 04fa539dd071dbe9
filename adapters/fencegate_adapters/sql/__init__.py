"""SQL databases as protected resources: rows through the gateway, and `fenced` for a caller's own session.

The fence is a row, named by the lock key, in the database that holds the data. Raising it is the first statement of
the transaction that writes, so the database itself makes check and write one step, and no pause can come between.
"""

# What is for a caller's own session is in `fencegate.sql`: it needs the ORM, which a gateway need not wait for.
from fencegate_adapters.sql.rows import RowsResource

__all__ = ["RowsResource"]
