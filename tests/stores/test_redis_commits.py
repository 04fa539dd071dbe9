"""Commits in Redis that go together, as one call of a script: each keeps its promise, whatever befalls the others."""

import asyncio

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Change, Conflict, Store, TooLate, Unavailable
from fencegate.testing.change_log_suite import first_answer
from fencegate.testing.committing import by, gather_log, put
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redis import commits
from tests.real.redis import RedisServer, redis_program
from tests.stores.redis_fixtures import prefix, redis_server, redis_url, store

__all__ = ["prefix", "redis_program", "redis_server", "redis_url", "store"]


async def together(store: Store, *commits: list[Change], late: int = -1) -> list[BaseException | None]:
    """What became of each, when all but the first go as one; that one goes ahead, so that the others find it under
    way. The one with the number `late` is not in time."""
    ahead = store.commit([put(f"ahead/{SYSTEM.random_id()}")], [], by(store))
    landed = [
        asyncio.ensure_future(
            store.commit(
                changes, [(changes[0].key, b'{"n":1}')], by(store, -10_000_000 if number == late else 60_000_000)
            )
        )
        for number, changes in enumerate(commits)
    ]
    results = await asyncio.gather(ahead, *landed, return_exceptions=True)
    assert results[0] is None
    return results[1:]


def calls(server: RedisServer) -> int:
    stats = server.ask("INFO", "commandstats").decode()
    return int(stats.partition("cmdstat_evalsha:calls=")[2].partition(",")[0] or 0)


async def test_commits_of_one_turn_are_one_call(store: Store, redis_server: RedisServer) -> None:
    before = calls(redis_server)
    assert await together(store, *[[put(f"k{number}")] for number in range(10)]) == [None] * 10
    assert calls(redis_server) - before <= 4  # the one ahead, these, and a beat or two
    assert len(await store.load([f"k{number}" for number in range(10)])) == 10


async def test_one_that_conflicts_fails_alone_and_writes_nothing(store: Store) -> None:
    here = put("here")
    await together(store, [here])
    results = await together(
        store, [put("a")], [put("b"), put("here", "another")], [put("here", here.version, b'{"new":1}')], [put("c")]
    )
    assert [type(result) for result in results] == [type(None), Conflict, type(None), type(None)]
    found = await store.load(["a", "b", "c", "here"])
    assert sorted(found) == ["a", "c", "here"]
    assert found["here"].value == b'{"new":1}'


async def test_one_that_is_late_fails_alone(store: Store) -> None:
    results = await together(store, [put("a")], [put("b")], [put("c")], late=1)
    assert [type(result) for result in results] == [type(None), TooLate, type(None)]
    assert sorted(await store.load(["a", "b", "c"])) == ["a", "c"]


@pytest.mark.parametrize("foreign", [("SET", "a string of theirs"), ("LPUSH", "an item")])
async def test_one_that_meets_what_others_keep_there_fails_alone_and_changes_nothing_of_it(
    store: Store, redis_server: RedisServer, prefix: str, foreign: tuple[str, str]
) -> None:
    redis_server.ask(foreign[0], f"{prefix}lock:b", foreign[1])
    results = await together(store, [put("lock/a")], [put("lock/b")], [put("lock/c")])
    assert [type(result) for result in results] == [type(None), Unavailable, type(None)]
    assert "used by others" in str(results[1])
    assert redis_server.ask("TYPE", f"{prefix}lock:b") in (b"+string\r\n", b"+list\r\n")
    assert redis_server.ask("EXISTS", f"{prefix}lock:a", f"{prefix}lock:c") == b":2\r\n"


async def test_one_whose_name_is_no_text_fails_alone(store: Store) -> None:
    results = await together(store, [put("lock/a")], [put("lock/\ud800")], [put("lock/c")])
    assert [type(result) for result in results] == [type(None), Unavailable, type(None)]
    assert sorted(await store.load(["lock/a", "lock/c"])) == ["lock/a", "lock/c"]


async def test_of_two_that_write_one_key_the_first_lands(store: Store) -> None:
    first, second = put("k", value=b"1"), put("k", value=b"2")
    results = await together(store, [first], [put("beside"), second])
    assert [type(result) for result in results] == [type(None), Conflict]
    found = await store.load(["k", "beside"])
    assert {key: entry.version for key, entry in found.items()} == {"k": first.version}


