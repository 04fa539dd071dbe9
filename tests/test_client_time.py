"""The client and time: servers that stop, event loops that are busy, answers that get lost."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from fencegate import (
    FencegateError,
    InvalidInput,
    Lease,
    LeaseState,
    LockHeld,
    LockLost,
    OutcomeUnknown,
    StoreUnavailable,
    connect,
)
from fencegate.client import acquisition
from fencegate.client.http import HttpTransport
from fencegate.sync import connect as connect_sync
from tests.servers import MakeServer, Server, kept_address


class LossyNetwork:
    """A way to a real server on which answers can get lost: the request arrives, and the connection is cut."""

    def __init__(self, server: Server) -> None:
        self._port = int(server.url.rpartition(":")[2])
        self._cut: list[bytes] = []
        self.answers_lost = 0
        self.url = ""

    def lose_answers(self, verb: str, times: int = 1) -> None:
        self._cut += [f"/{verb} HTTP".encode()] * times

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["LossyNetwork"]:
        listener = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with listener:
            yield self

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        cut = False

        async def requests() -> None:
            nonlocal cut
            while data := await reader.read(65536):
                lost = next((verb for verb in self._cut if verb in data), None)
                if lost is not None:
                    self._cut.remove(lost)
                    self.answers_lost += 1
                    cut = True
                back.write(data)

        async def answers() -> None:
            while data := await there.read(65536):
                if cut:
                    return
                writer.write(data)

        tasks = [asyncio.create_task(requests()), asyncio.create_task(answers())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        back.close()
        writer.transport.abort()


@pytest.fixture
def address() -> Iterator[str]:
    """For a server that is started again where it was."""
    with kept_address() as kept:
        yield kept


@pytest.fixture
async def network(server: Server) -> AsyncIterator[LossyNetwork]:
    async with LossyNetwork(server).open() as lossy:
        yield lossy


async def until(lease: Lease, state: LeaseState) -> None:
    while lease.state is not state:
        lease.ensure_held()
        await asyncio.sleep(0.01)


async def until_renewed(lease: Lease) -> None:
    before = lease.remaining
    while lease.remaining <= before:
        before = lease.remaining
        lease.ensure_held()
        await asyncio.sleep(0.01)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"time:{request.node.name}"


async def test_when_the_server_stops_the_lease_is_suspended_and_then_lost_at_its_deadline(
    stoppable: Server, key: str
) -> None:
    async with connect(stoppable.url, timeout=1) as locks:
        with pytest.raises(LockLost):
            async with locks.hold(key, ttl=5, cancel_on_lost=True) as lease:
                stoppable.signal(signal.SIGSTOP)
                begun, left_s = time.monotonic(), lease.remaining
                await until(lease, LeaseState.SUSPENDED)
                lease.ensure_held()
                await asyncio.sleep(60)
        assert left_s - 0.1 < time.monotonic() - begun < 30  # its own clock said so; nobody was there to ask
        stoppable.signal(signal.SIGCONT)
        await asyncio.sleep(0.1)
        assert lease.state is LeaseState.LOST  # it never comes back
        async with locks.hold(key, wait=30) as later:
            assert later.token > lease.token


async def test_a_server_that_comes_back_in_time_ends_the_suspension(stoppable: Server, key: str) -> None:
    async with connect(stoppable.url, timeout=1) as locks, locks.hold(key, ttl=6) as lease:
        stoppable.signal(signal.SIGSTOP)
        await until(lease, LeaseState.SUSPENDED)
        stoppable.signal(signal.SIGCONT)
        await until(lease, LeaseState.HELD)


async def test_a_server_that_is_killed_and_restarted_keeps_the_lease(
    make_server: MakeServer, address: str, key: str
) -> None:
    server = make_server(listen=address)
    async with connect(server.url) as locks, locks.hold(key, ttl=9) as lease:
        server.kill()
        await asyncio.to_thread(make_server, listen=address)
        await until_renewed(lease)
        assert (await locks.status(key))["fencingToken"] == lease.token.wire


@pytest.mark.parametrize("embedded", [False, True])
async def test_a_busy_event_loop_does_not_cost_the_lease(server: Server, key: str, embedded: bool) -> None:
    async with connect("memory://" if embedded else server.url) as locks, locks.hold(key, ttl=3) as lease:
        time.sleep(3.5)  # the event loop is blocked for longer than the lease
        lease.ensure_held()
        assert (await locks.status(key))["fencingToken"] == lease.token.wire


async def test_a_wait_longer_than_the_ttl_still_brings_a_whole_lease(server: Server, key: str) -> None:
    async with connect(server.url) as locks, connect(server.url) as rival:
        async with locks.hold(key, ttl=9):
            waiting = asyncio.create_task(rival.hold(key, ttl=3, wait=60).acquire())
            while not (await locks.status(key))["waiters"]:
                await asyncio.sleep(0.01)
            await asyncio.sleep(3.1)
        lease = await waiting
        for _ in range(16):  # and it is renewed from there
            await asyncio.sleep(0.2)
            lease.ensure_held()
        await lease.release()


async def test_a_release_is_bounded_when_the_server_stops_and_the_body_is_not_blamed(
    stoppable: Server, key: str
) -> None:
    async with connect(stoppable.url, timeout=0.5) as locks:
        async with locks.hold(key, ttl=90):
            stoppable.signal(signal.SIGSTOP)
            begun = time.monotonic()
        assert time.monotonic() - begun < 20
        stoppable.signal(signal.SIGCONT)
        async with locks.hold(key, wait=30):  # the release went on in the background, and the TTL is far away
            assert time.monotonic() - begun < 60


async def test_an_acquire_whose_answer_was_lost_finds_its_lease_again(
    network: LossyNetwork, server: Server, key: str
) -> None:
    async with connect(network.url) as locks, connect(server.url) as direct:
        network.lose_answers("acquire", 2)
        async with locks.hold(key, ttl=30) as lease:
            status = await direct.status(key)
            assert (status["fencingToken"], status["reentrancyCount"]) == (lease.token.wire, 1)


async def test_an_acquire_that_gives_up_in_doubt_leaves_no_lock_behind(
    network: LossyNetwork, server: Server, key: str
) -> None:
    async with connect(network.url, timeout=0.3) as locks, connect(server.url) as direct:
        network.lose_answers("acquire", 4)
        with pytest.raises(OutcomeUnknown):
            await locks.hold(key, ttl=60).acquire()
        async with direct.hold(key, wait=30):  # far below the TTL
            pass


async def test_a_release_whose_answer_was_lost_is_a_release(network: LossyNetwork, server: Server, key: str) -> None:
    async with connect(network.url) as locks, connect(server.url) as direct:
        async with locks.hold(key):
            network.lose_answers("release")
        assert not (await direct.status(key))["locked"]


async def test_renewals_whose_answers_were_lost_suspend_but_do_not_lose(network: LossyNetwork, key: str) -> None:
    async with connect(network.url) as locks, locks.hold(key, ttl=6) as lease:
        network.lose_answers("renew", 2)
        await until(lease, LeaseState.SUSPENDED)
        await until(lease, LeaseState.HELD)
        assert network.answers_lost == 2


async def test_a_request_is_not_repeated_beyond_the_servers_memory_of_it(
    network: LossyNetwork, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquisition, "_REPEATABLE_US", 200_000)
    async with connect(network.url) as locks:
        network.lose_answers("acquire", 20)
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="too old"):
            await locks.hold(key, wait=30).acquire()
        assert time.monotonic() - begun < 20


async def test_waiters_are_sent_away_by_a_stopping_server_and_come_back_to_the_next(
    make_server: MakeServer, address: str, key: str
) -> None:
    server = make_server(listen=address)
    async with connect(server.url) as locks, connect(server.url) as rival:
        lease = await locks.hold(key, ttl=60).acquire()
        waiting = asyncio.create_task(rival.hold(key, wait=60).acquire())
        while not (await locks.status(key))["waiters"]:
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(server.terminate) == 0
        await asyncio.to_thread(make_server, listen=address)
        lease.ensure_held()
        await lease.release()
        assert (await asyncio.wait_for(waiting, 60)).token > lease.token


def test_the_sync_client_loses_its_lease_at_the_deadline_too(stoppable: Server, key: str) -> None:
    with connect_sync(stoppable.url, timeout=1) as locks:
        lost: list[object] = []
        with pytest.raises(LockLost), locks.hold(key, ttl=1, on_lost=lost.append) as lease:
            stoppable.signal(signal.SIGSTOP)
            assert lease.lost.wait(30)
            assert lease.lost.is_set()
        end = time.monotonic() + 20
        while not lost and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.05)  # and not a second time
        assert lost == [lease]
        stoppable.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'409 X\r\n\r\n{"error": "LOCK_ALREADY_HELD", "detail": "held", "retryAfterMillis": 7}', LockHeld),
        (
            b'422 X\r\n\r\n{"error": "INVALID_TTL_MILLIS", "detail": "ttlMillis: too long", "field": "ttlMillis"}',
            InvalidInput,
        ),
        (b'418 X\r\n\r\n{"error": "TEAPOT", "detail": "short and stout"}', FencegateError),
        (b"404 X\r\n\r\n<html>no such page</html>", StoreUnavailable),  # no lock service was asked
        (b'404 X\r\n\r\n{"error": "NOT_FOUND", "detail": "there is nothing at /x/v1/locks"}', StoreUnavailable),
        (b'503 X\r\n\r\n{"error": "STORE_UNAVAILABLE", "detail": "gone"}', StoreUnavailable),
        (b'500 X\r\n\r\n{"error": "INTERNAL", "detail": "oops"}', OutcomeUnknown),
        (b"502 X\r\n\r\n<html>bad gateway</html>", OutcomeUnknown),
        (b"200 X\r\n\r\n<html>welcome to the hotel</html>", OutcomeUnknown),
        (b"200 X\r\nContent-Length: 500\r\n\r\n{}", OutcomeUnknown),
        (b"rubbish", OutcomeUnknown),
        (b"", OutcomeUnknown),
    ],
)
async def test_every_answer_is_a_refusal_in_our_words_or_unknown(answer: bytes, error: type[FencegateError]) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + answer if answer else b"")
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as peer:
        transport = HttpTransport(f"http://127.0.0.1:{peer.sockets[0].getsockname()[1]}", 30)
        with pytest.raises(FencegateError) as raised:
            await transport.acquire("a", {})
        assert type(raised.value) is error
        await transport.close()


@pytest.mark.parametrize("content", [b"<html>welcome to the hotel</html>", b"{}", b"[]"])
async def test_another_service_that_is_asked_to_tell_something_is_not_asked_again(content: bytes) -> None:
    """There is nothing that it could have done."""
    asked = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n" + content)
        writer.close()

    async with (
        await asyncio.start_server(speak, "127.0.0.1", 0) as peer,
        connect(f"http://127.0.0.1:{peer.sockets[0].getsockname()[1]}") as locks,
    ):
        for read in (locks.status, locks.list):
            with pytest.raises(StoreUnavailable, match="no lock service"):
                await read("a")
    assert len(asked) == 2
