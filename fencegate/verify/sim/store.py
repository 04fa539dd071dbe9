"""A model of a store: a server whose every step is atomic, and each process's way to it over the network."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fencegate.core.ports import (
    Ambiguous,
    Capabilities,
    Change,
    Changes,
    Conflict,
    Entry,
    Finding,
    Interval,
    Landed,
    LogEntry,
    TooLate,
    Unavailable,
)
from fencegate.verify.sim.clock import SimClock
from fencegate.verify.sim.network import Network, settle
from fencegate.verify.sim.world import Process, World
from fencegate_lockservice.stores.server_time import ServerTime

if TYPE_CHECKING:
    import asyncio

NAME = "store"
SNAPSHOT_EVERY_US = 200_000
LOOK_EVERY_S = 0.5

News = tuple[int, int, list[LogEntry]]
"""The epoch, the revision, and what happened on the way to it."""


class StoreServer:
    """Entries, a change log and a clock, unless it has none, as some. `fail_over` goes back to an earlier state, as a
    replica that lagged would."""

    def __init__(self, world: World, *, clock: bool = True, calls: bool = False, judged: bool = False) -> None:
        self.calls = calls
        """Whether those who reach it are told of a commit by a call."""
        self.judged = judged and not clock
        """Whether those who reach it judge by their own clocks what is too late, and don't send it, as for etcd."""
        self.disowned: set[str] = set()
        """Commits of which an engine said that they will never land."""
        self.came_back: list[str] = []
        """Those of them that did."""
        self.capabilities = Capabilities(clock=clock)
        self._world = world
        self.offset_us = 0
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.log: list[LogEntry] = []
        self.epoch = 0
        self._snapshot: tuple[dict[str, Entry], int, list[LogEntry]] = ({}, 0, [])
        self._snapshot_us = 0
        self.lost_commits = 0
        self.snares: list[Callable[[Process], bool]] = []
        """Faults that lie in wait for a process whose commit gave somebody a lock, and that has not heard of it."""
        self._listeners: list[tuple[int, Callable[[News], None]]] = []

    def now_us(self) -> int:
        return self._world.now_us + self.offset_us

    def load(self, keys: Sequence[str]) -> dict[str, Entry]:
        return {key: self.entries[key] for key in keys if key in self.entries}

    def scan(self, prefix: str, after: str, limit: int) -> list[tuple[str, Entry]]:
        keys = sorted((key for key in self.entries if key.startswith(prefix) and key > after), key=str.encode)
        return [(key, self.entries[key]) for key in keys[:limit]]

    def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        if self.capabilities.clock and self.now_us() > not_after_us:
            raise TooLate
        for change in changes:
            found = self.entries.get(change.key)
            if (found.version if found is not None else None) != change.expected:
                raise Conflict
        if self.disowned:
            self.came_back += sorted({change.version for change in changes} & self.disowned)
        self._keep_snapshot()
        for change in changes:
            if change.compare_only:
                continue
            if change.value is None:
                self.entries.pop(change.key, None)
            else:
                self.entries[change.key] = Entry(change.version, change.value)
        self.revision += 1
        self.log += [LogEntry(self.revision, line, key, event) for line, (key, event) in enumerate(log)]
        self._tell()

    def commit_of(
        self, process: Process, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int
    ) -> None:
        """The same, by this process."""
        self.commit(changes, log, not_after_us)
        if self.snares and any(b"acquired" in event for _, event in log) and self.snares[0](process):
            del self.snares[0]

    def _keep_snapshot(self) -> None:
        if self._world.now_us - self._snapshot_us >= SNAPSHOT_EVERY_US:
            self._snapshot_us = self._world.now_us
            self._snapshot = dict(self.entries), self.revision, list(self.log)

    def fail_over(self) -> None:
        """The last commits are gone."""
        entries, revision, log = self._snapshot
        self.lost_commits += self.revision - revision
        self.entries, self.revision, self.log = dict(entries), revision, list(log)
        self.reset_streams()

    def reset_streams(self) -> None:
        """Whoever follows the changes is told that some were missed: the log was compacted, say."""
        self.epoch += 1
        self._tell()

    def since(self, known: int) -> "News":
        """What happened after that revision."""
        first = len(self.log)
        while first and self.log[first - 1].revision > known:
            first -= 1
        return self.epoch, self.revision, self.log[first:]

    def tell(self, epoch: int, known: int, listener: Callable[["News"], None]) -> None:
        """Tell a listener once, when there is more than it knows."""
        if (epoch, known) == (self.epoch, self.revision):
            self._listeners.append((known, listener))
        else:
            listener(self.since(known))

    def _tell(self) -> None:
        listeners, self._listeners = self._listeners, []
        for known, listener in listeners:
            listener(self.since(known))


