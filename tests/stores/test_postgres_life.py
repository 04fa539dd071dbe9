"""What a store in PostgreSQL can't hold, what it leaves behind, and what it says of the server's settings."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Finding, Store, Unavailable
from fencegate.testing.change_log_suite import first_answer
from fencegate.testing.committing import by, gather_log, put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.postgres import store as postgres_store_module
from fencegate_lockservice.stores.postgres.server import findings
from fencegate_lockservice.stores.postgres.store import make_store
from tests.eventually import eventually
from tests.real.postgres import PostgresServer
from tests.stores.postgres_fixtures import schema_of

# --- what it can't hold, what it leaves behind ---


async def test_what_the_database_can_not_hold_fails_alone(postgres_store: Store) -> None:
    bad = [
        write(postgres_store, put("lone surrogate \ud800")),
        write(postgres_store, put("nul \0")),
        write(postgres_store, put("not text", value=b"\xff")),
        write(postgres_store, put("nul inside", value=b"\0")),
        write(postgres_store, put("x" * 5000)),  # no index takes it, unless it can be packed
        write(postgres_store, put("".join(map(chr, range(0x4E00, 0x4E00 + 3000))))),
        postgres_store.commit([put("k")], [("k", b"\xff")], by(postgres_store)),
        postgres_store.load(["\ud800"]),
        postgres_store.scan("\0", "", 1),
    ]
    good = [write(postgres_store, put(f"good-{number}")) for number in range(5)]
    async with asyncio.timeout(60):
        results = await asyncio.gather(*bad, *good, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results[: len(bad)]), results
    assert results[len(bad) :] == [None] * 5


async def test_a_caller_that_is_cancelled_breaks_nothing(postgres_store: Store) -> None:
    for number in range(10):
        calls = [write(postgres_store, put(f"{number}-{which}")) for which in range(4)]
        reads = [postgres_store.load(["k"]), postgres_store.scan("", "", 10)]
        works: list[asyncio.Task[object]] = [asyncio.ensure_future(call) for call in (*calls, *reads)]
        await asyncio.sleep(0.001 * number)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await write(postgres_store, put(f"after-{number}"))


def open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one by which they are listed
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(found)


async def test_closing_leaves_neither_tasks_nor_sockets_behind(postgres_url: str) -> None:
    await (await open_store(postgres_url)).close()
    gc.collect()
    tasks, files = asyncio.all_tasks(), open_files()
    store = await open_store(postgres_url)
    stream = store.changes(None)
    await first_answer(stream)
    await write(store, put("k"))
    await store.close()
    await store.close()
    for refused in (store.load(["k"]), write_blind(store), store.scan("", "", 1)):
        with pytest.raises(Unavailable):
            await refused
    with pytest.raises(Unavailable):
        store.now()
    await stream.aclose()
    gc.collect()  # what the driver was about to connect
    assert asyncio.all_tasks() == tasks
    assert open_files() == files


async def write_blind(store: Store) -> None:
    await store.commit([put("k")], [], 2**60)


async def test_nobody_there_is_said_at_once_and_clearly() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 .*can't be reached"):
        await open_store("postgresql://me:hunter2@127.0.0.1:1/db")


@pytest.mark.parametrize(
    ("user", "database", "said"),
    [
        ("nobody_like_this", "postgres", "does not exist"),
        ("shut_out", "postgres", "not permitted to log in"),
        ("let_in", "nowhere", "does not exist"),
        ("let_in", "closed", "permission denied"),
        ("guarded", "postgres", "authentication failed"),
    ],
)
async def test_who_is_not_let_in_is_told_so_which_is_no_outage_and_the_password_is_not_shown(
    door: str, user: str, database: str, said: str
) -> None:
    with pytest.raises(UnsafeConfiguration, match=said) as refused:
        await open_store(f"postgresql://{user}:hunter2@{door}/{database}")
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def door(postgres_server: PostgresServer) -> Iterator[str]:
    """Where a server listens that lets in some, and not others."""
    rules = Path(str(postgres_server.execute("SHOW hba_file")[0][0]))
    before = rules.read_text()
    for made in ("ROLE shut_out", "ROLE let_in LOGIN", "ROLE guarded LOGIN PASSWORD 'other'", "DATABASE closed"):
        postgres_server.execute(f"CREATE {made}")
    postgres_server.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
    rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{before}")
    postgres_server.execute("SELECT pg_reload_conf()")
    yield f"127.0.0.1:{postgres_server.port}"
    rules.write_text(before)
    postgres_server.execute("SELECT pg_reload_conf()")
    for made in ("DATABASE closed", "ROLE shut_out", "ROLE let_in", "ROLE guarded"):
        postgres_server.execute(f"DROP {made}")


async def test_a_store_whose_tables_were_emptied_says_so_and_goes_on_when_they_are_back(
    postgres_store: Store, postgres_server: PostgresServer, postgres_url: str
) -> None:
    meta = f"{schema_of(postgres_url)}.fencegate_meta"
    columns = "id, revision, compacted, lines_written, lines_dropped"
    ((*kept,),) = postgres_server.execute(f"SELECT {columns} FROM {meta}")
    postgres_server.execute(f"DELETE FROM {meta}")
    try:
        load, newest = await asyncio.gather(
            postgres_store.load(["k"]), first_answer(postgres_store.changes(None)), return_exceptions=True
        )
        assert load == {}
        assert isinstance(newest, Unavailable)
        assert "emptied" in str(newest)
    finally:
        postgres_server.execute(f"INSERT INTO {meta} ({columns}) VALUES (%s, %s, %s, %s, %s)", kept)
    await first_answer(postgres_store.changes(None))


async def test_a_role_that_may_not_ask_which_server_this_is_can_do_without(postgres_server: PostgresServer) -> None:
    role = f"plain_{SYSTEM.random_id(4)}"
    postgres_server.execute(f"CREATE ROLE {role} LOGIN")
    postgres_server.execute(f"GRANT CREATE ON DATABASE postgres TO {role}")
    url = postgres_server.url.replace("fencegate@", f"{role}@") + f"?schema={role}"
    known: list[str] = []
    try:
        for sentence in ("GRANT EXECUTE ON FUNCTION {} TO PUBLIC", "REVOKE EXECUTE ON FUNCTION {} FROM PUBLIC"):
            postgres_server.execute(sentence.format("pg_control_system()"))
            store = make_store(url, SYSTEM)
            await store.open()
            stream = store.changes(None)
            await first_answer(stream)
            await write(store, put(f"k{len(known)}"))
            assert len(await gather_log(stream, 1)) == 1
            known.append((await store._reader.page(0, 1)).server)
            await stream.aclose()
            await store.close()
    finally:
        postgres_server.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
    assert (known[0][-9:], known[1]) == ("/00000001", "")


async def test_the_pulse_of_the_time_outlives_whatever_goes_wrong(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store_module, "PULSE_S", 0.001)
    store = make_store(postgres_url, SYSTEM)
    monkeypatch.setattr(store._time, "is_stale", lambda: True)
    beats: list[int] = []

    async def newest() -> int:
        beats.append(len(beats))
        raise [Unavailable("down"), IndexError("nothing there")][len(beats) % 2]

    monkeypatch.setattr(store._reader, "newest", newest)
    await store.open()
    await eventually(lambda: len(beats) > 4)
    await store.close()


# --- settings ---


SAFE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": ""}


@pytest.mark.parametrize(
    ("settings", "asynchronous", "level", "what"),
    [
        ({}, 0, "fine", "flushed"),
        ({"fsync": "off"}, 0, "unsafe", "fsync"),
        ({"full_page_writes": "off"}, 0, "warning", "full_page_writes"),
        ({"synchronous_commit": "off"}, 0, "warning", "turns it on"),
        ({}, 2, "warning", "2 standby"),
        ({"synchronous_standby_names": "*"}, 0, "fine", "synchronous standby"),
        ({"synchronous_standby_names": "*", "synchronous_commit": "local"}, 0, "warning", "do not wait"),
    ],
)
def test_settings_that_make_locks_unsafe_are_found(
    settings: dict[str, str], asynchronous: int, level: str, what: str
) -> None:
    found = findings(SAFE | settings, asynchronous, direct=True)
    assert [finding.level for finding in found if what in finding.what] == [level]
    assert {finding.level for finding in found if what not in finding.what} <= {"fine"}


async def test_a_server_that_does_not_flush_is_found_unsafe(
    postgres_store: Store, postgres_server: PostgresServer
) -> None:
    async def levels() -> set[str]:
        found: list[Finding] = list(await postgres_store.inspect())
        return {finding.level for finding in found}

    async def unsafe() -> bool:
        return "unsafe" in await levels()

    async def fine() -> bool:
        return await levels() == {"fine"}

    assert await fine()
    try:
        postgres_server.execute("ALTER SYSTEM SET fsync = off")
        postgres_server.execute("SELECT pg_reload_conf()")
        await eventually(unsafe)
    finally:
        postgres_server.execute("ALTER SYSTEM RESET fsync")
        postgres_server.execute("SELECT pg_reload_conf()")
    await eventually(fine)


async def test_commits_are_flushed_though_the_role_says_otherwise(postgres_server: PostgresServer) -> None:
    """What a commit writes to the log of the server is on disk when it is answered."""
    flushed = "SELECT pg_current_wal_flush_lsn() > %s::pg_lsn"
    role = f"hasty_{SYSTEM.random_id(4)}"
    postgres_server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    postgres_server.execute(f"ALTER ROLE {role} SET synchronous_commit = off")
    postgres_server.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    postgres_server.execute("SELECT pg_reload_conf()")
    try:
        store = await open_store(postgres_server.url.replace("fencegate@", f"{role}@") + f"?schema={role}")
        for number in range(5):
            ((before,),) = postgres_server.execute("SELECT pg_current_wal_insert_lsn()")
            await write(store, put(f"k{number}"))
            assert postgres_server.execute(flushed, [before]) == [(True,)]
        (warning,) = [finding for finding in await store.inspect() if finding.level != "fine"]
        assert "turns it on" in warning.what
        assert "SET synchronous_commit = on" in warning.advice
        await store.close()
    finally:
        postgres_server.execute("ALTER SYSTEM RESET wal_writer_delay")
        postgres_server.execute("SELECT pg_reload_conf()")
