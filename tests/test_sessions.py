"""Sessions over HTTP: one keep-alive carries any number of locks; when it ends or runs out, they all go."""

import asyncio
from typing import Any

import httpx
import pytest

from fencegate.clock import SYSTEM
from fencegate.core.commands import EndSession, OpenSession, RenewSession
from fencegate.core.model import Limits, Terms, members_of
from fencegate.testing.caller import Caller, engines
from fencegate.testing.faulty_store import FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore
from tests.servers import MakeServer

_names = iter(range(10**9))


@pytest.fixture
def key() -> str:
    return f"sessions:{next(_names)}"


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = http.post(f"/v1/{path}", json=body).json()
    return answer


def test_locks_of_a_session_last_as_long_as_it_and_are_released_one_by_one(http: httpx.Client, key: str) -> None:
    session = post(http, "sessions", ownerId="worker", ttlMillis=60_000)
    assert session["ownerId"] == "worker"
    grant = post(http, f"locks/{key}/acquire", sessionId=session["sessionId"], ttlMillis=1000)
    assert (grant["ownerId"], grant["sessionId"], grant["ttlMillis"]) == ("worker", session["sessionId"], 60_000)
    assert grant["expiresAt"] == session["expiresAt"]
    status = http.get(f"/v1/locks/{key}").json()
    assert (status["ownerId"], status["expiresAt"]) == ("worker", session["expiresAt"])
    renewed = post(http, f"sessions/{session['sessionId']}/renew", ttlMillis=120_000)
    assert renewed["expiresAt"] > session["expiresAt"]
    assert renewed["revoked"] == []
    assert http.get(f"/v1/locks/{key}").json()["expiresAt"] == renewed["expiresAt"]
    assert http.get(f"/v1/locks?prefix={key}").json()["locks"][0]["expiresAt"] == renewed["expiresAt"]
    assert http.get(f"/v1/sessions/{session['sessionId']}").json()["locks"] == 1
    by_itself = http.post(f"/v1/locks/{key}/renew", json={"lockToken": grant["lockToken"]})
    assert (by_itself.status_code, by_itself.json()["error"]) == (422, "INVALID_LOCK_TOKEN")
    assert post(http, f"locks/{key}/release", lockToken=grant["lockToken"])["status"] == "RELEASED"
    assert http.get(f"/v1/sessions/{session['sessionId']}").json()["locks"] == 0
    assert post(http, f"locks/{key}/acquire")["fencingToken"] > grant["fencingToken"]


def test_a_session_that_is_ended_frees_everything_and_its_waiters_are_told(http: httpx.Client, key: str) -> None:
    session = post(http, "sessions", ttlMillis=60_000)["sessionId"]
    for number in range(5):
        post(http, f"locks/{key}-{number}/acquire", sessionId=session)
    ended = http.delete(f"/v1/sessions/{session}")
    assert (ended.status_code, ended.json()) == (200, {"status": "ENDED", "sessionId": session})
    for number in range(5):
        assert "fencingToken" in post(http, f"locks/{key}-{number}/acquire")
    assert http.delete(f"/v1/sessions/{session}").status_code == 200  # a repeat gets the first answer
    refused = http.post(f"/v1/sessions/{session}/renew", json={})
    assert (refused.status_code, refused.json()["error"]) == (409, "SESSION_EXPIRED")
    assert post(http, f"locks/{key}-9/acquire", sessionId=session)["error"] == "SESSION_EXPIRED"
    assert http.get(f"/v1/sessions/{session}").json()["error"] == "SESSION_EXPIRED"


def test_another_owner_neither_uses_nor_renews_a_session(http: httpx.Client, key: str) -> None:
    session = post(http, "sessions", ownerId="me")["sessionId"]
    assert post(http, f"locks/{key}/acquire", sessionId=session, ownerId="you")["error"] == "NOT_LOCK_OWNER"
    assert post(http, f"sessions/{session}/renew", ownerId="you")["error"] == "NOT_LOCK_OWNER"
    assert post(http, f"locks/{key}/acquire", sessionId=session, ownerId="me")["ownerId"] == "me"


