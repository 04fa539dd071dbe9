"""Leader election: one leader at a time, handed over at once by a clean stop, refused by the gateway once deposed."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import httpx
import pytest

from fencegate import InvalidInput, Leader, LockHeld, LockLost, Locks, Observer, Term, Token, connect, sync
from fencegate.client.background import background
from fencegate.client.observer import Following
from tests.child import Child
from tests.eventually import PATIENCE_S, eventually, eventually_sync
from tests.servers import MakeServer, Server, kept_address

LONG_TTL_S = 300.0
"""Longer than any test waits: only a release can explain that the lock changed hands."""


@pytest.fixture(params=["http", "sqlite", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "http":
        server = request.getfixturevalue("server")
        return str(server.url)
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
async def rival(url: str) -> AsyncIterator[Locks]:
    async with connect(url, owner_id="rival") as client:
        yield client


@pytest.fixture
def blocking(url: str) -> Iterator[sync.Locks]:
    with sync.connect(url) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"leader:{request.node.name}"


async def until_waiting(locks: Locks, name: str) -> None:
    async def waits() -> bool:
        return bool((await locks.status(name)).get("waiters"))

    await eventually(waits)


async def next_of(following: Observer) -> Leader | None:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(following)


async def the_next_leader(following: Observer) -> Leader:
    """The next one who leads: that nobody did in between may be told or not."""
    while (found := await next_of(following)) is None:
        pass
    return found


async def test_a_candidate_is_elected_when_the_leader_stops_and_has_the_higher_token(
    locks: Locks, rival: Locks, name: str
) -> None:
    async def stand() -> Token:
        async with rival.lead(name, ttl=LONG_TTL_S) as term:
            term.ensure_led()
            return term.token

    async with locks.lead(name, ttl=LONG_TTL_S) as term:
        assert term.led
        assert (term.name, term.owner_id) == (name, locks.owner_id)
        assert term.headers()["Fencing-Token"] == term.token.wire
        with pytest.raises(LockHeld):
            await rival.lead(name, wait=0).__aenter__()
        successor = asyncio.create_task(stand())
        await until_waiting(locks, name)
        assert not successor.done()
    async with asyncio.timeout(PATIENCE_S):
        assert await successor > term.token
    with pytest.raises(LockLost):
        term.ensure_led()
    assert not term.lost.is_set()


async def test_a_cancelled_leader_and_a_cancelled_candidate_leave_nothing_behind(
    locks: Locks, rival: Locks, name: str
) -> None:
    leads = asyncio.Event()

    async def lead() -> None:
        async with locks.lead(name, ttl=LONG_TTL_S):
            leads.set()
            await asyncio.sleep(PATIENCE_S)

    leader = asyncio.create_task(lead())
    await leads.wait()
    candidate = asyncio.create_task(rival.lead(name, ttl=LONG_TTL_S).__aenter__())
    await until_waiting(locks, name)
    for task in (candidate, leader):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with rival.lead(name, wait=PATIENCE_S) as term:
        assert term.led


async def test_callbacks_tell_of_the_election_and_of_the_deposition_but_not_of_a_clean_stop(
    locks: Locks, name: str
) -> None:
    told: list[tuple[str, Term]] = []

    async def elected(term: Term) -> None:
        await asyncio.sleep(0)
        told.append(("elected", term))

    def deposed(term: Term) -> None:
        told.append(("deposed", term))

    async with locks.lead(name, on_elected=elected, on_deposed=deposed) as first:
        assert told == [("elected", first)]
    assert told == [("elected", first)]
    with pytest.raises(LockLost):
        async with locks.lead(name, ttl=3, on_elected=elected, on_deposed=deposed) as second:
            await locks.force_release(name, "test")
            async with asyncio.timeout(PATIENCE_S):
                await second.lost.wait()
    assert told[1:] == [("elected", second), ("deposed", second)]
    assert not second.led


async def test_a_leader_who_learns_of_its_deposition_by_stopping_is_told_as_well(locks: Locks, name: str) -> None:
    told: list[Term] = []

    async def deposed(term: Term) -> None:
        await asyncio.sleep(0.01)
        told.append(term)

    with pytest.raises(LockLost):
        async with locks.lead(name, ttl=LONG_TTL_S, on_deposed=deposed) as term:
            await locks.force_release(name, "test")
    assert told == [term]


async def test_what_on_elected_raises_ends_the_term_and_what_on_deposed_raises_does_no_harm(
    locks: Locks, rival: Locks, name: str
) -> None:
    def fail(_term: Term) -> None:
        raise ValueError("not ready")

    with pytest.raises(ValueError, match="not ready"):
        async with locks.lead(name, ttl=LONG_TTL_S, on_elected=fail):
            pytest.fail("it must not lead")
    async with rival.lead(name, ttl=LONG_TTL_S, wait=PATIENCE_S):
        pass
    with pytest.raises(LockLost):
        async with locks.lead(name, ttl=LONG_TTL_S, on_deposed=fail):
            await rival.force_release(name, "test")


async def test_the_body_is_cancelled_when_deposed_if_that_was_asked_for(locks: Locks, name: str) -> None:
    with pytest.raises(LockLost):
        async with asyncio.timeout(PATIENCE_S), locks.lead(name, ttl=3, cancel_on_deposed=True):
            await locks.force_release(name, "test")
            await asyncio.sleep(PATIENCE_S * 2)


async def test_a_deposed_leader_stands_again_and_leaving_the_loop_hands_over(
    locks: Locks, rival: Locks, name: str
) -> None:
    tokens: list[Token] = []
    async for term in locks.terms(name, ttl=LONG_TTL_S):
        tokens.append(term.token)
        if len(tokens) == 1:
            await rival.force_release(name, "test")
        elif len(tokens) == 3:  # the second term ends by itself, and is followed by a third
            break
    assert tokens == sorted(set(tokens))
    async with rival.lead(name, wait=PATIENCE_S) as successor:
        assert successor.token > tokens[-1]


async def test_a_cancelled_loop_of_terms_hands_over(locks: Locks, rival: Locks, name: str) -> None:
    leads = asyncio.Event()

    async def serve() -> None:
        async for _ in locks.terms(name, ttl=LONG_TTL_S):
            leads.set()
            await asyncio.sleep(PATIENCE_S)

    task = asyncio.create_task(serve())
    await leads.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with rival.lead(name, wait=PATIENCE_S) as term:
        assert term.led


async def test_an_observer_sees_the_present_leader_and_then_each_one_in_order(
    locks: Locks, rival: Locks, name: str
) -> None:
    async with aclosing(rival.observe(name)) as following:
        assert await next_of(following) is None
        seen: list[Leader] = []
        tokens: list[Token] = []
        for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
            async with locks.lead(name, metadata={"address": address}) as term:
                tokens.append(term.token)
                seen.append(await the_next_leader(following))
        assert await next_of(following) is None
    assert [leader.token for leader in seen] == tokens
    assert [leader.metadata for leader in seen] == [{"address": f"10.0.0.{n}"} for n in (1, 2, 3)]
    assert {leader.owner_id for leader in seen} == {locks.owner_id}
    async with locks.lead(name) as term, aclosing(rival.observe(name)) as late:
        assert await next_of(late) == Leader(locks.owner_id, term.token, None)


async def test_observers_are_told_of_a_deposed_leader(locks: Locks, rival: Locks, name: str) -> None:
    async with aclosing(rival.observe(name)) as following:
        with pytest.raises(LockLost):
            async with locks.lead(name) as term:
                assert (await the_next_leader(following)).token == term.token
                await rival.force_release(name, "test")
                assert await next_of(following) is None


class Line:
    """A line to a server that can be cut, and mended."""

    def __init__(self, server: Server) -> None:
        self._upstream = httpx.URL(server.url)
        self._ends: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.cut_off = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            self.cut_off += 1
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(self._upstream.host, self._upstream.port)
        self._ends |= {writer, far_writer}
        await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))
        self._ends -= {writer, far_writer}

    def cut(self) -> None:
        self._is_cut = True
        for end in self._ends:
            end.close()

    def mend(self) -> None:
        self._is_cut = False


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_an_observer_hears_of_every_leader_who_came_and_went_while_its_line_was_cut(
    server: Server, name: str
) -> None:
    line = Line(server)
    async with await asyncio.start_server(line.carry, "127.0.0.1", 0) as listener, connect(server.url) as locks:
        port = listener.sockets[0].getsockname()[1]
        async with connect(f"http://127.0.0.1:{port}") as far, far.observe(name) as following:
            tokens, seen = [], []
            for number in range(6):
                if number == 2:
                    line.cut()
                    waiting = asyncio.create_task(the_next_leader(following))
                    await eventually(lambda: line.cut_off > 0)  # it has come back in vain
                async with locks.lead(name) as term:
                    tokens.append(term.token)
                    if number < 2:
                        seen.append(await the_next_leader(following))
            line.mend()
            seen.append(await waiting)
            seen += [await the_next_leader(following) for _ in range(3)]
            assert await next_of(following) is None
    assert [leader.token for leader in seen] == tokens


async def test_a_wait_for_news_may_be_cancelled_and_taken_up_again(locks: Locks, rival: Locks, name: str) -> None:
    async with rival.observe(name) as following:
        assert await next_of(following) is None
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await anext(following)
        async with locks.lead(name) as term:
            assert (await the_next_leader(following)).token == term.token


def test_an_observer_never_goes_back_to_an_older_leader() -> None:
    following = Following()
    old, new = Leader("a", Token(7)), Leader("b", Token(8))
    told = [leader for leader in (None, None, old, old, new, old, None, new, None, old) if following.is_news(leader)]
    assert told == [None, old, new, None]


def test_without_await_a_candidate_is_elected_deposed_and_stands_again(
    url: str, blocking: sync.Locks, name: str
) -> None:
    told: list[tuple[str, Token]] = []
    with sync.connect(url) as rival, closing(rival.observe(name)) as following:
        assert next(following) is None
        for term in blocking.terms(
            name,
            ttl=LONG_TTL_S,
            metadata={"address": "here"},
            on_elected=lambda term: told.append(("elected", term.token)),
            on_deposed=lambda term: told.append(("deposed", term.token)),
        ):
            leader = next(following)
            while leader is None:
                leader = next(following)
            assert leader == Leader(blocking.owner_id, term.token, {"address": "here"})
            if len(told) > 1:
                break
            rival.force_release(name, "test")
        eventually_sync(lambda: len(told) == 3)
        (_, first), (_, second) = sorted({("elected", token) for _, token in told})
        assert sorted(told) == [("deposed", first), ("elected", first), ("elected", second)]
        assert first < second
        with pytest.raises(LockLost):
            term.ensure_led()
        with rival.lead(name, ttl=LONG_TTL_S, wait=PATIENCE_S) as later:
            assert later.led
            assert later.token > second
            with pytest.raises(LockHeld):
                blocking.lead(name, wait=0).__enter__()


def test_without_await_a_waiting_candidate_is_elected_when_the_leader_stops(
    blocking: sync.Locks, url: str, name: str
) -> None:
    tokens: list[Token] = []

    def stand() -> None:
        with sync.connect(url) as rival, rival.lead(name, ttl=LONG_TTL_S) as term:
            tokens.append(term.token)

    thread = threading.Thread(target=stand)
    with blocking.lead(name, ttl=LONG_TTL_S) as term:
        thread.start()
        eventually_sync(lambda: blocking.status(name)["waiters"] > 0)
        assert tokens == []
    thread.join(PATIENCE_S)
    assert len(tokens) == 1
    assert tokens[0] > term.token


def test_without_await_an_observer_is_closed_from_another_thread(blocking: sync.Locks, name: str) -> None:
    seen: list[Leader | None] = []
    with blocking.observe(name) as following:
        thread = threading.Thread(target=lambda: seen.extend(following))
        thread.start()
        eventually_sync(lambda: seen == [None])
        following.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_loop_of_terms_that_is_dropped_on_the_thread_that_renews_hands_over(
    blocking: sync.Locks, url: str, name: str
) -> None:
    kept = [blocking.terms(name, ttl=LONG_TTL_S)]
    token = next(kept[0]).token

    async def drop() -> None:
        kept.clear()  # as the garbage collector may, on whichever thread it runs

    background().run(drop())
    with sync.connect(url) as rival, rival.lead(name, wait=PATIENCE_S) as term:
        assert term.token > token


def test_without_await_a_lost_term_is_seen_by_a_waiting_thread(blocking: sync.Locks, name: str) -> None:
    with pytest.raises(LockLost), blocking.lead(name, ttl=3) as term:
        blocking.force_release(name, "test")
        assert term.lost.wait(PATIENCE_S)


async def test_a_candidate_stands_while_the_lock_service_is_away(make_server: MakeServer) -> None:
    with kept_address() as address:
        async with connect(f"http://{address}", timeout=1) as locks:
            standing = asyncio.create_task(locks.lead("a").__aenter__())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.shield(standing)
            await asyncio.to_thread(make_server, listen=address)
            async with asyncio.timeout(PATIENCE_S):
                assert (await standing).led


def test_a_bad_candidacy_is_refused_before_it_stands() -> None:
    locks = connect("memory://")
    with pytest.raises(InvalidInput):
        locks.lead("a", ttl=0)
    with pytest.raises(InvalidInput):
        locks.lead("", ttl=5)
    with pytest.raises(TypeError, match="tll"):
        locks.lead("a", tll=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="request_id"):
        sync.connect("memory://").lead("a", request_id="r")  # type: ignore[call-arg]


LEADER = """
    from fencegate.sync import connect
    url, name, address, ttl, pause = sys.argv[1:]
    with connect(url) as locks, locks.lead(name, ttl=float(ttl), metadata={"address": address}) as term:
        say(term.token.wire)
        headers = term.headers()
        if pause == "pause":
            os.kill(os.getpid(), signal.SIGSTOP)  # just between asking whether it leads and writing
        import httpx
        answer = httpx.put(f"{url}/v1/resources/rows/{name.removeprefix('rows:')}", json={"by": address},
                           headers=headers, timeout=30)
        say(f"{answer.status_code} {answer.json()['error'] if answer.content else ''}")
        say("led" if term.led else "deposed")
        sys.stdin.readline()
