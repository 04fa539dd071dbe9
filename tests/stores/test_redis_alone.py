"""Commits in Redis that go alone: those of the commonest kind have a script of their own, which does what the other
does."""

import asyncio

import pytest

from fencegate.core.ports import Ambiguous, Change, Conflict, Store, TooLate, Unavailable
from fencegate.testing.change_log_suite import first_answer
from fencegate.testing.committing import by, gather_log, put
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redis import server
from fencegate_lockservice.stores.redis.alone import Alone
from tests.real.redis import RedisServer, redis_program
from tests.stores.redis_fixtures import prefix, redis_server, redis_url, store

__all__ = ["prefix", "redis_program", "redis_server", "redis_url", "store"]

LOG = [("lock/k", b"{}")]


@pytest.fixture(params=["alone", "as all others"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "alone":
        monkeypatch.setattr(Alone, "pack", lambda *_: None)
    return str(request.param)


async def commit(store: Store, *changes: Change, in_us: int = 60_000_000) -> None:
    await store.commit(list(changes), LOG, by(store, in_us))


def settled(store: Store, request: str = "r", expected: str | None = None) -> Change:
    return put(f"done/{request}/k", expected, keep_until_us=by(store, 60_000_000))


async def a_lock(store: Store, key: str = "lock/k") -> str:
    first = put(key, value=b'"first"')
    await commit(store, first)
    return first.version


def test_the_commonest_are_known_and_no_others(way: str) -> None:
    if way != "alone":
        return
    pack, lock = Alone("0" * 40, "", "$1\r\nw\r\n").pack, put("lock/k", "1")
    done = put("done/r/k", keep_until_us=2_000_000)
    for changes in ([lock], [done, lock]):
        assert pack(changes, LOG, 1) is not None
    others = [
        [put("lock/k")],
        [put("session/s", "1")],
        [Change("lock/k", "1", "2")],
        [Change("lock/k", "1", compare_only=True)],
        [put("lock/k", "1", keep_until_us=2_000_000)],
        [done],
        [lock, done],
        [put("lock/j", "1"), lock],
        [put("session/s", keep_until_us=2_000_000), lock],
        [put("done/r/k", "1", keep_until_us=2_000_000), lock],
        [Change("done/r/k", None, compare_only=True), lock],
        [done, done, lock],
    ]
    for changes in others:
        assert pack(changes, LOG, 1) is None
    assert pack([lock], [], 1) is None


@pytest.mark.parametrize("key", ["lock/k", "lock/ü:é", "lock/a/b:c", "lock/"])
async def test_it_is_written_and_told(store: Store, key: str) -> None:
    version = await a_lock(store, key)
    stream = store.changes(None)
    await first_answer(stream)
    second, third = put(key, version, b'"second"'), put(key, value=b'"third"')
    await commit(store, second)
    await commit(store, settled(store, "ü"), third._replace(expected=second.version))
    found = await store.load([key, "done/ü/k"])
    assert found[key] == (third.version, b'"third"')
    assert len(found) == 2
    one, other = await gather_log(stream, 2)
    assert (one.key, other.key, other.revision - one.revision) == ("lock/k", "lock/k", 1)


async def test_what_was_settled_is_kept_for_its_time(store: Store, redis_server: RedisServer, prefix: str) -> None:
    await commit(store, settled(store), put("lock/k", await a_lock(store)))
    left_ms = int(redis_server.ask("PTTL", f"{prefix}done:r/k")[1:])
    assert 50_000 < left_ms <= 61_000
    assert redis_server.ask("PTTL", f"{prefix}lock:k") == b":-1\r\n"


async def test_after_another_version_nothing_is_written(store: Store) -> None:
    version = await a_lock(store)
    for expected in ("another", version[:-1], version + "0", ""):
        with pytest.raises(Conflict):
            await commit(store, settled(store), put("lock/k", expected))
    with pytest.raises(Conflict):
        await commit(store, put("lock/missing", version))
    found = await store.load(["lock/k", "lock/missing", "done/r/k"])
    assert dict(found) == {"lock/k": (version, b'"first"')}


async def test_a_request_that_was_settled_before_is_a_conflict(store: Store) -> None:
    version = await a_lock(store)
    before = settled(store)
    await commit(store, before)
    with pytest.raises(Conflict):
        await commit(store, settled(store), put("lock/k", version))
    found = await store.load(["lock/k", "done/r/k"])
    assert {key: entry.version for key, entry in found.items()} == {"lock/k": version, "done/r/k": before.version}


async def test_what_comes_too_late_is_not_written(store: Store) -> None:
    version = await a_lock(store)
    with pytest.raises(TooLate):
        await commit(store, settled(store), put("lock/k", version), in_us=-10_000_000)
    assert dict(await store.load(["lock/k", "done/r/k"])) == {"lock/k": (version, b'"first"')}


async def test_what_others_keep_there_stays_as_it_is(store: Store, redis_server: RedisServer, prefix: str) -> None:
    redis_server.ask("SET", f"{prefix}lock:k", "a string of theirs")
    redis_server.ask("LPUSH", f"{prefix}lock:list", "an item")
    with pytest.raises(Unavailable, match="used by others"):
        await commit(store, settled(store), put("lock/k", "1"))
    with pytest.raises(Conflict):
        await commit(store, settled(store), put("lock/list", "1"))
    assert redis_server.ask("GET", f"{prefix}lock:k").endswith(b"a string of theirs\r\n")
    assert redis_server.ask("TYPE", f"{prefix}lock:list") == b"+list\r\n"
    assert redis_server.ask("EXISTS", f"{prefix}done:r/k") == b":0\r\n"


async def test_a_log_that_is_gone_is_noticed_before_anything_is_written(
    redis_server: RedisServer, redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is still there, so that only the log tells of it; and no beat may come first."""
    monkeypatch.setattr(server, "BEAT_S", 60.0)
    store = await open_store(redis_url)
    version = await a_lock(store)
    redis_server.ask("DEL", f"{prefix}fencegate-log", f"{prefix}fencegate-newest")
    with pytest.raises(Conflict):
        await commit(store, settled(store), put("lock/k", version))
    found = await store.load(["lock/k", "done/r/k"])
    assert {key: entry.version for key, entry in found.items()} == {"lock/k": version}
    await commit(store, settled(store), put("lock/k", version))
    await store.close()


async def test_nothing_is_written_that_the_log_can_not_tell_of(
    store: Store, redis_server: RedisServer, prefix: str
) -> None:
    version = await a_lock(store)
    redis_server.ask("DEL", f"{prefix}fencegate-log")
    redis_server.ask("SET", f"{prefix}fencegate-log", "theirs")
    with pytest.raises(Ambiguous, match="used by others"):
        await commit(store, settled(store), put("lock/k", version))
    assert dict(await store.load(["lock/k", "done/r/k"])) == {"lock/k": (version, b'"first"')}
    redis_server.ask("DEL", f"{prefix}fencegate-log")


async def test_a_script_that_the_server_forgot_is_brought_again(store: Store, redis_server: RedisServer) -> None:
    version = await a_lock(store)
    redis_server.ask("SCRIPT", "FLUSH")
    last = put("lock/k", version)
    await commit(store, last)
    assert (await store.load(["lock/k"]))["lock/k"].version == last.version


async def test_what_is_due_but_not_gone_yet_is_taken_away_when_it_is(
    store: Store, redis_server: RedisServer, prefix: str
) -> None:
    """Within one millisecond an entry is due for us and still there for the server."""
    version = await a_lock(store)
    await store.commit([put("session/s", keep_until_us=by(store, 3_600_000_000))], [], by(store))
    redis_server.ask("ZADD", f"{prefix}fencegate-keep", "1", "session/s")
    for _ in range(64):
        change = put("lock/k", version)
        await commit(store, change)
        version = change.version
    assert redis_server.ask("ZCARD", f"{prefix}fencegate-keep") == b":1\r\n"


async def test_now_and_then_it_takes_away_what_is_past_its_time(
    store: Store, redis_server: RedisServer, prefix: str
) -> None:
    version = await a_lock(store)
    await store.commit([put("session/s", keep_until_us=by(store, 1))], [], by(store))
    await asyncio.sleep(0.01)
    for _ in range(64):
        change = put("lock/k", version)
        await commit(store, change)
        version = change.version
    assert redis_server.ask("ZCARD", f"{prefix}fencegate-keep") == b":0\r\n"
    assert redis_server.ask("ZCARD", f"{prefix}fencegate-index") == b":1\r\n"
