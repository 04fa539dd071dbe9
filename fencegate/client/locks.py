"""The async client: `connect()` and the calls on locks."""

import builtins
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from fencegate.client import reading
from fencegate.client.asks import LockChoice
from fencegate.client.connection import Connection, OnState
from fencegate.client.duration import timeout_seconds
from fencegate.client.guarded import Guarded
from fencegate.client.history import DEFAULT_LIMIT, LockHistory, history
from fencegate.client.hold import Hold, HoldTerms, Lease, LeaseReactions, TryHold, attached_hold, hold_of
from fencegate.client.hold_all import HoldAll, HoldAllTerms, hold_all_of
from fencegate.client.leader import CandidateTerms, Lead, LeadTerms, Term, candidate_terms
from fencegate.client.life import LeaseState
from fencegate.client.observer import Observer
from fencegate.client.once import Once
from fencegate.client.open_session import OpenSession, SessionReactions, session_of
from fencegate.client.release import give_back
from fencegate.client.terms import DEFAULT_TTL_S, Terms
from fencegate.client.transport import Json, check_url
from fencegate.client.watch import Watcher
from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import FencegateError
from fencegate.core.names import check_text
from fencegate.env import setting

DEFAULT_URL = "http://127.0.0.1:7420"
DEFAULT_TIMEOUT_S = 10.0


def connection_of(
    url: str | None, owner_id: str | None, timeout: float, on_state: OnState | None = None, clock: Clock = SYSTEM
) -> Connection:
    """What both faces' `connect` make. No I/O, no thread and no event loop is touched here."""
    url = check_url(url or setting("url") or DEFAULT_URL)
    if owner_id is not None:
        check_text("owner_id", owner_id)
    return Connection(url, owner_id, timeout_seconds(timeout), clock, on_state)


def connect(
    url: str | None = None,
    *,
    owner_id: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    on_state: Callable[[Lease, LeaseState], None] | None = None,
) -> "Locks":
    """A client of the lock service at `url`, or of a store without one: `sqlite:///…`, `redis://…`, `postgresql://…`,
    `mysql://…`, `etcd://…`, `zookeeper://…`, `redlock://…`, `memory://`; or `orders:=redis://a *=postgresql://b`.

    Fine at import time: nothing happens before the first use. `url` comes from `FENCEGATE_URL` by default; `timeout`
    is how many seconds a call may take, waiting for a lock apart, and the first one, which opens a store (each has a
    limit of its own for that, of 3 to 10 seconds). `on_state` is told each state of each lease, in the event loop that
    acquired it.

    >>> locks = connect("memory://")
    """
    return Locks(connection_of(url, owner_id, timeout, on_state))


