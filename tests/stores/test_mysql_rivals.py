"""The MySQL store among rivals: connections killed in the middle of commits, deadlocks, rows that others hold."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from typing import Any, TypeAlias

import pymysql
import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Ambiguous, Change, Conflict, Store, TooLate, Unavailable
from fencegate.engine import Engine
from fencegate.testing.committing import by, put, write
from fencegate.testing.crowd import Crowd
from fencegate_lockservice.stores import open_store
from tests.eventually import eventually
from tests.real.mariadb import MariadbServer

Rival: TypeAlias = "pymysql.Connection[Any]"


@pytest.fixture
async def store(mysql_url: str) -> AsyncIterator[Store]:
    store = await open_store(mysql_url)
    yield store
    await store.close()


@pytest.fixture
def rival(mysql_server: MariadbServer, mysql_database: str) -> Iterator[Rival]:
    """Somebody else in the database, who holds rows for as long as a test likes."""
    with closing(mysql_server.connect(mysql_database)) as connection:
        yield connection


def lock_row(rival: Rival, key: str) -> None:
    with rival.cursor() as cursor:
        cursor.execute("SELECT version FROM fencegate_entries WHERE `key` = %s FOR UPDATE", (key,))


async def waits_for_a_row(server: MariadbServer, commit: "asyncio.Future[None]") -> None:
    """Until it does; or until it has given up, on a machine that is too slow to see it wait."""

    async def waits() -> bool:
        waiting = "information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        return commit.done() or (await asyncio.to_thread(server.ask, f"SELECT COUNT(*) FROM {waiting}")) != [(0,)]

    await eventually(waits)


# --- connections that are killed ---


class Writer:
    """Writes one version of a key after the other, each on the last that is known."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        self.done = 0

    async def work(self, end: asyncio.Event) -> None:
        version: str | None = None
        while not end.is_set():
            version = await self.write_on(version)
        assert await self.loaded() == version

    async def write_on(self, version: str | None) -> str | None:
        change = put(self.key, version)
        try:
            await write(self.store, change)
        except Unavailable:
            assert await self.loaded() == version  # nothing was written
            return version
        except Ambiguous:
            return await self.settled({version, change.version})
        self.done += 1
        return change.version

    async def settled(self, possible: set[str | None]) -> str | None:
        """It can still land: whoever writes on top of what is there makes sure of one or the other."""
        while True:
            seen = await self.loaded()
            assert seen in possible
            bump = put(self.key, seen)
            try:
                await write(self.store, bump)
                return bump.version
            except Ambiguous:
                possible.add(bump.version)
            except (Unavailable, Conflict):
                await asyncio.sleep(0.005)

    async def loaded(self) -> str | None:
        while True:
            with suppress(Unavailable):
                found = (await self.store.load([self.key])).get(self.key)
                return found.version if found else None
            await asyncio.sleep(0.005)


