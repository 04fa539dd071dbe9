"""One protected resource over HTTP: what rows and objects have in common."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from fencegate.clock import Clock
from fencegate.core import fence
from fencegate.core.errors import (
    FencegateError,
    KeyRequired,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    ResourceUnavailable,
    StaleToken,
    TokenRequired,
)
from fencegate.core.ports import Guarantee, Key, Resource, Seen
from fencegate.core.token import Token
from fencegate.gateway.call import Call
from fencegate.gateway.paths import Target, names
from fencegate.gateway.resources import ResourceSettings
from fencegate.gateway.tokens import check_ceiling, check_lock, given_token
from fencegate.limits import within
from fencegate.web.asgi import Headers, Reply, Request
from fencegate.web.json import dumps

T = TypeVar("T")

Answer = Callable[[Call], Awaitable[Reply]]

MARK_WITHIN_S = 2.0
MAX_NAMES = 4096


class Protected(ABC):
    """A resource, its guard, and the calls that it answers."""

    def __init__(self, settings: ResourceSettings, resource: Resource, clock: Clock, within_s: float) -> None:
        self.settings = settings
        self.resource = resource
        self.guard = settings.guard_rule
        self.within_s = within_s
        self.shadow_refusals = 0
        self._clock = clock
        self.calls: Mapping[str, Answer] = {}
        """The calls about one key, by method."""
        self._named = lru_cache(MAX_NAMES)(self._key_and_fence)  # the same few are written again and again

    @abstractmethod
    def key_of(self, segments: Sequence[str], field: str = "key") -> Key:
        """The key that these segments of a path spell, checked."""

    async def collection(self, call: Call) -> Reply:
        """A call about the resource as a whole."""
        raise KeyRequired("key", f"name one, as in /v1/resources/{self.settings.name}/KEY")

    async def answer(self, request: Request, target: Target) -> Reply:
        call = Call(request)
        try:
            reply = await self._dispatch(call, target)
        except FencegateError as error:
            reply = await self._refuse(call, error)
        if call.shadow:
            self.shadow_refusals += 1
        reply.headers.extend(call.headers())
        return reply

    # --- for the kinds of resources ---------------------------------------------------------------------------------

    def given(self, call: Call) -> Token | None:
        """The token of the call, checked against the fence; None when it has none. In shadow mode one that is worth
        nothing counts as refused, and as none."""
        try:
            token = given_token(call.request)
            if token is not None:
                if call.fence:  # a batch learns it from its body, and comes here again
                    check_lock(call.request, call.fence)
                if self.settings.issuer:
                    check_ceiling(token, self._clock.now_us())
        except FencegateError:
            if self.settings.mode != "shadow":
                raise
            token = None
            call.tokenless = True
        call.token = token
        return token

    def required(self, call: Call) -> Token:
        """The token of a write. In shadow mode one without it counts as refused, and passes as the oldest of all."""
        token = self.given(call)
        if token is None and self.settings.mode == "shadow":
            call.tokenless = True
            return Token(1)
        if token is None:
            raise TokenRequired("send Fencing-Token with the fencingToken of your lease")
        return token

    @contextlib.asynccontextmanager
    async def answering(self, outcome: str) -> AsyncIterator[asyncio.Timeout]:
        """Wait for the resource, but not for ever; `outcome` is what is known of a write that was given up on."""
        try:
            async with asyncio.timeout(self.within_s) as limit:
                yield limit
        except TimeoutError:
            raise self._unanswered(outcome) from None

    async def within(self, answer: Awaitable[T], outcome: str) -> T:
        """The same for one answer, at less cost."""
        try:
            return await within(answer, self.within_s)
        except TimeoutError:
            raise self._unanswered(outcome) from None

    def _unanswered(self, outcome: str) -> ResourceUnavailable:
        return ResourceUnavailable(f"the resource did not answer within {self.within_s:g} s", outcome=outcome)

    # --- the calls that all kinds have ------------------------------------------------------------------------------

    async def _dispatch(self, call: Call, target: Target) -> Reply:
        method, segments = call.request.method, target.segments
        if target.area == b"fences":
            self._name(call, segments)
            if method not in ("GET", "HEAD"):
                raise MethodNotAllowed("a fence is only looked at here", "GET, HEAD")
            return await self._status(call)
        if method == "POST" and segments[-1:] == (b"claim",):
            self._name(call, segments[:-1])
            return await self._claim(call)
        verb = self.verb(method, segments)
        if verb is not None:
            return await verb(call)
        if not segments:
            return await self.collection(call)
        self._name(call, segments)
        if method not in self.calls:
            raise MethodNotAllowed(f"{method} can't be asked of a key of this resource", ", ".join(self.calls))
        return await self.calls[method](call)

    def verb(self, method: str, segments: Sequence[bytes]) -> Answer | None:
        """A call of this kind of resource that is named by its path."""
        return None

    def _name(self, call: Call, segments: tuple[bytes, ...]) -> None:
        call.key, call.fence = self._named(segments)

    def _key_and_fence(self, segments: tuple[bytes, ...]) -> tuple[Key, str]:
        if not segments and not self.guard.covers_all:
            raise KeyRequired("key", "each key of this resource has a lock of its own, so name one in the path")
        key = self.key_of(names(segments)) if segments else ()
        return key, self.guard.lock_key(key)

    async def _claim(self, call: Call) -> Reply:
        token = self.given(call)
        if token is None:
            if not call.tokenless:
                raise TokenRequired("a claim is nothing but a token: send it in Fencing-Token")
            token = Token(1)
        seen = await self.within(self.resource.claim(call.fence, token), "unknown")
        call.saw(seen)
        return Reply(200, dumps(self._about(call, token=token.wire, highestToken=str(seen.mark))))

    async def _status(self, call: Call) -> Reply:
        call.saw(Seen(await self.within(self.resource.mark(call.fence), "not-written")))
        guarantee = self.resource.guarantee
        if self.settings.mode == "shadow":  # however the resource compares, nobody is kept out
            guarantee = Guarantee("best-effort", f"shadow mode refuses nothing, it counts; {guarantee.durability}")
        return Reply(
            200,
            dumps(
                self._about(
                    call,
                    highestToken=str(call.mark) if call.mark else None,
                    guarantee=guarantee.kind,
                    durability=guarantee.durability,
                    mode=self.settings.mode,
                    shadowRefusals=self.shadow_refusals,
                )
            ),
        )

    def _about(self, call: Call, **members: str | int | None) -> dict[str, str | int | None]:
        return {"resource": self.settings.name, "key": call.key_text, "lockKey": call.fence or None, **members}

    # --- refusals ---------------------------------------------------------------------------------------------------

    async def _refuse(self, call: Call, error: FencegateError) -> Reply:
        """The answer to a call that failed: stale comes before all that is judged; the mark is told when it can be."""
        if isinstance(error, StaleToken | ResourceUnavailable):
            call.mark = call.mark if error.highest is None else error.highest
        elif call.fence and call.mark is None:
            with contextlib.suppress(FencegateError, TimeoutError):
                async with asyncio.timeout(min(MARK_WITHIN_S, self.within_s)):
                    call.mark = await self.resource.mark(call.fence)
        judged = not isinstance(error, ResourceUnavailable) and error.members.get("outcome") != "unknown"
        if call.token is not None and call.mark is not None and self.settings.mode == "enforce" and judged:
            try:
                fence.admit(call.token, call.mark)
            except StaleToken as stale:
                error = stale
        if isinstance(error, StaleToken | NotFound | PreconditionFailed):
            about = {name: text for name, text in self._about(call).items() if text is not None}
            error.members = about | error.members  # of a batch, the error knows which key it is about
        return Reply.of_error(error, _headers_of(error))


def _headers_of(error: FencegateError) -> Headers:
    if isinstance(error, RangeNotSatisfiable):
        return [(b"content-range", b"bytes */%d" % error.size)]
    return []
