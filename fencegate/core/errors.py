"""Every error that Fencegate raises, what to do about it, and how it looks over HTTP: one table, at the end.

An error has a `code`, which is its name on the wire, and `members`, which go into the problem document beside it.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final


class FencegateError(Exception):
    """The root of all errors of Fencegate."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members: dict[str, Any] = {name: value for name, value in members.items() if value is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is, for not every kind is made of its `args`: what can't be unpickled breaks a pool of processes."""
        return _remade, (type(self), self.args), vars(self)

    @property
    def wire_code(self) -> str:
        return self.code


def _remade(kind: type[FencegateError], args: tuple[Any, ...]) -> FencegateError:
    return kind.__new__(kind, *args)


# --- locks -----------------------------------------------------------------------------------------------------------


class LockHeld(FencegateError):
    """Somebody else holds the lock: wait for it (`wait=`), or come back after `retry_after_ms`."""

    code = "LOCK_ALREADY_HELD"

    def __init__(self, detail: str, **members: Any) -> None:
        super().__init__(detail, **members)
        self.members.setdefault("currentOwner", None)  # always there: nobody may hold it, and it is closed all the same

    @property
    def retry_after_ms(self) -> int:
        return int(self.members.get("retryAfterMillis", 1000))


class NotOwner(FencegateError):
    """The lock is not yours: the `lockToken` or `ownerId` is wrong. Don't retry; stop using the resource."""

    code = "NOT_LOCK_OWNER"


class LockExpired(FencegateError):
    """Your lease ended. Stop using the resource, and acquire anew (with a new `requestId`)."""

    code = "LOCK_EXPIRED"


class MaxHoldReached(FencegateError):
    """The lease can't be lengthened any more: it was held for as long as its acquire allowed. Finish, and release."""

    code = "MAX_HOLD_REACHED"


class LockLost(FencegateError):
    """The lease was lost while you worked: what you did after that may have been refused by the resource."""

    code = "LOCK_LOST"


class SessionNotFound(FencegateError):
    """There is no such session, or it ended long ago: its locks are gone. Open a new one."""

    code = "SESSION_NOT_FOUND"


class SessionExpired(FencegateError):
    """The session ended, and its locks with it. Stop using what they protect, and open a new one."""

    code = "SESSION_EXPIRED"


class LockFree(FencegateError):
    """Nobody holds this lock."""

    code = "LOCK_FREE"


class RequestIdReused(FencegateError):
    """This `requestId` was used with another body: use a new one for each request."""

    code = "REQUEST_ID_REUSED"


class TooManyWaiters(FencegateError):
    """The queue of this lock is full: come back later."""

    code = "TOO_MANY_WAITERS"


class RateLimited(FencegateError):
    """Too many requests: slow down."""

    code = "RATE_LIMITED"


LONGEST_NAME = 128
"""Of a field, where it is told. The caller chose it, and would get a long one back four times over."""


class InvalidInput(FencegateError):
    """A field of the request is wrong; `field` names it."""

    code = "INVALID_INPUT"

    def __init__(self, field: str, detail: str) -> None:
        field = field[:LONGEST_NAME] or "body"  # a member whose name is empty can't be named
        super().__init__(f"{field}: {detail}", field=field)
        self.field = field

    @property
    def wire_code(self) -> str:
        """`ttlMillis` becomes `INVALID_TTL_MILLIS`, and so does `locks[0].ttlMillis`; `If-Match` `INVALID_IF_MATCH`."""
        name = self.field.rpartition(".")[2].partition("[")[0] or self.field
        words = re.sub("-?([A-Z])", r"_\1", name).replace("-", "_")
        snake = "".join(c for c in words if c.isascii() and (c.isalnum() or c == "_"))
        return f"INVALID_{snake.strip('_').upper() or 'INPUT'}"


class KeyRequired(InvalidInput):
    """The call is about one key of the resource, and the path names none."""


class InvalidRequest(FencegateError):
    """What was sent is no HTTP request that can be read."""

    code = "INVALID_REQUEST"


class MethodNotAllowed(FencegateError):
    """This can't be asked of what the path names; `allow` tells what can."""

    code = "METHOD_NOT_ALLOWED"

    def __init__(self, detail: str, allow: str) -> None:
        super().__init__(detail, allow=allow)
        self.allow = allow


class TooLarge(FencegateError):
    """The body is over the limit: send less."""

    code = "TOO_LARGE"


class NotSupported(FencegateError):
    """The store can't do this; `feature` says what, and `store` which."""

    code = "NOT_SUPPORTED_BY_STORE"


