"""The Redis store against a real server: the whole store suite, and what is kept there under which names."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from fencegate import connect
from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Change, Store, Unavailable
from fencegate.engine import Engine
from fencegate.testing.caller import Caller
from fencegate.testing.change_log_suite import first_answer
from fencegate.testing.committing import OpenStore, by, gather_log, put, write
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice.stores import open_store as open_url
from fencegate_lockservice.stores.redis.settings import judge
from fencegate_lockservice.stores.redis.url import parse
from tests.real.redis import RedisServer, redis_program
from tests.stores.redis_fixtures import redis_server, redis_url

__all__ = ["redis_program", "redis_server", "redis_url"]


class TestRedisStore(StoreSuite):
    @pytest.fixture
    def open_store(self, redis_url: str) -> OpenStore:
        async def open_() -> Store:
            return await open_url(redis_url)

        return open_

    @pytest.fixture
    def opening(self, redis_url: str) -> str:
        return (
            "from fencegate_lockservice import stores\n"
            f"async def open_store(): return await stores.open_store({redis_url!r})\n"
        )


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    store = await open_url(redis_url)
    yield store
    await store.close()


@pytest.fixture
def prefix(redis_url: str) -> str:
    return redis_url.partition("prefix=")[2]


# --- the change log --------------------------------------------------------------------------------------------------


async def test_a_new_log_is_told_from_its_first_line_on(store: Store, redis_url: str) -> None:
    await write(store, put("first"))
    other = await open_url(redis_url)
    await write(other, put("second"))
    assert [line.key for line in await gather_log(other.changes(0), 2)] == ["first", "second"]
    await other.close()


async def test_whoever_uses_the_store_directly_finds_in_the_history_what_came_before_it_was_asked_for(
    redis_url: str,
) -> None:
    async with connect(redis_url) as locks:
        async with locks.hold("k") as lease:
            pass
        history = await locks.history("k")
    assert ([hold.token for hold in history.holds], history.complete) == ([lease.token], True)


# --- names -----------------------------------------------------------------------------------------------------------


async def test_a_lock_is_found_under_a_name_that_a_person_can_read(
    store: Store, redis_server: RedisServer, prefix: str
) -> None:
    engine = Engine(store)
    await engine.start()
    hold = await Caller(engine, "alice").acquire("orders:7")
    found = redis_server.ask("GET", f"{prefix}lock:orders:7").decode()
    assert '"alice"' in found
    assert str(hold.token) in found
    await engine.close()


async def test_no_two_keys_meet_under_one_name(store: Store) -> None:
    keys = ["a/b:c", "a:b/c", "a:b:c", ":a/b", "/a", ":", "/", "::", "fencegate-log", "fencegate/log", "-log/x", "é/ü"]
    changes = {key: put(key, value=key.encode()) for key in keys}
    for change in changes.values():
        await write(store, change)
    found = await store.load(keys)
    assert {key: entry.value for key, entry in found.items()} == {key: key.encode() for key in keys}
    assert [key for key, _ in await store.scan("", "", 100)] == sorted(keys, key=str.encode)
    for key, change in changes.items():
        await write(store, Change(key, change.version, "gone"))
    assert not await store.load(keys)
    assert not await store.scan("", "", 100)


async def test_two_prefixes_are_two_stores(redis_server: RedisServer, store: Store) -> None:
    other = await open_url(f"{redis_server.url}?prefix={SYSTEM.random_id(4)}:")
    await write(store, put("k"))
    assert not await other.load(["k"])
    await write(other, put("k"))
    await other.close()


async def test_a_prefix_is_taken_as_it_is_whatever_is_in_it(redis_server: RedisServer) -> None:
    prefix = SYSTEM.random_id(4) + "50%1'\\{prefix}--é:"
    store = await open_url(f"{redis_server.url}?prefix={quote(prefix)}")
    for key in ("lock/k", "k"):
        await write(store, put(key))
    assert [key for key, _ in await store.scan("", "", 10)] == ["k", "lock/k"]
    names = [f"{prefix}{name}" for name in ("lock:k", ":k", "fencegate-log", "fencegate-newest", "fencegate-reign")]
    assert redis_server.ask("EXISTS", *names) == b":5\r\n"
    await store.close()


async def test_an_entry_that_was_deleted_by_hand_is_absent_and_holds_up_no_scan(
    store: Store, redis_server: RedisServer, prefix: str
) -> None:
    for number in range(6):
        await write(store, put(f"p/{number}"))
    for number in range(4):
        redis_server.ask("DEL", f"{prefix}p:{number}")
    assert [key for key, _ in await store.scan("p/", "", 2)] == ["p/4", "p/5"]
    await write(store, put("p/0"))
    assert [key for key, _ in await store.scan("p/", "", 2)] == ["p/0", "p/4"]


async def test_what_was_forgotten_leaves_nothing_behind(store: Store, redis_server: RedisServer, prefix: str) -> None:
    for number in range(40):
        await write(store, put(f"done/{number}", keep_until_us=by(store, 1)))
    for number in range(50):
        await write(store, put(f"lock/{number}"))
    assert redis_server.ask("ZCARD", f"{prefix}fencegate-keep") == b":0\r\n"
    assert redis_server.ask("ZCARD", f"{prefix}fencegate-index") == b":50\r\n"


# --- many at once ----------------------------------------------------------------------------------------------------


async def test_callers_that_go_away_leave_the_answers_of_the_others_right(store: Store) -> None:
    for number in range(50):
        await write(store, put(f"k{number}", value=b'"%d"' % number))
    loads = [asyncio.ensure_future(store.load([f"k{number % 50}"])) for number in range(300)]
    commits = [asyncio.ensure_future(write(store, put(f"new-{number}"))) for number in range(100)]
    await asyncio.sleep(0)
    for work in [*loads[::3], *commits[::2]]:
        work.cancel()
    results = await asyncio.gather(*loads, return_exceptions=True)
    for number, found in enumerate(results):
        if number % 3:
            assert not isinstance(found, BaseException)
            assert found[f"k{number % 50}"].value == b'"%d"' % (number % 50)
    await asyncio.gather(*commits, return_exceptions=True)
    assert len(await store.load([f"new-{number}" for number in range(1, 100, 2)])) == 50


async def test_many_large_values_are_carried_both_ways_at_once(store: Store) -> None:
    large = b"x" * 1_000_000
    changes = [put(f"k{number}", value=large + b"%d" % number) for number in range(12)]
    await asyncio.gather(*(write(store, change) for change in changes))
    found = await asyncio.gather(*(store.load([change.key]) for change in changes))
    assert [dict(entry) for entry in found] == [{change.key: (change.version, change.value)} for change in changes]


async def test_what_is_no_text_is_refused_alone(store: Store) -> None:
    good, bad = write(store, put("good")), write(store, put("\ud800"))
    results = await asyncio.gather(good, bad, return_exceptions=True)
    assert results[0] is None
    assert isinstance(results[1], Unavailable)
    with pytest.raises(Unavailable):
        await store.load(["\ud800"])


async def test_closing_leaves_neither_tasks_nor_sockets_behind(redis_url: str) -> None:
    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    files, tasks = open_files(), asyncio.all_tasks()
    for _ in range(3):
        store = await open_url(redis_url)
        stream = store.changes(None)
        await anext(stream)
        await write(store, put(SYSTEM.random_id()))
        await stream.aclose()
        await store.close()
        await store.close()
        for refused in (store.load(["k"]), write(store, put("k")), store.scan("", "", 1), store.inspect()):
            with pytest.raises(Unavailable):
                await refused
    assert asyncio.all_tasks() == tasks
    assert open_files() == files


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        "redis://",
        "redis:///0",
        "redis://u:hunter2@:6379",
        "redis://u:hunter2@host:port",
        "redis://u:hunter2@host:99999",
        "redis://:hunter2@host/zero",
        "redis://:hunter2@host/0/1",
        "redis://:hunter2@host/-1",
        "redis://:hunter2@host/0#x",
        "redis://:hunter2@a:1,b:2/0",
        "redis://:hunter2@host/0?prefx=a",
        "redis://:hunter2@host/0?prefix",
        "redis://:hunter2@host/0?prefix=a%0Ab",
        "redis://:hunter2@host/0?ssl_ca_certs=/x",
        "redis://:hunter[2@host/0",
        "rediss://:hunter2@host/0?ssl_keyfile=/x",
        "rediss://:hunter2@host/0?ssl_ca_certs=/nowhere/ca.pem",
    ],
)
async def test_a_url_that_can_not_be_used_is_refused_without_showing_its_password(bad: str) -> None:
    with pytest.raises(UnsafeConfiguration, match="URL") as refused:
        await open_url(bad)
    assert "hunter" not in str(refused.value)


def test_a_url_says_where_and_as_whom() -> None:
    address = parse("redis://al%40ice:p%2Fw@[::1]:6380/3?prefix=app:")
    assert (address.host, address.port, address.db, address.prefix) == ("::1", 6380, 3, "app:")
    assert (address.username, address.password, address.tls) == ("al@ice", "p/w", None)
    assert "p/w" not in f"{address} {address!r}"
    assert parse("rediss://host").tls is not None
    assert parse("redis://host").port == 6379


async def test_a_server_that_is_not_there_is_unavailable(redis_server: RedisServer) -> None:
    with pytest.raises(Unavailable, match="can't be reached"):
        await open_url("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable, match="DB index"):
        await open_url(f"redis://127.0.0.1:{redis_server.port}/4711")


# --- settings --------------------------------------------------------------------------------------------------------

SAFE = {"maxmemory": "0", "maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}


@pytest.mark.parametrize(
    ("settings", "replicas", "levels"),
    [
        ({}, 0, ["fine", "fine"]),
        ({"maxmemory-policy": "allkeys-lru"}, 0, ["warning", "fine"]),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "1000"}, 0, ["unsafe", "fine"]),
        ({"maxmemory-policy": "volatile-ttl", "maxmemory": "1000"}, 0, ["warning", "fine"]),
        ({"appendonly": "no"}, 0, ["fine", "warning"]),
        ({"appendfsync": "everysec"}, 0, ["fine", "warning"]),
        ({"no-appendfsync-on-rewrite": "yes"}, 0, ["fine", "warning"]),
        ({}, 1, ["fine", "fine", "warning"]),
        ({"min-replicas-to-write": "1"}, 1, ["fine", "fine", "warning"]),
    ],
)
def test_settings_are_judged(settings: dict[str, str], replicas: int, levels: list[str]) -> None:
    findings = judge(SAFE | settings, replicas)
    assert [finding.level for finding in findings] == levels
    assert all(finding.advice for finding in findings if finding.level != "fine")


async def test_an_inspection_sees_the_settings_of_the_server(store: Store, redis_server: RedisServer) -> None:
    assert [finding.level for finding in await store.inspect()] == ["fine", "fine"]
    redis_server.ask("CONFIG", "SET", "maxmemory", "1000000000")
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    try:
        assert [finding.level for finding in await store.inspect()] == ["unsafe", "fine"]
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory", "0")
        redis_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    redis_server.ask("CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
    try:
        assert [finding.level for finding in await store.inspect()] == ["fine", "warning"]
    finally:
        redis_server.ask("CONFIG", "SET", "no-appendfsync-on-rewrite", "no")


ACL = "+@read +@write +@scripting +@connection -@dangerous +select +info +time"  # as docs/stores/redis.md says


async def test_a_user_who_may_do_no_more_than_needed_is_told_what_can_not_be_seen(
    redis_server: RedisServer, prefix: str
) -> None:
    redis_server.ask("ACL", "SETUSER", "locks", "on", ">hunter2", f"~{prefix}*", *ACL.split())
    store = await open_url(f"redis://locks:hunter2@127.0.0.1:{redis_server.port}/0?prefix={prefix}")
    stream = store.changes(None)
    await first_answer(stream)
    await write(store, put("lock/k"))
    assert len(await store.scan("lock/", "", 10)) == len(await gather_log(stream, 1)) == 1
    await stream.aclose()
    (finding,) = await store.inspect()
    assert (finding.level, "can't be seen" in finding.what) == ("warning", True)
    await store.close()
    with pytest.raises(UnsafeConfiguration, match="WRONGPASS") as refused:
        await open_url(f"redis://locks:hunter3@127.0.0.1:{redis_server.port}/0?prefix={prefix}")
    assert "hunter" not in str(refused.value)
    with pytest.raises(UnsafeConfiguration, match=r"NOPERM.* key"):
        await open_url(f"redis://locks:hunter2@127.0.0.1:{redis_server.port}/0?prefix=other:")


async def test_a_user_without_a_password_is_who_is_spoken_as(redis_server: RedisServer, prefix: str) -> None:
    redis_server.ask("ACL", "SETUSER", "open", "on", "nopass", f"~{prefix}*", *ACL.split())
    store = await open_url(f"redis://open@127.0.0.1:{redis_server.port}/0?prefix={prefix}")
    assert b"user=open " in redis_server.ask("CLIENT", "LIST")
    await store.close()
    with pytest.raises(UnsafeConfiguration, match="WRONGPASS"):
        await open_url(f"redis://nobody@127.0.0.1:{redis_server.port}/0?prefix={prefix}")


@pytest.mark.parametrize(("taken", "said"), [("-@write", "'del'"), ("-@scripting", "'script"), ("-info", "'info'")])
async def test_a_user_who_may_not_do_what_is_needed_is_refused_at_start_and_told_what(
    redis_server: RedisServer, prefix: str, taken: str, said: str
) -> None:
    user = f"modest{prefix.strip(':')}"
    redis_server.ask("ACL", "SETUSER", user, "on", ">hunter2", f"~{prefix}*", *ACL.split(), taken)
    with pytest.raises(UnsafeConfiguration, match=said) as refused:
        await open_url(f"redis://{user}:hunter2@127.0.0.1:{redis_server.port}/0?prefix={prefix}")
    assert "ACL SETUSER" in str(refused.value)
    assert "hunter" not in str(refused.value)


def test_of_an_eviction_policy_for_keys_with_a_time_it_is_told_what_may_go() -> None:
    """What was settled is kept for a time, and so has one in Redis: locks stay, and what tells a repeat may go."""
    eviction = judge(SAFE | {"maxmemory-policy": "volatile-lru", "maxmemory": "1000"}, 0)[0]
    assert "a request that is sent again may take its lock anew" in eviction.what
