"""A protected table of MariaDB refuses every client that names no token, or a stale one: mariadb and bare drivers."""

import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest

from fencegate_adapters.sql.protect import install
from fencegate_adapters.sql.protect.wanted import Wanted, table_name
from tests.eventually import eventually_sync
from tests.real.mariadb import MariadbServer
from tests.resources.protecting import Command, run_script

_numbers = itertools.count()

WRITES = (
    "INSERT INTO {t} VALUES (3, 'new')",
    "INSERT IGNORE INTO {t} VALUES (3, 'new')",
    "UPDATE {t} SET text = 'new'",
    "DELETE FROM {t}",
    "REPLACE INTO {t} VALUES (1, 'new')",
    "INSERT INTO {t} VALUES (1, 'new') ON DUPLICATE KEY UPDATE text = VALUES(text)",
    "UPDATE {t} a JOIN {t} b ON a.id = b.id SET a.text = 'new'",
)
GUARDS = ("{table}:{key}", "job:{table}")
Refused = pymysql.err.MySQLError


class Database:
    def __init__(self, server: MariadbServer) -> None:
        self.server = server
        self.name = f"protect_{os.getpid()}_{next(_numbers)}"
        server.ask(f"CREATE DATABASE {self.name} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        self.url = server.url(self.name)
        self._free: list[Client] = []

    @contextmanager
    def client(self, isolation: str = "READ COMMITTED") -> "Iterator[Client]":
        with closing(self.server.connect(self.name)) as connection:
            client = Client(connection)
            client(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
            client("SET SESSION innodb_lock_wait_timeout = 20")
            client("BEGIN")
            yield client

    def run(self, *statements: str, token: object = None, lock: str | None = None) -> list[tuple[Any, ...]]:
        """One transaction; what the last statement answers."""
        client = self._free.pop() if self._free else Client(self.server.connect(self.name))
        try:
            client("BEGIN")
            client.name(token, lock)
            rows = [client(statement) for statement in statements][-1]
            client("COMMIT")
            return rows
        finally:
            client("ROLLBACK")
            client.name(None)
            self._free.append(client)

    def table(self, columns: str = "id bigint PRIMARY KEY, text text", rows: str = "(1, 'old'), (2, 'old')") -> str:
        name = f"t{next(_numbers)}"
        self.run(f"CREATE TABLE {name} ({columns})", *([f"INSERT INTO {name} VALUES {rows}"] if rows else []))
        return name

    def protect(self, table: str, *key: str, guard: str = "{table}:{key}", floor: int | None = None) -> None:
        install.protect(self.url, Wanted(table_name(table), key or ("id",), guard, floor))

    def mark(self, lock_key: str) -> int | None:
        rows = self.run(f"SELECT token FROM fencegate_fences WHERE lock_key = X'{lock_key.encode().hex()}'")
        return rows[0][0] if rows else None

    def waiting(self) -> bool:
        time.sleep(0.15)  # the server looks anew only when nobody has asked for a tenth of a second
        return bool(self.run("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))

    def close(self) -> None:
        for client in self._free:
            client.connection.close()


class Client:
    """A bare driver."""

    def __init__(self, connection: "pymysql.Connection[Any]") -> None:
        self.connection = connection

    def __call__(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def name(self, token: object, lock: str | None = None) -> None:
        self("SET @fencegate_token = %s, @fencegate_lock = %s", token, lock)


@pytest.fixture(scope="module")
def database(mysql_server: MariadbServer) -> Iterator[Database]:
    with closing(Database(mysql_server)) as found:
        yield found


@pytest.fixture
def command(database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(database.url, capsys, monkeypatch)


@pytest.fixture(scope="module")
def jobs(database: Database) -> str:
    """A table that one lock guards, for the tests that leave it as it was."""
    made = database.table()
    database.protect(made, guard="job:shared")
    return made


# --- who is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", GUARDS)
def test_a_write_without_a_token_is_refused_and_changes_nothing(database: Database, guard: str) -> None:
    table = database.table()
    database.protect(table, guard=guard)
    for statement in WRITES:
        with pytest.raises(Refused, match="fencing token required"):
            database.run(statement.format(t=table))
    assert database.run(f"SELECT * FROM {table} ORDER BY id") == [(1, "old"), (2, "old")]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_stale_token_is_refused_and_changes_nothing(database: Database, guard: str) -> None:
    table = database.table()
    database.protect(table, guard=guard)
    database.run(f"UPDATE {table} SET text = 'successor'", f"INSERT INTO {table} VALUES (3, 'x')", token=34)
    database.run(f"DELETE FROM {table} WHERE id = 3", token=34)
    for statement in WRITES:
        with pytest.raises(Refused, match="stale fencing token 33: the database has seen 34"):
            database.run(statement.format(t=table), token=33)
    assert database.run(f"SELECT * FROM {table} ORDER BY id") == [(1, "successor"), (2, "successor")]


def test_a_refused_statement_is_undone_alone_and_what_passed_before_it_stays(database: Database) -> None:
    table = database.table()
    database.protect(table)
    database.run(f"UPDATE {table} SET text = 'newer' WHERE id = 2", token=50)
    with database.client() as client:
        client.name(40)
        client(f"UPDATE {table} SET text = 'mine' WHERE id = 1")
        with pytest.raises(Refused, match="stale fencing token 40"):
            client(f"UPDATE {table} SET text = 'stale'")
        client("COMMIT")
    assert database.run(f"SELECT * FROM {table} ORDER BY id") == [(1, "mine"), (2, "newer")]
    assert (database.mark(f"{table}:1"), database.mark(f"{table}:2")) == (40, 50)


def test_the_newest_token_writes_again_and_again(database: Database) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    for token in (33, "34", 2**63 - 1):
        for statement in WRITES:
            database.run(
                f"INSERT IGNORE INTO {table} VALUES (1, 'x')",
                f"DELETE FROM {table} WHERE id = 3",
                statement.format(t=table),
                token=token,
            )
    assert database.mark(f"job:{table}") == 2**63 - 1


@pytest.mark.parametrize(
    "token",
    ["", "0", "-1", -1, 0, "+5", " 5", "5 ", "5\n", "5.0", 5.5, "1e3", "0x10", "007", "1_000", "٣", 2**63, "9" * 5000],
)
def test_what_is_not_a_token_is_refused(database: Database, jobs: str, token: object) -> None:
    with pytest.raises(Refused, match="fencing token required"):
        database.run(f"UPDATE {jobs} SET text = 'new'", token=token)


# --- which lock ------------------------------------------------------------------------------------------------------


def test_each_row_has_the_fence_of_its_own_lock(database: Database) -> None:
    columns = "tenant varchar(20), id int, n int, PRIMARY KEY (tenant, id)"
    table = database.table(columns, "('a', 1, 0), ('b', 1, 0)")
    database.protect(table, "tenant", "id", guard="acct:{tenant}")
    database.run(f"UPDATE {table} SET n = 1 WHERE tenant = 'a'", token=50)
    database.run(f"UPDATE {table} SET n = 1 WHERE tenant = 'b'", token=40)
    with pytest.raises(Refused, match="stale fencing token 40"):
        database.run(f"UPDATE {table} SET n = 2", token=40)
    assert (database.mark("acct:a"), database.mark("acct:b")) == (50, 40)


def test_two_spellings_of_a_key_that_a_collation_takes_for_one_are_two_locks(database: Database) -> None:
    table = database.table("id varchar(20) PRIMARY KEY, n int", "('a', 0)")
    database.protect(table)
    database.run(f"UPDATE {table} SET id = 'A'", token=33)
    assert (database.mark(f"{table}:a"), database.mark(f"{table}:A")) == (33, 33)


def test_keys_are_spelled_as_the_gateway_spells_them(database: Database) -> None:
    uid = "0000AAAA-0000-4000-8000-00000000000B"
    kinds = [
        ("int(8) zerofill", "7", "7"),
        ("bigint unsigned", str(2**64 - 1), str(2**64 - 1)),
        ("tinyint(1)", "1", "1"),
        ("varchar(20) CHARACTER SET latin1", "ü", "ü"),
        ("char(5)", "ab", "ab"),
        ("enum('red')", "red", "red"),
    ]
    if not database.server.is_mysql:  # which has no such type
        kinds.append(("uuid", uid, uid.lower()))
    for kind, value, spelled in kinds:
        table = database.table(f"id {kind}", "")
        database.protect(table)
        database.run(f"INSERT INTO {table} VALUES ('{value}')", token=33)
        assert database.mark(f"{table}:{spelled}") == 33


@pytest.mark.parametrize("kind", ["datetime", "decimal(9,2)", "double", "varbinary(9)", "set('a')", "bit(3)", "date"])
def test_a_key_that_can_be_spelled_in_several_ways_is_refused(database: Database, command: Command, kind: str) -> None:
    table = database.table(f"id {kind}, n int", "")
    assert "can be spelled in several ways" in command(table, "--key", "id", code=2).err


def test_a_row_that_moves_to_another_lock_passes_both_fences(database: Database) -> None:
    table = database.table()
    database.protect(table)
    database.run(f"DELETE FROM {table} WHERE id = 2", token=50)
    with pytest.raises(Refused, match="stale fencing token 40: the database has seen 50"):
        database.run(f"UPDATE {table} SET id = 2 WHERE id = 1", token=40)
    database.run(f"UPDATE {table} SET text = 'x' WHERE id = 1", token=60)
    with pytest.raises(Refused, match="stale fencing token 55: the database has seen 60"):
        database.run(f"UPDATE {table} SET id = 2 WHERE id = 1", token=55)
    database.run(f"UPDATE {table} SET id = 2 WHERE id = 1", token=60)
    assert (database.mark(f"{table}:1"), database.mark(f"{table}:2")) == (60, 60)


def test_a_token_that_is_named_with_its_lock_counts_for_that_lock_only(database: Database) -> None:
    table = database.table()
    database.protect(table)
    database.run(f"UPDATE {table} SET text = 'x' WHERE id = 1", token=33, lock=f"{table}:1")
    with pytest.raises(Refused, match="fencing token required: this row is guarded by another lock"):
        database.run(f"UPDATE {table} SET text = 'x' WHERE id = 2", token=33, lock=f"{table}:1")
    both = f"other\n{table}:2\n{table}:1"
    database.run(f"UPDATE {table} SET text = 'y'", token="99\n40\n41", lock=both)
    assert (database.mark(f"{table}:2"), database.mark(f"{table}:1")) == (40, 41)
    for tokens in ("50", "50\n", "50\n51", "50\n51\nx"):
        with pytest.raises(Refused, match="fencing token required"):
            database.run(f"UPDATE {table} SET text = 'z'", token=tokens, lock=both)


def test_a_mark_that_a_rollback_took_back_is_raised_again(database: Database) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    update = f"UPDATE {table} SET text = 'x'"
    database.run(update, token=32)
    with database.client() as client:
        client.name(33)
        client(update)
        client("ROLLBACK")
        assert database.mark(f"job:{table}") == 32
        client(update)
    assert database.mark(f"job:{table}") == 33


def test_a_row_without_a_key_has_no_lock(database: Database) -> None:
    table = database.table("id int, text text", "(1, 'old')")
    database.protect(table)
    for statement in (f"INSERT INTO {table} VALUES (NULL, 'x')", f"UPDATE {table} SET id = NULL"):
        for lock in (None, f"{table}:1"):
            with pytest.raises(Refused, match="fencing token required: no lock guards a row"):
                database.run(statement, token=33, lock=lock)


def test_a_lock_key_that_no_lock_can_have_is_refused(database: Database) -> None:
    table = database.table("id text", "")
    database.protect(table, guard="{key}")
    for key in ("", "x" * 1025, "ü" * 513):
        with pytest.raises(Refused, match="fencing token required: no lock guards a row"):
            database.run(f"INSERT INTO {table} VALUES ('{key}')", token=33)
    database.run(f"INSERT INTO {table} VALUES ('{'ü' * 512}')", token=33)


@pytest.mark.parametrize("statement", ["UPDATE {t} SET text = 'new'", "DELETE FROM {t}"])
def test_a_refusal_that_a_function_or_a_trigger_handles_changes_nothing(database: Database, statement: str) -> None:
    """MySQL takes back what a statement did, but not what one inside of a function did that was handled there."""
    table, other = database.table(), database.table()
    database.protect(table)
    handled = f"DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; {statement.format(t=table)};"
    database.run(
        f"CREATE FUNCTION {table}_quiet() RETURNS INT DETERMINISTIC BEGIN {handled} RETURN 1; END",
        f"CREATE TRIGGER {table}_quiet AFTER INSERT ON {other} FOR EACH ROW BEGIN {handled} END",
    )
    database.run(f"SELECT {table}_quiet()")
    database.run(f"INSERT INTO {other} VALUES (3, 'x')")
    assert database.run(f"SELECT text FROM {table}") == [("old",), ("old",)]


def test_a_trigger_of_the_table_that_changes_the_key_does_not_change_the_fence(database: Database) -> None:
    table = database.table()
    database.protect(table)
    database.run(f"CREATE TRIGGER {table}_zzz BEFORE INSERT ON {table} FOR EACH ROW SET NEW.id = 2")
    database.run(f"DELETE FROM {table} WHERE id = 2", token=50)
    with pytest.raises(Refused, match="stale fencing token 40"):
        database.run(f"INSERT INTO {table} VALUES (1, 'x')", token=40)


# --- interleavings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_transaction_that_began_first_is_refused_once_a_newer_token_has_committed(
    database: Database, guard: str, isolation: str
) -> None:
    table = database.table()
    database.protect(table, guard=guard)
    database.run(f"UPDATE {table} SET text = 'first' WHERE id = 1", token=33)
    with database.client(isolation) as old:
        old.name(33)
        old(f"SELECT * FROM {table}")
        old("SELECT * FROM fencegate_fences")  # the snapshot has 33
        database.run(f"CALL fencegate_enforce('{guard.format(table=table, key=1)}', 34)")
        with pytest.raises(Refused, match="stale fencing token 33: the database has seen 34"):
            old(f"UPDATE {table} SET text = 'stale' WHERE id = 1")
        old("COMMIT")
    assert database.run(f"SELECT text FROM {table} WHERE id = 1") == [("first",)]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_newer_token_waits_for_the_commit_of_an_older_one_that_has_written(database: Database, guard: str) -> None:
    table = database.table()
    database.protect(table, guard=guard)
    claim = f"CALL fencegate_enforce('{guard.format(table=table, key=1)}', 34)"
    with database.client() as old, ThreadPoolExecutor(1) as threads:
        old.name(33)
        old(f"UPDATE {table} SET text = 'x' WHERE id = 1")
        newer = threads.submit(database.run, claim)
        eventually_sync(database.waiting)
        old("COMMIT")
        newer.result(30)
    with pytest.raises(Refused, match="stale fencing token"):
        database.run(f"UPDATE {table} SET text = 'stale' WHERE id = 1", token=33)


@pytest.mark.parametrize("first", ["CALL fencegate_enforce('job:{t}', 34)", "UPDATE {t} SET text = 'x' WHERE id = 1"])
def test_a_newer_holder_that_waited_sees_what_the_older_one_wrote(database: Database, first: str) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    database.run(f"UPDATE {table} SET text = 'first'", token=33)
    with database.client() as old, database.client("REPEATABLE READ") as newer, ThreadPoolExecutor(1) as threads:
        old.name(33)
        old(f"UPDATE {table} SET text = 'older' WHERE id = 2")
        newer.name(34)
        passed = threads.submit(newer, first.format(t=table))
        eventually_sync(database.waiting)
        old("COMMIT")
        passed.result(30)
        assert newer(f"SELECT text FROM {table} WHERE id = 2") == [("older",)]


def test_a_stale_write_that_waits_for_the_newer_ones_row_is_refused_when_it_gets_it(database: Database) -> None:
    table = database.table()
    database.protect(table)
    with database.client() as newer, ThreadPoolExecutor(1) as threads:
        newer.name(34)
        newer(f"UPDATE {table} SET text = 'newer' WHERE id = 1")
        stale = threads.submit(database.run, f"UPDATE {table} SET text = 'stale' WHERE id = 1", token=33)
        eventually_sync(database.waiting)
        newer("COMMIT")
        with pytest.raises(Refused, match="stale fencing token 33"):
            stale.result(30)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_holders_of_one_token_write_side_by_side(database: Database, isolation: str) -> None:
    table = database.table()
    database.protect(table, guard="job:{table}")
    database.run(f"UPDATE {table} SET text = 'first'", token=33)
    with database.client(isolation) as one, database.client(isolation) as two:
        for client in (one, two):
            client.name(33)
            client(f"UPDATE {table} SET text = 'second'")
            client("COMMIT")
            client("BEGIN")
        for client, row in ((one, 1), (two, 2)):
            client(f"UPDATE {table} SET text = 'side by side' WHERE id = {row}")
        one("COMMIT")
        two("COMMIT")
    assert database.run(f"SELECT DISTINCT text FROM {table}") == [("side by side",)]


def test_two_that_raise_a_fence_at_once_don_t_block_each_other_for_good(database: Database) -> None:
    tables = [database.table() for _ in range(8)]
    for table in tables:
        database.protect(table, guard="job:many")
    with ThreadPoolExecutor(8) as threads:
        for token in (33, 34, 35):
            updates = [f"UPDATE {table} SET text = 'x{token}' WHERE id = 1" for table in tables]
            for done in [threads.submit(database.run, update, token=token) for update in updates]:
                done.result(30)


def test_a_floor_that_is_raised_is_respected(database: Database) -> None:
    table, other = database.table(), database.table()
    database.protect(table, guard="job:{table}")
    database.protect(other, guard="job:{table}")
    database.protect(table, guard="job:{table}", floor=90)
    with pytest.raises(Refused, match="stale fencing token 89: the database has seen 90"):
        database.run(f"UPDATE {table} SET text = 'x'", token=89)
    database.run(f"UPDATE {table} SET text = 'x'", token=90)
    database.run(f"UPDATE {other} SET text = 'x'", token=1)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_first_floor_waits_for_whoever_wrote_while_protect_stood_still(database: Database, isolation: str) -> None:
    """Its triggers are there by then, and its record is not."""
    table = database.table()
    plan = install.protect(database.url, Wanted(table_name(table), ("id",), "job:{table}", 90), dry_run=True)
    with database.client() as protecting, database.client(isolation) as writer, ThreadPoolExecutor(1) as threads:
        steps = iter(plan.steps)
        for step in steps:
            protecting(step)
            if step.startswith("CREATE TRIGGER") and "BEFORE DELETE" in step:
                break
        writer.name(33)
        writer(f"UPDATE {table} SET text = 'below'")
        going_on = threads.submit(lambda: [protecting(step) for step in steps])
        eventually_sync(lambda: database.waiting() or going_on.done())
        assert not going_on.done(), "the floor went up while a token below it could still commit"
        writer("COMMIT")
        going_on.result(30)
    with pytest.raises(Refused, match="stale fencing token 89: the database has seen 90"):
        database.run(f"UPDATE {table} SET text = 'x'", token=89)


# --- fencegate_enforce -----------------------------------------------------------------------------------------------


def test_enforce_fences_any_table(database: Database, jobs: str) -> None:
    assert jobs
    plain = database.table()
    database.run("CALL fencegate_enforce('job:x', 34)", f"UPDATE {plain} SET text = 'new'")
    with pytest.raises(Refused, match="stale fencing token 33"):
        database.run("CALL fencegate_enforce('job:x', 33)", f"UPDATE {plain} SET text = 'stale'")
    assert database.run(f"SELECT DISTINCT text FROM {plain}") == [("new",)]


@pytest.mark.parametrize("arguments", ["NULL, 1", "'', 1", "'a', NULL", "'a', 0", "'a', -1", "'a', '1x'", "'a', 1.5"])
def test_enforce_never_takes_nonsense_for_a_pass(database: Database, jobs: str, arguments: str) -> None:
    assert jobs
    with pytest.raises(Refused, match="fencing token required"):
        database.run(f"CALL fencegate_enforce({arguments})")


# --- tables of many kinds --------------------------------------------------------------------------------------------

HOSTILE = ("back`tick", "semi;colon' --", "per%cent %s", "back\\slash", "ünïcode", "a.b", "<<new>>", "//", "x" * 64)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_names(database: Database, hostile: str) -> None:
    quoted = "`" + hostile.replace("`", "``") + "`"
    database.run(f"CREATE TABLE {quoted} ({quoted} varchar(99) PRIMARY KEY)")
    for guard, lock in ((f"{{{hostile}}}", hostile), (f"{hostile}:job'", f"{hostile}:job'")):
        if "//" in hostile and guard == lock:
            continue  # no lock can be named so
        database.protect(quoted, hostile, guard=guard)
        insert = f"INSERT INTO {quoted} VALUES (X'{hostile.encode().hex()}')"
        with pytest.raises(Refused, match="fencing token required"):
            database.run(insert)
        database.run(insert, f"DELETE FROM {quoted}", token=2**63 - 1, lock=lock)
    install.unprotect(database.url, table_name(quoted))


def test_a_cascade_into_the_table_is_a_gap_that_must_be_allowed(database: Database, command: Command) -> None:
    parent = database.table()
    reference = f"CONSTRAINT {parent}_fk FOREIGN KEY (p) REFERENCES {parent} (id) ON DELETE SET NULL"
    child = database.table(f"id bigint PRIMARY KEY, p bigint, {reference}", "")
    assert f"{parent}_fk" in command(child, "--key", "id", code=1).err
    database.run(f"INSERT INTO {child} VALUES (7, 1)")
    told = command(child, "--key", "id", "--allow-gaps")
    assert "TRUNCATE" in told.err
    with pytest.raises(Refused, match="fencing token required"):
        database.run(f"DELETE FROM {child}")
    database.run(f"DELETE FROM {parent} WHERE id = 1")
    assert database.run(f"SELECT * FROM {child}") == [(7, None)]  # the gap that was allowed
    database.run(f"TRUNCATE {child}")  # and the one that can only be closed by rights


def test_tables_whose_names_differ_by_case_are_two(database: Database, command: Command) -> None:
    lower = database.table()
    if database.run("SELECT @@lower_case_table_names") != [(0,)]:
        pytest.skip("this server takes names for the same that differ by case")
    assert "there is no table" in command(lower.upper(), "--key", "id", code=2).err
    database.run(f"CREATE TABLE {lower.upper()} (id int)")
    command(lower.upper(), "--key", "id")
    database.run(f"UPDATE {lower} SET text = 'free'")
    with pytest.raises(Refused, match="fencing token required"):
        database.run(f"INSERT INTO {lower.upper()} VALUES (1)")


def test_what_can_t_take_a_refused_write_back_is_not_protected(database: Database, command: Command) -> None:
    table = database.table()
    database.run(f"CREATE VIEW {table}_view AS SELECT * FROM {table}")
    database.run(f"CREATE TABLE {table}_loose (id int) ENGINE=MyISAM")
    assert "is not a table" in command(f"{table}_view", "--key", "id", code=2).err
    assert "kept by MyISAM" in command(f"{table}_loose", "--key", "id", code=2).err


def test_an_application_needs_no_rights_on_the_fences(database: Database) -> None:
    table = database.table()
    database.protect(table)
    user = f"app_{os.getpid()}"
    database.run(f"CREATE USER {user}@'%' IDENTIFIED BY 'x'")
    database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {user}@'%'")
    where = {"host": database.server.host, "port": database.server.port, "database": database.name}
    with closing(pymysql.connect(**where, user=user, password="x", autocommit=True, ssl_disabled=True)) as connection:
        client = Client(connection)
        with pytest.raises(Refused, match="fencing token required"):
            client(f"UPDATE {table} SET text = 'x'")
        client.name(33)
        client(f"UPDATE {table} SET text = 'x'")
        for denied in (f"TRUNCATE {table}", "DELETE FROM fencegate_fences", "CALL fencegate_enforce('a', 1)"):
            with pytest.raises(Refused, match="denied"):
                client(denied)
        database.run(f"GRANT EXECUTE ON PROCEDURE fencegate_enforce TO {user}@'%'")
        client("CALL fencegate_enforce('a', 1)")


# --- the command -----------------------------------------------------------------------------------------------------


def installed(database: Database) -> list[tuple[Any, ...]]:
    """All that is there: procedures and triggers. The command-line client leaves comments out of them."""
    found = database.run(
        "SELECT routine_name, routine_definition, routine_comment, sql_mode FROM information_schema.routines "
        "WHERE routine_schema = DATABASE() UNION ALL "
        "SELECT trigger_name, action_statement, event_object_table, sql_mode FROM information_schema.triggers "
        "WHERE trigger_schema = DATABASE() ORDER BY 1"
    )
    return [(name, [*re.sub(r"-- .*", "", text).split()], *rest) for name, text, *rest in found]


@pytest.fixture(scope="module")
def fresh(mysql_server: MariadbServer) -> Iterator[Database]:
    """A database in which nothing is protected between two tests."""
    with closing(Database(mysql_server)) as found:
        yield found


@pytest.fixture
def fresh_command(fresh: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(fresh.url, capsys, monkeypatch)


def mariadb(database: Database) -> list[str]:
    program = shutil.which("mariadb") or shutil.which("mysql")
    if program is None:
        pytest.skip("no mariadb client: install mariadb-client (Debian), or put mariadb on PATH")
    where = [f"--host={database.server.host}", f"--port={database.server.port}", "--user=root", database.name]
    return [program, "--no-defaults", "--protocol=tcp", *where]


def test_the_mariadb_client_is_refused_like_everybody_else(database: Database, jobs: str) -> None:
    client, update = mariadb(database), f"UPDATE {jobs} SET text = 'old'"
    done = subprocess.run([*client, "-e", update], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "fencing token required" in done.stderr
    run_script(client, f"SET @fencegate_token = 1; {update};")


def test_a_dry_run_does_nothing_and_its_output_by_hand_does_the_same(fresh: Database, fresh_command: Command) -> None:
    table = fresh.table("id varchar(20), n int", "")
    options = (table, "--key", "id", "--guard", "it's \\ {key}")
    printed = fresh_command(*options, "--dry-run").out
    assert installed(fresh) == []
    run_script(mariadb(fresh), printed)
    by_hand = installed(fresh)
    assert "it was already" in fresh_command(*options).out
    assert fresh_command(*options, "--dry-run").out == ""
    run_script(mariadb(fresh), fresh_command(table, "--remove", "--dry-run").out)
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
    fresh_command(one, "--remove")
    assert installed(fresh) == []
    assert "is not protected" in fresh_command(one, "--remove").out
    fresh_command(two, "--key", "id", "--guard", "job:two")
    with pytest.raises(Refused, match="stale fencing token 33"):  # the marks were kept
        fresh.run(f"UPDATE {two} SET text = 'stale'", token=33)
    fresh_command(two, "--remove")


def test_another_guard_takes_over_with_a_floor_at_the_highest_token_seen(
    fresh: Database, fresh_command: Command
) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id", "--guard", "job:a")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=50)
    assert "--floor" in fresh_command(table, "--key", "id").err
    for token, pattern in ((None, "fencing token required"), (49, "stale fencing token 49")):
        with pytest.raises(Refused, match=pattern):
            fresh.run(f"UPDATE {table} SET text = 'y'", token=token)
    fresh.run(f"UPDATE {table} SET text = 'y'", token=50)
    assert len(installed(fresh)) == 7
    fresh_command(table, "--remove")


def test_a_forged_mark_of_another_lock_shuts_nobody_out_when_the_guard_changes(
    fresh: Database, fresh_command: Command
) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id", "--guard", "job:a")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=50)
    fresh.run("INSERT INTO fencegate_fences VALUES ('elsewhere', 'enforce', 9223372036854775807)")
    fresh.run("INSERT INTO fencegate_fences VALUES ('elsewhere:too', 'enforce', 70)")
    fresh_command(table, "--key", "id")
    with pytest.raises(Refused, match="stale fencing token 69"):
        fresh.run(f"UPDATE {table} SET text = 'y'", token=69)
    fresh.run(f"UPDATE {table} SET text = 'y'", token=70)
    # One of its own locks may have been given such a token by another issuer, so that lower ones are stale.
    fresh.run(f"UPDATE fencegate_fences SET token = 9223372036854775807 WHERE lock_key = '{table}:1'")
    fresh_command(table, "--key", "id", "--guard", "job:b")
    with pytest.raises(Refused, match="stale fencing token 99"):
        fresh.run(f"UPDATE {table} SET text = 'z'", token=99)
    fresh_command(table, "--remove")
    fresh.run("UPDATE fencegate_resources SET floor = 0")
    fresh.run("DELETE FROM fencegate_fences")


def test_a_new_name_is_another_guard(fresh: Database, fresh_command: Command) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=50)
    fresh.run(f"RENAME TABLE {table} TO {table}_renamed")
    assert "--floor" in fresh_command(f"{table}_renamed", "--key", "id").err
    with pytest.raises(Refused, match="stale fencing token 49"):
        fresh.run(f"UPDATE {table}_renamed SET text = 'y'", token=49)
    fresh.run(f"UPDATE {table}_renamed SET text = 'y'", token=50)
    fresh_command(f"{table}_renamed", "--remove")


def test_a_table_that_takes_the_old_name_of_another_leaves_it_to_its_lock(
    fresh: Database, fresh_command: Command
) -> None:
    table = fresh.table()
    fresh_command(table, "--key", "id")
    fresh.run(f"RENAME TABLE {table} TO {table}_old")
    fresh.run(f"CREATE TABLE {table} LIKE {table}_old", f"INSERT INTO {table} VALUES (1, 'old')")
    fresh_command(table, "--key", "id")
    assert "it was already" in fresh_command(table, "--key", "id").out
    for of in (table, f"{table}_old"):
        with pytest.raises(Refused, match="fencing token required"):
            fresh.run(f"UPDATE {of} SET text = 'x'")
    fresh_command(f"{table}_old", "--remove")
    fresh_command(table, "--key", "id")
    with pytest.raises(Refused, match="fencing token required"):
        fresh.run(f"UPDATE {table} SET text = 'x'")
    fresh_command(table, "--remove")
    assert installed(fresh) == []


def test_a_table_that_takes_the_name_of_one_that_was_protected_is_another_guard(
    fresh: Database, fresh_command: Command
) -> None:
    """Its triggers are those of its old name, whatever is remembered of the table that had the new one."""
    table, other = fresh.table(), fresh.table()
    fresh_command(table, "--key", "id")
    fresh_command(other, "--key", "id")
    fresh.run(f"UPDATE {table} SET text = 'x'", token=50)
    fresh.run(f"DROP TABLE {other}", f"RENAME TABLE {table} TO {other}")
    assert "--floor" in fresh_command(other, "--key", "id").err
    with pytest.raises(Refused, match="stale fencing token 49"):
        fresh.run(f"UPDATE {other} SET text = 'y'", token=49)
    fresh.run(f"UPDATE {other} SET text = 'y'", token=50)
    assert "--floor" not in fresh_command(other, "--key", "id").err
    fresh_command(other, "--remove")


def test_ten_at_once_protect_it_once(fresh: Database) -> None:
    table = fresh.table()
    with ThreadPoolExecutor(10) as threads:
        for done in [threads.submit(fresh.protect, table, guard=f"job:{n % 2}") for n in range(10)]:
            done.result(60)
    assert len(installed(fresh)) == 7
    with pytest.raises(Refused, match="fencing token required"):
        fresh.run(f"UPDATE {table} SET text = 'x'")
    install.unprotect(fresh.url, table_name(table))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing", "--key", "id"), 2, "there is no table 'nothing'"),
        (("elsewhere.t", "--key", "id"), 2, "end the URL with /elsewhere"),
        (("fencegate_fences", "--key", "mode"), 2, "of Fencegate itself"),
    ],
)
def test_bad_usage_is_told_and_nothing_is_done(
    jobs: str, command: Command, arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert jobs
    assert said in command(*arguments, code=code).err


def test_a_database_that_is_not_there_is_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Command("mysql://me:secret@127.0.0.1:1/x", capsys, monkeypatch)("t", "--key", "id", code=3)
    assert "secret" not in answer.err