def kill_all(server: MariadbServer, database: str) -> int:
    """All connections to this database, and how many there were."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM information_schema.processlist WHERE db = '{database}'")
        found = cursor.fetchall()
        for (number,) in found:
            with suppress(pymysql.err.MySQLError):  # it went by itself
                cursor.execute(f"KILL {number}")
    return len(found)


async def test_connections_killed_in_the_middle_of_commits_lose_nothing_and_double_nothing(
    store: Store, mysql_server: MariadbServer, mysql_database: str
) -> None:
    end = asyncio.Event()
    writers = [Writer(store, f"lock/k{number}") for number in range(6)]
    works = [asyncio.ensure_future(writer.work(end)) for writer in writers]
    killed = 0

    async def was_enough() -> bool:
        nonlocal killed
        killed += await asyncio.to_thread(kill_all, mysql_server, mysql_database)
        await asyncio.sleep(0.02)
        assert not [one.exception() for one in works if one.done()]
        return killed > 25 and all(writer.done for writer in writers)

    await eventually(was_enough)
    end.set()
    await asyncio.gather(*works)


async def test_connections_killed_in_the_middle_of_commits_break_no_promise(
    mysql_server: MariadbServer, mysql_url: str, mysql_database: str
) -> None:
    stores = [await open_store(mysql_url) for _ in range(2)]
    engines = [Engine(store, SYSTEM, replica=f"replica-{number}") for number, store in enumerate(stores)]
    for engine in engines:
        await engine.start()

    async def kill() -> None:
        while True:
            await asyncio.to_thread(kill_all, mysql_server, mysql_database)
            await asyncio.sleep(0.02)

    async with Crowd(engines) as crowd:
        await crowd.is_served(1)
        killing = asyncio.ensure_future(kill())
        try:
            await crowd.fails(3)
        finally:
            killing.cancel()
            await asyncio.wait([killing])
        await crowd.is_served()
    for engine, store in zip(engines, stores, strict=True):
        await engine.close()
        await store.close()


# --- deadlocks, and rows that others hold ---


async def test_a_deadlock_in_a_group_rolls_back_all_of_it_and_each_is_tried_again(
    store: Store, rival: Rival, mysql_server: MariadbServer
) -> None:
    def deadlocks() -> int:
        counted = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        return int(mysql_server.ask(counted)[0][0])

    before = deadlocks()
    for turn in range(20):
        first, second = put(f"{turn}/a"), put(f"{turn}/z")
        await write(store, first, second)
        rival.begin()
        with rival.cursor() as cursor:  # who has done much is not chosen as the victim
            rows = [(f"{turn}/heavy-{number}",) for number in range(200)]
            cursor.executemany("INSERT INTO fencegate_entries VALUES (%s, 'v', NULL, '')", rows)
        lock_row(rival, second.key)
        later = [put(first.key, first.version), put(f"{turn}/m"), put(second.key, second.version)]
        works = [asyncio.ensure_future(write(store, change)) for change in later]
        await waits_for_a_row(mysql_server, works[-1])
        with suppress(pymysql.err.OperationalError):  # it may be chosen all the same
            await asyncio.to_thread(lock_row, rival, first.key)
        rival.rollback()
        results = await asyncio.gather(*works, return_exceptions=True)
        found = await store.load([change.key for change in later])
        for change, result in zip(later, results, strict=True):
            # Unavailable: on a machine that is very slow, a row may not have come free in time.
            assert result is None or isinstance(result, Unavailable)
            entry = found.get(change.key)
            assert (entry is not None and entry.version == change.version) == (result is None)
        if deadlocks() > before and results == [None] * 3:
            return
    pytest.fail("there was no deadlock in twenty turns")


async def test_who_waited_for_a_row_beyond_the_time_of_its_commit_is_too_late(
    store: Store, rival: Rival, mysql_server: MariadbServer
) -> None:
    held = put("held")
    await write(store, held)
    for _ in range(20):
        rival.begin()
        lock_row(rival, "held")
        change = put("held", held.version)
        late = asyncio.ensure_future(store.commit([change], [("held", b"{}")], by(store, 200_000)))
        await waits_for_a_row(mysql_server, late)
        await asyncio.sleep(0.3)
        rival.rollback()
        (result,) = await asyncio.gather(late, return_exceptions=True)
        assert isinstance(result, TooLate | Unavailable)  # the latter when the row did not come free in time
        assert (await store.load(["held"]))["held"].version == held.version
        if isinstance(result, TooLate):
            return
    pytest.fail("it never was too late in twenty turns")


async def test_a_row_that_somebody_holds_for_long_fails_its_commit_and_no_other(
    store: Store, rival: Rival, mysql_server: MariadbServer
) -> None:
    held = put("held")
    await write(store, held)
    rival.begin()
    lock_row(rival, "held")
    changes = [put("free-1"), put("held", held.version), put("z-free-2")]
    results = await asyncio.gather(*(write(store, change) for change in changes), return_exceptions=True)
    rival.rollback()
    assert [type(result) for result in results] == [type(None), Unavailable, type(None)]
    await write(store, put("held", held.version))


async def test_stores_whose_keys_overlap_in_every_order_never_deadlock_for_good(mysql_url: str) -> None:
    stores = [await open_store(mysql_url) for _ in range(3)]
    keys = [f"lock/{number}" for number in range(6)] + [f"other/{number}" for number in range(6)]

    async def commits(store: Store, which: int) -> int:
        won = 0
        for turn in range(25):
            some = keys[(which + turn) % 5 :: 2 + turn % 3]
            seen = await store.load(some)
            changes = [put(key, seen[key].version if key in seen else None) for key in reversed(some)]
            absent = Change(f"absent/{turn % 4}", None, compare_only=True)
            with suppress(Conflict):
                await store.commit([absent, *changes], [(some[0], b"{}")], by(store))
                won += 1
        return won

    won = await asyncio.gather(*(commits(store, which) for which, store in enumerate(stores * 2)))
    assert sum(won) > 0
    await asyncio.gather(*(store.close() for store in stores))


# --- a client that is stopped ---

_BUSY = """
import asyncio, sys
from fencegate.core.ports import Conflict
from fencegate.testing.committing import put, write
from fencegate_lockservice.stores import open_store

async def main():
    store = await open_store(sys.argv[1])
    async def one(key):
        while True:
            seen = (await store.load([key])).get(key)
            try:
                await write(store, put(key, seen.version if seen else None))
            except Conflict:
                pass
    print("busy", flush=True)
    await asyncio.gather(*(one(f"lock/{number}") for number in range(4)))

asyncio.run(main())
"""


async def test_a_client_that_is_stopped_at_any_moment_holds_nobody_up(store: Store, mysql_url: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _BUSY, mysql_url], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert await asyncio.to_thread(child.stdout.readline) == "busy\n"
            for turn in range(25):
                await asyncio.sleep(0.02 + 0.001 * turn)
                os.kill(child.pid, signal.SIGSTOP)
                keys = [f"lock/{number}" for number in range(4)]
                seen = await store.load(keys)
                changes = [put(key, seen[key].version if key in seen else None) for key in keys]
                # What it had sent may still have come between.
                with suppress(Conflict):
                    await write(store, *changes)
                os.kill(child.pid, signal.SIGCONT)
        finally:
            child.kill()


async def test_the_time_of_the_store_is_that_of_the_server(store: Store, mysql_server: MariadbServer) -> None:
    ((before_us,),) = mysql_server.ask("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
    now = store.now()
    ((after_us,),) = mysql_server.ask("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
    assert now is not None
    assert now.latest >= before_us
    assert now.earliest <= after_us
    assert abs(now.earliest - SYSTEM.now_us()) < 10_000_000
