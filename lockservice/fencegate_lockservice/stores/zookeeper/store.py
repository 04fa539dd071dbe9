"""Locks in ZooKeeper: one server, or an ensemble.

A commit is one multi: it compares by guards (`entries`) and appends to the change log (`log`), so
it is all or nothing, durable on a quorum, and told in order. Reads are made linearizable by a write that goes out
before them (`pulse`). Everything is pipelined on one connection that lives in the event loop: a driver with
threads of its own took ten times the processor time for each commit. There is no clock: the leader's, as writes tell
it, only serves to find out that this replica's is wrong.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import suppress

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Capabilities, Change, Changes, Entry, Finding, Landed, Unavailable
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.landing import Landing
from fencegate_lockservice.stores.zookeeper import wire
from fencegate_lockservice.stores.zookeeper.commits import MAX_VALUE, Commits
from fencegate_lockservice.stores.zookeeper.connection import Connection, Lost
from fencegate_lockservice.stores.zookeeper.entries import Entries
from fencegate_lockservice.stores.zookeeper.forget import Forgetting
from fencegate_lockservice.stores.zookeeper.inspect import inspect_servers
from fencegate_lockservice.stores.zookeeper.line import Address, Line, read_url
from fencegate_lockservice.stores.zookeeper.log import SegmentedLog
from fencegate_lockservice.stores.zookeeper.pulse import Pulse
from fencegate_lockservice.stores.zookeeper.rights import allowed, check_rights, lacking
from fencegate_lockservice.stores.zookeeper.scan import Scanner
from fencegate_lockservice.stores.zookeeper.tail import Tail
from fencegate_lockservice.stores.zookeeper.wire import Refused

FORMAT = b"fencegate 1"
CLOSE_WITHIN_S = 5.0
TIME_EVERY_S = 5.0

log = logging.getLogger("fencegate.store.zookeeper")


class ZooKeeperStore:
    """See the head of this file. It belongs to the event loop that opened it."""

    name = "zookeeper"
    capabilities = Capabilities(
        clock=False,
        forgets=False,
        max_value=MAX_VALUE,
        notes=("leases end by observation: ZooKeeper tells no time", "lock records are never removed"),
    )

    def __init__(self, address: Address, clock: Clock = SYSTEM) -> None:
        self._address = address
        self._clock = clock
        root, acl = address.root, address.acl
        self._entries = Entries(root, acl)
        self._scanner = Scanner(self._entries)
        self._pulse = Pulse(root, clock)
        self._log = SegmentedLog(root, acl, clock)
        self._line = Line(address, clock, self._prepare, self._on_event, self._on_lost)
        self._tail = Tail(self._line, self._pulse, self._log)
        self._forgetting = Forgetting(root, acl, self._line, self._entries, self._pulse, clock)
        self._commits = Commits(self._line, self._entries, self._log, self._tail, self._forgetting)
        self._following = Following(self._tail.follow, self._tail.newest, self._tail.read_log)
        self._timing: asyncio.Task[None] | None = None

    # --- the contract ---

    async def open(self) -> None:
        await self._line.open()
        self._forgetting.start()
        self._timing = asyncio.get_running_loop().create_task(self._keep_time())

    async def inspect(self) -> Sequence[Finding]:
        return await inspect_servers(self._address)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        connection = self._line.connection
        try:
            beat = self._pulse.beat(connection)
            found = await self._entries.read(connection, keys)
            await beat
        except (Lost, Refused, UnicodeError) as error:
            raise self._unavailable(connection, error) from None
        return found

    def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> Awaitable[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commits.add(changes, log, future)
        return future

    def commit_then(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        self._commits.add(changes, log, Landing(landed))

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._following.changes(since)

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        connection = self._line.connection
        try:
            beat = self._pulse.beat(connection)
            found = await self._scanner.scan(connection, prefix, after, limit)
            await beat
        except (Lost, Refused, UnicodeError) as error:
            raise self._unavailable(connection, error) from None
        return found

    def now(self) -> None:
        """No clock. But a replica whose own is far from the leader's is told so."""
        self._pulse.time.now()

    async def close(self) -> None:
        await self._commits.close(CLOSE_WITHIN_S)
        await self._following.close()
        await self._forgetting.close()
        if self._timing is not None:
            self._timing.cancel()
            with suppress(asyncio.CancelledError):
                await self._timing
        await self._line.close()

    # --- the connection ---

    async def _prepare(self, connection: Connection) -> None:
        """Make what is missing on the server, and see that what is there is ours."""
        self._entries.forget()
        self._scanner.forget()
        self._forgetting.forget()
        try:
            await self._make_tree(connection)
            with suppress(Refused):  # there may be none yet
                await allowed(self._address, self._log.path, "read", connection.get(self._log.path))
            await allowed(self._address, self._address.root, "create", self._log.prepare(connection))
            await self._check_rights(connection)
            await connection.watch(self._log.path, wire.PERSISTENT)
            await self._pulse.beat(connection)
            start = self._log.start
            if (await self._log.read(connection, start)).newest(start) < self._tail.highest:
                # ZooKeeper was restored from a backup: what comes now must not have revisions that were told before.
                await self._log.advance(connection, start)
        except Refused as refused:
            if refused.code == wire.UNIMPLEMENTED:
                raise UnsafeConfiguration("this ZooKeeper is too old: 3.6 or later is needed") from None
            if refused.code == wire.NO_AUTH:
                raise lacking(self._address, self._address.root, "do what is needed") from None
            raise

    async def _make_tree(self, connection: Connection) -> None:
        root, acl = self._address.root, self._address.acl
        parts = root.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            path = "/" + "/".join(parts[:depth])
            await self._make(connection, path, b"", acl if depth == len(parts) else wire.OPEN)
        names, _ = await allowed(self._address, root, "read", connection.children(root))
        if names and "format" not in names:
            raise UnsafeConfiguration(
                f"{root} in ZooKeeper is used by something else; give the store a place of its own, as in"
                " zookeeper://HOST/another/root"
            )
        await self._make(connection, f"{root}/format", FORMAT, acl)
        found, _ = await allowed(self._address, f"{root}/format", "read", connection.get(f"{root}/format"))
        if found != FORMAT:
            raise UnsafeConfiguration(
                f"{root} in ZooKeeper was made by another version ({found[:40]!r}, not {FORMAT!r}): use that version,"
                " or another root"
            )
        for path in (self._entries.path, self._forgetting.path, self._pulse.path):
            await self._make(connection, path, b"", acl)

    async def _make(self, connection: Connection, path: str, data: bytes, acl: bytes) -> None:
        try:
            await connection.create(path, data, acl)
        except Refused as refused:
            if refused.code == wire.NO_AUTH:  # it may be there, in a folder that is not ours
                try:
                    await connection.exists(path)
                except Refused as missing:
                    if missing.code != wire.NO_NODE:
                        raise
                    raise lacking(self._address, path.rpartition("/")[0] or "/", "create") from None
            elif refused.code != wire.NODE_EXISTS:
                raise

    async def _check_rights(self, connection: Connection) -> None:
        entries = self._entries.path
        kinds, _ = await allowed(self._address, entries, "read", connection.children(entries))
        segment = self._log.segment(self._log.start)
        folders = [entries, self._forgetting.path, self._log.path, segment]
        folders += [f"{entries}/{kind}" for kind in kinds]
        written = [self._log.path, segment, self._pulse.path]
        await check_rights(connection, self._address, folders, written, self._clock.random_id())

    def _on_event(self, kind: int, path: str) -> None:
        self._tail.on_event(kind, path)

    def _on_lost(self) -> None:
        self._commits.on_lost()
        self._tail.on_lost()

    def _unavailable(self, connection: Connection, error: Exception) -> Unavailable:
        if isinstance(error, UnicodeError):
            return Unavailable(f"the store can't take this: {error}")
        if isinstance(error, Refused) and error.code == wire.NO_NODE:  # what we made is gone: make it anew
            connection.abort("the folders of the store are gone")
        return Unavailable(f"ZooKeeper could not be read: {error}")

    async def _keep_time(self) -> None:
        """Ask for the leader's time when nobody did for a while."""
        while True:
            await asyncio.sleep(TIME_EVERY_S)
            if self._pulse.time.is_stale():
                with suppress(Unavailable, Lost, Refused):
                    await self._pulse.beat(self._line.connection)


def make_store(url: str, clock: Clock) -> ZooKeeperStore:
    return ZooKeeperStore(read_url(url), clock)
