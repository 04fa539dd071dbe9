"""Claims on acquire: fences are raised before the holder reads, and a lock whose claim fails is given back."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

import fencegate.sync
from fencegate import (
    InvalidInput,
    LockHeld,
    LockLost,
    Locks,
    ResourceUnavailable,
    StaleToken,
    TokenNotForThisKey,
    connect,
)
from fencegate.httpx import GatewayKey, GatewayResource
from fencegate.sql import claimable
from fencegate_adapters.sql import RowsResource
from tests.eventually import eventually
from tests.servers import Server

FAR = 4_000_000_000_000_000_000


class Recorder:
    """Something that can be claimed, and remembers by whom; or fails."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.claims: list[tuple[str, int]] = []
        self.threads: list[str] = []
        self._error = error

    def claim(self, lock_key: str, token: int) -> None:
        self.threads.append(threading.current_thread().name)
        self.claims.append((lock_key, int(token)))
        if self._error is not None:
            raise self._error


class AsyncRecorder(Recorder):
    async def claim(self, lock_key: str, token: int) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().claim(lock_key, token)


class Broken(Exception):
    pass


@pytest.fixture
async def own() -> AsyncIterator[Locks]:
    """A client with a lock store of its own, in memory."""
    async with connect("memory://") as locks:
        yield locks


@pytest.fixture
def sync_own() -> Iterator[fencegate.sync.Locks]:
    with fencegate.sync.connect("memory://") as locks:
        yield locks


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 30})
    yield engine
    engine.dispose()


def mark(engine: Engine, lock_key: str) -> int:
    with engine.connect() as connection:
        query = text("SELECT token FROM fencegate_fences WHERE lock_key = :key AND mode = 'enforce'")
        return int(connection.execute(query, {"key": lock_key.encode()}).scalar() or 0)


async def test_all_is_claimed_with_the_token_of_the_lease_before_the_body_runs(own: Locks) -> None:
    first, second = Recorder(), AsyncRecorder()
    async with own.hold("a", claim=[first, second]) as lease:
        assert first.claims == second.claims == [("a", lease.token)]


def test_the_same_without_await(sync_own: fencegate.sync.Locks) -> None:
    first, second = Recorder(), AsyncRecorder()
    with sync_own.hold("a", claim=[first, second]) as lease:
        assert first.claims == second.claims == [("a", lease.token)]


async def test_a_plain_claim_does_not_hold_up_the_event_loop(own: Locks) -> None:
    recorder = Recorder()
    async with own.hold("a", claim=[recorder]):
        assert recorder.threads != [threading.current_thread().name]


async def test_a_permit_claims_the_fence_of_its_slot(own: Locks) -> None:
    recorder = Recorder()
    async with own.hold("pool", limit=3, claim=[recorder]) as lease:
        assert recorder.claims == [(lease.fence, lease.token)]
        assert lease.fence != "pool"


@pytest.mark.parametrize("error", [StaleToken(1, 2), ResourceUnavailable("away"), Broken("no matter what")])
async def test_a_claim_that_fails_raises_and_gives_the_lock_back(own: Locks, error: Exception) -> None:
    after = Recorder()
    with pytest.raises(type(error)):
        async with own.hold("a", claim=[Recorder(error), after]):
            pytest.fail("the body must not run")
    assert after.claims == []
    async with own.hold("a") as lease:  # at once: nobody holds it
        assert lease.held


@pytest.mark.parametrize("error", [StaleToken(1, 2), Broken("no matter what")])
def test_the_same_for_the_sync_face(sync_own: fencegate.sync.Locks, error: Exception) -> None:
    with pytest.raises(type(error)), sync_own.hold("a", claim=[Recorder(error)]):
        pytest.fail("the body must not run")
    assert sync_own.status("a")["locked"] is False


async def test_try_hold_does_not_hide_a_claim_that_failed(own: Locks) -> None:
    with pytest.raises(StaleToken):
        await own.try_hold("a", claim=[Recorder(StaleToken(1, 2))])
    assert (await own.status("a"))["locked"] is False


async def test_nothing_is_claimed_when_the_lock_is_not_had(own: Locks) -> None:
    recorder = Recorder()
    async with own.hold("a"):
        with pytest.raises(LockHeld):
            await own.hold("a", claim=[recorder])
    assert recorder.claims == []


