"""What one request presented, and what became of it: the rules that the ASGI and the WSGI middleware share.

Frameworks differ in what they do with an exception: some let it through to the middleware, some have made a 500 of it
by then. So a refusal is noted where it happens, and the answer is judged on its way out.
"""

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import (
    BadSequencer,
    FencegateError,
    InvalidToken,
    ResourceUnavailable,
    StaleToken,
    TokenNotForThisKey,
    TokenRequired,
    UnsafeConfiguration,
)
from fencegate.core.names import check_lock_key
from fencegate.middleware.fence import Fence
from fencegate.web.tokens import check_ceiling, check_lock, read_token

log = logging.getLogger("fencegate.middleware")

READS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

_OURS = (StaleToken, TokenRequired, InvalidToken, BadSequencer, TokenNotForThisKey, ResourceUnavailable)
_DONE = frozenset({*range(200, 300), 302, 303})
"""Statuses that say that the work was done; the other redirects say to ask elsewhere."""


class NotEnforced(FencegateError):
    """The handler answered a write without `fence.enforce(…)`: nothing was compared. Mend the handler."""

    code = "NOT_ENFORCED"


@dataclass(frozen=True, slots=True)
class Terms:
    """How a service wants its fences: the keywords of both kinds of middleware."""

    strict: bool = True
    issuer: bool = False
    resource: str | None = None


class Presented:
    """A request on its way through the middleware."""

    def __init__(
        self,
        method: str,
        path: str,
        headers: Mapping[str, list[str]],
        terms: Terms,
        clock: Clock = SYSTEM,
    ) -> None:
        """`headers` has the values of `fencing-token`, `fencing-lock` and `connection`."""
        self.method = method.upper()  # as Flask and Django read it
        self.path = path
        self._headers = headers
        self._terms = terms
        self._clock = clock
        self.fence: Fence | None = None
        self._refusal: FencegateError | None = None

    # --- before the handler, or by it ---

    def require(self, lock_key: str) -> Fence:
        """Bind the token to the fence of this lock key; TokenRequired when there is none."""
        fence = self.offer(lock_key)
        if fence is None:
            error = TokenRequired("send Fencing-Token with the fencingToken of your lease")
            self._refusal = error
            raise error
        return fence

    def offer(self, lock_key: str) -> Fence | None:
        """The same; None when the request has no token."""
        if self.fence is None:
            try:
                self.fence = self._bound(check_lock_key(lock_key))
            except FencegateError as error:
                self._refusal = error
                raise
        elif self.fence.lock_key != lock_key:
            raise UnsafeConfiguration(
                f"this request is behind the fence of {self.fence.lock_key!r}, and its token is not for {lock_key!r}: "
                "a request carries the token of one lock"
            )
        return self.fence

    def answer_with(self, error: FencegateError) -> None:
        """Say that this error, which is about to be raised, is for the caller of the service."""
        self._refusal = error

    def _bound(self, lock_key: str) -> Fence | None:
        token = read_token(self._headers["fencing-token"], self._headers["connection"])
        if token is None:
            return None
        check_lock(self._headers["fencing-lock"], lock_key)
        if self._terms.issuer:
            check_ceiling(token, self._clock.now_us())
        return Fence(lock_key, token, self._refused)

    def _refused(self, error: FencegateError | None) -> None:
        """Note a refusal; None when a later attempt passed, for then it tells nothing of what was written."""
        self._refusal = None if error is None else self._our(error) or self._refusal

    # --- after it ---

    def of_exception(self, error: Exception) -> FencegateError | None:
        """What to answer to a request whose handler raised `error`; None when that is not for us to say."""
        if error is self._refusal or (isinstance(error, FencegateError) and self._our(error) is not None):
            assert isinstance(error, FencegateError)
            return self._told(error)
        refusal = self._standing()
        if refusal is None:
            return None
        log.error("%s %s failed behind a refusal, which is answered", self.method, self.path[:200], exc_info=error)
        return self._told(refusal)

    def instead_of(self, status: int, route: str) -> FencegateError | None:
        """What to answer instead of the handler's own answer; None when that may pass."""
        refusal = self._standing()
        if refusal is not None and (status >= 500 or (status in _DONE and _denies(refusal))):
            return self._told(refusal)
        if status not in _DONE or self.fence is None:
            return None
        if self.fence.is_left_open:
            log.error(_LEFT_OPEN, self.method, route, status)
            outcome = "unknown" if self.fence.may_have_written else "not-written"
            return NotEnforced("the service did not commit what it did; it was logged", outcome=outcome)
        if self.fence.is_answered_for or self.method in READS:
            return None
        if not self._terms.strict:
            log.warning(_UNCHECKED, self.method, route, status)
            return None
        log.error(_UNCHECKED, self.method, route, status)
        detail = "the service answered this write without comparing its token, so it was not protected; it was logged"
        return NotEnforced(detail, outcome="unknown")

    def _standing(self) -> FencegateError | None:
        """The refusal that no later attempt overcame; a COMMIT of the handler's own that failed is one, too."""
        denied = self._refusal is not None and _denies(self._refusal)
        if not denied and self.fence is not None and self.fence.is_in_doubt:
            return ResourceUnavailable("the database failed while it committed", outcome="unknown")
        return self._refusal

    def highest(self, error: FencegateError | None) -> str | None:
        """The value of `Fencing-Token-Highest`, where it is known: a mark that was not committed is no mark."""
        stale = error if error is None or isinstance(error, StaleToken) else error.__cause__
        if isinstance(stale, StaleToken):
            return str(stale.highest)
        return self.fence.token.wire if self.fence is not None and self.fence.has_committed else None

    def _our(self, error: FencegateError) -> FencegateError | None:
        """The error, if it is about this request's own token and not about one that the handler holds itself."""
        if not isinstance(error, _OURS):
            return None
        if isinstance(error, StaleToken) and (self.fence is None or error.token != self.fence.token):
            return None
        return error

    def _told(self, error: FencegateError) -> FencegateError:
        """The error with what the contract wants in the body of a 412; or that a part of the work may be done."""
        if self.fence is None:
            return error
        if self.fence.may_have_written and (
            isinstance(error, StaleToken) or error.members.get("outcome") == "not-written"
        ):
            part = ResourceUnavailable(
                f"a part of this may have been written before: {error.detail}", outcome="unknown"
            )
            part.__cause__ = error
            return part
        if isinstance(error, StaleToken):
            first, _, rest = self.path.strip("/").partition("/")
            resource, key = (first, rest) if self._terms.resource is None else (self._terms.resource, self.path[1:])
            error.members |= {"resource": resource, "key": key, "lockKey": self.fence.lock_key}
        return error


