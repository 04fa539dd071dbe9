"""The MySQL store when another server takes the place of the one it knows, or something that is none."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Store, Unavailable
from fencegate.testing.change_log_suite import first_answer, log_revision
from fencegate.testing.committing import gather_log, put, write
from fencegate.testing.fault_proxy import FaultProxy
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.mysql.address import read_address
from fencegate_lockservice.stores.mysql.lines import Line, Lines
from fencegate_lockservice.stores.server_time import ServerTime
from tests.eventually import eventually
from tests.real.mariadb import MariadbServer


class Switch:
    """One server that passes for two: connections that are made later see another identity."""

    def __init__(self, server: MariadbServer) -> None:
        self.server = server
        ((self._first,),) = server.ask("SELECT @@global.server_id")

    def over(self) -> None:
        self.server.ask(f"SET GLOBAL server_id = {self._first + 1}")

    def demote(self) -> None:
        """It takes no writes any more."""
        self.server.ask("SET GLOBAL read_only = 1")

    def back(self) -> None:
        self.server.ask(f"SET GLOBAL read_only = 0, server_id = {self._first}")


@pytest.fixture
def switch(mysql_server: MariadbServer) -> Iterator[Switch]:
    switch = Switch(mysql_server)
    yield switch
    switch.back()


async def number_of(line: Line) -> int:
    (((number,),),) = await line.run(["SELECT CONNECTION_ID()"], 30.0)
    return int(number)


async def test_connections_to_the_last_server_are_not_used_again_once_another_one_answers(
    mysql_url: str, switch: Switch
) -> None:
    lines = Lines(read_address(mysql_url), SYSTEM, ServerTime(SYSTEM, "it"))
    async with lines.line() as used:
        async with lines.line() as one, lines.line() as other:
            old = {await number_of(line) for line in (used, one, other)}
        switch.over()
        # Two of the old ones are free, and there is one more user than there are of them.
        async with lines.line(), lines.line(), lines.line() as new:
            newest = await number_of(new)
    assert newest not in old
    async with lines.line() as one, lines.line() as two, lines.line() as three, lines.line() as four:
        assert not old & {await number_of(line) for line in (one, two, three, four)}
    assert lines.servers_seen == 2
    await lines.close()


@pytest.fixture
async def plain_store(mysql_server: MariadbServer, mysql_url: str, mysql_database: str) -> AsyncIterator[Store]:
    """Of a user for whom a read-only server is read-only."""
    await (await open_store(mysql_url)).close()
    mysql_server.ask("CREATE USER plain@'127.0.0.1'")
    mysql_server.ask(f"GRANT ALL ON {mysql_database}.* TO plain@'127.0.0.1'")
    store = await open_store(mysql_url.replace("root@", "plain@"))
    yield store
    await store.close()
    mysql_server.ask("DROP USER plain@'127.0.0.1'")


async def test_a_server_that_takes_no_writes_any_more_is_not_read_from_on_the_connections_to_it(
    plain_store: Store, switch: Switch
) -> None:
    def connections() -> set[int]:
        ours = "information_schema.processlist WHERE user = 'plain'"
        return {number for (number,) in switch.server.ask(f"SELECT id FROM {ours}")}

    lines = plain_store._lines  # type: ignore[attr-defined]
    await write(plain_store, put("k"))
    async with lines.line(), lines.line(), lines.line():
        pass
    old = connections()
    assert len(old) >= 3
    switch.demote()
    with pytest.raises(Unavailable, match="read-only"):
        await write(plain_store, put("k2"))
    await eventually(lambda: not old & connections())
    switch.back()
    await write(plain_store, put("k2"))


async def test_whoever_follows_the_change_log_is_told_that_another_server_has_it(
    mysql_url: str, mysql_server: MariadbServer, mysql_database: str, switch: Switch
) -> None:
    """One that lost the last lines, and has written others in their place."""
    with FaultProxy(f"127.0.0.1:{mysql_server.port}") as proxy:
        store = await open_store(mysql_url.replace(f"127.0.0.1:{mysql_server.port}", proxy.address))
        stream = store.changes(None)
        await first_answer(stream)
        for key in ("kept", "lost"):
            await write(store, put(key))
        told = [line.key for line in await gather_log(stream, 2)]
        assert told == ["kept", "lost"]
        proxy.cut()
        mysql_server.ask("DELETE FROM fencegate_log WHERE `key` = 'lost'", mysql_database)
        switch.over()
        other = await open_store(mysql_url)
        await write(other, put("new"))
        newest = await log_revision(other)
        await other.close()
        proxy.pass_()
        async with asyncio.timeout(30):
            changes = await anext(stream)
        assert (changes.reset, changes.revision, list(changes.entries)) == (True, newest, [])
        await stream.aclose()
        await store.close()


@asynccontextmanager
async def nonsense() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that greets as none does, and whom it has greeted."""
    greeted: list[str] = []

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.append("somebody")
        writer.write(b"\x01\x00\x00\x00\x0a")
        with suppress(OSError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", greeted


async def test_a_store_whose_server_spoke_nonsense_for_a_while_comes_back(
    mysql_url: str, mysql_server: MariadbServer
) -> None:
    real = f"127.0.0.1:{mysql_server.port}"
    with FaultProxy(real) as proxy:
        store = await open_store(mysql_url.replace(real, proxy.address))

        async def is_up() -> bool:
            with suppress(Unavailable):
                await store.load(["k"])
                return True
            return False

        async def is_down() -> bool:
            return not await is_up()

        async with nonsense() as (address, greeted):
            proxy.retarget(address)
            await eventually(is_down)
            await eventually(lambda: len(greeted) >= 3)
            with pytest.raises(Unavailable, match="as a MySQL server does"):
                await store.load(["k"])
            proxy.retarget(real)
        await eventually(is_up)
        await store.close()


async def test_something_that_is_no_mysql_server_is_said_to_be_so() -> None:
    async with nonsense() as (address, _):
        with pytest.raises(Unavailable, match="does not answer as a MySQL server does"):
            await open_store(f"mysql://root@{address}/locks")
