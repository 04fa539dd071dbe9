"""Fencing in your own SQL transactions: `from fencegate.sql import fenced`."""

from fencegate_adapters.sql.claimable import claimable
from fencegate_adapters.sql.fenced import Fenced, fenced
from fencegate_adapters.sql.leases import Lease
from fencegate_adapters.sql.own_row import fenced_update

__all__ = ["Fenced", "Lease", "claimable", "fenced", "fenced_update"]