"""


async def test_the_token_of_a_leader_who_was_paused_past_its_term_is_refused_by_the_gateway(server: Server) -> None:
    name, path = "rows:paused-leader", f"{server.url}/v1/resources/rows/paused-leader"
    with Child(LEADER, server.url, name, "A", 4, "pause") as a:
        token_a = a.line()
        a.wait_until_stopped()
        with Child(LEADER, server.url, name, "B", 60, "go") as b:
            assert int(b.line()) > int(token_a)
            assert b.line().split()[0] in ("201", "204")
            assert b.line() == "led"
            a.proceed()
            assert a.line() == "412 STALE_TOKEN"
            assert a.line() == "deposed"
            assert httpx.get(path, timeout=30).json() == {"by": "B"}


async def test_a_killed_leader_is_followed_by_another_process_and_observers_see_both(server: Server) -> None:
    name = "rows:killed-leader"
    async with connect(server.url) as locks, aclosing(locks.observe(name)) as following:
        assert await next_of(following) is None
        with Child(LEADER, server.url, name, "A", 4, "go") as a:
            first = await the_next_leader(following)
            token_a = a.line()
            with Child(LEADER, server.url, name, "B", 60, "go") as b:
                await until_waiting(locks, name)
                a.kill()
                second = await the_next_leader(following)
                assert second.token == int(b.line())
        assert (first.token, first.metadata) == (int(token_a), {"address": "A"})
        assert second.token > first.token
        assert second.metadata == {"address": "B"}
