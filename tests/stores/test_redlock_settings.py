"""What a redlock store refuses to work with, and what it says of the settings of its nodes."""

import asyncio
import gc
import random
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM, SystemClock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Change, Conflict, Unavailable
from fencegate.testing.committing import by, put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redlock import store as redlock
from fencegate_lockservice.stores.redlock.inspect import SETTINGS
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.node import ACCEPT, PREPARE, Node
from fencegate_lockservice.stores.redlock.paxos import Accept, Accepted, Prepare, Promised
from fencegate_lockservice.stores.redlock.register import MAX_VALUE
from fencegate_lockservice.stores.redlock.url import Seat, Settings, parse
from fencegate_lockservice.stores.redlock.voting import _answer
from tests.stores.redlock_fixtures import SAFE, Five, address, started
from tests.stores.test_redlock_paxos import Acceptor


async def is_refused(url: str, match: str) -> None:
    """It is not opened, and it is said why; nodes that don't answer are given up soon."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises((Unavailable, UnsafeConfiguration), match=match):
        patch.setattr(redlock, "OPEN_WITHIN_S", 4.0)
        await open_store(url)


# --- the URL ---------------------------------------------------------------------------------------------------------


def test_a_url_names_the_nodes_in_any_order_and_the_options() -> None:
    settings = parse("redlock://me:p%40ss@b:2,a,[::1]:7/3?prefix=x:&tls=true")
    assert settings.seats == (Seat("::1:7", "::1", 7), Seat("a:6379", "a", 6379), Seat("b:2", "b", 2))
    assert (settings.database, settings.prefix, settings.tls) == (3, "x:", True)
    assert (settings.user, settings.password) == ("me", "p@ss")
    assert "p@ss" not in repr(settings)
    named = parse("redlock://b:1,a:2,c:3?names=one,three,two")
    assert [(seat.name, seat.host) for seat in named.seats] == [("one", "b"), ("three", "a"), ("two", "c")]


@pytest.mark.parametrize(
    "rest",
    [
        "", "a", "a,b", "a,a,b", "a,b,", "a,b,c:99999", "a,b,c:x", "a,b,c/x", "a,b,c?names=x,y", "a,b,c?names=x,y,y",
        "a,b,c?other=1", "a,b,c?other=", "a,b,c?tls=maybe", "a,b,c?tls=", "a,b,c?names=", "a,b,c/-1", "a,b,c/1_0",
        "a,b,c/\u0663", "a:0,b,c", "a,b,c#x", "a,b,c,d,e,f,g,h,i,j",
    ],
)  # fmt: skip
async def test_a_url_that_cannot_be_used_is_refused_without_showing_the_password(rest: str) -> None:
    with pytest.raises(UnsafeConfiguration) as refusal:
        await open_store(f"redlock://me:secret@{rest}")
    assert "secret" not in str(refusal.value)


async def test_a_user_without_a_password_is_who_is_spoken_as(lasting_five: Five) -> None:
    with pytest.raises(UnsafeConfiguration, match="refuses the user or the password"):
        await open_store(address(lasting_five).replace("://", "://nobody@"))


# --- the nodes -------------------------------------------------------------------------------------------------------


async def test_the_first_start_needs_every_node_and_later_ones_a_majority(five: Five) -> None:
    url = address(five)
    five[0].kill()
    await is_refused(url, f"first start needs every node.*{five[0].port}")
    await asyncio.to_thread(five[0].start)
    await (await open_store(url)).close()
    for server in five[:2]:
        server.kill()
    store = await open_store(url)
    await write(store, put("k"))
    await store.close()
    five[2].kill()
    await is_refused(url, "only 2 of 5 nodes can vote")


async def test_other_members_are_refused_however_many_of_them_are_the_same(
    lasting_five: Five, redlock_url: str
) -> None:
    await (await open_store(redlock_url)).close()
    rest = "?" + redlock_url.partition("?")[2]
    await is_refused(address(lasting_five[:3]) + rest, "name the same nodes in every URL")
    await is_refused(address(lasting_five[:4]) + ",127.0.0.1:1" + rest, "name the same nodes in every URL")


async def test_the_same_server_twice_is_refused(lasting_five: Five) -> None:
    one, two = lasting_five[:2]
    twice = f"redlock://{one.host}:{one.port},localhost:{one.port},{two.host}:{two.port}?prefix={SYSTEM.random_id(4)}:"
    with pytest.raises(UnsafeConfiguration, match="are the same server"):
        await open_store(twice)


async def test_nodes_of_another_version_are_refused(lasting_five: Five) -> None:
    prefix = SYSTEM.random_id(4)
    lasting_five[3].ask("HSET", f"{prefix}fencegate:node", "format", "99")
    with pytest.raises(UnsafeConfiguration, match="format '99'"):
        await open_store(f"{address(lasting_five)}?prefix={prefix}")


async def test_nodes_that_want_a_password_are_opened_with_it_and_it_is_never_told(tmp_path: Path) -> None:
    with started(tmp_path, 3, *SAFE) as servers:
        hosts = address(servers).removeprefix("redlock://")
        for server in servers:
            server.ask("CONFIG", "SET", "requirepass", "good-secret")
        store = await open_store(f"redlock://:good-secret@{hosts}")
        await write(store, put("k"))
        await store.close()
        for credentials in ("", ":bad-secret@"):
            with pytest.raises(UnsafeConfiguration) as refusal:
                await open_store(f"redlock://{credentials}{hosts}")
            assert "secret" not in str(refusal.value)
            assert "WRONGPASS" in str(refusal.value) or "NOAUTH" in str(refusal.value)


async def test_a_password_that_a_node_does_not_understand_is_not_told(tmp_path: Path) -> None:
    with started(tmp_path, 3, *SAFE, "--rename-command", "AUTH", '""') as servers:
        hosts = address(servers).removeprefix("redlock://")
        with pytest.raises(UnsafeConfiguration, match="user or the password") as refusal:
            await open_store(f"redlock://bob:a-secret@{hosts}")
        assert "secret" not in str(refusal.value)


async def test_many_who_start_at_once_make_one_store(redlock_url: str) -> None:
    stores = await asyncio.gather(*(open_store(redlock_url) for _ in range(8)))
    try:
        changes = [put("k") for _ in stores]
        writing = (write(store, change) for store, change in zip(stores, changes, strict=True))
        results = await asyncio.gather(*writing, return_exceptions=True)
        assert results.count(None) <= 1
        (found,) = {(await store.load(["k"]))["k"].version for store in stores}
        for change, result in zip(changes, results, strict=True):
            assert result is None or isinstance(result, Conflict | Ambiguous | Unavailable), results
            if not isinstance(result, Ambiguous):  # what it was told is true
                assert (change.version == found) == (result is None), results
    finally:
        for store in stores:
            await store.close()


@pytest.mark.parametrize("off_us", [11_000_000, -11_000_000])
async def test_a_clock_that_is_off_is_told_of_by_its_store(redlock_url: str, off_us: int) -> None:
    store = await open_store(redlock_url, SystemClock(SYSTEM.now_us() - SYSTEM.monotonic_us() + off_us))
    with pytest.raises(Unavailable, match=r"1[01]\.\d s .*NTP"):
        store.now()
    await store.close()
    right = await open_store(redlock_url)
    assert right.now() is None
    await right.close()


# --- what it declares ------------------------------------------------------------------------------------------------


async def test_a_commit_about_two_locks_is_refused_and_one_about_a_lock_and_its_past_is_not(redlock_url: str) -> None:
    store = await open_store(redlock_url)
    with pytest.raises(Unavailable, match="one lock"):
        await write(store, put("lock/a"), put("lock/b"))
    with pytest.raises(Unavailable, match="one lock"):
        await write(store, put("lock/a"), Change("floor/01", None, compare_only=True))
    with pytest.raises(Unavailable, match=str(MAX_VALUE)):
        await write(store, put("lock/a", value=b"x" * (MAX_VALUE + 1)))
    assert not await store.load(["lock/a", "lock/b"])
    lock, done = put("lock/a"), put("done/r1/a", keep_until_us=by(store))
    await write(store, lock, done, Change("done/r2/a", None, compare_only=True))
    found = await store.load(["lock/a", "done/r1/a", "done/r2/a"])
    assert {key: entry.version for key, entry in found.items()} == {"lock/a": lock.version, "done/r1/a": done.version}
    with pytest.raises(Conflict):
        await write(store, put("lock/a", lock.version), Change("done/r1/a", None, compare_only=True))
    assert [key for key, _ in await store.scan("", "", 10)] == ["lock/a"]
    await store.close()


async def test_keys_in_the_nodes_can_be_read_by_a_person(lasting_five: Five) -> None:
    prefix = f"{SYSTEM.random_id(4)}:"
    store = await open_store(f"{address(lasting_five)}?prefix={prefix}")
    await write(store, put("lock/orders:7", value=b'{"n":1}'))
    await store.close()
    assert b'{"n":1}' in lasting_five[0].ask("HGET", f"{prefix}lock:orders:7", "value")


async def test_a_caller_that_goes_away_stops_nothing(redlock_url: str) -> None:
    store = await open_store(redlock_url)
    change = put("k")
    leaving = asyncio.ensure_future(write(store, change))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await write(store, put("k2"))
    await store.close()


async def test_nothing_is_left_behind_when_it_is_closed(redlock_url: str) -> None:
    before = asyncio.all_tasks()
    store = await open_store(redlock_url)
    stream = store.changes(None)
    await anext(stream)
    await write(store, put("k"))
    await store.close()
    await store.close()
    for work in (store.load(["k"]), write(store, put("k2")), store.scan("", "", 1), store.inspect()):
        with pytest.raises(Unavailable):
            await work
    with pytest.raises(Unavailable, match="closed"):
        while True:
            await anext(stream)
    assert asyncio.all_tasks() == before


async def test_safe_settings_are_fine_and_unsafe_ones_are_told(redlock_url: str, tmp_path: Path) -> None:
    store = await open_store(redlock_url)
    assert {finding.level for finding in await store.inspect()} == {"fine"}
    await store.close()
    with started(tmp_path, 4, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as servers:
        store = await open_store(address(servers))
        servers[0].ask("CONFIG", "SET", "appendonly", "yes")
        servers[1].kill()
        findings = await store.inspect()
        await store.close()
    unsafe = [finding.what for finding in findings if finding.level == "unsafe"]
    assert sum("may forget its votes" in what for what in unsafe) == 3
    assert sum("votes may be evicted" in what for what in unsafe) == 3
    warnings = " ".join(finding.what for finding in findings if finding.level == "warning")
    assert "4 nodes stand no more losses than 3" in warnings
    assert "can't be reached" in warnings
    assert "no further node may be lost" in warnings
    assert all(finding.advice for finding in findings if finding.level != "fine")


async def test_a_node_that_does_not_flush_while_it_rewrites_its_file_is_unsafe(lasting_five: Five) -> None:
    store = await open_store(f"{address(lasting_five)}?prefix={SYSTEM.random_id(4)}:")
    lasting_five[2].ask("CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
    try:
        unsafe = [finding.what for finding in await store.inspect() if finding.level == "unsafe"]
    finally:
        lasting_five[2].ask("CONFIG", "SET", "no-appendfsync-on-rewrite", "no")
        await store.close()
    assert len(unsafe) == 1
    assert f":{lasting_five[2].port} may forget its votes" in unsafe[0]


async def test_nodes_are_asked_for_one_setting_at_a_time_for_older_ones_answer_nothing_else(lasting_five: Five) -> None:
    """Redis before version 7 refuses `CONFIG GET` of several, and its settings would count as unseen."""
    store = await open_store(f"{address(lasting_five)}?prefix={SYSTEM.random_id(4)}:")
    lasting_five[0].ask("CONFIG", "SET", "slowlog-log-slower-than", "0")
    try:
        await store.inspect()
        asked = lasting_five[0].ask("SLOWLOG", "GET", "100").upper().split(b"$3\r\nGET\r\n")
    finally:
        lasting_five[0].ask("CONFIG", "SET", "slowlog-log-slower-than", "10000")
        await store.close()
    assert [before.endswith(b"*3\r\n$6\r\nCONFIG\r\n") for before in asked[:-1]] == [True] * len(SETTINGS)


# --- the scripts -----------------------------------------------------------------------------------------------------


async def test_the_scripts_of_a_node_do_what_the_rules_of_voting_say(lasting_five: Five) -> None:
    server, chance, prefix = lasting_five[0], random.Random(7), SYSTEM.random_id(4)
    node = Node(0, Seat("a", server.host, server.port), Settings(()), SYSTEM, lambda: None)
    keys = Keys(prefix)
    line = await node.connect()
    await line.call("HSET", keys.node, "state", "voting", "digest", "d", "identity", "i")
    models = {name: Acceptor() for name in ("lock/a", "b")}
    kinds = set()
    for _ in range(400):
        name = chance.choice(list(models))
        ballot, next_ballot = sorted(f"{chance.randrange(1, 60):016d}.{chance.randrange(3):016d}" for _ in range(2))
        run = [keys.node, keys.index, keys.register(name)]
        asked: Prepare | Accept
        if chance.random() < 0.5:
            asked = Prepare(ballot)
            answer = line.call("EVALSHA", PREPARE.digest, 3, *run, "d", "i", name, ballot)
        else:
            asked = Accept(ballot, next_ballot, chance.randbytes(5), chance.randbytes(3))
            head = ("d", "i", name, ballot, next_ballot)
            answer = line.call("EVALSHA", ACCEPT.digest, 4, *run, keys.changes, *head, asked.value, asked.hint, 1000)
        await asyncio.wait([answer])
        expected = models[name].hear(asked)
        kinds.add(type(expected))
        assert _answer(answer) == expected
    assert {Promised, Accepted} < kinds
    assert await line.call("ZRANGE", keys.index, 0, -1) == [b"b", b"lock/a"]
    for wrong in (("x", "i"), ("d", "x")):
        refused = await line.call("EVALSHA", PREPARE.digest, 3, *run, *wrong, name, "9")
        assert refused == [b"stranger"]
    line.abort()


async def test_what_fails_after_whoever_asked_went_away_is_not_told_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = redlock.RedlockStore(parse("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"))

    async def fails_later() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        raise Unavailable("no majority")

    asking = store._begin(fails_later())
    asking.cancel()
    while store._work:
        await asyncio.sleep(0)
    del asking
    gc.collect()
    assert caplog.records == []