async def test_an_acquire_that_is_cancelled_in_its_claim_gives_the_lock_back(own: Locks) -> None:
    class Endless:
        def __init__(self) -> None:
            self.begun = asyncio.Event()

        async def claim(self, lock_key: str, token: int) -> None:
            self.begun.set()
            await asyncio.Event().wait()

    endless = Endless()
    acquiring = asyncio.ensure_future(own.hold("a", claim=[endless]).acquire())
    await endless.begun.wait()
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    async with own.hold("a", wait=30) as lease:
        assert lease.held


async def test_a_client_that_is_closed_after_that_has_given_the_lock_back_and_opens_nothing_more(
    server: Server,
) -> None:
    begun = asyncio.Event()

    class Endless:
        async def claim(self, lock_key: str, token: int) -> None:
            begun.set()
            await asyncio.Event().wait()

    async with connect(server.url) as rival:
        for number in range(20):
            begun.clear()
            locks = connect(server.url)
            acquiring = asyncio.ensure_future(locks.hold("closed", claim=[Endless()]).acquire())
            await begun.wait()
            acquiring.cancel()
            await asyncio.wait([acquiring])
            await asyncio.sleep(number / 10_000)  # the thread is about to release, or does
            await locks.aclose()
            assert not (await rival.status("closed"))["locked"]
            assert not locks._connection._transports


async def test_a_claim_that_takes_too_long_is_given_up_and_the_lock_with_it() -> None:
    class Endless:
        async def claim(self, lock_key: str, token: int) -> None:
            await asyncio.Event().wait()

    async with connect("memory://", timeout=2) as locks:
        with pytest.raises(ResourceUnavailable) as caught:
            await locks.hold("a", claim=[Endless()])
        assert caught.value.outcome == "unknown"
        await eventually(lambda: free(locks, "a"))


@pytest.mark.parametrize("claimed_after", [0, 1])
async def test_a_lock_that_is_lost_during_a_claim_is_not_handed_out_and_nothing_more_is_claimed(
    own: Locks, claimed_after: int
) -> None:
    session = await own.session()

    class EndOfSession:
        async def claim(self, lock_key: str, token: int) -> None:
            await session.end()

    after = Recorder()
    with pytest.raises(LockLost):
        await session.hold("a", claim=[EndOfSession(), *[after] * claimed_after])
    assert after.claims == []


async def free(locks: Locks, lock_key: str) -> bool:
    return (await locks.status(lock_key))["locked"] is False


async def test_several_locks_claim_each_what_is_its_own(own: Locks) -> None:
    of_a, of_b = Recorder(), Recorder()
    async with own.hold_all(["a", "b"], claim={"a": [of_a], "b": [of_b]}) as leases:
        assert of_a.claims == [("a", leases["a"].token)]
        assert of_b.claims == [("b", leases["b"].token)]
    with pytest.raises(StaleToken):
        await own.hold_all(["a", "b"], claim={"b": [Recorder(StaleToken(1, 2))]})
    assert await free(own, "a")
    assert await free(own, "b")
    with pytest.raises(InvalidInput, match="none of the locks"):
        own.hold_all(["a"], claim={"c": [of_a]})


async def test_a_leader_claims_before_its_term_begins(own: Locks) -> None:
    recorder = Recorder()
    async with own.lead("service", claim=[recorder]) as term:
        assert recorder.claims == [("service", term.token)]


def test_the_same_for_a_leader_without_await(sync_own: fencegate.sync.Locks) -> None:
    recorder = Recorder()
    with sync_own.lead("service", claim=[recorder]) as term:
        assert recorder.claims == [("service", term.token)]


async def test_an_adapter_can_be_claimed_as_it_is(own: Locks, tmp_path: Path) -> None:
    rows = RowsResource("rows", f"sqlite:///{tmp_path / 'rows.db'}", guard_template="job:x")
    await rows.open()
    try:
        async with own.hold("job:x", claim=[rows]) as lease:
            assert await rows.mark("job:x") == lease.token
    finally:
        await rows.close()


