"""The sync face of leader election: `with locks.lead(name) as term`, with this thread waiting to be elected."""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import cast

from fencegate.client.background import background
from fencegate.client.blocking.hold import HoldTerms, Lease, hold_of
from fencegate.client.connection import Connection
from fencegate.client.standing import BEFORE_STANDING_AGAIN_S, WORTH_STANDING_AGAIN, Standing, TermCore, hold_terms
from fencegate.client.telling import ThreadTeller
from fencegate.client.terms import check_names
from fencegate.clock import sleep_s
from fencegate.core.errors import LockLost

log = logging.getLogger("fencegate.client")


class Term(TermCore[Lease]):
    """The time during which we lead."""

    @property
    def lost(self) -> threading.Event:
        """Set when we are deposed: `term.lost.wait(timeout)`."""
        return self.lease.lost


class CandidateTerms(Standing, total=False):
    """Every keyword of `terms`."""

    on_elected: Callable[[Term], None] | None
    """Called when a term begins, before the body, in its thread; what it raises ends the term."""
    on_deposed: Callable[[Term], None] | None
    """Called once, in a thread of its own, when a term ended without us wanting it; not after a clean hand-over."""


class LeadTerms(CandidateTerms, total=False):
    """Every keyword of `lead`."""

    wait: float | None
    """How long to wait for being elected: as long as it takes unless said otherwise; LockHeld when it was too short."""


class Lead:
    """One candidacy: `with` it waits until elected and gives the term; leaving the block hands over.

    Leaving the block raises LockLost after a deposition, unless the body raised something itself; that gets a note
    instead.
    """

    def __init__(self, connection: Connection, name: str, terms: LeadTerms) -> None:
        check_names(terms, LeadTerms)
        self._wait = terms.get("wait")
        self._on_elected, self._on_deposed = terms.get("on_elected"), terms.get("on_deposed")
        self._mutex = threading.Lock()
        self._term: Term | None = None
        self._deposed: Term | None = None
        self._teller = ThreadTeller()
        asked = {**hold_terms(terms, self._wait), "on_lost": self._lost}
        self._hold = hold_of(connection, name, cast(HoldTerms, asked))

    def __enter__(self) -> Term:
        self._term = term = Term(self._elected())
        try:
            if self._on_elected is not None:
                self._on_elected(term)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        if term.lost.is_set():  # perhaps before there was a term to tell of
            self._depose(term)
        return term

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        term, self._term = self._term, None
        assert term is not None, "left without having been entered"
        try:
            self._hold.__exit__(kind, error, traceback)
        except LockLost:
            self._depose(term)  # the lock service knew it before we did
            raise
        finally:
            if term.lost.is_set():
                self._depose(term)

    def _elected(self) -> Lease:
        while True:
            try:
                return self._hold.__enter__()
            except WORTH_STANDING_AGAIN as error:
                if self._wait is not None:
                    raise
                log.warning("not elected yet, standing again: %s", error.detail)
            sleep_s(BEFORE_STANDING_AGAIN_S)

    def _lost(self, _lease: Lease) -> None:
        term = self._term
        if term is not None:
            self._depose(term)

    def _depose(self, term: Term) -> None:
        """Tell of the deposition, the first time that it is noticed."""
        with self._mutex:
            known, self._deposed = self._deposed is term, term
        on_deposed = self._on_deposed
        if on_deposed is not None and not known:
            self._teller.tell(lambda: on_deposed(term))


def candidate_terms(connection: Connection, name: str, terms: CandidateTerms) -> Generator[Term, None, None]:
    """One term after the other: whoever is deposed, or has finished a term, stands again."""
    check_names(terms, CandidateTerms)
    while True:
        candidate = Lead(connection, name, cast(LeadTerms, terms))
        term = candidate.__enter__()
        try:
            yield term
        except BaseException as error:
            _stop(candidate, error)
            raise
        try:
            candidate.__exit__(None, None, None)
        except LockLost as error:
            log.warning("deposed, standing again: %s", error.detail)


def _stop(candidate: Lead, error: BaseException) -> None:
    """Hand over. A generator may be collected on any thread, even on the one that has to do the release."""
    if _on_background_thread():
        threading.Thread(target=candidate.__exit__, args=(type(error), error, None), daemon=True).start()
    else:
        candidate.__exit__(type(error), error, None)


def _on_background_thread() -> bool:
    try:
        return asyncio.get_running_loop() is background().loop
    except RuntimeError:
        return False
