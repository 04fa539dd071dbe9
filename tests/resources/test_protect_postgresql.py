"""A protected table of PostgreSQL refuses every client that names no token, or a stale one: psql and bare drivers."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from fencegate_adapters.sql.protect import install
from fencegate_adapters.sql.protect.wanted import Wanted, table_name
from tests.eventually import eventually_sync
from tests.real.postgres import PostgresServer
from tests.resources.protecting import Command, run_script

Client = psycopg.Connection[tuple[Any, ...]]

_numbers = itertools.count()

WRITES = (
    "INSERT INTO {t} VALUES (3, 'new')",
    "UPDATE {t} SET text = 'new'",
    "DELETE FROM {t}",
    "TRUNCATE {t}",
    "INSERT INTO {t} VALUES (1, 'new') ON CONFLICT (id) DO UPDATE SET text = excluded.text",
    "MERGE INTO {t} USING (VALUES (1, 'new')) v (id, text) ON {t}.id = v.id WHEN MATCHED THEN UPDATE SET text = v.text",
    "WITH gone AS (DELETE FROM {t} RETURNING id) SELECT * FROM gone",
)


class Database:
    """One database of the server; tables in it are made for one test each."""

    def __init__(self, server: PostgresServer) -> None:
        self.name = f"protect_{os.getpid()}_{next(_numbers)}"
        server.execute(f"CREATE DATABASE {self.name}")
        # The role has the name of the schema that is installed, and would else have it on its search path.
        self.url = server.url.rpartition("/")[0] + f"/{self.name}?options=-csearch_path%3Dpublic"

        self._free: list[Client] = []

    def _connect(self, isolation: IsolationLevel | None = None) -> Client:
        """A bare driver. Nobody here waits for long: who is in another's way must say so."""
        connection: Client = psycopg.connect(self.url, options="-csearch_path=public -clock_timeout=20s")
        connection.isolation_level = isolation
        return connection

    @contextmanager
    def client(self, isolation: IsolationLevel | None = None) -> Iterator[Client]:
        with closing(self._connect(isolation)) as connection:
            yield connection

    def run(self, *statements: str, token: object = None, lock: str | None = None) -> list[tuple[Any, ...]]:
        """One transaction; what the last statement answers."""
        client = self._free.pop() if self._free else self._connect()
        try:
            if token is not None:
                name(client, token, lock)
            for statement in statements:
                cursor = client.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            client.commit()
            return rows
        finally:
            client.rollback()
            self._free.append(client)

    def close(self) -> None:
        for client in self._free:
            client.close()

    def table(self, columns: str = "id bigint PRIMARY KEY, text text", rows: str = "(1, 'old'), (2, 'old')") -> str:
        name_ = f"t{next(_numbers)}"
        self.run(f"CREATE TABLE {name_} ({columns})", *([f"INSERT INTO {name_} VALUES {rows}"] if rows else []))
        return name_

    def protect(self, table: str, *key: str, guard: str = "{table}:{key}", floor: int | None = None) -> None:
        install.protect(self.url, Wanted(table_name(table), key or ("id",), guard, floor))

    def mark(self, lock_key: str) -> int | None:
        rows = self.run(f"SELECT token FROM fencegate_fences WHERE lock_key = convert_to('{lock_key}', 'UTF8')")
        return rows[0][0] if rows else None

    def waiting(self) -> bool:
        return bool(self.run("SELECT 1 FROM pg_locks WHERE NOT granted"))


def name(client: Client, token: object, lock: str | None = None) -> None:
    client.execute("SELECT set_config('fencegate.token', %s, true)", [str(token)])
    if lock is not None:
        client.execute("SELECT set_config('fencegate.lock', %s, true)", [lock])


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    with closing(Database(postgres_server)) as found:
        yield found