def test_a_forced_release_with_grace_is_told_by_the_sessions_renewals(http: httpx.Client, key: str) -> None:
    session = post(http, "sessions", ownerId="me", ttlMillis=60_000)["sessionId"]
    grant = post(http, f"locks/{key}/acquire", sessionId=session)
    taken = post(http, f"locks/{key}/force-release", reason="deploy", graceMillis=60_000)
    assert taken["status"] == "FORCE_RELEASED"
    (revoked,) = post(http, f"sessions/{session}/renew")["revoked"]
    assert (revoked["lockKey"], revoked["fencingToken"]) == (key, grant["fencingToken"])
    assert (revoked["reason"], revoked["takenAt"]) == ("deploy", taken["takenAt"])


def test_sessions_and_their_locks_survive_a_restart_and_run_out_after_it(make_server: MakeServer, key: str) -> None:
    server = make_server()
    with httpx.Client(base_url=server.url, timeout=30) as http:
        lasting = post(http, "sessions", ttlMillis=600_000)["sessionId"]
        short = post(http, "sessions", ttlMillis=3000)["sessionId"]
        post(http, f"locks/{key}-lasting/acquire", sessionId=lasting)
        post(http, f"locks/{key}-short/acquire", sessionId=short)
    server.kill()
    server = make_server()
    with httpx.Client(base_url=server.url, timeout=40) as http:
        assert post(http, f"locks/{key}-lasting/acquire")["error"] == "LOCK_ALREADY_HELD"
        assert post(http, f"sessions/{lasting}/renew")["sessionId"] == lasting
        assert "fencingToken" in post(http, f"locks/{key}-short/acquire", waitMillis=30_000)
        assert post(http, f"sessions/{short}/renew")["error"] == "SESSION_EXPIRED"


async def test_thousands_of_locks_on_a_few_sessions_cost_a_renewal_for_each_session_and_none_for_a_lock() -> None:
    counted = FaultyStore(MemoryStore())
    async with engines(counted, limits=Limits()) as (engine,):
        sessions = [f"session{number}" for number in range(5)]
        for session in sessions:
            await engine.run(OpenSession(session, "A", 60_000_000))
        caller = Caller(engine, "A")
        for session in sessions:
            terms = Terms(session=session)
            await asyncio.gather(*(caller.acquire(f"{session}:{number}", terms=terms) for number in range(400)))
        before = (counted.commits, counted.loads)
        for session in sessions:
            await engine.run(RenewSession(session))
        assert (counted.commits - before[0], counted.loads - before[1]) == (5, 0)


async def test_ending_a_session_of_a_thousand_locks_serves_everybody_who_waited_for_them() -> None:
    store = MemoryStore()
    async with engines(store, store, limits=Limits()) as (one, two):
        await one.run(OpenSession("s", "A", 60_000_000))
        holder = Caller(one, "A")
        await asyncio.gather(*(holder.acquire(f"k{number}", terms=Terms(session="s")) for number in range(1000)))
        waits = [asyncio.ensure_future(Caller(two, "B").acquire(f"k{n}", wait_s=60)) for n in range(0, 1000, 50)]
        for number in range(0, 1000, 50):
            await holder.until_waiting(f"k{number}", "B")
        await one.end_session(EndSession("s"))
        async with asyncio.timeout(30):
            await asyncio.gather(*waits)
        assert not await store.scan(members_of("s"), "", 1)
        assert (await Caller(two, "C").acquire("k1")).expires_us > SYSTEM.now_us()


async def test_who_waits_under_a_session_hears_of_its_end() -> None:
    store = MemoryStore()
    async with engines(store, store, limits=Limits()) as (one, two):
        await one.run(OpenSession("s", "A", 60_000_000))
        await Caller(one, "B").acquire("k")
        waiting = asyncio.ensure_future(Caller(two, "A").acquire("k", wait_s=60, terms=Terms(session="s")))
        several = asyncio.ensure_future(Caller(two, "A").acquire_all("k", "l", wait_s=60, terms=Terms(session="s")))
        await Caller(one, "B").until_waiting("l", "A")
        await Caller(one, "B").until_waiting("k", "A", "A")
        await one.end_session(EndSession("s"))
        async with asyncio.timeout(30):
            results = await asyncio.gather(waiting, several, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["SessionExpired", "SessionExpired"]
        await Caller(one, "B").until_waiting("k")
        await Caller(one, "B").until_waiting("l")