def _denies(refusal: FencegateError) -> bool:
    """Whether nobody may say after it that the work was done."""
    return isinstance(refusal, StaleToken) or refusal.members.get("outcome") == "unknown"


_UNCHECKED = (
    "%s %s answered %d without fence.enforce(…): its token was compared with nothing. Put the work inside "
    "`with fence.enforce(session)`; where there is nothing to protect, say fence.waive()"
)
_LEFT_OPEN = (
    "%s %s answered %d with fence.enforce(…) left open, and what it did is rolled back: on a connection of psycopg or "
    "Django it is used as `with fence.enforce(connection)`"
)

BOUND: Final = "fencegate.fence"
"""Where a rule's fence is in the scope or environ, for code that has these and not our context; None without one."""
CURRENT: ContextVar[Presented | None] = ContextVar("fencegate.presented", default=None)


def presented() -> Presented:
    """The request that is being handled; UnsafeConfiguration outside of the middleware."""
    found = CURRENT.get()
    if found is None:
        raise UnsafeConfiguration(
            "no fence here: add fencegate.middleware.FenceMiddleware (or WsgiFenceMiddleware) to the application"
        )
    return found


def require_fence(lock_key: str) -> Fence:
    """The fence of this lock key with the token of the request that is being handled.

    Without a token, or with one that is not for this lock, it raises what the middleware answers as 428, 400, 401 or
    403. Make the lock key of what the handler uses as key, after it was parsed: `007` and `7` may be one row.

    >>> fence = require_fence(f"acct:{account_id}")
    """
    return presented().require(lock_key)


def try_fence(lock_key: str) -> Fence | None:
    """The same for a read, which may come without a token: None then."""
    return presented().offer(lock_key)


def current_fence() -> Fence:
    """The fence that a rule of the middleware, or the handler, bound this request to."""
    fence = presented().fence
    if fence is None:
        raise UnsafeConfiguration(
            "this request has no fence: no rule covers its path, or it has no token and needs none"
        )
    return fence