@pytest.fixture
def command(database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(database.url, capsys, monkeypatch)


@pytest.fixture(scope="module")
def jobs(database: Database) -> Callable[[], str]:
    """A table that one lock guards, the same for the tests that leave it as it was."""
    made = database.table()
    database.protect(made, guard="job:shared")
    return lambda: made


# --- who is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", ["{table}:{key}", "job:{table}"])
def test_a_write_without_a_token_is_refused_and_changes_nothing(database: Database, guard: str) -> None:
    table = database.table()
    database.protect(table, guard=guard)
    for statement in WRITES:
        with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
            database.run(statement.format(t=table))
    with database.client() as client, pytest.raises(psycopg.DatabaseError, match="fencing token required"):  # noqa: SIM117
        with client.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
            copy.write_row((3, "new"))
    assert database.run(f"SELECT * FROM {table} ORDER BY id") == [(1, "old"), (2, "old")]


@pytest.mark.parametrize("guard", ["{table}:{key}", "job:{table}"])
def test_a_stale_token_is_refused_and_changes_nothing(database: Database, guard: str) -> None:
    table = database.table()
    database.protect(table, guard=guard)
    database.run(f"UPDATE {table} SET text = 'successor'", f"INSERT INTO {table} VALUES (3, 'x')", token=34)
    database.run(f"DELETE FROM {table} WHERE id = 3", token=34)
    for statement in WRITES:
        if "TRUNCATE" not in statement or guard.startswith("job:"):
            with pytest.raises(psycopg.DatabaseError, match=r"stale fencing token 33 of the lock .* has seen 34"):
                database.run(statement.format(t=table), token=33)
    assert database.run(f"SELECT * FROM {table} ORDER BY id") == [(1, "successor"), (2, "successor")]


def test_the_newest_token_writes_again_and_again(database: Database) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    for token in (33, 34, 2**63 - 1):
        for statement in WRITES:
            database.run(f"INSERT INTO {table} VALUES (1, 'x') ON CONFLICT DO NOTHING", token=token)
            database.run(f"DELETE FROM {table} WHERE id = 3", statement.format(t=table), token=token)
    assert database.mark(f"job:{table}") == 2**63 - 1


def test_the_token_ends_with_its_transaction(database: Database, jobs: Callable[[], str]) -> None:
    with database.client() as client:
        name(client, 1)
        client.execute(f"UPDATE {jobs()} SET text = 'old'")
        client.commit()
        with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
            client.execute(f"UPDATE {jobs()} SET text = 'new'")


@pytest.mark.parametrize(
    "token",
    ["0", "-1", "+5", " 5", "5 ", "5\n", "5.0", "1e3", "0x10", "007", "1_000", "٣", str(2**63), "9" * 5000, "x"],
)
def test_what_is_not_a_token_is_refused(database: Database, jobs: Callable[[], str], token: str) -> None:
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        database.run(f"UPDATE {jobs()} SET text = 'new'", token=token)


def test_truncate_takes_rows_of_many_locks_and_is_refused_with_a_token_too(database: Database) -> None:
    table = database.table()
    database.protect(table)
    with pytest.raises(psycopg.DatabaseError, match="fencing token required: TRUNCATE"):
        database.run(f"TRUNCATE {table}", token=33)


def test_a_cascade_from_another_table_is_refused(database: Database) -> None:
    parent = database.table()
    child = database.table(f"id bigint PRIMARY KEY, p bigint REFERENCES {parent} ON DELETE CASCADE", "(7, 1)")
    database.protect(child)
    for statement in (f"DELETE FROM {parent} WHERE id = 1", f"TRUNCATE {parent} CASCADE"):
        with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
            database.run(statement)
    database.run(f"DELETE FROM {parent} WHERE id = 1", token=1)
    assert database.run(f"SELECT * FROM {child}") == []


# --- which lock ------------------------------------------------------------------------------------------------------


def test_each_row_has_the_fence_of_its_own_lock(database: Database) -> None:
    table = database.table("tenant text, id int, n int, PRIMARY KEY (tenant, id)", "('a', 1, 0), ('b', 1, 0)")
    database.protect(table, "tenant", "id", guard="acct:{tenant}")
    database.run(f"UPDATE {table} SET n = 1 WHERE tenant = 'a'", token=50)
    database.run(f"UPDATE {table} SET n = 1 WHERE tenant = 'b'", token=40)
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 40 of the lock acct:a"):
        database.run(f"UPDATE {table} SET n = 2", token=40)
    assert (database.mark("acct:a"), database.mark("acct:b")) == (50, 40)


def test_a_composite_key_is_joined_as_the_gateway_joins_it(database: Database) -> None:
    table = database.table("tenant text, id int, PRIMARY KEY (tenant, id)", "")
    database.protect(table, "tenant", "id", guard="{resource}:{key}")
    database.run(f"INSERT INTO {table} VALUES ('ü%', 7)", token=33)
    assert database.mark(f"{table}:ü%/7") == 33


def test_a_row_that_moves_to_another_lock_passes_both_fences(database: Database) -> None:
    table = database.table()
    database.protect(table)
    database.run(f"UPDATE {table} SET text = 'x' WHERE id = 2", token=50)
    database.run(f"DELETE FROM {table} WHERE id = 2", token=50)
    with pytest.raises(psycopg.DatabaseError, match=f"stale fencing token 40 of the lock {table}:2"):
        database.run(f"UPDATE {table} SET id = 2 WHERE id = 1", token=40)
    database.run(f"UPDATE {table} SET text = 'x' WHERE id = 1", token=60)
    with pytest.raises(psycopg.DatabaseError, match=f"stale fencing token 55 of the lock {table}:1"):
        database.run(f"UPDATE {table} SET id = 2 WHERE id = 1", token=55)
    database.run(f"UPDATE {table} SET id = 2 WHERE id = 1", token=60)
    assert (database.mark(f"{table}:1"), database.mark(f"{table}:2")) == (60, 60)


def test_a_token_that_is_named_with_its_lock_counts_for_that_lock_only(database: Database) -> None:
    table = database.table()
    database.protect(table)
    database.run(f"UPDATE {table} SET text = 'x' WHERE id = 1", token=33, lock=f"{table}:1")
    with pytest.raises(
        psycopg.DatabaseError, match=f"fencing token required: this row is guarded by the lock {table}:2"
    ):
        database.run(f"UPDATE {table} SET text = 'x' WHERE id = 2", token=33, lock=f"{table}:1")
    both = f"{table}:2\n{table}:1"
    database.run(f"UPDATE {table} SET text = 'y'", token="40\n41", lock=both)
    assert (database.mark(f"{table}:2"), database.mark(f"{table}:1")) == (40, 41)
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        database.run(f"UPDATE {table} SET text = 'z'", token="50", lock=both)


def test_a_row_without_a_key_has_no_lock(database: Database) -> None:
    table = database.table("id int, text text", "(1, 'old')")
    database.protect(table)
    for statement in (f"INSERT INTO {table} VALUES (NULL, 'x')", f"UPDATE {table} SET id = NULL"):
        with pytest.raises(
            psycopg.DatabaseError, match="fencing token required: a column that the guard needs is null"
        ):
            database.run(statement, token=33)


def test_a_lock_key_that_no_lock_can_have_is_refused(database: Database) -> None:
    table = database.table("id text", "")
    database.protect(table, guard="{key}")
    for key in ("", "x" * 1025, "ü" * 513):
        with pytest.raises(psycopg.DatabaseError, match="fencing token required: no lock has a key"):
            database.run(f"INSERT INTO {table} VALUES ('{key}')", token=33)
    database.run(f"INSERT INTO {table} VALUES ('{'ü' * 512}')", token=33)


def test_a_trigger_of_the_table_that_changes_the_key_last_does_not_change_the_fence(database: Database) -> None:
    table = database.table()
    database.protect(table)
    database.run(
        f"CREATE FUNCTION {table}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := 2; RETURN NEW; END'",
        f"CREATE TRIGGER zzz BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_f()",
    )
    database.run(f"DELETE FROM {table} WHERE id = 2", token=50)
    with pytest.raises(psycopg.DatabaseError, match=f"stale fencing token 40 of the lock {table}:2"):
        database.run(f"INSERT INTO {table} VALUES (1, 'x')", token=40)


# --- interleavings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
@pytest.mark.parametrize("guard", ["{table}:{key}", "job:{table}"])
def test_a_transaction_that_began_first_is_refused_once_a_newer_token_has_committed(
    database: Database, guard: str, isolation: IsolationLevel
) -> None:
    table = database.table()
    database.protect(table, guard=guard)
    for row in (1, 2):
        database.run(f"UPDATE {table} SET text = 'first' WHERE id = {row}", token=33)
    with database.client(isolation) as old:
        name(old, 33)
        old.execute(f"SELECT * FROM {table}")
        database.run(f"SELECT fencegate.enforce('{guard.format(table=table, key=1)}', 34)")
        with pytest.raises(psycopg.DatabaseError) as refused:
            old.execute(f"UPDATE {table} SET text = 'stale' WHERE id = 1")
        # What a snapshot hides is refused as a conflict; it is stale when it is tried again.
        assert refused.value.sqlstate == "40001" if isolation is IsolationLevel.REPEATABLE_READ else "ZF001"
    assert database.run(f"SELECT text FROM {table} WHERE id = 1") == [("first",)]


@pytest.mark.parametrize("guard", ["{table}:{key}", "job:{table}"])
def test_a_newer_token_waits_for_the_commit_of_an_older_one_that_has_written(database: Database, guard: str) -> None:
    table = database.table()
    database.protect(table, guard=guard)
    claim = f"SELECT fencegate.enforce('{guard.format(table=table, key=1)}', 34)"
    with database.client() as old, ThreadPoolExecutor(1) as threads:
        name(old, 33)
        old.execute(f"UPDATE {table} SET text = 'old' WHERE id = 1")
        newer = threads.submit(database.run, claim)
        eventually_sync(database.waiting)
        old.commit()
        assert newer.result(30) == [(34,)]
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token"):
        database.run(f"UPDATE {table} SET text = 'stale' WHERE id = 1", token=33)


def test_a_stale_write_that_waits_for_the_newer_ones_row_is_refused_when_it_gets_it(database: Database) -> None:
    table = database.table()
    database.protect(table)
    with database.client() as newer, ThreadPoolExecutor(1) as threads:
        name(newer, 34)
        newer.execute(f"UPDATE {table} SET text = 'newer' WHERE id = 1")
        stale = threads.submit(database.run, f"UPDATE {table} SET text = 'stale' WHERE id = 1", token=33)
        eventually_sync(database.waiting)
        newer.commit()
        with pytest.raises(psycopg.DatabaseError, match="stale fencing token 33"):
            stale.result(30)


def test_holders_of_one_token_write_side_by_side(database: Database) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    database.run(f"UPDATE {table} SET text = 'first'", token=33)
    with database.client() as one, database.client() as two:
        for client, row in ((one, 1), (two, 2)):
            name(client, 33)
            client.execute("SET LOCAL lock_timeout = '5s'")
            client.execute(f"UPDATE {table} SET text = 'side by side' WHERE id = {row}")
        one.commit()
        two.commit()
    assert database.run(f"SELECT DISTINCT text FROM {table}") == [("side by side",)]


def test_two_that_raise_a_fence_at_once_don_t_block_each_other_for_good(database: Database) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    with ThreadPoolExecutor(8) as threads:
        for token in (33, 34, 35):
            update = f"UPDATE {table} SET text = 'x' WHERE id = 1"
            for done in [threads.submit(database.run, update, token=token) for _ in range(8)]:
                done.result(30)


def test_a_floor_that_is_raised_is_respected(database: Database) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    database.run(f"UPDATE fencegate_resources SET floor = 90 WHERE name = 'protect:public.{table}'")
    try:
        with pytest.raises(psycopg.DatabaseError, match=r"stale fencing token 89 .* has seen 90"):
            database.run(f"UPDATE {table} SET text = 'x'", token=89)
        database.run(f"UPDATE {table} SET text = 'x'", token=90)
    finally:
        database.run("UPDATE fencegate_resources SET floor = 0")


def test_a_floor_waits_for_who_is_past_it_even_from_an_old_snapshot(database: Database) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    try:
        with database.client(IsolationLevel.REPEATABLE_READ) as old:
            name(old, 33)
            old.execute("SELECT 1")
            database.run("UPDATE fencegate_resources SET floor = 90")
            with pytest.raises(psycopg.errors.SerializationFailure):
                old.execute(f"UPDATE {table} SET text = 'x'")
    finally:
        database.run("UPDATE fencegate_resources SET floor = 0")


# --- fencegate.enforce -----------------------------------------------------------------------------------------------


def test_enforce_fences_any_table_and_names_the_token_for_the_triggers(database: Database) -> None:
    plain, table = database.table(), database.table()
    database.protect(table)
    locks = [f"{table}:1", f"{table}:2"]
    database.run(
        f"SELECT fencegate.enforce('{locks[0]}', 33)",
        f"SELECT fencegate.enforce('{locks[1]}', 43)",
        f"SELECT fencegate.enforce('{locks[0]}', 34)",
        f"UPDATE {table} SET text = 'new'",
        f"UPDATE {plain} SET text = 'new'",
    )
    assert [database.mark(lock) for lock in locks] == [34, 43]
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 33"):
        database.run(f"SELECT fencegate.enforce('{locks[0]}', 33)", f"UPDATE {plain} SET text = 'stale'")
    assert database.run(f"SELECT DISTINCT text FROM {plain}") == [("new",)]


@pytest.mark.parametrize("arguments", ["NULL, 1", "'', 1", "'a', NULL", "'a', 0", "'a', -1", "E'a\\nb', 1"])
def test_enforce_never_takes_nonsense_for_a_pass(database: Database, jobs: Callable[[], str], arguments: str) -> None:
    assert jobs()
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        database.run(f"SELECT fencegate.enforce({arguments})")


# --- tables of many kinds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", ["{table}:{key}", "job:{table}"])
def test_partitions_are_protected_as_the_whole_is(database: Database, guard: str) -> None:
    table = f"t{next(_numbers)}"
    database.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, text text) PARTITION BY RANGE (id)",
        *(f"CREATE TABLE {table}_{n} PARTITION OF {table} FOR VALUES FROM ({n}0) TO ({n}9)" for n in (1, 2)),
        f"INSERT INTO {table} VALUES (11, 'old'), (21, 'old')",
    )
    database.protect(table, guard=guard)
    database.run(f"CREATE TABLE {table}_3 PARTITION OF {table} FOR VALUES FROM (30) TO (39)")
    for statement in (
        f"UPDATE {table} SET id = 22 WHERE id = 11",
        f"UPDATE {table}_1 SET text = 'new'",
        f"DELETE FROM {table}_2",
        f"INSERT INTO {table}_3 VALUES (31, 'new')",
        f"TRUNCATE {table}",
        f"TRUNCATE {table}_1",
    ):
        with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
            database.run(statement)
    database.run(f"UPDATE {table} SET id = 22 WHERE id = 11", token=33)
    for lock in (guard.format(table=table, key=11), guard.format(table=table, key=22)):
        assert database.mark(lock) == 33
    database.protect(table, guard=guard)
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        database.run(f"TRUNCATE {table}_3")
    install.unprotect(database.url, table_name(table))
    database.run(f"TRUNCATE {table}_1", f"INSERT INTO {table} VALUES (12, 'free')")


