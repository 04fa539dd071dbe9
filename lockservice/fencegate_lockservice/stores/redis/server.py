"""A Redis server as the store sees it: one connection that is kept up, its clock, and the reign of its change log."""

import asyncio
import logging
from contextlib import suppress
from typing import Any, NamedTuple

import hiredis

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Unavailable
from fencegate.redis_acl import is_not_allowed
from fencegate_lockservice.stores.redis.line import Asked, Line, LoginRefused, Overloaded, dial, hear_plainly, pack
from fencegate_lockservice.stores.redis.rights import check_rights
from fencegate_lockservice.stores.redis.script import Script, Scripts, code_of, failure_of, is_elsewhere
from fencegate_lockservice.stores.redis.settings import fields
from fencegate_lockservice.stores.redis.url import Address
from fencegate_lockservice.stores.server_time import ServerTime

OPEN_WITHIN_S = 10.0
FINISH_WITHIN_S = 3.0
BEAT_S = 1.0
LISTEN_EVERY_US = 1_000
AGAIN_FIRST_S, AGAIN_MOST_S = 0.02, 1.0
OLDEST = (6, 2)
_KINDS = {"index": "zset", "keep": "zset", "log": "stream", "newest": "string", "reign": "hash"}

log = logging.getLogger("fencegate.store.redis")


class Reign(NamedTuple):
    """See enter.lua."""

    id: bytes
    began: int
    newest: int
    """The newest revision when this was asked."""


