"""An HTTP service as a protected resource: each write is announced in a durable fence before it is passed on."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Literal
from urllib.parse import quote

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import (
    InvalidInput,
    NotFound,
    PreconditionFailed,
    ResourceUnavailable,
    StaleToken,
    TokenRequired,
    TooLarge,
)
from fencegate.core.names import check_lock_key
from fencegate.core.ports import NO_CONDITIONS, Conditions, Guarantee, Incoming, Key, Outgoing, Seen
from fencegate.core.token import Token
from fencegate_adapters.http import headers as rules
from fencegate_adapters.http.address import Address
from fencegate_adapters.http.exchange import Answer, Broken, Limits, Sending, Service, TooSlow
from fencegate_adapters.http.fence.durable import DurableFence, Passage
from fencegate_adapters.http.fence.record import Record

MARGIN_US = 2_000_000
"""How much longer a write is taken to be under way than this gateway lets it be."""
POLL_S = (0.005, 0.25)
LOST_ON_THE_WAY = frozenset({502, 504})
"""Said by a proxy before the service, which does not know what the service did, or goes on to do."""

BEST_EFFORT = (
    "; an older write under way is awaited before a newer token's first, up to its deadline, but a gateway that stood "
    "still, or the service itself, may apply it after that"
)
CHECKED = "; the service compares the token of each write itself, inside its own transaction (upstream_checks)"
CLAIMS_HERE = "; a claim is kept here only, as best effort, and the service learns of it by the holder's first write"
CLAIMS_THERE = "; claims are passed on to it (upstream_claims)"


class Upstream:
    """Requests to one HTTP service. With `upstream_checks` the service itself refuses what is stale, and with
    `upstream_claims` it has a claim of its own, to which whoever calls `claim` here must pass it on."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        fence: str,
        guard_template: str = "{resource}:{key}",
        form: str = "",
        mode: Literal["enforce", "shadow"] = "enforce",
        upstream_checks: bool = False,
        upstream_claims: bool = False,
        ca_file: str | None = None,
        limits: Limits | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._address = Address.parse(name, url)
        self._limits = limits or Limits()
        self._clock = clock
        self._mode = mode
        self._checked = upstream_checks
        self._claims_there = upstream_claims
        self._ca_file = ca_file
        self._fence = DurableFence(fence, Record(name, guard_template, form, mode), clock)
        self._service: Service | None = None
        self._slots = asyncio.Semaphore(self._limits.connections)
        awaited = BEST_EFFORT if mode == "enforce" else ""
        words = CHECKED + (CLAIMS_THERE if upstream_claims else CLAIMS_HERE) if upstream_checks else awaited
        self.guarantee = Guarantee("atomic" if upstream_checks else "best-effort", self._fence.durability + words)

    async def open(self) -> None:
        await self._fence.open()
        self._service = Service(self._address, self._limits, self._ca_file)

    async def close(self) -> None:
        if self._service is not None:
            await self._service.close()
            self._service = None
        await self._fence.close()

    async def raise_floor(self, value: int) -> None:
        await self._fence.raise_floor(value)

    async def mark(self, fence: str) -> int:
        return await self._fence.mark(check_lock_key(fence))

    async def claim(self, fence: str, token: int) -> Seen:
        check_lock_key(fence)
        passage = await self._fence.claim(fence, Token(token))
        if passage.blocked_us and not self._claims_there and self._mode == "enforce":
            with _telling(passage.seen):
                await self._drained(fence, token, passage.blocked_us, self._clock.monotonic_us() + self._drain_us)
            # The mark may have been raised further while older writes were awaited.
            passage = await self._fence.claim(fence, token)
        return passage.seen

    async def delete(self, key: Key, fence: str, token: int, conditions: Conditions = NO_CONDITIONS) -> Seen:
        target = b"".join(b"/" + quote(segment, safe="").encode() for segment in key)
        tags = {b"if-match": conditions.if_match, b"if-none-match": conditions.if_none_match}
        headers = [(name, _tags(values)) for name, values in tags.items() if values is not None]
        answer, seen = await self.forward(Outgoing("DELETE", target, headers, writes=True), fence, token)
        async for _ in answer.body:
            pass
        if answer.status in (404, 410):
            raise NotFound(f"there is nothing under {'/'.join(key)}")
        if answer.status == 412:
            raise PreconditionFailed("the service says that the precondition did not hold")
        if not 200 <= answer.status < 300:
            raise ResourceUnavailable(f"the service answered with {answer.status}", outcome="unknown")
        return seen

    async def forward(self, request: Outgoing, fence: str, token: int | None = None) -> tuple[Incoming, Seen]:
        check_lock_key(fence)
        rules.check(request.headers)
        if token is None and request.writes and self._mode == "enforce":
            raise TokenRequired("send Fencing-Token with the fencingToken of your lease")
        deadline_us = self._clock.monotonic_us() + int(self._limits.total_s * 1_000_000)
        give_up_us = min(deadline_us, self._clock.monotonic_us() + self._drain_us)
        while True:
            async with contextlib.AsyncExitStack() as undo:
                await self._take_slot()
                undo.callback(self._slots.release)
                passage = await self._admit(request, fence, token)
                if not passage.blocked_us:
                    sending = Sending(self._clock, deadline_us)
                    if passage.intent is not None:
                        undo.callback(self._settle, fence, passage.intent, sending, None)
                    with _telling(passage.seen):
                        answer = await self._ask(request, fence, token, sending)
                    undo.pop_all()
                    break
            assert token is not None  # nobody else is blocked
            with _telling(passage.seen):
                await self._drained(fence, token, passage.blocked_us, give_up_us)  # takes no place from other locks
        answer.on_close = self._closing(fence, passage.intent, sending, answer)
        mark = max(passage.seen.mark, rules.told_mark(answer.raw_headers) if self._checked else 0)
        return answer.incoming(), Seen(mark, shadow=passage.seen.shadow)

    # --- before it is sent -------------------------------------------------------------------------------------------

    async def _take_slot(self) -> None:
        try:
            async with asyncio.timeout(self._limits.connect_s):
                await self._slots.acquire()
        except TimeoutError:
            raise ResourceUnavailable("too many requests to the service are under way; retry") from None

    async def _admit(self, request: Outgoing, fence: str, token: int | None) -> Passage:
        if token is None:
            return Passage(Seen(await self._fence.mark(fence)))
        if request.writes:
            length_us = int(self._limits.total_s * 1_000_000) + MARGIN_US
            # A service that compares by itself need not wait: it refuses the older write once this one was there.
            return await self._fence.announce(fence, Token(token), length_us, drained=not self._checked)
        passage = await self._fence.claim(fence, Token(token))
        return passage if self._mode == "enforce" else Passage(passage.seen)

    async def _drained(self, fence: str, token: int, blocked_us: int, give_up_us: int) -> None:
        """Return when no older write is under way any more, by its end or by its deadline."""
        pause_s, longest_s = POLL_S
        while blocked_us:
            if self._clock.monotonic_us() >= give_up_us:
                error = ResourceUnavailable(
                    "an older holder's write is still under way; the fence is raised, nothing was passed on: retry"
                )
                error.members["retryAfterMillis"] = min(blocked_us // 1000 + 1, 60_000)
                raise error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
            blocked_us = await self._fence.older(fence, token)

    @property
    def _drain_us(self) -> int:
        return int(self._limits.drain_s * 1_000_000)

    # --- the exchange ------------------------------------------------------------------------------------------------

    async def _ask(self, request: Outgoing, fence: str, token: int | None, sending: Sending) -> Answer:
        if self._service is None:
            raise ResourceUnavailable("the gateway is closed to this service")
        ours = {**request.via, **_framing(request), **rules.fence_headers(fence, token)}
        headers = rules.onward(request.headers, ours)

        async def still() -> None:
            """Before the last part of a long body: a newer holder may have come while it was on its way."""
            if token is not None and request.writes and not isinstance(request.body, bytes | None):
                await self._not_superseded(fence, token, sending)

        try:
            return await self._service.ask(request.method, request.target, headers, request.body, sending, still)
        except ResourceUnavailable as error:
            broken = isinstance(error.__cause__, Broken) and not isinstance(error.__cause__, TooSlow)
            if request.writes or request.body or not broken:
                raise
        except (InvalidInput, TooLarge) as error:  # of the caller's body, of which a part is at the service
            if request.writes:
                error.members["outcome"] = sending.outcome
            raise
        # The service may just have closed a connection that was kept for the next request; a read can be repeated.
        sending.begun = False
        return await self._service.ask(request.method, request.target, headers, None, sending, still)

    async def _not_superseded(self, fence: str, token: int, sending: Sending) -> None:
        try:
            mark = await self._fence.mark(fence)
        except ResourceUnavailable as error:
            raise ResourceUnavailable(error.detail, outcome=sending.outcome) from error
        if token < mark and self._mode == "enforce":
            detail = f"a newer holder (token {mark}) came while the body was on its way: it was cut off before its end"
            raise ResourceUnavailable(detail, outcome=sending.outcome, highest=mark) from StaleToken(token, mark)

    def _closing(self, fence: str, intent: str | None, sending: Sending, answer: Answer) -> Callable[[], None]:
        def closed() -> None:
            self._slots.release()
            if intent is not None:
                self._settle(fence, intent, sending, answer)

        return closed

    def _settle(self, fence: str, intent: str, sending: Sending, answer: Answer | None) -> None:
        """A write is over when it was answered in full, or never sent. Otherwise the service may still be at it, and
        nobody newer passes before its deadline."""
        if not sending.begun or (answer is not None and answer.complete and answer.status not in LOST_ON_THE_WAY):
            self._fence.end(fence, intent)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(sending.left_s + MARGIN_US / 1_000_000 + 1, self._fence.end, fence, intent)


@contextlib.contextmanager
def _telling(seen: Seen) -> Iterator[None]:
    """An outage of the service is told with the mark of the fence, which is not out with it."""
    try:
        yield
    except ResourceUnavailable as error:
        if error.highest is None:
            error.highest = seen.mark
        raise


def _framing(request: Outgoing) -> dict[bytes, bytes]:
    """How long the body is: said once, in one way."""
    if request.body is None:
        return {b"content-length": b"0"} if request.method in ("POST", "PUT", "PATCH") else {}
    if isinstance(request.body, bytes):
        return {b"content-length": b"%d" % len(request.body)}
    if request.length is not None:
        return {b"content-length": b"%d" % request.length}
    return {b"transfer-encoding": b"chunked"}


def _tags(tags: tuple[str, ...]) -> bytes:
    return b", ".join(b"*" if tag == "*" else b'"%s"' % tag.encode("latin-1") for tag in tags)
