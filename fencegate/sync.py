"""The client without `await`: the same rules, run by the background thread, with this thread waiting for them."""

import builtins
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Self, Unpack

from fencegate.client import reading
from fencegate.client.asks import LockChoice
from fencegate.client.background import background
from fencegate.client.blocking.hold import Hold, HoldTerms, Lease, LeaseReactions, TryHold, attached_hold, hold_of
from fencegate.client.blocking.hold_all import HoldAll, HoldAllTerms, Leases, hold_all_of
from fencegate.client.blocking.leader import CandidateTerms, Lead, LeadTerms, Term, candidate_terms
from fencegate.client.blocking.observer import Observer
from fencegate.client.blocking.open_session import OpenSession, Session, SessionReactions, session_of
from fencegate.client.blocking_watch import Watcher
from fencegate.client.connection import Connection
from fencegate.client.guarded import Guarded
from fencegate.client.history import DEFAULT_LIMIT, LockHistory, history
from fencegate.client.life import LeaseState
from fencegate.client.locks import DEFAULT_TIMEOUT_S, connection_of
from fencegate.client.locks import Locks as AsyncLocks
from fencegate.client.observer import Leader
from fencegate.client.once import Once
from fencegate.client.terms import DEFAULT_TTL_S, Terms
from fencegate.client.transport import Json

__all__ = [
    "Hold",
    "HoldAll",
    "Lead",
    "Leader",
    "Lease",
    "LeaseState",
    "Leases",
    "Locks",
    "Observer",
    "OpenSession",
    "Session",
    "Term",
    "TryHold",
    "Watcher",
    "connect",
]


def connect(
    url: str | None = None,
    *,
    owner_id: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    on_state: Callable[[Lease, LeaseState], None] | None = None,
) -> "Locks":
    """Like `fencegate.connect`, without `await`. May be used from several threads.

    `on_state` is told each state of each lease, in a thread of its own.

    >>> locks = connect("memory://")
    """
    return Locks(connection_of(url, owner_id, timeout, on_state))


class Locks:
    """A client of a lock service. May be used from several threads, and after a fork."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._locks = AsyncLocks(connection)

    @property
    def owner_id(self) -> str:
        return self._connection.owner_id

    def hold(self, lock_key: str, **terms: Unpack[HoldTerms]) -> Hold:
        """A handle on the lock: `with locks.hold("rebuild:eu", ttl=30, wait=10) as lease: …`.

        `ttl` and `wait` are seconds; without `wait` a held lock raises LockHeld at once. `on_lost` and the other
        callbacks are called in a thread of their own. All terms: `fencegate.Terms`.
        """
        return hold_of(self._connection, lock_key, terms)

    def try_hold(self, lock_key: str, **terms: Unpack[HoldTerms]) -> TryHold:
        """Like `hold`, but gives None where that would raise LockHeld."""
        return TryHold(hold_of(self._connection, lock_key, terms))

    def hold_all(self, locks: Iterable[LockChoice], **terms: Unpack[HoldAllTerms]) -> HoldAll:
        """Several locks, all or none: `with locks.hold_all(["a", ("b", "shared")], wait=10) as leases: …`.

        They are granted in one step, renewed and released together, and lost together. However two callers order
        the locks that they name, they don't deadlock; to hold some and then wait for more still can.
        """
        return hold_all_of(self._connection, locks, terms)

    def session(
        self, *, ttl: float = DEFAULT_TTL_S, owner: str | None = None, **reactions: Unpack[SessionReactions]
    ) -> OpenSession:
        """One keep-alive for any number of locks: `with locks.session(ttl=30) as session: …`.

        `session.hold(key)` is kept alive by it, and lost with it. Leaving the block ends it, and all that it holds.
        """
        return session_of(self._connection, ttl, owner, reactions)

    def attach(self, exported: str, **reactions: Unpack[LeaseReactions]) -> Hold:
        """A handle on a lease that another process exported; LockLost when it is over by now."""
        return attached_hold(self._connection, exported, reactions)

    def lead(self, name: str, **terms: Unpack[LeadTerms]) -> Lead:
        """Stand for election: `with locks.lead("order-service", ttl=15) as term: …`, once we are elected.

        Leaving the block hands over to the next candidate at once.
        """
        return Lead(self._connection, name, terms)

    def terms(self, name: str, **terms: Unpack[CandidateTerms]) -> Generator[Term, None, None]:
        """Stand again after each term: `for term in locks.terms("order-service"): …`; leaving the loop hands over.

        The body has to notice for itself that it was deposed (`term.lost`, `term.ensure_led()`).
        """
        return candidate_terms(self._connection, name, terms)

    def observe(self, name: str) -> Observer:
        """Follow the leader: `for leader in locks.observe("order-service"): …`; None while nobody leads."""
        return Observer(self._locks.observe(name))

    def once(self, template: str, *, keep: float | None = None, **terms: Unpack[Terms]) -> Once:
        """A decorator: one caller runs the function, others skip it. `@locks.once("cron:daily-report", keep=600)`."""
        return Once(self._connection, template, keep, terms)

    def guarded(self, template: str, **terms: Unpack[Terms]) -> Guarded:
        """A decorator: callers of the function take turns. `@locks.guarded("inventory:{sku}")`."""
        return Guarded(self._connection, template, terms)

    def status(self, lock_key: str) -> Json:
        """Who holds the lock, as the REST call tells it; `locked` is false when nobody does."""
        return background().run(reading.status(self._connection, lock_key))

    def list(self, prefix: str = "", *, namespace: str | None = None) -> builtins.list[Json]:
        """The locks that are held, as `status` tells of each, in the order of their keys."""
        return background().run(reading.list_locks(self._connection, prefix, namespace))

    def force_release(self, lock_key: str, reason: str, *, grace: float = 0.0) -> Json:
        """Take the lock from whoever holds it. Its fencing token goes on protecting the resource from them.

        With `grace`, the holder is asked first, and has so many seconds to finish and release.
        """
        return background().run(reading.force_release(self._connection, lock_key, reason, grace))

    def history(self, lock_key: str, *, limit: int = DEFAULT_LIMIT) -> LockHistory:
        """The newest holds of the lock: by whom, from when to when, with which token, and how each ended."""
        return background().run(history(self._connection, lock_key, limit))

    def watch(self, key: str | None = None, *, prefix: str | None = None, since: int | None = None) -> Watcher:
        """What happens to a lock, to those of a prefix, or to all: `with locks.watch("a") as events: …`."""
        return Watcher(self._locks.watch(key, prefix=prefix, since=since))

    def close(self) -> None:
        """Release what this client still holds, and close its connections. A later use opens others."""
        background().run(self._locks.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