class Server:
    """See the head of this file."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self.scripts = Scripts(address.prefix)
        self.time = ServerTime(clock, str(address))
        self.line: Line | None = None
        self.why = f"{address} was not reached yet"
        self.up = asyncio.Event()
        self.reign: Reign | None = None
        self._clock = clock
        self._down = asyncio.Event()
        self._server_id = ""
        self.listens_at_us = 0
        """Answers to what was sent before this are not asked for the time."""
        self._keeping: asyncio.Task[None] | None = None
        self._doubts_rights = False
        """Something was forbidden since they were looked at."""
        self._closed = False

    # --- life ---

    async def open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await self._connect_when_loaded()
        except TimeoutError:
            raise Unavailable(f"{self.address} was not ready within {OPEN_WITHIN_S:.0f} s") from None
        except Unavailable as error:
            if isinstance(error, LoginRefused) or is_not_allowed(str(error)):
                raise UnsafeConfiguration(str(error)) from None
            raise
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def _connect_when_loaded(self) -> None:
        """A server that has just been started may still be reading its data."""
        while True:
            try:
                await self._connect()
                return
            except Unavailable as error:
                if "(LOADING)" not in str(error):
                    raise
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Take nothing more, wait for what is under way, and hang up."""
        self._closed = True
        self.why = "the store is closed"
        line, self.line = self.line, None
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if line is not None:
            await line.finish(FINISH_WITHIN_S)

    async def dial(self) -> Line:
        """Another connection to the same server."""
        return await dial(self.address, self._clock, lambda _: None)

    # --- scripts ---

    def heard(self, asked: Asked, at_us: int) -> None:
        """An answer told the time. Hundreds of them in a millisecond would tell no more than one does."""
        if asked.sent_us >= self.listens_at_us:
            self.listens_at_us = asked.sent_us + LISTEN_EVERY_US
            self.time.heard(asked.sent_us, at_us)

    async def run(self, script: Script, *arguments: str | bytes | int) -> Any:
        """One script and its answer. Unavailable when there is none."""
        line, future = self.line, asyncio.get_running_loop().create_future()
        if line is None:
            raise Unavailable(self.why)
        try:
            packed = pack(("EVALSHA", script.sha, 0, *arguments))
        except ValueError as error:
            raise Unavailable(f"the store can't take this: {error}") from None
        line.ask(packed, future, self._hear)
        return await future

    def _hear(self, asked: Asked, answer: Any) -> None:
        if isinstance(answer, hiredis.ReplyError):
            self.refused(asked, answer)
            return
        if type(answer) is list and answer and type(answer[0]) is int:
            self.heard(asked, answer[0])
        asked.done(answer)

    def refused(self, asked: Asked, refusal: Exception) -> None:
        """The server did not run a script to its end."""
        line = self.line
        if code_of(refusal) == "NOSCRIPT" and line is not None and not asked.repeated:  # it did nothing
            for script in self.scripts.all:
                line.ask(pack(("SCRIPT", "LOAD", script.text)), _unheeded(), hear_plainly)
            line.again(asked)
            return
        error = failure_of(refusal, str(self.address))
        self._doubts_rights |= is_not_allowed(str(refusal))
        asked.failed(error if asked.writes else Unavailable(str(error)))
        if is_elsewhere(refusal) and line is not None:
            asyncio.get_running_loop().call_soon(line.drop, str(error))

    async def enter(self) -> Reign:
        """Where the change log stands; begins a new one when this one has a break."""
        answer = await self.run(self.scripts.enter, self._server_id, self._clock.random_id(8))
        if answer[0] == b"format":
            raise UnsafeConfiguration(
                f"{self.address} holds locks in format {answer[1].decode(errors='replace')}: use the release of"
                " Fencegate that wrote them, or another ?prefix="
            )
        _, id_, began, newest = answer
        self.reign = Reign(id_, began, newest)
        return self.reign

    def begin_anew(self) -> None:
        """The change log is gone: have a new one before whatever is asked next."""
        if self.line is not None:
            command = ("EVALSHA", self.scripts.enter.sha, 0, self._server_id, self._clock.random_id(8))
            self.line.ask(pack(command), _unheeded(), hear_plainly)

    # --- keeping the connection ---

    async def _connect(self) -> None:
        line = await dial(self.address, self._clock, self._lost)
        try:
            self._server_id = await self._identify(line)
            await asyncio.gather(*(line.call("SCRIPT", "LOAD", script.text) for script in self.scripts.all))
            await check_rights(line, self.address, self.scripts.rights)
            await self._check_names(line)
            self.time.forget()
            self.listens_at_us = 0
            self.line = line  # `enter` goes this way
            await self.enter()
        except BaseException as error:
            self.line = None
            await line.hang_up()
            if isinstance(error, hiredis.ReplyError):
                raise Unavailable(str(failure_of(error, str(self.address)))) from None
            raise
        if self._closed or line.why:
            self.line = None
            await line.hang_up()
            raise Unavailable(self.why if self._closed else line.why)
        self._down.clear()
        self.up.set()

    async def _identify(self, line: Line) -> str:
        """Which server this is, in which role: both change what may be relied on."""
        told = await asyncio.gather(line.call("INFO", "server"), line.call("INFO", "replication"))
        server, replication = (fields(info) for info in told)
        if server.get("redis_mode", server.get("server_mode")) == "cluster":
            raise UnsafeConfiguration(
                f"{self.address} is a cluster: a commit touches several keys at once; use a server that is none"
            )
        version = server.get("redis_version", "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers < OLDEST:
            raise UnsafeConfiguration(f"{self.address} is of version {version or '?'}: at least 6.2 is needed")
        return f"{server.get('run_id', '')}/{replication.get('master_replid', '')}"

    async def _check_names(self, line: Line) -> None:
        """What we are about to use must be ours."""
        names = [f"{self.address.prefix}fencegate-{name}" for name in _KINDS]
        found = await asyncio.gather(*(line.call("TYPE", name) for name in names))
        for name, kind, there in zip(names, _KINDS.values(), found, strict=True):
            if there not in (b"none", kind.encode()):
                raise UnsafeConfiguration(
                    f"{self.address} has something else at {name}: give this store a ?prefix= or a database of its own"
                )

    def _lost(self, line: Line) -> None:
        if line is not self.line:
            return
        self.line = None
        self.up.clear()
        self._down.set()
        if not self._closed:
            self.why = f"{self.address}: {line.why}"
            log.warning("%s; connecting again", self.why)

    async def _keep(self) -> None:
        """Connect again for ever; and while all is well, ask from time to time whether it still is the same server."""
        again_s = AGAIN_FIRST_S
        while True:
            if self.line is None:
                try:
                    await self._connect()
                    log.info("%s is back", self.address)
                    again_s = AGAIN_FIRST_S
                except Exception as error:  # whatever it is, it may be over the next time
                    if self.why != str(error):
                        self.why = str(error)
                        log.warning("%s", self.why)
                    await asyncio.sleep(again_s * (0.5 + self._clock.jitter() / 2))
                    again_s = min(2 * again_s, AGAIN_MOST_S)
                    continue
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._down.wait()
                continue
            await self._beat()

    async def _beat(self) -> None:
        line = self.line
        if line is None:
            return
        try:
            self._server_id = await self._identify(line)
            if self._doubts_rights:
                await check_rights(line, self.address, self.scripts.rights)
                self._doubts_rights = False
            await self.enter()
        except Overloaded:  # by ourselves: to hang up would make all that is under way ambiguous
            return
        except Exception as error:  # also when it is out of reach, which is known then
            line.drop(str(error))


def _unheeded() -> "asyncio.Future[Any]":
    """For an answer that nobody waits for."""
    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
