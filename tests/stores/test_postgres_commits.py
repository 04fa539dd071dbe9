"""Commits to PostgreSQL against what else happens there: locks of others, deadlocks, backends that are ended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import LockHeld
from fencegate.core.model import Hold
from fencegate.core.ports import Ambiguous, Change, Conflict, Store, TooLate, Unavailable
from fencegate.engine import Engine
from fencegate.testing.caller import Caller
from fencegate.testing.change_log_suite import first_answer, log_revision
from fencegate.testing.committing import by, gather_log, is_past, put, write
from fencegate.testing.crowd import Crowd
from fencegate.testing.faulty_replicas import asked_again
from fencegate.testing.said import Said
from fencegate_lockservice.stores import open_store
from tests.eventually import eventually
from tests.real.postgres import PostgresServer
from tests.stores.postgres_fixtures import schema_of
from tests.stores.postgres_rival import Rival, rival

__all__ = ["rival"]


async def written(store: Store, *keys: str) -> list[Change]:
    changes = [put(key) for key in keys]
    for change in changes:
        await write(store, change)
    return changes


# --- others who lock our rows ---


async def test_a_deadlock_undoes_a_group_and_every_item_is_then_done_once(
    postgres_store: Store, postgres_server: PostgresServer, rival: Rival
) -> None:
    there = {change.key: change.version for change in await written(postgres_store, "a", "z")}
    start, lines = await log_revision(postgres_store), 0
    deadlocks = postgres_server.log().count("deadlock detected")
    for _ in range(10):  # a machine that is very slow may give up waiting before there is a deadlock
        rival.take("z")
        changes = [put(key, there.get(key)) for key in ("a", f"m-{SYSTEM.random_id()}", "z")]
        works = [asyncio.ensure_future(write(postgres_store, change)) for change in changes]
        await rival.is_waited_for()  # the group has locked "a", and wants "z"
        await asyncio.to_thread(rival.take, "a")  # once our group was undone, and let go of it
        rival.let_go()
        results = await asyncio.gather(*works, return_exceptions=True)
        assert all(result is None or isinstance(result, Unavailable) for result in results), results
        there |= {change.key: change.version for change, result in zip(changes, results, strict=True) if result is None}
        assert {key: entry.version for key, entry in (await postgres_store.load(list(there))).items()} == there
        lines += results.count(None)
        if results == [None] * 3 and postgres_server.log().count("deadlock detected") >= deadlocks + 2:
            break
    else:
        pytest.fail("there was no deadlock")
    assert len(await gather_log(postgres_store.changes(start), lines)) == lines


async def test_a_row_that_somebody_keeps_locked_holds_up_its_own_commit_only(
    postgres_store: Store, rival: Rival
) -> None:
    (kept,) = await written(postgres_store, "kept")
    rival.take("kept")
    works = [write(postgres_store, put(f"k{number}")) for number in range(3)]
    results = await asyncio.gather(*works, write(postgres_store, put("kept", kept.version)), return_exceptions=True)
    assert results[:3] == [None] * 3
    assert isinstance(results[3], Unavailable)
    rival.let_go()
    await write(postgres_store, put("kept", kept.version))  # it was not written, and can be now


async def test_a_commit_that_waits_for_a_row_until_it_is_too_late_writes_nothing(
    postgres_store: Store, rival: Rival
) -> None:
    (kept,) = await written(postgres_store, "kept")
    rival.take("kept")
    late_us = by(postgres_store, 300_000)
    commit = asyncio.ensure_future(postgres_store.commit([put("kept", kept.version)], [], late_us))
    await rival.is_waited_for()
    await eventually(lambda: is_past(postgres_store, late_us))
    rival.let_go()
    with pytest.raises((TooLate, Unavailable)):  # the latter when it waited for so long that it was given up
        await commit
    assert (await postgres_store.load(["kept"]))["kept"].version == kept.version


async def test_a_commit_that_waits_for_the_revision_until_it_is_too_late_writes_nothing(
    postgres_store: Store, rival: Rival
) -> None:
    """The revision comes last, after it was judged what is late."""
    start = await log_revision(postgres_store)
    rival.take_revision()
    late_us = by(postgres_store, 500_000)
    commit = asyncio.ensure_future(postgres_store.commit([put("k")], [("k", b"{}")], late_us))
    await eventually(lambda: is_past(postgres_store, late_us))
    rival.let_go()
    with pytest.raises((TooLate, Unavailable)):
        await commit
    assert "k" not in await postgres_store.load(["k"])
    assert await log_revision(postgres_store) == start


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", ["lock/", ""])
async def test_of_two_who_each_compare_what_the_other_writes_exactly_one_wins(
    postgres_store: Store, postgres_url: str, rival: Rival, there: bool, kind: str
) -> None:
    """Both are judged before either commits, unless what is only compared is locked until then, absent or not."""
    other = await open_store(postgres_url)
    for number in range(10):  # a machine that is very slow may give up waiting
        one, two = f"{kind}one-{number}", f"{kind}two-{number}"
        before = {change.key: change.version for change in await written(other, *([one, two] if there else []))}
        rival.take_revision()
        works = [
            write(store, put(written_, before.get(written_)), Change(seen, before.get(seen), compare_only=True))
            for store, written_, seen in ((postgres_store, one, two), (other, two, one))
        ]
        running = asyncio.gather(*works, return_exceptions=True)
        await rival.is_waited_for(backends=2)
        rival.let_go()
        results = await running
        if not any(isinstance(result, Unavailable) for result in results):
            break
    assert {type(result) for result in results} == {type(None), Conflict}
    await other.close()


async def test_of_many_who_create_one_key_through_several_replicas_exactly_one_wins(
    postgres_store: Store, postgres_url: str
) -> None:
    others = [await open_store(postgres_url) for _ in range(3)]
    for number in range(10):
        rivals = [put(f"k{number}") for _ in range(8)]
        works = [write([postgres_store, *others][at % 4], rival) for at, rival in enumerate(rivals)]
        results = await asyncio.gather(*works, return_exceptions=True)
        (won,) = [rival for rival, result in zip(rivals, results, strict=True) if result is None]
        assert sum(isinstance(result, Conflict) for result in results) == 7
        assert (await others[0].load([won.key]))[won.key].version == won.version
    for other in others:
        await other.close()


# --- backends that are ended ---


@contextlib.asynccontextmanager
async def terminating(server: PostgresServer) -> AsyncIterator[None]:
    """Backends of ours are ended again and again."""
    ours = "FROM pg_stat_activity WHERE application_name = 'fencegate' AND random() < 0.5"

    async def work() -> None:
        while True:
            await asyncio.to_thread(server.execute, f"SELECT pg_terminate_backend(pid) {ours}")
            await asyncio.sleep(0.02)

    working = asyncio.ensure_future(work())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.wait([working])


async def test_backends_ended_in_the_middle_of_commits_leave_every_answer_true(
    postgres_store: Store, postgres_server: PostgresServer
) -> None:
    said = Said()
    async with terminating(postgres_server):
        for _ in range(30):
            await asyncio.gather(*(said.commit(postgres_store, 0.001 * delay) for delay in range(8)))
            await said.is_back(postgres_store)
    await said.is_back(postgres_store)
    await said.judge(postgres_store)
    assert said.count("done")
    assert said.count("Ambiguous", "Unavailable"), "none of them was in the middle of a commit"


async def test_backends_ended_in_the_middle_of_commits_break_no_promise(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    stores = [await open_store(postgres_url) for _ in range(2)]
    engines = [Engine(store, SYSTEM, replica=f"replica-{number}") for number, store in enumerate(stores)]
    for engine in engines:
        await engine.start()
    async with Crowd(engines) as crowd:
        await crowd.is_served(1)
        async with terminating(postgres_server):
            await crowd.fails(3)
        await crowd.is_served()
    for engine, store in zip(engines, stores, strict=True):
        await engine.close()
        await store.close()


async def test_a_backend_ended_when_its_commit_is_done_but_not_answered_leaves_it_unknown_and_a_lock_granted_once(
    postgres_store: Store, postgres_server: PostgresServer
) -> None:
    """It waits for a standby that never comes: what it wrote is there, and whoever asked hears nothing of it."""
    at_work = "FROM pg_stat_activity WHERE application_name = 'fencegate' AND wait_event = 'SyncRep'"
    engine = Engine(postgres_store, SYSTEM)
    await engine.start()
    change, caller = put("k"), Caller(engine, "A")
    acquire = partial(caller.acquire, "once", name="once", ttl_s=60)

    async def end_it() -> None:
        await eventually(lambda: postgres_server.execute(f"SELECT count(*) > 0 {at_work}") == [(True,)])
        postgres_server.execute(f"SELECT pg_terminate_backend(pid) {at_work}")

    postgres_server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    postgres_server.execute("SELECT pg_reload_conf()")
    try:
        commit = asyncio.ensure_future(write(postgres_store, change))
        await end_it()
        with pytest.raises(Ambiguous):
            await commit
        asking = asyncio.ensure_future(acquire())
        await end_it()
    finally:
        postgres_server.execute("ALTER SYSTEM RESET synchronous_standby_names")
        postgres_server.execute("SELECT pg_reload_conf()")
    assert (await postgres_store.load(["k"]))["k"].version == change.version
    told = await asyncio.gather(asking, return_exceptions=True)
    again = await asked_again(acquire)
    assert [hold.token for hold in told if isinstance(hold, Hold)] in ([], [again.token])
    with pytest.raises(LockHeld):
        await asked_again(lambda: Caller(engine, "B").acquire("once"))
    await engine.close()


# --- the log ---


async def test_the_log_is_compacted_and_who_was_before_that_is_told_a_reset(
    postgres_store: Store, postgres_server: PostgresServer, postgres_url: str
) -> None:
    schema = schema_of(postgres_url)
    start = await log_revision(postgres_store)
    await write(postgres_store, put("old"), events=3)
    middle = await log_revision(postgres_store)
    postgres_server.execute(f"UPDATE {schema}.fencegate_meta SET lines_written = 200000")
    await write(postgres_store, put("new"), events=300)
    other = await open_store(postgres_url)
    assert (await first_answer(other.changes(start))).reset
    assert len(await gather_log(other.changes(middle), 300)) == 300
    await other.close()
    ((kept, dropped),) = postgres_server.execute(
        f"SELECT (SELECT count(*) FROM {schema}.fencegate_log), lines_dropped FROM {schema}.fencegate_meta"
    )
    assert (kept, dropped) == (300, 3)


async def test_a_commit_with_very_many_lines_is_read_back_in_order(postgres_store: Store) -> None:
    start = await log_revision(postgres_store)
    await write(postgres_store, put("k"), events=33_000)
    lines = await gather_log(postgres_store.changes(start), 33_000)
    assert [line.event for line in lines] == [b'{"n":%d}' % number for number in range(33_000)]
    assert max(line.line for line in lines) < 65_536


async def test_revisions_follow_the_clock_so_that_they_rise_after_a_restore(
    postgres_store: Store, postgres_server: PostgresServer, postgres_url: str
) -> None:
    await write(postgres_store, put("before"))
    before = await log_revision(postgres_store)
    postgres_server.execute(f"UPDATE {schema_of(postgres_url)}.fencegate_meta SET revision = 7")
    await write(postgres_store, put("after"))
    other = await open_store(postgres_url)
    assert before < await log_revision(other) < 2**47
    await other.close()