class Locks:
    """A client of a lock service. May be used from several event loops, and after a fork."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def owner_id(self) -> str:
        return self._connection.owner_id

    def hold(self, lock_key: str, **terms: Unpack[HoldTerms]) -> Hold:
        """A handle on the lock: `async with locks.hold("rebuild:eu", ttl=30, wait=10) as lease: …`.

        `ttl` and `wait` are seconds; without `wait` a held lock raises LockHeld at once. `on_lost` and the other
        callbacks are called in this event loop; `cancel_on_lost` cancels the body of the `async with`, which then
        raises LockLost. All terms: `fencegate.Terms`.
        """
        return hold_of(self._connection, lock_key, terms)

    def try_hold(self, lock_key: str, **terms: Unpack[HoldTerms]) -> TryHold:
        """Like `hold`, but gives None where that would raise LockHeld."""
        return TryHold(hold_of(self._connection, lock_key, terms))

    def hold_all(self, locks: Iterable[LockChoice], **terms: Unpack[HoldAllTerms]) -> HoldAll:
        """Several locks, all or none: `async with locks.hold_all(["a", ("b", "shared")], wait=10) as leases: …`.

        They are granted in one step, renewed and released together, and lost together. However two callers order
        the locks that they name, they don't deadlock; to hold some and then wait for more still can.
        """
        return hold_all_of(self._connection, locks, terms)

    def session(
        self, *, ttl: float = DEFAULT_TTL_S, owner: str | None = None, **reactions: Unpack[SessionReactions]
    ) -> OpenSession:
        """One keep-alive for any number of locks: `async with locks.session(ttl=30) as session: …`.

        `session.hold(key)` is kept alive by it, and lost with it. Leaving the block ends it, and all that it holds.
        """
        return session_of(self._connection, ttl, owner, reactions)

    def attach(self, exported: str, **reactions: Unpack[LeaseReactions]) -> Hold:
        """A handle on a lease that another process exported; LockLost when it is over by now."""
        return attached_hold(self._connection, exported, reactions)

    def lead(self, name: str, **terms: Unpack[LeadTerms]) -> Lead:
        """Stand for election: `async with locks.lead("order-service", ttl=15) as term: …`, once we are elected.

        Leaving the block hands over to the next candidate at once.
        """
        return Lead(self._connection, name, terms)

    def terms(self, name: str, **terms: Unpack[CandidateTerms]) -> AsyncGenerator[Term, None]:
        """Stand again after each term: `async for term in locks.terms("order-service"): …`.

        The body has to notice for itself that it was deposed (`term.lost`, `term.ensure_led()`). Leaving the loop
        hands over in a moment; use `contextlib.aclosing` where that must be done before the next line.
        """
        return candidate_terms(self._connection, name, terms)

    def observe(self, name: str) -> Observer:
        """Follow the leader: `async for leader in locks.observe("order-service"): …`; None while nobody leads."""
        return Observer(self.watch(name), partial(self.status, name))

    def once(self, template: str, *, keep: float | None = None, **terms: Unpack[Terms]) -> Once:
        """A decorator: one caller runs the function, others skip it. `@locks.once("cron:daily-report", keep=600)`."""
        return Once(self._connection, template, keep, terms)

    def guarded(self, template: str, **terms: Unpack[Terms]) -> Guarded:
        """A decorator: callers of the function take turns. `@locks.guarded("inventory:{sku}")`."""
        return Guarded(self._connection, template, terms)

    async def status(self, lock_key: str) -> Json:
        """Who holds the lock, as the REST call tells it; `locked` is false when nobody does."""
        return await reading.status(self._connection, lock_key)

    async def list(self, prefix: str = "", *, namespace: str | None = None) -> builtins.list[Json]:
        """The locks that are held, as `status` tells of each, in the order of their keys."""
        return await reading.list_locks(self._connection, prefix, namespace)

    async def force_release(self, lock_key: str, reason: str, *, grace: float = 0.0) -> Json:
        """Take the lock from whoever holds it. Its fencing token goes on protecting the resource from them.

        With `grace`, the holder is asked first, and has so many seconds to finish and release.
        """
        return await reading.force_release(self._connection, lock_key, reason, grace)

    async def history(self, lock_key: str, *, limit: int = DEFAULT_LIMIT) -> LockHistory:
        """The newest holds of the lock: by whom, from when to when, with which token, and how each ended."""
        return await history(self._connection, lock_key, limit)

    def watch(self, key: str | None = None, *, prefix: str | None = None, since: int | None = None) -> Watcher:
        """What happens to a lock, to those of a prefix, or to all: `async with locks.watch("a") as events: …`.

        From now on, or after the event whose id is `since`. It finds its place again when the connection breaks.
        """
        return Watcher(self._connection, key, prefix, since)

    async def aclose(self) -> None:
        """Release what this client still holds, and close its connections. A later use opens others."""
        await release_all(self._connection)
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def release_all(connection: Connection) -> None:
    """Give back everything that this client holds; what was lost is gone already."""
    for life in connection.kept():
        try:
            await give_back(connection, life)
        except FencegateError:
            continue
