"""Fencing in your own SQL transactions: `from fencegate.sql import fenced`."""

from fencegate_adapters.sql import Fenced, Lease, fenced

__all__ = ["Fenced", "Lease", "fenced"]
