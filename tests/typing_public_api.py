"""The public API as type checkers see it. mypy reads this file; nothing runs it."""

import threading
from typing import Any, Literal, assert_type

import httpx
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session as SqlSession

import fencegate
import fencegate.sync
from fencegate import (
    Hold,
    HoldAll,
    Lease,
    Leases,
    LeaseState,
    LockHeld,
    Locks,
    OpenSession,
    Revocation,
    Session,
    Terms,
    Token,
    TryHold,
    Watcher,
    WatchEvent,
    connect,
)
from fencegate.httpx import GatewayKey, GatewayResource, LeaseAuth
from fencegate.middleware import Fence, require_fence, try_fence
from fencegate.sql import claimable


async def async_client() -> None:
    locks = connect()
    assert_type(locks, Locks)
    assert_type(connect("http://127.0.0.1:7420", owner_id="me", timeout=5), Locks)
    assert_type(locks.owner_id, str)
    assert_type(locks.hold("a"), Hold)
    assert_type(locks.try_hold("a"), TryHold)
    assert_type(locks.attach("exported"), Hold)
    async with locks.hold(
        "a", ttl=30, wait=10, reentrant=True, metadata={"a": 1}, cancel_on_lost=True, on_lost=on_lost, request_id="r"
    ) as lease:
        assert_type(lease, Lease)
        assert_type(lease.lock_key, str)
        assert_type(lease.token, Token)
        assert_type(lease.sequencer, str | None)
        assert_type(lease.lock_token, str)
        assert_type(lease.owner_id, str)
        assert_type(lease.ttl, float)
        assert_type(lease.state, LeaseState)
        assert_type(lease.held, bool)
        assert_type(lease.remaining, float)
        assert_type(lease.headers(), dict[str, str])
        assert_type(lease.export(), str)
        assert_type(lease.mode, Literal["exclusive", "shared"])
        assert_type(lease.slot, int | None)
        assert_type(lease.fence, str)
        assert_type(lease.revoked, Revocation | None)
        assert_type(lease.why_lost, str | None)
        assert_type(lease.lost.is_set(), bool)
        await lease.lost.wait()
        lease.ensure_held()
        await lease.release()
    async with locks.try_hold("a") as maybe:
        assert_type(maybe, Lease | None)
    assert_type(await locks.hold("a"), Lease)
    assert_type(await locks.hold("a").acquire(), Lease)
    assert_type(await locks.try_hold("a"), Lease | None)
    assert_type(await locks.status("a"), dict[str, Any])
    assert_type(await locks.history("a", limit=10), fencegate.LockHistory)
    assert_type((await locks.history("a")).holds, tuple[fencegate.PastHold, ...])
    assert_type(await locks.list(prefix="a"), list[dict[str, Any]])
    assert_type(await locks.force_release("a", "why"), dict[str, Any])
    async with locks.watch("a", since=7) as watcher:
        assert_type(watcher, Watcher)
        assert_type(watcher.id, int | None)
        async for event in watcher:
            assert_type(event, WatchEvent)
            assert_type(event.token, Token | None)
            assert_type(event.at, float)
            assert_type(event.id, int)
    async with connect() as entered:
        assert_type(entered, Locks)
    await locks.aclose()


async def terms_sessions_and_groups() -> None:
    locks = connect(on_state=on_state)
    terms: Terms = {"ttl": 30, "shared": True, "priority": 5, "lock_delay": 1.5, "max_hold": 60}
    locks.hold("a", **terms)
    locks.hold("a", mode="shared", hierarchical=True, limit=None, owner="me", on_state=on_state, on_revoked=on_lost)
    locks.hold("a", mode="upgradable")  # type: ignore[arg-type]
    locks.hold("a", timeout=3)  # type: ignore[call-arg]
    assert_type(locks.session(ttl=30, owner="me", cancel_on_lost=True), OpenSession)
    async with locks.session() as session:
        assert_type(session, Session)
        assert_type(session.state, LeaseState)
        assert_type(session.hold("a", wait=3), Hold)
        assert_type(session.try_hold("a"), TryHold)
        assert_type(session.hold_all(["a"]), HoldAll)
        locks.hold("a", session=session)
        await session.lost.wait()
        await session.end()
    async with locks.hold_all(["a", ("b", "shared")], ttl=30, wait=10, session=None) as leases:
        assert_type(leases, Leases)
        assert_type(leases["a"], Lease)
        assert_type(leases.state, LeaseState)
        await leases.release()
    assert_type(await locks.force_release("a", "why", grace=3), dict[str, Any])