def test_what_has_no_rows_of_its_own_or_has_them_elsewhere_is_not_protected(
    database: Database, command: Command
) -> None:
    table = database.table()
    database.run(
        f"CREATE VIEW {table}_view AS SELECT * FROM {table}",
        f"CREATE TABLE {table}_child () INHERITS ({table})",
        f"CREATE TABLE {table}_all (id int) PARTITION BY LIST (id)",
        f"CREATE TABLE {table}_part PARTITION OF {table}_all DEFAULT",
    )
    assert "is not a table" in command(f"{table}_view", "--key", "id", code=2).err
    assert "is a partition" in command(f"{table}_part", "--key", "id", code=2).err
    assert f"public.{table}_child" in command(table, "--key", "id", code=1).err
    database.run(f"UPDATE {table} SET text = 'free'")
    command(table, "--key", "id", "--allow-gaps")
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        database.run(f"UPDATE {table} SET text = 'new'")
    command(f"{table}_child", "--key", "id", "--guard", "job:child")
    database.run(f"INSERT INTO {table}_child VALUES (9, 'x')", token=1)
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        database.run(f"DELETE FROM {table} WHERE id = 9")


HOSTILE = (
    'quo"te',
    "semi;colon' --",
    "$fencegate$",
    "per%cent %s",
    "back\\slash",
    "ünïcode",
    "a.b",
    "<<new>>",
    "x" * 70,
)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_names(database: Database, hostile: str) -> None:
    quoted = '"' + hostile.replace('"', '""') + '"'
    database.run(
        f"CREATE SCHEMA IF NOT EXISTS {quoted}",
        f"CREATE TABLE {quoted}.{quoted} ({quoted} text PRIMARY KEY)",
    )
    with database.client() as client:
        for lock in (hostile[:63], "job"):
            guard = f"{{{hostile}}}" if lock != "job" else f"{hostile}:job'"
            database.protect(f"{quoted}.{quoted}", hostile, guard=guard)
            statement = f"INSERT INTO {quoted}.{quoted} VALUES ($value${hostile}$value$)"
            with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
                client.execute(statement)
            client.rollback()
            name(client, 2**63 - 1, hostile if lock != "job" else f"{hostile}:job'")
            client.execute(statement)
            client.rollback()
    install.unprotect(database.url, table_name(f"{quoted}.{quoted}"))


