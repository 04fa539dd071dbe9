"""The MySQL store against a real server: the whole store suite, and what is particular to it."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from fencegate.clock import SYSTEM, SystemClock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Change, Conflict, Store, Unavailable
from fencegate.testing.caller import Caller, engines
from fencegate.testing.change_log_suite import first_answer, log_revision
from fencegate.testing.committing import OpenStore, by, gather_log, put, write
from fencegate.testing.store_suite import HOSTILE_KEYS, StoreSuite
from fencegate_lockservice.stores import open_store as open_url
from fencegate_lockservice.stores.mysql import log as mysql_log
from fencegate_lockservice.stores.mysql.store import make_store
from tests.eventually import eventually
from tests.real.mariadb import MariadbServer


class TestMysqlStore(StoreSuite):
    @pytest.fixture
    def open_store(self, mysql_url: str) -> OpenStore:
        async def open_() -> Store:
            return await open_url(mysql_url)

        return open_

    @pytest.fixture
    def opening(self, mysql_url: str) -> str:
        return (
            "from fencegate_lockservice import stores\n"
            f"async def open_store(): return await stores.open_store({mysql_url!r})\n"
        )


@pytest.fixture
async def store(mysql_url: str) -> AsyncIterator[Store]:
    store = await open_url(mysql_url)
    yield store
    await store.close()


# --- entries ---------------------------------------------------------------------------------------------------------


async def test_locks_have_a_table_of_their_own_and_are_scanned_with_the_others_in_the_order_of_bytes(
    store: Store,
) -> None:
    keys = [f"lock/{key}" for key in HOSTILE_KEYS] + ["a", "lock", "lock.", "lock0", "z", "l"]
    await asyncio.gather(*(write(store, put(key, value=b'"%s"' % key.encode())) for key in keys))
    ordered = sorted(keys, key=str.encode)
    assert list(await store.load(keys)) == keys
    for prefix in ("", "l", "lock", "lock/", "lock/a", "lock0", "m"):
        expected = [key for key in ordered if key.startswith(prefix)]
        found = await store.scan(prefix, "", 1000)
        assert [(key, entry.value) for key, entry in found] == [(key, b'"%s"' % key.encode()) for key in expected]
        for after in ("a", "lock", "lock/", "lock/a", "lock/a ", "lock0", "zz"):
            later = [key for key in expected if key.encode() > after.encode()]
            assert [key for key, _ in await store.scan(prefix, after, 3)] == later[:3]


async def test_a_commit_that_only_deletes_and_logs_nothing(store: Store) -> None:
    there = put("lock/there")
    await write(store, there)
    await store.commit([Change("lock/there", there.version, "gone")], (), by(store))
    await store.commit([], (), by(store))
    assert not await store.load(["lock/there"])


async def test_nothing_is_left_behind_by_what_is_compared_and_absent(
    store: Store, mysql_server: MariadbServer, mysql_database: str
) -> None:
    await write(store, put("lock/k"), Change("floor/1", None, compare_only=True))
    with pytest.raises(Conflict):
        await write(store, put("lock/other"), put("lock/k"), Change("floor/1", None, compare_only=True))
    rows = mysql_server.ask(
        "SELECT lock_key FROM distributed_locks UNION ALL SELECT `key` FROM fencegate_entries", mysql_database
    )
    assert rows == [(b"k",)]


async def test_values_of_a_megabyte_come_back_many_at_a_time(store: Store) -> None:
    values = {f"lock/{number}": bytes([number]) * 1_000_000 for number in range(6)}
    await asyncio.gather(*(write(store, put(key, value=value)) for key, value in values.items()))
    assert {key: entry.value for key, entry in (await store.load(list(values))).items()} == values


@pytest.mark.parametrize("key", ["k" * 3000, "\ud800"])
async def test_a_key_that_the_store_cannot_hold_fails_alone(store: Store, key: str) -> None:
    results = await asyncio.gather(
        write(store, put("before")), write(store, put(key)), write(store, put("after")), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), Unavailable, type(None)]


async def test_a_person_can_read_who_holds_a_lock(
    store: Store, mysql_server: MariadbServer, mysql_database: str
) -> None:
    columns = "lock_key, namespace, owner_id, lock_token, fencing_token, reentrancy_count"
    ask = f"SELECT {columns}, expires_at > UTC_TIMESTAMP(), created_at <= updated_at FROM distributed_locks"
    async with engines(store) as (engine,):
        hold = await Caller(engine, "it's me 🔒").acquire("orders:1")
        (row,) = mysql_server.ask(ask, mysql_database)
        assert row == (b"orders:1", "orders", "it's me 🔒", hold.who.lock_token, hold.token, 1, 1, 1)
        await Caller(engine, "it's me 🔒").release("orders:1", hold)
        (row,) = mysql_server.ask(ask, mysql_database)
        assert row == (b"orders:1", "orders", None, None, hold.token, 0, None, 1)


# --- the change log --------------------------------------------------------------------------------------------------


async def test_the_change_log_is_bounded_and_says_what_is_gone(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch, mysql_server: MariadbServer, mysql_database: str
) -> None:
    monkeypatch.setattr(mysql_log, "KEPT_LINES", 50)
    first = await open_url(mysql_url)
    start = await log_revision(first)
    for number in range(10):
        await write(first, put(f"k{number}"), events=20)
    await first.close()
    store = await open_url(mysql_url)  # which looks at once what there is to forget

    async def is_short() -> bool:
        ((lines,),) = mysql_server.ask("SELECT COUNT(*) FROM fencegate_log", mysql_database)
        return bool(lines <= 50)

    await eventually(is_short)
    assert (await first_answer(store.changes(start))).reset
    rest = [row[0] for row in mysql_server.ask("SELECT revision FROM fencegate_log ORDER BY 1, line", mysql_database)]
    later = [revision for revision in rest if revision > rest[0]]
    assert len(later) >= 20
    assert [line.revision for line in await gather_log(store.changes(rest[0]), len(later))] == later
    await store.close()


class Ahead(SystemClock):
    """Of a replica whose clock is wrong by two hours."""

    def now_us(self) -> int:
        return super().now_us() + 7_200_000_000


async def test_a_replica_with_a_wrong_clock_drops_no_lines_that_others_still_read(store: Store, mysql_url: str) -> None:
    start = await log_revision(store)
    for number in range(3):
        await write(store, put(f"k{number}"))
    wrong = make_store(mysql_url, Ahead())
    await wrong.open()
    await wrong._log.drop_old()
    await wrong.close()
    reader = await open_url(mysql_url)  # that has none of them in memory
    assert [line.key for line in await gather_log(reader.changes(start), 3)] == ["k0", "k1", "k2"]
    await reader.close()


async def test_revisions_go_on_rising_and_followers_are_told_after_the_tables_were_put_back(
    store: Store, mysql_server: MariadbServer, mysql_database: str
) -> None:
    await write(store, put("k"))
    stream = store.changes(None)
    before = (await first_answer(stream)).revision
    mysql_server.ask("UPDATE fencegate_meta SET revision = 17, compacted = 17", mysql_database)
    mysql_server.ask("DELETE FROM fencegate_log", mysql_database)
    assert (await first_answer(stream)).reset
    await write(store, put("k2"))
    (line,) = await gather_log(stream, 1)
    assert (line.key, line.revision > before) == ("k2", True)


# --- its life --------------------------------------------------------------------------------------------------------


async def test_closing_leaves_neither_tasks_nor_connections_behind(
    mysql_url: str, mysql_server: MariadbServer, mysql_database: str
) -> None:
    before = asyncio.all_tasks()
    store = await open_url(mysql_url)
    stream = store.changes(None)
    await first_answer(stream)
    await asyncio.gather(*(write(store, put(f"k{number}")) for number in range(10)), store.load(["k1"]))
    await store.close()
    await store.close()
    await stream.aclose()
    assert asyncio.all_tasks() == before
    for use in (store.load(["k"]), write(store, put("k")), store.scan("", "", 1), first_answer(store.changes(None))):
        with pytest.raises(Unavailable):
            await use

    async def are_gone() -> bool:
        connections = f"information_schema.processlist WHERE db = '{mysql_database}'"
        return mysql_server.ask(f"SELECT COUNT(*) FROM {connections}") == [(0,)]

    await eventually(are_gone)


async def test_a_crowd_of_readers_shares_a_few_connections(
    mysql_url: str, mysql_server: MariadbServer, mysql_database: str
) -> None:
    store = await open_url(mysql_url)
    await write(store, put("k"))
    streams = [store.changes(number % 2 or None) for number in range(50)]
    await asyncio.gather(*(store.scan("", "", 10) for _ in range(50)), *map(first_answer, streams))
    connections = f"information_schema.processlist WHERE db = '{mysql_database}'"
    ((count,),) = mysql_server.ask(f"SELECT COUNT(*) FROM {connections}")  # what was opened is kept for the next
    assert count <= 8
    for stream in streams:
        await stream.aclose()
    await store.close()


async def test_callers_who_are_cancelled_break_nothing(store: Store) -> None:
    for turn in range(20):
        works = [asyncio.ensure_future(write(store, put(f"k{turn}-{number}"))) for number in range(10)]
        loads = [asyncio.ensure_future(store.load([f"k{turn}-{number}"])) for number in range(10)]
        await asyncio.sleep(0.001 * (turn % 4))
        for task in (*works[::2], *loads[::2]):
            task.cancel()
        results = await asyncio.gather(*works, *loads, return_exceptions=True)
        assert not [one for one in results[1::2] if isinstance(one, BaseException)]


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.rpartition("/")[0] + "/", "names no database"),
        (lambda url: url.rpartition("/")[0] + "/nowhere", "CREATE DATABASE"),
        (lambda url: url.replace("root@", "nobody:s3cret@"), "refuses the user or the password"),
        (lambda url: url.replace("root@", "root:s3crét@"), "ASCII"),
        (lambda url: url + "?sslmode=s3cret", "not known here"),
        (lambda url: url + "?tls=maybe", "verify"),
        (lambda url: url.replace("127.0.0.1", "a,127.0.0.1"), "names one host"),
        (lambda url: url + "?tls=verify&ca=/nowhere", "certificates"),
        (lambda url: url.replace("root@", "root:s3cret@").replace("127.0.0.1", "[::1"), "can't be read"),
        (lambda url: url.replace("root@", "root:s3cret@").replace("1:", "1:s3cret"), "can't be read"),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused_and_no_password_is_shown(
    mysql_url: str, change: Callable[[str], str], said: str
) -> None:
    with pytest.raises(UnsafeConfiguration, match=said) as refused:
        await open_url(change(mysql_url))
    assert "s3c" not in str(refused.value)


@pytest.mark.parametrize(("how", "said"), [("ACCOUNT LOCK", "locked"), ("PASSWORD EXPIRE", "expired")])
async def test_an_account_that_is_shut_is_no_outage(
    mysql_server: MariadbServer, mysql_url: str, mysql_database: str, how: str, said: str
) -> None:
    mysql_server.ask(f"CREATE USER shut@'127.0.0.1' IDENTIFIED BY 's3cret' {how}")
    try:
        mysql_server.ask(f"GRANT ALL ON {mysql_database}.* TO shut@'127.0.0.1'")
        with pytest.raises(UnsafeConfiguration, match=said) as refused:
            await open_url(mysql_url.replace("root@", "shut:s3cret@"))
        assert "s3c" not in str(refused.value)
    finally:
        mysql_server.ask("DROP USER shut@'127.0.0.1'")


async def test_a_server_without_tls_is_refused_where_the_url_asks_for_it(
    mysql_server: MariadbServer, mysql_url: str
) -> None:
    if mysql_server.is_mysql:
        pytest.skip("MySQL makes certificates for itself")
    with pytest.raises(Unavailable, match="no TLS"):
        await open_url(mysql_url + "?tls=verify")


async def test_a_server_that_is_not_there_is_said_to_be_so_soon() -> None:
    start_us = SYSTEM.monotonic_us()
    with pytest.raises(Unavailable, match=r"the MySQL server at 127.0.0.1:1 can't be reached"):
        await open_url("mysql://root@127.0.0.1:1/locks")
    assert SYSTEM.monotonic_us() - start_us < 15_000_000