class StoreUnavailable(FencegateError):
    """The lock store can't be reached, so nothing was granted: retry later."""

    code = "STORE_UNAVAILABLE"


class OutcomeUnknown(FencegateError):
    """It may or may not have happened: repeat it with the same `requestId` to find out."""

    code = "OUTCOME_UNKNOWN"


class ShuttingDown(FencegateError):
    """This server is stopping: ask another, or retry in a moment."""

    code = "SHUTTING_DOWN"


# --- resources -------------------------------------------------------------------------------------------------------


class StaleToken(FencegateError):
    """A newer holder has been here. Your lock is gone: stop, undo nothing, never retry with this token."""

    code = "STALE_TOKEN"

    def __init__(self, token: int, highest: int, **members: Any) -> None:
        super().__init__(
            f"token {token} is stale: the resource has seen {highest}; another holder took over, so stop",
            token=str(token),
            highestToken=str(highest),
            **members,
        )
        self.token = token
        self.highest = highest


class TokenRequired(FencegateError):
    """A write needs a fencing token: send `Fencing-Token` with the token of your lease."""

    code = "TOKEN_REQUIRED"


class InvalidToken(FencegateError):
    """This is not a fencing token: 1 to 2^63-1 in plain ASCII digits."""

    code = "INVALID_TOKEN"


class BadSequencer(FencegateError):
    """The signed token can't be verified: get a new lease."""

    code = "BAD_SEQUENCER"


class TokenNotForThisKey(FencegateError):
    """The token is of another lock than the one that guards this key."""

    code = "TOKEN_NOT_FOR_THIS_KEY"


class PreconditionFailed(FencegateError):
    """Your own If-Match or If-None-Match did not hold: read again, then decide."""

    code = "PRECONDITION_FAILED"


class RangeNotSatisfiable(FencegateError):
    """The object has no such bytes; `size` tells how many it has."""

    code = "RANGE_NOT_SATISFIABLE"

    def __init__(self, size: int) -> None:
        super().__init__(f"the object has {size} bytes, and none of them in this range", size=size)
        self.size = size


class NotFound(FencegateError):
    """There is nothing under this key."""

    code = "NOT_FOUND"


class ResourceUnavailable(FencegateError):
    """The resource can't be reached. `outcome` says whether the write is `not-written` or `unknown`."""

    code = "RESOURCE_UNAVAILABLE"

    def __init__(self, detail: str, *, outcome: str = "not-written", highest: int | None = None) -> None:
        super().__init__(detail, outcome=outcome)
        self.outcome = outcome
        self.highest = highest
        """The mark, where that is known: a fence may be elsewhere."""


class UnsafeConfiguration(FencegateError):
    """The configuration would not be safe, so nothing was opened."""

    code = "UNSAFE_CONFIGURATION"


# --- the one table to HTTP -------------------------------------------------------------------------------------------

HTTP_STATUS: Final[Mapping[type[FencegateError], tuple[int, str]]] = {
    LockHeld: (409, "The lock is held by another"),
    NotOwner: (403, "Not the owner of this lock"),
    LockExpired: (409, "The lease ran out"),
    MaxHoldReached: (409, "Held for as long as allowed"),
    LockLost: (409, "The lock was lost"),
    SessionNotFound: (404, "No such session"),
    SessionExpired: (409, "The session ended"),
    LockFree: (404, "Nobody holds this lock"),
    RequestIdReused: (409, "This requestId was used with another body"),
    TooManyWaiters: (429, "The queue of this lock is full"),
    RateLimited: (429, "Too many requests"),
    InvalidInput: (422, "A field of the request is wrong"),
    KeyRequired: (400, "The call needs a key"),
    InvalidRequest: (400, "The request can't be read"),
    MethodNotAllowed: (405, "Not a method of this path"),
    TooLarge: (413, "The body is over the limit"),
    NotSupported: (501, "Not supported here"),
    StoreUnavailable: (503, "The lock store can't be reached"),
    OutcomeUnknown: (503, "The outcome is unknown"),
    ShuttingDown: (503, "This server is stopping"),
    StaleToken: (412, "The fencing token is stale"),
    TokenRequired: (428, "A write needs a fencing token"),
    InvalidToken: (400, "Not a fencing token"),
    BadSequencer: (401, "The sequencer can't be verified"),
    TokenNotForThisKey: (403, "The token is of another lock"),
    PreconditionFailed: (412, "The precondition did not hold"),
    RangeNotSatisfiable: (416, "No such bytes"),
    NotFound: (404, "Nothing under this key"),
    ResourceUnavailable: (503, "The resource can't be reached"),
    UnsafeConfiguration: (500, "The configuration is unsafe"),
}