@pytest.mark.parametrize("kind", ["timestamptz", "numeric", "double precision", "bytea", "char(5)", "jsonb", "date"])
def test_a_key_that_can_be_spelled_in_several_ways_is_refused(database: Database, command: Command, kind: str) -> None:
    table = database.table(f"id {kind}, n int", "")
    assert "can be spelled in several ways" in command(table, "--key", "id", code=2).err
    command(table, "--key", "id", "--guard", "job:x")


def test_keys_are_spelled_as_the_gateway_spells_them(database: Database) -> None:
    database.run("CREATE TYPE colour AS ENUM ('red')", "CREATE DOMAIN small AS int CHECK (VALUE < 10)")
    uid = "0000AAAA-0000-4000-8000-00000000000B"
    for kind, value, spelled in (("colour", "red", "red"), ("small", "7", "7"), ("uuid", uid, uid.lower())):
        table = database.table(f"id {kind}", "")
        database.protect(table)
        database.run(f"INSERT INTO {table} VALUES ('{value}')", token=33)
        assert database.mark(f"{table}:{spelled}") == 33


def test_keys_that_are_equal_by_their_collation_and_not_the_same_have_two_locks(database: Database) -> None:
    try:
        database.run("CREATE COLLATION caseless (PROVIDER = icu, LOCALE = 'und-u-ks-level2', DETERMINISTIC = false)")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this PostgreSQL was built without ICU")
    table = database.table("id text COLLATE caseless PRIMARY KEY", "")
    database.protect(table)
    database.run(f"INSERT INTO {table} VALUES ('a')", token=33, lock=f"{table}:a")
    with pytest.raises(
        psycopg.DatabaseError, match=f"fencing token required: this row is guarded by the lock {table}:A"
    ):
        database.run(f"UPDATE {table} SET id = 'A'", token=33, lock=f"{table}:a")
    database.run(f"UPDATE {table} SET id = 'A'", token=34)
    assert (database.mark(f"{table}:a"), database.mark(f"{table}:A")) == (34, 34)