@pytest.mark.parametrize("writer_is_first", [True, False])
async def test_what_one_compares_and_another_writes_is_as_if_they_went_one_after_the_other(
    store: Store, writer_is_first: bool
) -> None:
    old = put("k")
    await together(store, [old])
    writes = [put("k", old.version)]
    compares = [put("beside"), Change("k", old.version, compare_only=True)]
    results = await together(store, *([writes, compares] if writer_is_first else [compares, writes]))
    assert [type(result) for result in results] == [type(None), Conflict if writer_is_first else type(None)]


async def test_what_failed_takes_no_key_from_those_behind_it(store: Store) -> None:
    results = await together(store, [put("k"), put("missing", "never")], [put("k")])
    assert [type(result) for result in results] == [Conflict, type(None)]


async def test_one_key_deleted_and_another_written_are_found_and_listed_as_they_are(store: Store) -> None:
    old = put("lock/old")
    await together(store, [old], [put("lock/stays")])
    results = await together(store, [Change("lock/old", old.version, "gone")], [put("lock/new")], [put("done/r/k")])
    assert results == [None] * 3
    assert [key for key, _ in await store.scan("lock/", "", 10)] == ["lock/new", "lock/stays"]


async def test_the_log_tells_of_those_that_landed_in_their_order(store: Store) -> None:
    stream = store.changes(None)
    await first_answer(stream)
    await together(store, [put("a")], [put("b", "never")], [put("c")], [put("d")])
    lines = await gather_log(stream, 3)
    assert [line.key for line in lines] == ["a", "c", "d"]
    assert [line[:2] for line in lines] == sorted({line[:2] for line in lines})
    await together(store, [put("e")])
    (later,) = await gather_log(stream, 1)
    assert later.revision > lines[-1].revision


async def test_many_more_than_go_together_all_land(store: Store) -> None:
    number = 5 * commits.GO_TOGETHER + 3
    assert await together(store, *[[put(f"k{each}")] for each in range(number)]) == [None] * number
    assert len(await store.load([f"k{each}" for each in range(number)])) == number


async def test_large_commits_go_together_as_far_as_a_script_can_name_their_keys(store: Store) -> None:
    large = [[put(f"lock/{commit}/{each}") for each in range(900)] for commit in range(8)]
    assert await together(store, *large) == [None] * 8
    assert len(await store.scan("lock/", "", 10_000)) == 7200


async def test_a_commit_that_no_script_can_carry_is_refused_alone_and_nothing_of_it_is_written(store: Store) -> None:
    results = await together(store, [put("a")], [put(f"k{each}") for each in range(2001)], [put("b")])
    assert [type(result) for result in results] == [type(None), Unavailable, type(None)]
    assert not await store.load(["k0"])


async def test_after_a_flush_none_of_a_group_lands_and_the_next_ones_do(
    tmp_path_factory: pytest.TempPathFactory, redis_program: str
) -> None:
    server = RedisServer(tmp_path_factory.mktemp("flushed"), program=redis_program).start()
    try:
        store = await open_store(server.url)
        old = put("old")
        await together(store, [old])
        server.ask("FLUSHALL")
        results = await together(store, [put("a")], [put("old", old.version)], [put("b")])
        assert [type(result) for result in results] == [Conflict] * 3
        assert not await store.load(["a", "b", "old"])
        async with asyncio.timeout(20):
            while await together(store, [put(f"new/{SYSTEM.random_id()}")]) != [None]:
                await asyncio.sleep(0.01)
        await store.close()
    finally:
        server.terminate()


async def test_what_is_looked_at_in_the_moment_that_it_goes_leaves_nothing_in_the_index(
    store: Store, redis_server: RedisServer, prefix: str
) -> None:
    """The server still has a key in the millisecond that is its last; with many commits each of those is met."""
    rows = [put(f"history/k/{number}", keep_until_us=by(store, 100_000 + 1_000 * number)) for number in range(300)]
    await asyncio.gather(*(store.commit([row], [], by(store)) for row in rows))
    last, until_us = put("lock/k"), SYSTEM.monotonic_us() + 600_000
    await store.commit([last], [("lock/k", b"{}")], by(store))
    while SYSTEM.monotonic_us() < until_us:
        last = put("lock/k", last.version)
        settled = put(f"done/{SYSTEM.random_id()}/k", keep_until_us=by(store))
        log = [("lock/k", b"{}")]
        await asyncio.gather(store.commit([last], log, by(store)), store.commit([settled], [], by(store)))
    assert redis_server.ask("ZCARD", f"{prefix}fencegate-keep") == b":0\r\n"
    assert redis_server.ask("ZCARD", f"{prefix}fencegate-index") == b":1\r\n"