def on_lost(lease: Lease) -> None:
    lease.lost.is_set()


def on_state(lease: Lease, state: LeaseState) -> None:
    print(lease.token, state)


def sync_client() -> None:
    locks = fencegate.sync.connect()
    assert_type(locks, fencegate.sync.Locks)
    with locks.hold("a", ttl=30, wait=10, reentrant=True, metadata={}, request_id="r") as lease:
        assert_type(lease, fencegate.sync.Lease)
        assert_type(lease.token, Token)
        assert_type(lease.lost, threading.Event)
        lease.release()
    with locks.try_hold("a") as maybe:
        assert_type(maybe, fencegate.sync.Lease | None)
    with locks.attach("exported") as attached:
        assert_type(attached, fencegate.sync.Lease)
    with locks.session(ttl=3) as session, session.hold("a", limit=3) as permit:
        assert_type(session, fencegate.sync.Session)
        assert_type(session.lost, threading.Event)
        assert_type(permit, fencegate.sync.Lease)
    with locks.hold_all(["a", ("b", "shared")]) as leases:
        assert_type(leases["a"], fencegate.sync.Lease)
    assert_type(locks.hold("a").acquire(), fencegate.sync.Lease)
    assert_type(locks.status("a"), dict[str, Any])
    assert_type(locks.history("a", limit=10), fencegate.LockHistory)
    assert_type(locks.list("a"), list[dict[str, Any]])
    with locks.watch(prefix="a") as watcher:
        for event in watcher:
            assert_type(event, WatchEvent)
    with fencegate.sync.connect() as entered:
        assert_type(entered, fencegate.sync.Locks)
    locks.close()


async def claims(engine: Engine, async_engine: AsyncEngine) -> None:
    class Own:
        async def claim(self, lock_key: str, token: int) -> None: ...

    accounts = GatewayResource("http://127.0.0.1:7420/v1/resources/accounts", timeout=3)
    assert_type(accounts.key("acme", "7"), GatewayKey)
    locks = connect()
    locks.hold("a", claim=[accounts.key("7"), accounts.url, claimable(engine), claimable(async_engine), Own()])
    locks.hold_all(["a", "b"], claim={"a": [claimable(engine)]})
    locks.lead("service", claim=[accounts])
    locks.hold("a", claim=[3])  # type: ignore[list-item]
    with fencegate.sync.connect().hold("a", claim=[claimable(engine)]) as lease:
        httpx.Client(auth=LeaseAuth(lease, httpx.BasicAuth("me", "secret")))
    async with locks.hold("a") as async_lease:
        httpx.AsyncClient(auth=LeaseAuth(async_lease))


async def fences(sync_session: SqlSession, async_session: AsyncSession) -> None:
    fence = require_fence("acct:7")
    assert_type(fence, Fence)
    assert_type(fence.token, Token)
    assert_type(try_fence("acct:7"), Fence | None)
    assert_type(fence.headers(), dict[str, str])
    with fence.enforce(sync_session) as entered:
        assert_type(entered, SqlSession)
    async with fence.enforce(async_session) as entered_async:
        assert_type(entered_async, AsyncSession)
    assert_type(await fence.enforce(async_session), AsyncSession)


def errors(error: LockHeld) -> fencegate.FencegateError:
    assert_type(error.retry_after_ms, int)
    return error
