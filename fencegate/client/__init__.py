"""The client: holds locks, renews them in a thread of its own, and knows by its own clock when one is lost."""

from fencegate.client.hold import Hold, Lease, TryHold
from fencegate.client.lease import LeaseState
from fencegate.client.locks import Locks, connect

__all__ = ["Hold", "Lease", "LeaseState", "Locks", "TryHold", "connect"]