async def test_a_decorated_function_claims_at_every_call(own: Locks) -> None:
    recorder = Recorder()

    @own.guarded("inventory:{sku}", claim=[recorder])
    async def take(sku: str) -> None:
        assert recorder.claims[-1][0] == f"inventory:{sku}"

    await take("a")
    await take("b")
    assert len(recorder.claims) == 2


@pytest.mark.parametrize("wrong", ["http://one.url", 3, iter([])])
def test_what_is_no_list_is_refused_before_anything_happens(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="list"):
        connect("memory://").hold("a", claim=wrong)  # type: ignore[arg-type]


def test_what_can_not_be_claimed_is_refused_before_anything_happens() -> None:
    with pytest.raises(TypeError, match="can't be claimed"):
        connect("memory://").hold("a", claim=[object()])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="http"):
        connect("memory://").hold("a", claim=["ftp://elsewhere"])


# --- databases ---


async def test_a_database_is_claimed_by_its_engine_sync_and_async(own: Locks, engine: Engine, tmp_path: Path) -> None:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'other.db'}")
    async with own.hold("a", claim=[claimable(engine), claimable(async_engine)]) as lease:
        assert mark(engine, "a") == lease.token
    await async_engine.dispose()
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    assert mark(other, "a") == lease.token
    other.dispose()


def test_a_database_that_has_seen_a_newer_token_refuses_the_claim(
    sync_own: fencegate.sync.Locks, engine: Engine
) -> None:
    claimable(engine).claim("a", FAR)
    with pytest.raises(StaleToken) as caught:
        sync_own.hold("a", claim=[claimable(engine)]).acquire()
    assert caught.value.highest == FAR
    assert sync_own.status("a")["locked"] is False


def test_a_database_that_is_away_fails_the_claim(sync_own: fencegate.sync.Locks, tmp_path: Path) -> None:
    away = create_engine(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder.db'}")
    with pytest.raises(ResourceUnavailable):
        sync_own.hold("a", claim=[claimable(away)]).acquire()
    assert sync_own.status("a")["locked"] is False


# --- keys behind a gateway ---


def highest(server: Server, key: str) -> int:
    return int(httpx.get(f"{server.url}/v1/fences/rows/{quote(key)}", verify=False).json()["highestToken"] or 0)


def test_a_key_behind_a_gateway_is_claimed_by_its_url_or_its_name(server: Server) -> None:
    rows = GatewayResource(f"{server.url}/v1/resources/rows")
    for key, claim in (
        ("claimed 1", rows.key("claimed 1")),
        ("claimed-2", f"{rows.url}/claimed-2"),
        ("claimed?3%41", rows.key("claimed?3%41")),
    ):
        with fencegate.sync.connect(server.url).hold(f"rows:{key}", claim=[claim]) as lease:
            assert highest(server, key) == lease.token


def test_a_stale_claim_at_a_gateway_is_told_as_such(server: Server) -> None:
    key = GatewayKey(f"{server.url}/v1/resources/rows", "claimed-3")
    key.claim("rows:claimed-3", 7)
    with pytest.raises(StaleToken) as caught:
        key.claim("rows:claimed-3", 6)
    assert (caught.value.token, caught.value.highest) == (6, 7)
    assert caught.value.members["lockKey"] == "rows:claimed-3"


def test_a_key_that_another_lock_guards_is_not_claimed(server: Server) -> None:
    locks = fencegate.sync.connect(server.url)
    with pytest.raises(TokenNotForThisKey):
        locks.hold("rows:other", claim=[f"{server.url}/v1/resources/rows/claimed-4"]).acquire()
    assert locks.status("rows:other")["locked"] is False


def test_a_key_that_the_gateway_refuses_is_a_mistake_and_no_outage(server: Server) -> None:
    with pytest.raises(InvalidInput, match=r"^key: each key of this resource has a lock of its own"):
        GatewayResource(f"{server.url}/v1/resources/rows").claim("rows:claimed-5", 7)


def test_a_gateway_that_is_away_fails_the_claim_and_no_secret_is_told(sync_own: fencegate.sync.Locks) -> None:
    with pytest.raises(ResourceUnavailable) as caught:
        sync_own.hold("a", claim=["http://me:secret@127.0.0.1:9/v1/resources/rows/a"]).acquire()
    assert "secret" not in str(caught.value)
    assert sync_own.status("a")["locked"] is False
