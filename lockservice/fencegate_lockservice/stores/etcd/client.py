"""Questions to an etcd cluster through whichever member answers, and what its refusals mean.

A question that only reads is asked again of the next member until its time is over. A commit is sent once. It is sent
to the next member only when the last one could not be reached, or refused it before it was proposed to the cluster.
A member that does not answer is left alone until it has answered a harmless question, asked in the background.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fencegate.clock import Clock
from fencegate.core.ports import Ambiguous, Unavailable
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.endpoint import Endpoint
from fencegate_lockservice.stores.etcd.grpc import Call, Cut, NotSent, Status
from fencegate_lockservice.stores.etcd.url import Settings

ANSWER_WITHIN_S = 5.0
READ_WITHIN_S = 2.0
PAUSE_S = 0.02
TRY_AGAIN_S = 0.02
MAX_TRY_AGAIN_S = 0.5
ELECTION_US = 3_000_000
SECOND_US = 1_000_000

RANGE, TXN, COMPACT = "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact"
WATCH, LOGIN = "/etcdserverpb.Watch/Watch", "/etcdserverpb.Auth/Authenticate"

_BEFORE_ALL = (
    "etcdserver: no leader",  # the header `hasleader` asks for it: looked at before the request itself
    "etcdserver: too many requests",
    "etcdserver: not capable",
    "raft proposal dropped",
)
"""Refused by this member before anything was proposed: another one may take it."""
_NO_SPACE = "etcdserver: mvcc: database space exceeded"
"""Said before anything was proposed, but also after a transaction that was written and left no room."""
_REFUSED = (
    "etcdserver: mvcc: required revision",
    "etcdserver: request is too large",
    "etcdserver: too many operations in txn request",
    "etcdserver: duplicate key given in txn request",
    "etcdserver: key is not provided",
    "etcdserver: corrupt cluster",
    "etcdserver: invalid auth token",
    "etcdserver: permission denied",
    "etcdserver: user name is empty",
    "etcdserver: authentication",
    "etcdserver: revision of auth store is old",
)
"""Refused by the cluster as a whole. Anything else may still land, `request timed out` above all."""
DENIED = "etcdserver: permission denied"
NOT_ALLOWED = (
    DENIED,
    "etcdserver: user name is empty",
    "etcdserver: authentication failed",
)
"""Those that are no outage, and stay until somebody gives the user its rights, or the URL another user."""
_ADVICE = {
    _NO_SPACE: (
        "; its quota is used up: compact and defragment it, raise --quota-backend-bytes, then `etcdctl alarm disarm`"
    ),
    "etcdserver: corrupt cluster": "; a member has the CORRUPT alarm: replace it, then `etcdctl alarm disarm`",
    "etcdserver: permission denied": "; its user needs readwrite on all keys below the URL's root",
    "etcdserver: user name is empty": "; it wants a user and a password: etcd://USER:PASSWORD@…",
}

Found = TypeVar("Found")
Parse = Callable[[bytes], Found]
Asked = Coroutine[Any, Any, bytes]
"""The answer to what was sent."""


class Refused(Exception):
    """etcd said no, for good: nothing was done."""


class Full(Refused):
    """etcd has no room for more: a read was not done, and of a write nobody knows."""


class NotYet(NotSent):
    """This member can't take anything now: nothing was done, and it may be otherwise in a moment."""


class Unsure(Cut):
    """This member is there, and can't say what became of it."""


