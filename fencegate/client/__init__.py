"""The client: holds locks, renews them in a thread of its own, and knows by its own clock when one is lost."""

from fencegate.client.claims import Claimable
from fencegate.client.grant import Revocation
from fencegate.client.history import LockHistory, PastHold
from fencegate.client.hold import Hold, Lease, TryHold
from fencegate.client.hold_all import HoldAll, Leases
from fencegate.client.leader import Lead, Term
from fencegate.client.life import LeaseState
from fencegate.client.locks import Locks, connect
from fencegate.client.observer import Leader, Observer
from fencegate.client.open_session import OpenSession, Session
from fencegate.client.terms import GroupTerms, Terms
from fencegate.client.watch import Watcher, WatchEvent

__all__ = [
    "Claimable",
    "GroupTerms",
    "Hold",
    "HoldAll",
    "Lead",
    "Leader",
    "Lease",
    "LeaseState",
    "Leases",
    "LockHistory",
    "Locks",
    "Observer",
    "OpenSession",
    "PastHold",
    "Revocation",
    "Session",
    "Term",
    "Terms",
    "TryHold",
    "WatchEvent",
    "Watcher",
    "connect",
]
