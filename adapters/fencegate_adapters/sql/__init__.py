"""SQL databases as protected resources: rows through the gateway, and `fenced` for a caller's own session.

The fence is a row, named by the lock key, in the database that holds the data. Raising it is the first statement of
the transaction that writes, so the database itself makes check and write one step, and no pause can come between.
"""

from fencegate_adapters.sql.fenced import Fenced, Lease, fenced
from fencegate_adapters.sql.rows import RowsResource

__all__ = ["Fenced", "Lease", "RowsResource", "fenced"]
