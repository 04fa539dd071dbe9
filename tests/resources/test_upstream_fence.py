"""The durable fence in front of a service: writes under way are known to all, until they end or their time is over."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from fencegate.clock import ManualClock
from fencegate.core.errors import ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate_adapters.http import Upstream
from fencegate_adapters.http.exchange import Sending
from fencegate_adapters.http.fence import databases, durable
from fencegate_adapters.http.fence.databases import database
from fencegate_adapters.http.fence.durable import DurableFence
from fencegate_adapters.http.fence.record import Record
from tests.eventually import eventually
from tests.resources.databases import make_database

LENGTH_US = 10_000_000


@asynccontextmanager
async def opened(folder: Path, clock: ManualClock, mode: str = "enforce") -> AsyncIterator[DurableFence]:
    fence = DurableFence(f"sqlite:///{folder / 'fence.db'}", Record("api", "{resource}:{key}", "[]", mode), clock)
    try:
        await fence.open()
        yield fence
    finally:
        await fence.close()


async def test_an_older_write_is_known_to_every_fence_until_it_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock) as one, opened(tmp_path, clock) as two:
        older = await one.announce("k", 7, LENGTH_US, drained=True)
        assert older.intent is not None
        assert (await one.announce("k", 7, LENGTH_US, drained=True)).intent is not None  # the same holder
        again = await two.announce("k", 8, LENGTH_US, drained=True)
        assert (again.intent, again.blocked_us, again.seen.mark) == (None, LENGTH_US, 8)
        assert (await two.claim("k", 8)).blocked_us == LENGTH_US
        assert (await two.announce("other", 8, LENGTH_US, drained=True)).intent is not None
        with pytest.raises(StaleToken):
            await one.announce("k", 7, LENGTH_US, drained=True)
        one.end("k", older.intent)
        assert (await one.claim("k", 8)).blocked_us == LENGTH_US, "the other write of that holder goes on"


async def test_a_write_that_nobody_ended_is_over_at_its_deadline_and_not_before(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock) as fence:
        await fence.announce("k", 7, LENGTH_US, drained=True)
    async with opened(tmp_path, clock) as fence:  # after a restart, too
        clock.advance(9.999)
        assert await fence.older("k", 8) == 1000
        assert (await fence.announce("k", 8, LENGTH_US, drained=True)).intent is None
        clock.advance(0.001)
        assert await fence.older("k", 8) == 0
        clock.advance(1)
        assert await fence.older("k", 8) == 0
        assert (await fence.announce("k", 8, LENGTH_US, drained=True)).intent is not None


async def test_a_write_of_a_former_boot_is_over(tmp_path: Path) -> None:
    async with opened(tmp_path, ManualClock(now_us=900_000_000)) as fence:
        await fence.announce("k", 7, LENGTH_US, drained=True)
    async with opened(tmp_path, ManualClock(now_us=5_000_000)) as fence:  # the machine was started anew
        assert (await fence.announce("k", 8, LENGTH_US, drained=True)).intent is not None
        with pytest.raises(StaleToken):
            await fence.claim("k", 7)


async def test_one_that_is_stale_fails_alone_in_its_group(tmp_path: Path) -> None:
    async with opened(tmp_path, ManualClock()) as fence:
        await fence.claim("b", 9)
        claims = [fence.claim(key, 5) for key in ("a", "b", "c")]
        first, second, third = await asyncio.gather(*claims, return_exceptions=True)
        assert isinstance(second, StaleToken)
        assert not isinstance(first, BaseException)
        assert not isinstance(third, BaseException)
        assert [await fence.mark(key) for key in ("a", "b", "c")] == [5, 9, 5]


async def test_a_caller_that_goes_away_leaves_no_write_behind(tmp_path: Path) -> None:
    async with opened(tmp_path, ManualClock()) as fence:
        announcing = asyncio.create_task(fence.announce("k", 7, LENGTH_US, drained=True))
        await asyncio.sleep(0)
        announcing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await announcing
        await fence.claim("other", 1)  # what was submitted before is committed by now, and its end is on its way
        await fence.claim("other", 2)
        assert await fence.older("k", 8) == 0


async def test_shadow_mode_announces_nothing_and_waits_for_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path, ManualClock(), "shadow") as fence:
        assert (await fence.announce("k", 9, LENGTH_US, drained=True)).intent is None
        stale = await fence.announce("k", 7, LENGTH_US, drained=True)
        assert stale.seen.shadow is not None
        assert stale.blocked_us == 0


async def test_a_database_that_stands_still_refuses_in_time_and_nothing_stays_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, ManualClock()) as fence:
        with closing(sqlite3.connect(tmp_path / "fence.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with monkeypatch.context() as patched:
                patched.setattr(durable, "ANSWER_WITHIN_S", 0.1)
                with pytest.raises(ResourceUnavailable) as refused:
                    await fence.announce("k", 7, LENGTH_US, drained=True)
            assert refused.value.outcome == "not-written"
            other.execute("ROLLBACK")

        async def settled() -> bool:
            return await fence.mark("k") == 7 and await fence.older("k", 8) == 0

        await eventually(settled)


async def test_ten_gateways_that_open_at_once_make_the_tables_of_mysql_once(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for _ in range(5):
        url, record = (
            make_database("mariadb", request, tmp_path).url,
            Record("api", "{resource}:{key}", "[]", "enforce"),
        )
        fences = [DurableFence(url, record, ManualClock()) for _ in range(10)]
        await asyncio.gather(*(fence.open() for fence in fences))
        for fence in fences:
            await fence.close()


async def test_a_gateway_that_stands_still_inside_a_transaction_is_ended_by_mysql(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "STALLED_MS", 1000)
    url, clock = make_database("mariadb", request, tmp_path).url, ManualClock()
    fence, stopped = DurableFence(url, Record("api", "{resource}:{key}", "[]", "enforce"), clock), database(url, clock)
    await fence.open()
    await fence.claim("k", 7)
    engine = stopped.engine()
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM fencegate_http_marks FOR UPDATE")
        assert (await fence.claim("k", 8)).seen.mark == 8
        connection.invalidate()
    engine.dispose()
    await fence.close()


async def _refused(fence: DurableFence, why: str) -> None:
    with pytest.raises(UnsafeConfiguration, match=why):
        await fence.open()
    await fence.close()


async def test_a_database_that_may_lose_what_it_has_committed_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record("api", "{resource}:{key}", "[]", "enforce")
    late = make_database("postgresql", request, tmp_path).url + "%20-csynchronous_commit%3Doff"  # its last is `options`
    await _refused(DurableFence(late, record, ManualClock()), "synchronous_commit=off")
    mysql, server = make_database("mariadb", request, tmp_path).url, request.getfixturevalue("mysql_server")
    server.ask("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        await _refused(DurableFence(mysql, record, ManualClock()), "innodb_flush_log_at_trx_commit")
    finally:
        server.ask("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    monkeypatch.setattr(databases.Sqlite, "_connected", staticmethod(lambda _driver, _record: None))  # no WAL
    await _refused(DurableFence(f"sqlite:///{tmp_path / 'fence.db'}", record, ManualClock()), "durable")


async def test_tables_in_mysql_roll_back_and_keep_names_apart_whatever_the_server_does_by_default(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    mysql, server = make_database("mariadb", request, tmp_path), request.getfixturevalue("mysql_server")
    mysql.execute("ALTER DATABASE COLLATE utf8mb4_general_ci")
    server.ask("SET GLOBAL default_storage_engine = Aria")
    try:
        for name, guard in (("api", "a:{key}"), ("API", "b:{key}")):  # else the second finds the guard of the first
            fence = DurableFence(mysql.url, Record(name, guard, "[]", "enforce"), ManualClock())
            await fence.open()
            await fence.close()
    finally:
        server.ask("SET GLOBAL default_storage_engine = InnoDB")
    mysql.execute("ALTER TABLE fencegate_http_marks ENGINE = Aria")
    record = Record("api", "a:{key}", "[]", "enforce")
    await _refused(DurableFence(mysql.url, record, ManualClock()), "fencegate_http_marks is kept by Aria")


@pytest.mark.parametrize("parts", [[b"first", b"last"], [b"all of it"], []])
async def test_the_end_of_a_body_is_not_sent_by_a_gateway_that_stood_still_past_its_time(parts: list[bytes]) -> None:
    clock = ManualClock()
    sending = Sending(clock, clock.monotonic_us() + 1_000_000)
    sent: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async def stands_still() -> None:
        clock.advance(2)

    with pytest.raises(ResourceUnavailable, match="longer than it may"):
        going = sending.parts(body(), stands_still)
        while True:
            sent.append(await anext(going))
    assert sent == parts[:-1]


async def test_nor_are_the_chunks_ended_when_it_stands_still_while_the_last_one_goes() -> None:
    clock = ManualClock()
    sending = Sending(clock, clock.monotonic_us() + 1_000_000)

    async def body() -> AsyncIterator[bytes]:
        yield b"last"

    async def nothing() -> None:
        pass

    parts = sending.parts(body(), nothing)
    assert await anext(parts) == b"last"
    clock.advance(2)
    with pytest.raises(ResourceUnavailable, match="longer than it may"):
        await anext(parts)


async def test_a_file_that_is_no_database_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "fence.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(ResourceUnavailable) as failed:
        async with opened(tmp_path, ManualClock()):
            pass
    assert failed.value.outcome == "not-written"


async def test_a_changed_rule_refuses_to_open_until_the_floor_is_raised(tmp_path: Path) -> None:
    def upstream(form: str) -> Upstream:
        return Upstream("api", "http://127.0.0.1:9", fence=f"sqlite:///{tmp_path / 'fence.db'}", form=form)

    first, changed = upstream('[["/a", "x"]]'), upstream('[["/a", "y"]]')
    await first.open()
    with pytest.raises(UnsafeConfiguration, match="fencegate fence floor api"):
        await changed.open()
    await changed.raise_floor(50)
    await changed.open()
    with pytest.raises(StaleToken):
        await changed.claim("y", 49)
    with pytest.raises(UnsafeConfiguration):
        await first.claim("x", 60)
    for each in (first, changed):
        await each.close()


@pytest.mark.parametrize(
    ("settings", "kind", "says", "says_not"),
    [
        ({}, "best-effort", "awaited before a newer token's first", "the service compares"),
        ({"mode": "shadow"}, "best-effort", "SQLite", "awaited"),
        ({"upstream_checks": True}, "atomic", "a claim is kept here only, as best effort", "awaited"),
        ({"upstream_checks": True, "upstream_claims": True}, "atomic", "claims are passed on", "best effort"),
    ],
)
async def test_what_is_promised_is_what_is_done(
    tmp_path: Path, settings: dict[str, Any], kind: str, says: str, says_not: str
) -> None:
    fence = f"sqlite:///{tmp_path / 'fence.db'}"
    guarantee = Upstream("api", "http://127.0.0.1:9", fence=fence, **settings).guarantee
    assert guarantee.kind == kind
    assert says in guarantee.durability
    assert says_not not in guarantee.durability
