"""The tables of PostgreSQL: made once by whoever comes first, refused where they are not ours, readable by a person."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from urllib.parse import quote

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Change, Store
from fencegate.engine import Engine
from fencegate.testing.caller import Caller
from fencegate.testing.committing import put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.postgres.server import NEWEST_MIGRATION
from fencegate_lockservice.stores.sql.migrations import _ADVISORY_LOCK, newest
from fencegate_lockservice.stores.sql.schema import TABLE_OPTIONS, VERSION_TABLE, metadata
from tests.eventually import eventually
from tests.real.postgres import PostgresServer
from tests.stores.postgres_fixtures import schema_of
from tests.stores.ten_at_once import ten_open


async def test_ten_replicas_that_start_at_once_make_the_tables_once(postgres_fresh_url: str) -> None:
    await ten_open(postgres_fresh_url, "postgres")
    store = await open_store(postgres_fresh_url)
    assert len(await store.scan("k", "", 100)) == 10
    await store.close()


async def test_stores_that_one_process_opens_at_once_are_migrated_one_by_one(postgres_server: PostgresServer) -> None:
    urls = [f"{postgres_server.url}?schema=at_once_{SYSTEM.random_id(4)}_{number % 3}" for number in range(6)]
    stores = await asyncio.gather(*(open_store(url) for url in urls))
    for store in stores:
        await write(store, put(SYSTEM.random_id()))
        await store.close()


def test_the_migrations_make_what_the_schema_says(postgres_server: PostgresServer, postgres_fresh_url: str) -> None:
    async def make() -> None:
        await (await open_store(postgres_fresh_url)).close()

    asyncio.run(make())
    path = f"-csearch_path={schema_of(postgres_fresh_url)}"
    engine = create_engine(
        postgres_server.url.replace("postgresql:", "postgresql+psycopg:"), connect_args={"options": path}
    )
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found = [change for change in compare_metadata(context, metadata) if VERSION_TABLE not in str(change)]
    engine.dispose()
    assert found == []
    assert newest() == NEWEST_MIGRATION
    query = "SELECT reloptions FROM pg_class WHERE oid = CAST(%s AS regclass)"
    locks = f"{schema_of(postgres_fresh_url)}.distributed_locks"
    assert postgres_server.execute(query, [locks]) == [(["fillfactor=70"],)]


def test_sqlalchemy_2_0_knows_the_options_of_the_tables() -> None:
    """It refuses a table with others, and the stores of PostgreSQL and MySQL could not be imported."""
    assert {option for table in metadata.tables.values() for option in table.dialect_kwargs} == TABLE_OPTIONS.keys()


@pytest.mark.parametrize("schema", ['Say "x"; DROP', "it's", "schémä", "a.b", "%s {x}", "x" * 63])
async def test_a_schema_may_have_any_name(postgres_server: PostgresServer, schema: str) -> None:
    url = f"{postgres_server.url}?schema={quote(schema)}"
    store = await open_store(url)
    change = put("k")
    await write(store, change)
    await store.close()
    again = await open_store(url)
    assert (await again.load(["k"]))["k"].version == change.version
    await again.close()
    assert postgres_server.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", [schema]) == [(1,)]
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("DROP SCHEMA {} CASCADE").format(psycopg.sql.Identifier(schema)))


async def test_values_and_keys_that_look_like_sql_are_only_that(
    postgres_store: Store, postgres_server: PostgresServer
) -> None:
    texts = [
        "'; DROP TABLE distributed_locks; --",
        "%s %(x)s %%",
        "$$;$1",
        "{}",
        "\\",
        "\\u0000",
        "null",
        "\x01\x1f\x7f",
    ]
    for text in texts:
        for key in (f"lock/{text}", f"other/{text}"):
            change = Change(key, None, f"v{text}", text.encode())
            await postgres_store.commit([change], [(key, text.encode())], postgres_store.now().latest + 60_000_000)  # type: ignore[union-attr]
            assert (await postgres_store.load([key]))[key] == (f"v{text}", text.encode())
    assert {key for key, _ in await postgres_store.scan("lock/", "", 100)} == {f"lock/{text}" for text in texts}


async def test_a_person_can_read_who_holds_which_lock(
    postgres_store: Store, postgres_server: PostgresServer, postgres_url: str
) -> None:
    engine = Engine(postgres_store, SYSTEM)
    await engine.start()
    caller = Caller(engine, "it's me")
    columns = "namespace, owner_id, lock_token, fencing_token, expires_at, reentrancy_count, created_at <= updated_at"
    table = f"{schema_of(postgres_url)}.distributed_locks"
    shown = f"SELECT {columns} FROM {table} WHERE lock_key = 'inventory:sku:1'"
    hold = await caller.acquire("inventory:sku:1", reentrant=True)
    ((*who, expires_at, count, in_order),) = postgres_server.execute(shown)
    assert who == ["inventory", "it's me", hold.who.lock_token, hold.token]
    assert (count, in_order) == (1, True)
    assert isinstance(expires_at, datetime)
    assert abs(expires_at - datetime.fromtimestamp(hold.expires_us / 1e6, UTC)).total_seconds() < 0.001
    again = await caller.acquire("inventory:sku:1", reentrant=True)
    assert postgres_server.execute(shown)[0][5] == 2
    await caller.release("inventory:sku:1", again)
    await caller.release("inventory:sku:1", hold)
    assert postgres_server.execute(shown) == [("inventory", None, None, hold.token, None, 0, True)]
    await engine.close()


# --- what is refused ---


async def test_tables_that_are_not_ours_are_left_alone(
    postgres_server: PostgresServer, postgres_fresh_url: str
) -> None:
    schema = schema_of(postgres_fresh_url)
    postgres_server.execute(f"CREATE SCHEMA {schema}")
    postgres_server.execute(f"CREATE TABLE {schema}.distributed_locks (id int)")
    with pytest.raises(UnsafeConfiguration, match="did not make"):
        await open_store(postgres_fresh_url)
    found = postgres_server.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
    assert found == [("distributed_locks",)]


async def test_tables_of_a_newer_release_are_refused(postgres_server: PostgresServer, postgres_fresh_url: str) -> None:
    await (await open_store(postgres_fresh_url)).close()
    postgres_server.execute(f"UPDATE {schema_of(postgres_fresh_url)}.{VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(UnsafeConfiguration, match="newer release"):
        await open_store(postgres_fresh_url)


async def test_a_database_in_another_encoding_is_refused(postgres_server: PostgresServer) -> None:
    name = f"latin_{SYSTEM.random_id(4)}"
    postgres_server.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    with pytest.raises(UnsafeConfiguration, match="UTF8"):
        await open_store(postgres_server.url.replace("/postgres", f"/{name}"))
    postgres_server.execute(f"DROP DATABASE {name}")


async def test_another_isolation_level_is_refused_and_said(postgres_server: PostgresServer) -> None:
    role = await _new_role(postgres_server)
    postgres_server.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(UnsafeConfiguration, match="read committed"):
        await open_store(postgres_server.url.replace("fencegate@", f"{role}@"))


async def test_a_role_that_may_not_make_tables_is_told_what_it_needs(postgres_server: PostgresServer) -> None:
    role = await _new_role(postgres_server)
    with pytest.raises(UnsafeConfiguration, match="GRANT"):
        await open_store(postgres_server.url.replace("fencegate@", f"{role}@") + "?schema=not_for_you")


async def test_a_role_that_owns_its_schema_needs_nothing_else(postgres_server: PostgresServer) -> None:
    role = await _new_role(postgres_server)
    postgres_server.execute(f"CREATE SCHEMA of_{role} AUTHORIZATION {role}")
    store = await open_store(postgres_server.url.replace("fencegate@", f"{role}@") + f"?schema=of_{role}")
    await write(store, put("k"))
    await store.close()


async def test_a_schema_of_the_role_that_comes_later_does_not_hide_the_locks(postgres_server: PostgresServer) -> None:
    """A role finds the schema of its own name first, and `fencegate protect` makes one that is called `fencegate`: a
    replica that is started after it must not begin with empty tables there, while others hold locks in the old ones."""
    role = await _new_role(postgres_server)
    postgres_server.execute(f"CREATE DATABASE {role} OWNER {role}")
    url = postgres_server.url.replace("fencegate@", f"{role}@").removesuffix("/postgres") + f"/{role}"
    before = await open_store(url)
    await write(before, put("k"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {role}")
    after = await open_store(url)
    assert await after.load(["k"]) == await before.load(["k"])
    assert (await after.load(["k"]))["k"] is not None
    for store in (before, after):
        await store.close()


async def test_replicas_that_start_at_once_agree_on_the_schema_though_another_one_appears(
    postgres_server: PostgresServer,
) -> None:
    """Each looks for the tables before it waits for its turn to make them, and finds none: where they belong has to be
    looked at again when it is its turn, or one lock has two holders, in two schemas."""
    role = await _new_role(postgres_server)
    postgres_server.execute(f"CREATE DATABASE {role} OWNER {role}")
    url = postgres_server.url.replace("fencegate@", f"{role}@").removesuffix("/postgres") + f"/{role}"

    async def wait_for_their_turn(count: int) -> None:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event = 'advisory'"
        await eventually(lambda: postgres_server.execute(waiting, [role]) == [(count,)])

    with psycopg.connect(url, autocommit=True) as migrating:
        migrating.execute("SELECT pg_advisory_lock(%s)", [_ADVISORY_LOCK])
        opening = [asyncio.ensure_future(open_store(url))]
        await wait_for_their_turn(1)
        migrating.execute(f"CREATE SCHEMA {role}")
        code = f"import asyncio; from tests.stores import postgres_fixtures as f; asyncio.run(f._opened_once({url!r}))"
        with subprocess.Popen([sys.executable, "-c", code]) as other:  # one process makes tables one by one anyway
            await wait_for_their_turn(2)
            migrating.execute("SELECT pg_advisory_unlock(%s)", [_ADVISORY_LOCK])
            one = await opening[0]
            assert await asyncio.to_thread(other.wait, 60) == 0
    two = await open_store(url)
    await write(one, put("k"))
    assert "k" in await two.load(["k"])
    tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'distributed_locks'"
    with psycopg.connect(url) as connection:
        assert connection.execute(tables).fetchall() == [(1,)]
    for store in (one, two):
        await store.close()


ALL_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ("INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}", "INSERT, UPDATE, DELETE on distributed_locks"),
        ("DELETE ON {schema}.fencegate_entries", "DELETE on fencegate_entries"),
        ("UPDATE ON {schema}.fencegate_meta", "UPDATE on fencegate_meta"),
        ("SELECT ON {schema}.fencegate_log", "SELECT on fencegate_log"),
        ("SELECT ON {schema}.fencegate_migrations", "fencegate_migrations"),
    ],
)
async def test_a_role_that_lacks_a_right_is_refused_at_start_and_told_which(
    postgres_server: PostgresServer, postgres_fresh_url: str, taken: str, said: str
) -> None:
    await (await open_store(postgres_fresh_url)).close()
    role, schema = await _new_role(postgres_server), schema_of(postgres_fresh_url)
    postgres_server.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    postgres_server.execute(f"GRANT {ALL_RIGHTS} ON ALL TABLES IN SCHEMA {schema} TO {role}")
    url = postgres_fresh_url.replace("fencegate@", f"{role}@")
    store = await open_store(url)  # these rights are enough
    await write(store, put("k"))
    await store.close()
    postgres_server.execute(f"REVOKE {taken.format(schema=schema)} FROM {role}")
    with pytest.raises(UnsafeConfiguration, match=said) as refused:
        await open_store(url)
    assert f"GRANT {ALL_RIGHTS} ON ALL TABLES IN SCHEMA" in refused.value.detail


async def test_a_role_that_may_not_call_the_function_of_a_commit_is_refused_at_start(
    postgres_server: PostgresServer, postgres_fresh_url: str
) -> None:
    await (await open_store(postgres_fresh_url)).close()
    role, schema = await _new_role(postgres_server), schema_of(postgres_fresh_url)
    postgres_server.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    postgres_server.execute(f"GRANT {ALL_RIGHTS} ON ALL TABLES IN SCHEMA {schema} TO {role}")
    postgres_server.execute(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM public")
    with pytest.raises(UnsafeConfiguration, match="EXECUTE on fencegate_commit_1"):
        await open_store(postgres_fresh_url.replace("fencegate@", f"{role}@"))


async def test_a_table_that_was_lost_is_noticed(postgres_server: PostgresServer, postgres_fresh_url: str) -> None:
    await (await open_store(postgres_fresh_url)).close()
    postgres_server.execute(f"DROP TABLE {schema_of(postgres_fresh_url)}.fencegate_log")
    with pytest.raises(UnsafeConfiguration, match="has lost fencegate_log"):
        await open_store(postgres_fresh_url)


async def _new_role(server: PostgresServer) -> str:
    role = f"role_{SYSTEM.random_id(4)}"
    await asyncio.to_thread(server.execute, f"CREATE ROLE {role} LOGIN")
    return role


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hun%ter2@host/db",
        "postgresql://me:hunter2@host:port/db",
        "postgresql://me:hunter2@host/db?nonsense=1",
        "postgresql://me:hunter2@host/db?schema=",
        "postgresql://me:hunter2@host,other/db?target_session_attrs=any",
        "postgresql://me:hunter2@host,other/db?target_session_attrs=prefer-standby",
        "postgresql://me:hunter2@[host/db",
        f"postgresql://me:hunter2@host/db?schema={'x' * 64}",
    ],
)
async def test_a_bad_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UnsafeConfiguration) as refused:
        await open_store(url)
    assert "hun" not in str(refused.value)