class Client:
    """See the head of this file. Bound to the event loop that it is used in."""

    def __init__(self, settings: Settings, clock: Clock, harmless_key: bytes) -> None:
        self._settings = settings
        self._clock = clock
        self._harmless = proto.range_of(harmless_key)
        self.endpoints = [Endpoint(host, port, settings) for host, port in settings.endpoints]
        self._at = 0
        self._heads: dict[tuple[Endpoint, str], bytes] = {}
        self._token = ""
        self._login = asyncio.Lock()
        self._trying: set[asyncio.Task[None]] = set()
        self._leaderless_us = 0
        self._closed = False

    # --- questions ---

    async def read(self, path: str, message: bytes, parse: Parse[Found], within_s: float = ANSWER_WITHIN_S) -> Found:
        """Ask until somebody answers, or the time is over: Unavailable."""
        return await self._through(path, message, parse, within_s, reading=True)

    def write(self, path: str, message: bytes, parse: Parse[Found]) -> Coroutine[Any, Any, Found]:
        """Ask once. Unavailable when it was surely not done, Ambiguous when nobody knows. It is sent before this
        returns, if there is nothing to wait for."""
        sent = self._sent(path, message)
        return self._through(path, message, parse, ANSWER_WITHIN_S, reading=False, sent=sent)

    def _sent(self, path: str, message: bytes) -> tuple[Endpoint, Asked] | None:
        endpoint = self.endpoints[self._at]
        line = endpoint.ready
        if line is None or endpoint.trouble is not None or self._closed or (self._settings.user and not self._token):
            return None
        try:
            return endpoint, line.ask(self._head(endpoint, path), message, ANSWER_WITHIN_S)
        except NotSent:  # another line has to be made
            return None

    async def _through(
        self,
        path: str,
        message: bytes,
        parse: Parse[Found],
        within_s: float,
        *,
        reading: bool,
        sent: tuple[Endpoint, Asked] | None = None,
    ) -> Found:
        until_us = self._clock.monotonic_us() + int(within_s * SECOND_US)
        while True:
            endpoint, asked = sent or (await self._member(), None)
            sent = None
            limit_s = within_s
            if reading:
                limit_s = max(0.1, (until_us - self._clock.monotonic_us()) / SECOND_US)
                if any(other.trouble is None for other in self.endpoints if other is not endpoint):
                    limit_s = min(limit_s, READ_WITHIN_S)
            try:
                return parse(await self._ask(endpoint, path, message, limit_s, asked))
            except NotSent as error:
                why = str(error)
            except Refused as error:
                said = f"{error}{_ADVICE.get(str(error), '')}"
                if isinstance(error, Full) and not reading:
                    raise Ambiguous(said) from None
                raise Unavailable(said) from None
            except (Cut, proto.Malformed) as error:
                if not reading:
                    raise Ambiguous(f"etcd took it and gave no answer: {error}") from None
                why = str(error)
            if self._clock.monotonic_us() >= until_us:
                raise Unavailable(why)

    @asynccontextmanager
    async def stream(self, path: str, message: bytes) -> AsyncIterator[Call]:
        """Answers that go on. Unavailable when nobody takes the question."""
        endpoint = await self._member()
        try:
            await self._logged_in(endpoint)
            connection = await endpoint.connect()
            call = connection.stream(self._head(endpoint, path), message)
        except (NotSent, Cut) as error:
            self._avoid(endpoint, error)
            raise Unavailable(str(error)) from None
        except Refused as error:
            raise Unavailable(f"{error}{_ADVICE.get(str(error), '')}") from None
        try:
            yield call
        finally:
            connection.fail("nobody listens any more")

    async def ask_member(self, endpoint: Endpoint, path: str, message: bytes) -> bytes:
        """Ask one member, and no other. Unavailable when it does not answer."""
        try:
            await self._logged_in(endpoint)
            return await self._exchange(endpoint, path, message, READ_WITHIN_S)
        except (NotSent, Cut, Refused) as error:
            raise Unavailable(str(error)) from None

    # --- which member ---

    async def _member(self) -> Endpoint:
        """One that is thought to answer. Unavailable when there is none: at once, but for the time of an election."""
        while True:
            if self._closed:
                raise Unavailable("the store is closed")
            for number in range(len(self.endpoints)):
                endpoint = self.endpoints[(self._at + number) % len(self.endpoints)]
                if endpoint.trouble is None:
                    self._at = (self._at + number) % len(self.endpoints)
                    return endpoint
            troubles = [endpoint.trouble for endpoint in self.endpoints]
            there = next((trouble for trouble in troubles if isinstance(trouble, NotYet | Unsure)), None)
            now_us = self._clock.monotonic_us()
            self._leaderless_us = self._leaderless_us or now_us
            if there is None or now_us - self._leaderless_us > ELECTION_US:
                raise Unavailable(str(there or troubles[self._at]))
            await asyncio.sleep(PAUSE_S)

    def _avoid(self, endpoint: Endpoint, trouble: Exception) -> None:
        """Send nothing to it until it has answered a question that harms nobody: whoever asks meanwhile goes elsewhere,
        or is told at once that nobody is there."""
        if endpoint.trouble is None and not self._closed:
            task = asyncio.get_running_loop().create_task(self._try_again(endpoint))
            self._trying.add(task)
            task.add_done_callback(self._trying.discard)
        endpoint.trouble = trouble

    async def _try_again(self, endpoint: Endpoint) -> None:
        pause_s = TRY_AGAIN_S
        while not self._closed:
            try:
                await self._logged_in(endpoint, in_trouble=True)
                await self._exchange(endpoint, RANGE, self._harmless, READ_WITHIN_S)
                break
            except (NotSent, Cut) as error:
                endpoint.trouble = error
            except Refused:
                break
            await asyncio.sleep(pause_s * (1 + self._clock.jitter()))
            pause_s = min(MAX_TRY_AGAIN_S, 2 * pause_s)
        endpoint.trouble = None
        self._leaderless_us = 0

    # --- one exchange ---

    async def _ask(self, endpoint: Endpoint, path: str, message: bytes, within_s: float, asked: Asked | None) -> bytes:
        try:
            if asked is not None:
                return await self._answer(endpoint, asked)
            if self._settings.user and not self._token:
                await self._logged_in(endpoint)
            return await self._exchange(endpoint, path, message, within_s)
        except (NotSent, Cut) as error:
            self._avoid(endpoint, error)
            raise
        except Refused as error:
            if "auth" in str(error):
                self._token = ""
                self._heads.clear()
            raise

    async def _exchange(self, endpoint: Endpoint, path: str, message: bytes, within_s: float) -> bytes:
        if self._closed:
            raise NotSent("the store is closed")
        line = await endpoint.line()
        try:
            asked = line.ask(self._head(endpoint, path), message, within_s)
        except NotSent as error:
            raise NotSent(f"etcd at {endpoint.name}: {error}") from None
        return await self._answer(endpoint, asked)

    async def _answer(self, endpoint: Endpoint, asked: Asked) -> bytes:
        try:
            return await asked
        except (NotSent, Cut) as error:
            raise type(error)(f"etcd at {endpoint.name}: {error}") from None
        except Status as status:
            raise _meant(status) from None

    def _head(self, endpoint: Endpoint, path: str) -> bytes:
        head = self._heads.get((endpoint, path))
        if head is None:
            head = self._heads[endpoint, path] = endpoint.head(path, self._token if path != LOGIN else "")
        return head

    async def _logged_in(self, endpoint: Endpoint, *, in_trouble: bool = False) -> None:
        if not self._settings.user:
            return
        async with self._login:
            if self._token:
                return
            if endpoint.trouble is not None and not in_trouble:  # since we wait: each would wait for it as long again
                is_there = isinstance(endpoint.trouble, NotYet | Unsure)
                raise (NotYet if is_there else NotSent)(str(endpoint.trouble))
            user, password = self._settings.user.encode(), self._settings.password.encode()
            message = proto.chunk(b"\x0a", user) + proto.chunk(b"\x12", password)
            try:
                found = proto.parse(await self._exchange(endpoint, LOGIN, message, READ_WITHIN_S)).get(2, [b""])[0]
            except Cut as error:
                raise NotSent(f"nobody could log in: {error}") from None
            self._token = found.decode() if isinstance(found, bytes) else ""
            self._heads.clear()

    async def close(self) -> None:
        """From now on nobody is reached."""
        self._closed = True
        trying = list(self._trying)
        for task in trying:
            task.cancel()
        await asyncio.gather(*trying, return_exceptions=True)
        for endpoint in self.endpoints:
            endpoint.cut("the store was closed")


def _meant(status: Status) -> Exception:
    """What a refusal of etcd means for whoever asked."""
    message = str(status)
    if message.startswith(_BEFORE_ALL):
        return NotYet(f"etcd says: {message}")
    if message.startswith(_NO_SPACE):
        return Full(message)
    if message.startswith(_REFUSED):
        return Refused(message)
    return Unsure(f"etcd says: {message or f'gRPC status {status.code}'}")
