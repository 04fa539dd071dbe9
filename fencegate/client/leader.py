"""Leader election: candidates stand in the queue of a lock; who holds it leads, and hands over at once by stopping.

A leader is no more than the holder of a lock, so all that is true of a lease is true of a term: it may be over before
its leader notices. What protects the resource is the term's fencing token, not the leader's belief.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import cast

from fencegate.client.connection import Connection
from fencegate.client.handle import LostEvent
from fencegate.client.hold import HoldTerms, Lease, hold_of
from fencegate.client.standing import BEFORE_STANDING_AGAIN_S, WORTH_STANDING_AGAIN, Standing, TermCore, hold_terms
from fencegate.client.terms import check_names
from fencegate.core.errors import LockLost

log = logging.getLogger("fencegate.client")


class Term(TermCore[Lease]):
    """The time during which we lead."""

    @property
    def lost(self) -> LostEvent:
        """Set when we are deposed: `await term.lost.wait()`."""
        return self.lease.lost


Callback = Callable[[Term], Awaitable[None] | None]


class CandidateTerms(Standing, total=False):
    """Every keyword of `terms`. Callbacks are called in the event loop that stands; they may be coroutine functions."""

    on_elected: Callback | None
    """Called when a term begins, before the body; what it raises ends the term."""
    on_deposed: Callback | None
    """Called once when a term ended without us wanting it, and not after a clean hand-over."""


class LeadTerms(CandidateTerms, total=False):
    """Every keyword of `lead`."""

    wait: float | None
    """How long to wait for being elected: as long as it takes unless said otherwise; LockHeld when it was too short."""
    cancel_on_deposed: bool
    """Cancel the body of the `async with` when we are deposed; the block then raises LockLost."""


class Lead:
    """One candidacy: `async with` it waits until elected and gives the term; leaving the block hands over.

    Leaving the block waits for `on_deposed`. It raises LockLost after a deposition, unless the body raised something
    itself; that gets a note instead.
    """

    def __init__(self, connection: Connection, name: str, terms: LeadTerms) -> None:
        check_names(terms, LeadTerms)
        self._wait = terms.get("wait")
        self._on_elected, self._on_deposed = terms.get("on_elected"), terms.get("on_deposed")
        self._term: Term | None = None
        self._deposed: Term | None = None
        self._deposing: asyncio.Task[None] | None = None
        cancel = terms.get("cancel_on_deposed", False)
        asked = {**hold_terms(terms, self._wait), "cancel_on_lost": cancel, "on_lost": self._lost}
        self._hold = hold_of(connection, name, cast(HoldTerms, asked))

    async def __aenter__(self) -> Term:
        self._term = term = Term(await self._elected())
        try:
            if self._on_elected is not None:
                await _settled(self._on_elected(term))
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        term, self._term = self._term, None
        assert term is not None, "left without having been entered"
        try:
            await self._hold.__aexit__(kind, error, traceback)
        except LockLost:
            self._depose(term)  # the lock service knew it before we did
            raise
        finally:
            if term.lost.is_set():
                self._depose(term)
            deposing, self._deposing = self._deposing, None
            if deposing is not None:
                await asyncio.shield(deposing)

    async def _elected(self) -> Lease:
        while True:
            try:
                return await self._hold.__aenter__()
            except WORTH_STANDING_AGAIN as error:
                if self._wait is not None:
                    raise
                log.warning("not elected yet, standing again: %s", error.detail)
            await asyncio.sleep(BEFORE_STANDING_AGAIN_S)

    def _lost(self, _lease: Lease) -> None:
        if self._term is not None:
            self._depose(self._term)

    def _depose(self, term: Term) -> None:
        """Tell of the deposition, the first time that it is noticed."""
        if self._deposed is not term and self._on_deposed is not None:
            self._deposing = asyncio.ensure_future(_told(self._on_deposed, term))
        self._deposed = term


async def candidate_terms(connection: Connection, name: str, terms: CandidateTerms) -> AsyncGenerator[Term, None]:
    """One term after the other: whoever is deposed, or has finished a term, stands again."""
    check_names(terms, CandidateTerms)
    while True:
        try:
            async with Lead(connection, name, cast(LeadTerms, terms)) as term:
                yield term
        except LockLost as error:
            log.warning("deposed, standing again: %s", error.detail)


async def _settled(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result


async def _told(on_deposed: Callback, term: Term) -> None:
    """There is nobody to raise to: the block may be about to end, or to go on."""
    try:
        await _settled(on_deposed(term))
    except Exception:
        log.exception("on_deposed failed, for %r", term.name)