# --- rights ----------------------------------------------------------------------------------------------------------


def test_an_application_needs_no_rights_on_the_fences_and_can_t_put_its_own_in_their_place(database: Database) -> None:
    table = database.table()
    database.protect(table)
    role = f"app_{database.name}"
    database.run(f"CREATE ROLE {role}", f"GRANT ALL ON {table} TO {role}", f"GRANT ALL ON SCHEMA public TO {role}")
    database.run(f"UPDATE {table} SET text = 'x'", token=34)
    tricks = (
        "CREATE TEMP TABLE fencegate_fences (lock_key bytea, mode text, token bigint)",
        "CREATE TEMP TABLE fencegate_resources (floor bigint)",
        "SET search_path = pg_temp, public",
    )
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 33"):
        database.run(f"SET LOCAL ROLE {role}", *tricks, f"UPDATE public.{table} SET text = 'y'", token=33)
    database.run(f"SET LOCAL ROLE {role}", f"UPDATE {table} SET text = 'z'", token=34)
    for denied in (
        "DELETE FROM fencegate_fences",
        "SELECT fencegate.enforce('a', 1)",
        f"DROP TRIGGER fencegate_rows ON {table}",
    ):
        with pytest.raises(psycopg.DatabaseError, match=r"permission denied|must be owner"):
            database.run(f"SET LOCAL ROLE {role}", denied)
    database.run(f"GRANT USAGE ON SCHEMA fencegate TO {role}")
    database.run(f"SET LOCAL ROLE {role}", "SELECT fencegate.enforce('a', 1)")