class StoreLink:
    """The store as one process sees it."""

    name = "simulated"

    def __init__(self, network: Network, server: StoreServer, process: Process, clock: SimClock) -> None:
        self._network = network
        self._server = server
        self._process = process
        self._clock = clock
        self._time = ServerTime(clock, "the store") if server.capabilities.clock else None
        self.capabilities = server.capabilities

    async def open(self) -> None:
        for _ in range(100):
            try:
                await self._ask(self._server.now_us, writes=False)
                return
            except Unavailable:
                continue
        raise Unavailable("the store can't be reached")

    async def inspect(self) -> Sequence[Finding]:
        return ()

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        found: dict[str, Entry] = await self._ask(lambda: self._server.load(keys), writes=False)
        return found

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        found: list[tuple[str, Entry]] = await self._ask(lambda: self._server.scan(prefix, after, limit), writes=False)
        return found

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        if self._is_late(not_after_us):
            raise TooLate
        await self._ask(lambda: self._server.commit_of(self._process, changes, log, not_after_us), writes=True)

    def _is_late(self, not_after_us: int) -> bool:
        """By the clock of this process; one that was sent before may be under way still."""
        return self._server.judged and self._clock.now_us() > not_after_us

    def now(self) -> Interval | None:
        return None if self._time is None else self._time.now()

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        server = self._server
        epoch, known = await self._ask(lambda: (server.epoch, server.revision), writes=False)
        known = known if since is None else since
        yield Changes(known)
        while True:
            news = await self._told(epoch, known) or await self._ask(partial(server.since, known), writes=False)
            now_epoch, revision, lines = news
            if now_epoch != epoch:
                epoch, known = now_epoch, revision
                yield Changes(revision, reset=True)
            elif revision > known:
                known = revision
                yield Changes(revision, lines)

    async def _told(self, epoch: int, known: int) -> News | None:
        """What the server says when it has news; it says so once, and that may be lost."""
        heard: asyncio.Future[News | None] = self._process.loop.create_future()
        timer = self._process.loop.call_later(LOOK_EVERY_S, settle, heard, None, None)
        self._server.tell(
            epoch, known, lambda news: self._network.answer(NAME, self._process, lambda: settle(heard, news, None))
        )
        try:
            return await heard
        finally:
            timer.cancel()

    async def close(self) -> None:
        return

    async def _ask(self, serve: Callable[[], Any], *, writes: bool) -> Any:
        sent_us = self._clock.monotonic_us()
        unanswered = (Ambiguous if writes else Unavailable)("no answer from the store")
        at_us, result, error = await self._network.ask(
            self._process, NAME, lambda: (self._server.now_us(), *_outcome(serve)), unanswered
        )
        if self._time is not None:
            self._time.heard(sent_us, at_us)
        if error is not None:
            raise error
        return result


class CallingLink(StoreLink):
    """A way to the store that tells of a commit by a call, as some real stores do."""

    def commit_then(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        if not self._network.reach(self._process.name, NAME):
            landed(Unavailable("the store can't be reached"))
            return
        if self._is_late(not_after_us):
            landed(TooLate())
            return
        sent_us, server, is_told = self._clock.monotonic_us(), self._server, False

        def heard(answer: Any, error: BaseException | None) -> None:
            nonlocal is_told
            if is_told:  # a message that came twice is answered twice
                return
            is_told = True
            timer.cancel()
            if error is None:
                at_us, _, error = answer
                if self._time is not None:
                    self._time.heard(sent_us, at_us)
            landed(error)

        timer = self._network.ask_then(
            self._process,
            NAME,
            lambda: (server.now_us(), *_outcome(lambda: server.commit_of(self._process, changes, log, not_after_us))),
            Ambiguous("no answer from the store"),
            heard,
        )


def _outcome(serve: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return serve(), None
    except (Conflict, TooLate) as error:
        return None, error
