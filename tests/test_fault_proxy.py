"""The TCP fault proxy: each of its faults, exactly, between a client and a server that says everything back."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from fencegate.testing.fault_proxy import FaultProxy
from tests.eventually import eventually

SHORT_S = 0.3
"""How long a test waits for what must not come."""


class Echo:
    """Says everything back, and keeps what it heard."""

    def __init__(self, name: bytes = b"") -> None:
        self.heard = bytearray()
        self._name = name
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while data := await reader.read(65_536):
                self.heard += data
                writer.write(self._name + data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def serving(echo: Echo) -> AsyncIterator[str]:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    async with serving(echo) as address:
        proxy = FaultProxy(address)
        proxy.start()
        yield proxy
        proxy.close()


class Line:
    """A connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def hears(self, data: bytes) -> None:
        async with asyncio.timeout(30):
            assert await self.reader.readexactly(len(data)) == data

    async def hears_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await self.reader.read(1)

    async def is_cut(self) -> None:
        """By a reset, and not by an end in good order."""
        async with asyncio.timeout(30):
            with pytest.raises(ConnectionResetError):
                await self.reader.readexactly(1)


async def connect(proxy: FaultProxy) -> Line:
    host, _, port = proxy.address.rpartition(":")
    return Line(*await asyncio.open_connection(host, int(port)))


async def connected(proxy: FaultProxy, first: bytes = b"hello") -> Line:
    """A line over which something was said already."""
    line = await connect(proxy)
    line.say(first)
    await line.hears(first)
    return line


async def test_it_passes_everything_both_ways_on_several_connections(proxy: FaultProxy) -> None:
    large = bytes(range(256)) * 4_000
    lines = [await connected(proxy) for _ in range(5)]
    for line in lines:
        line.say(large)
    await asyncio.gather(*(line.hears(large) for line in lines))


async def test_it_passes_the_end_of_a_connection_on(proxy: FaultProxy, echo: Echo) -> None:
    line = await connected(proxy)
    line.writer.write_eof()
    async with asyncio.timeout(30):
        assert await line.reader.read() == b""
    await eventually(lambda: echo.open == 0)


async def test_a_delay_keeps_the_order_and_counts_once_for_all_that_is_on_its_way(proxy: FaultProxy) -> None:
    line = await connected(proxy)
    proxy.delay(0.2)
    start = asyncio.get_running_loop().time()
    for number in range(20):
        line.say(b"%02d" % number)
        await asyncio.sleep(0.001)
    await line.hears(b"".join(b"%02d" % number for number in range(20)))
    took_s = asyncio.get_running_loop().time() - start
    assert took_s >= 0.4  # there and back, and not twenty times: that would be 8 s
    assert took_s < 6


async def test_a_black_hole_swallows_everything_and_what_has_a_hole_is_cut_when_it_ends(
    proxy: FaultProxy, echo: Echo
) -> None:
    line, silent = await connected(proxy), await connected(proxy)
    proxy.drop()
    line.say(b"lost")
    during = await connect(proxy)
    during.say(b"lost")
    await line.hears_nothing()
    await during.hears_nothing()
    proxy.pass_()
    await line.is_cut()
    await during.is_cut()
    silent.say(b"alive")
    await silent.hears(b"alive")
    assert b"lost" not in echo.heard


async def test_answers_alone_can_be_dropped(proxy: FaultProxy, echo: Echo) -> None:
    line = await connected(proxy)
    proxy.drop("answers")
    line.say(b"there")
    await eventually(lambda: echo.heard.endswith(b"there"))
    await line.hears_nothing()


async def test_what_is_held_arrives_later_even_when_its_sender_is_gone(proxy: FaultProxy, echo: Echo) -> None:
    line, other = await connected(proxy), await connected(proxy)
    proxy.hold()
    line.say(b"late")
    other.say(b"from the dead")
    await other.writer.drain()
    other.writer.close()
    await line.hears_nothing()
    assert echo.heard == b"hello" * 2
    proxy.pass_()
    await line.hears(b"late")
    await eventually(lambda: b"from the dead" in echo.heard)


async def test_a_cut_resets_every_connection_and_every_new_one_until_it_passes_again(
    proxy: FaultProxy, echo: Echo
) -> None:
    lines = [await connected(proxy) for _ in range(3)]
    proxy.cut()
    for line in lines:
        await line.is_cut()
    await eventually(lambda: echo.open == 0)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await connected(proxy)
    proxy.pass_()
    await connected(proxy)


async def test_whoever_says_so_at_first_is_cut_off_and_nobody_else(proxy: FaultProxy) -> None:
    theirs, others = await connected(proxy, b"From: a\n"), await connected(proxy, b"From: b\n")
    proxy.cut_whoever(b"From: a\n")
    await theirs.is_cut()
    others.say(b"From: a\n")  # not at first
    await others.hears(b"From: a\n")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await connected(proxy, b"From: a\n")
    proxy.pass_()
    await connected(proxy, b"From: a\n")


async def test_a_reset_is_for_those_who_are_connected(proxy: FaultProxy) -> None:
    line = await connected(proxy)
    proxy.reset()
    await line.is_cut()
    await connected(proxy)


async def test_an_answer_is_cut_off_after_the_server_has_heard_the_request(proxy: FaultProxy, echo: Echo) -> None:
    line, other = await connected(proxy), await connected(proxy)
    proxy.cut_answers(times=1, after=b"COMMIT")
    line.say(b"BEGIN")
    await line.hears(b"BEGIN")
    assert proxy.cuts == 0
    line.say(b"COM")
    await line.hears(b"COM")
    line.say(b"MIT")
    await line.is_cut()
    assert proxy.cuts == 1
    assert echo.heard.endswith(b"COMMIT")
    other.say(b"COMMIT")  # it was to happen once
    await other.hears(b"COMMIT")


async def test_any_answer_can_be_cut_off_as_often_as_asked_for(proxy: FaultProxy) -> None:
    proxy.cut_answers(times=3)
    for _ in range(3):
        line = await connect(proxy)
        line.say(b"x")
        await line.is_cut()
    assert proxy.cuts == 3
    await connected(proxy)


async def test_another_target_is_behind_the_same_address_after_a_failover(proxy: FaultProxy) -> None:
    line = await connected(proxy)
    async with serving(Echo(b"second: ")) as address:
        proxy.retarget(address)
        await line.is_cut()
        line = await connect(proxy)
        line.say(b"x")
        await line.hears(b"second: x")
        line.writer.close()
        proxy.reset()


async def test_a_target_that_is_gone_looks_like_a_connection_that_is_reset(proxy: FaultProxy) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy.retarget(f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await connected(proxy)


@pytest.fixture
def threads() -> Iterator[None]:
    before = {thread.name for thread in threading.enumerate()}
    yield
    assert {thread.name for thread in threading.enumerate()} - before == set()


@pytest.mark.usefixtures("threads")
async def test_closing_cuts_everything_and_leaves_no_thread_behind(echo: Echo) -> None:
    async with serving(echo) as address:
        with FaultProxy(address) as proxy:
            line = await connected(proxy)
            proxy.drop()
            line.say(b"lost")
        await line.is_cut()
        proxy.close()  # twice is fine
        with pytest.raises(ConnectionError):
            await connect(proxy)