# --- the command -----------------------------------------------------------------------------------------------------


def installed(database: Database) -> list[tuple[Any, ...]]:
    """All that is there: functions with their comments, triggers, records."""
    functions = database.run(
        "SELECT pg_get_functiondef(p.oid), obj_description(p.oid) FROM pg_proc p "
        "WHERE pronamespace = to_regnamespace('fencegate') ORDER BY 1"
    )
    triggers = database.run(
        "SELECT pg_get_triggerdef(oid), tgenabled FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1"
    )
    schemas = database.run("SELECT nspname FROM pg_namespace WHERE nspname = 'fencegate'")
    return functions + triggers + schemas


@pytest.fixture(scope="module")
def fresh(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database in which nothing is protected between two tests."""
    with closing(Database(postgres_server)) as found:
        yield found


@pytest.fixture
def fresh_command(fresh: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(fresh.url, capsys, monkeypatch)


def psql(database: Database) -> list[str]:
    program = shutil.which("psql")
    if program is None:
        pytest.skip("no psql: install postgresql-client (Debian), or put psql on PATH")
    return [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", database.url]


def test_psql_is_refused_like_everybody_else(database: Database, jobs: Callable[[], str]) -> None:
    update = f"UPDATE {jobs()} SET text = 'old'"
    done = subprocess.run([*psql(database), "-c", update], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "fencing token required" in done.stderr
    run_script(psql(database), f"BEGIN; SELECT set_config('fencegate.token', '1', true); {update}; COMMIT;")


def test_a_dry_run_does_nothing_and_its_output_by_hand_does_the_same(fresh: Database, fresh_command: Command) -> None:
    table = fresh.table("id text, n int", "")
    options = (table, "--key", "id", "--guard", "it's \\ {key}")
    printed = fresh_command(*options, "--dry-run")
    assert printed.err == ""
    assert installed(fresh) == []
    run_script(psql(fresh), printed.out)
    by_hand = installed(fresh)
    assert "it was already" in fresh_command(*options).out
    assert fresh_command(*options, "--dry-run").out == ""
    run_script(psql(fresh), fresh_command(table, "--remove", "--dry-run").out)
    assert installed(fresh) == []
    fresh_command(*options)
    assert installed(fresh) == by_hand
    fresh_command(table, "--remove")


def test_removal_takes_away_what_was_installed_and_nothing_else(fresh: Database, fresh_command: Command) -> None:
    one, two = fresh.table(), fresh.table()
    fresh_command(one, "--key", "id")
    alone = installed(fresh)
    fresh_command(two, "--key", "id", "--guard", "job:two")
    fresh.run(f"UPDATE {two} SET text = 'x'", token=34)
    fresh_command(two, "--remove")
    assert installed(fresh) == alone
    fresh.run(f"UPDATE {two} SET text = 'free'")
    fresh.run("CREATE FUNCTION fencegate.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    fresh_command(one, "--remove")
    assert [
        name_ for (name_,) in fresh.run("SELECT proname FROM pg_proc WHERE pronamespace = 'fencegate'::regnamespace")
    ] == ["mine"]
    fresh.run("DROP SCHEMA fencegate CASCADE")
    assert "is not protected" in fresh_command(one, "--remove").out
    fresh_command(two, "--key", "id", "--guard", "job:two")
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 33"):  # the marks were kept
        fresh.run(f"UPDATE {two} SET text = 'stale'", token=33)
    fresh_command(two, "--remove")


def test_what_was_installed_for_a_table_that_is_gone_goes_with_the_next_removal(
    fresh: Database, fresh_command: Command
) -> None:
    one, two = fresh.table(), fresh.table()
    fresh_command(one, "--key", "id")
    fresh_command(two, "--key", "id")
    fresh.run(f"DROP TABLE {one}")
    fresh_command(two, "--remove")
    assert installed(fresh) == []


def test_another_guard_takes_over_with_a_floor_at_the_highest_token_seen(
    fresh: Database, fresh_command: Command
) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id", "--guard", "job:a")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=50)
    assert "--floor" in fresh_command(table, "--key", "id").err
    for token, pattern in ((None, "fencing token required"), (49, "stale fencing token 49")):
        with pytest.raises(psycopg.DatabaseError, match=pattern):
            fresh.run(f"UPDATE {table} SET text = 'y'", token=token)
    fresh.run(f"UPDATE {table} SET text = 'y'", token=50)
    assert fresh_command(table, "--key", "id", "--floor", "60").err == ""
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 59"):
        fresh.run(f"UPDATE {table} SET text = 'z'", token=59)
    fresh_command(table, "--remove")
    fresh.run("UPDATE fencegate_resources SET floor = 0")


def test_a_forged_mark_of_another_lock_shuts_nobody_out_when_the_guard_changes(
    fresh: Database, fresh_command: Command
) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id", "--guard", "job:a")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=50)
    fresh.run("INSERT INTO fencegate_fences VALUES ('elsewhere', 'enforce', 9223372036854775807)")
    fresh.run("INSERT INTO fencegate_fences VALUES ('elsewhere:too', 'enforce', 70)")
    fresh_command(table, "--key", "id")
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 69"):
        fresh.run(f"UPDATE {table} SET text = 'y'", token=69)
    fresh.run(f"UPDATE {table} SET text = 'y'", token=70)
    # One of its own locks may have been given such a token by another issuer, so that lower ones are stale.
    fresh.run(f"UPDATE fencegate_fences SET token = 9223372036854775807 WHERE lock_key = '{table}:1'")
    fresh_command(table, "--key", "id", "--guard", "job:b")
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 99"):
        fresh.run(f"UPDATE {table} SET text = 'z'", token=99)
    fresh_command(table, "--remove")
    fresh.run("UPDATE fencegate_resources SET floor = 0")
    fresh.run("DELETE FROM fencegate_fences")


def test_a_table_that_was_renamed_is_still_protected_and_can_be_removed(
    fresh: Database, fresh_command: Command
) -> None:
    table, other = fresh.table(), fresh.table()
    fresh_command(other, "--key", "id")
    alone = installed(fresh)
    fresh_command(table, "--key", "id")
    fresh.run(f"ALTER TABLE {table} RENAME TO {table}_renamed")
    assert "not protected any more" in fresh_command(f"{table}_renamed", "--remove").out
    fresh.run(f"UPDATE {table}_renamed SET text = 'free'")
    assert installed(fresh) == alone
    fresh_command(other, "--remove")


def test_what_takes_the_old_name_of_a_table_does_not_touch_its_triggers(
    fresh: Database, fresh_command: Command
) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id")
    fresh.run(f"ALTER TABLE {table} RENAME TO {table}_renamed")
    fresh.run(f"CREATE TABLE {table} (id bigint PRIMARY KEY, text text)")
    assert "is not protected" in fresh_command(table, "--remove").out
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        fresh.run(f"UPDATE {table}_renamed SET text = 'x'")
    fresh_command(f"{table}_renamed", "--remove")
    assert installed(fresh) == []


def test_a_table_that_takes_the_old_name_of_another_leaves_it_to_its_lock(
    fresh: Database, fresh_command: Command
) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id", "--guard", "job:one")
    fresh.run(f"ALTER TABLE {table} RENAME TO {table}_old")
    fresh.run(f"CREATE TABLE {table} (id bigint PRIMARY KEY, text text)", f"INSERT INTO {table} VALUES (1, 'old')")
    fresh_command(table, "--key", "id", "--guard", "job:two")
    for of, lock, other in ((table, "job:two", "job:one"), (f"{table}_old", "job:one", "job:two")):
        fresh.run(f"UPDATE {of} SET text = 'x'", token=34, lock=lock)
        with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
            fresh.run(f"UPDATE {of} SET text = 'y'", token=34, lock=other)
    fresh_command(f"{table}_old", "--remove")
    assert fresh_command(table, "--key", "id", "--guard", "job:two").err == ""
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        fresh.run(f"UPDATE {table} SET text = 'y'", token=34, lock="job:one")
    fresh_command(table, "--remove")
    assert installed(fresh) == []


def test_a_new_name_is_another_guard(fresh: Database, fresh_command: Command) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=50)
    fresh.run(f"ALTER TABLE {table} RENAME TO {table}_renamed")
    assert "--floor" in fresh_command(f"{table}_renamed", "--key", "id").err
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 49"):
        fresh.run(f"UPDATE {table}_renamed SET text = 'y'", token=49)
    fresh.run(f"UPDATE {table}_renamed SET text = 'y'", token=50)
    assert fresh_command(f"{table}_renamed", "--key", "id").err == ""
    fresh_command(f"{table}_renamed", "--remove")
    fresh.run("UPDATE fencegate_resources SET floor = 0")


def test_a_table_that_takes_the_name_of_one_that_was_protected_is_another_guard(
    fresh: Database, fresh_command: Command
) -> None:
    """Its triggers are those of its old name, whatever is remembered of the table that had the new one."""
    table, other = fresh.table(), fresh.table()
    fresh_command(table, "--key", "id")
    fresh_command(other, "--key", "id")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=50)
    fresh.run(f"DROP TABLE {other}", f"ALTER TABLE {table} RENAME TO {other}")
    assert "--floor" in fresh_command(other, "--key", "id").err
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 49"):
        fresh.run(f"UPDATE {other} SET text = 'y'", token=49)
    fresh.run(f"UPDATE {other} SET text = 'y'", token=50)
    assert "--floor" not in fresh_command(other, "--key", "id").err
    fresh_command(other, "--remove")
    fresh.run("UPDATE fencegate_resources SET floor = 0")


def test_a_trigger_that_was_switched_off_is_put_back(fresh: Database, fresh_command: Command) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id")
    fresh.run(f"ALTER TABLE {table} DISABLE TRIGGER fencegate_rows", f"UPDATE {table} SET text = 'x'")
    fresh_command(table, "--key", "id")
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        fresh.run(f"UPDATE {table} SET text = 'y'")
    fresh_command(table, "--remove")


def test_a_trigger_that_was_switched_off_in_a_partition_is_put_back(fresh: Database, fresh_command: Command) -> None:
    table = f"t{next(_numbers)}"
    fresh.run(
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, text text) PARTITION BY RANGE (id)",
        f"CREATE TABLE {table}_1 PARTITION OF {table} DEFAULT",
        f"INSERT INTO {table} VALUES (1, 'old')",
    )
    fresh_command(table, "--key", "id")
    fresh.run(f"ALTER TABLE {table}_1 DISABLE TRIGGER fencegate_rows", f"UPDATE {table} SET text = 'x'")
    fresh_command(table, "--key", "id")
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        fresh.run(f"UPDATE {table} SET text = 'y'")
    fresh_command(table, "--remove")


def test_ten_at_once_protect_it_once(fresh: Database) -> None:
    table = fresh.table()
    with ThreadPoolExecutor(10) as threads:
        for done in [threads.submit(fresh.protect, table, guard=f"job:{n % 2}") for n in range(10)]:
            done.result(60)
    with pytest.raises(psycopg.DatabaseError, match="fencing token required"):
        fresh.run(f"UPDATE {table} SET text = 'x'")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=2**63 - 1)
    install.unprotect(fresh.url, table_name(table))


def test_who_waited_for_another_goes_by_what_that_one_did(fresh: Database) -> None:
    table = fresh.table()
    before = install.protect(fresh.url, Wanted(table_name(table), ("id",), "job:a"), dry_run=True)
    with fresh.client() as other, ThreadPoolExecutor(1) as threads:
        for step in before.steps:
            other.execute(step)
        late = threads.submit(fresh.protect, table, guard="job:b")
        eventually_sync(fresh.waiting)
        name(other, 50)
        other.execute(f"UPDATE {table} SET text = 'x'")
        other.commit()
        late.result(60)
    with pytest.raises(psycopg.DatabaseError, match="stale fencing token 49"):
        fresh.run(f"UPDATE {table} SET text = 'y'", token=49, lock="job:b")
    install.unprotect(fresh.url, table_name(table))
    fresh.run("UPDATE fencegate_resources SET floor = 0")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing", "--key", "id"), 2, "there is no table 'nothing'"),
        (("{t}",), 2, "name the key column"),
        (("{t}", "--key", "nothing"), 2, "has no column 'nothing'"),
        (("{t}", "--key", "id", "--guard", "{text}"), 2, "only {table}, {key}, {id} can be filled in"),
        (("{t}", "--key", "id", "--guard", "a{"), 2, "unbalanced braces"),
        (("{t}", "--key", "id", "--guard", "a//b"), 2, "guard"),
        (("{t}", "--key", "id", "--floor", "0"), 2, "--floor"),
        (("a.b.c", "--key", "id"), 2, "is not a name"),
        (("fencegate_fences", "--key", "mode"), 2, "of Fencegate itself"),
    ],
)
def test_bad_usage_is_told_and_nothing_is_done(
    database: Database, jobs: Callable[[], str], command: Command, arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert said in command(*(jobs() if text == "{t}" else text for text in arguments), code=code).err


def test_a_database_that_is_not_there_is_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Command("postgresql://me:secret@127.0.0.1:1/x", capsys, monkeypatch)("t", "--key", "id", code=3)
    assert "secret" not in answer.err


def test_a_url_that_can_not_be_read_is_told_without_its_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Command("postgresql://me:secret@host:port/x", capsys, monkeypatch)("t", "--key", "id", code=2)
    assert "not one of a database" in answer.err
    assert "secret" not in answer.err
