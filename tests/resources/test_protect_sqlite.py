"""A protected table of SQLite can be written only by connections that have Fencegate's function, and name a token."""

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from fencegate_adapters.sql.protect import install
from fencegate_adapters.sql.protect.naming import name_tokens, of_sqlite
from fencegate_adapters.sql.protect.wanted import Wanted, table_name
from tests.resources.protecting import Command, run_script

WRITES = (
    "INSERT INTO t VALUES (3, 'new')",
    "INSERT OR IGNORE INTO t VALUES (3, 'new')",
    "INSERT OR REPLACE INTO t VALUES (1, 'new')",
    "REPLACE INTO t VALUES (1, 'new')",
    "UPDATE t SET text = 'new'",
    "UPDATE OR IGNORE t SET text = 'new'",
    "UPDATE OR REPLACE t SET id = 2 WHERE id = 1",
    "DELETE FROM t",
    "INSERT INTO t VALUES (1, 'new') ON CONFLICT (id) DO UPDATE SET text = excluded.text",
)
GUARDS = ("{table}:{key}", "job:{table}")


class Database:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.bare = sqlite3.connect(path, isolation_level=None, timeout=20)
        self.ours = sqlite3.connect(path, isolation_level=None, timeout=20)
        self._info: dict[Any, Any] = {}
        for statement in (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)",
            "INSERT INTO t VALUES (1, 'old'), (2, 'old')",
        ):
            self.bare.execute(statement)

    def protect(self, table: str = "t", *key: str, guard: str = "{table}:{key}", floor: int | None = None) -> None:
        install.protect(self.url, Wanted(table_name(table), key or ("id",), guard, floor))

    def run(self, *statements: str, tokens: Mapping[str, int] | None = None) -> None:
        """On a connection of ours: one transaction, that names these tokens."""
        of_sqlite(self._info, self.ours.create_function, tokens or {})
        self.ours.execute("BEGIN")
        try:
            for statement in statements:
                self.ours.execute(statement)
            self.ours.execute("COMMIT")
        finally:
            if self.ours.in_transaction:
                self.ours.execute("ROLLBACK")

    def rows(self, query: str = "SELECT * FROM t ORDER BY id") -> list[tuple[Any, ...]]:
        return self.bare.execute(query).fetchall()

    def mark(self, lock_key: str) -> int | None:
        found = self.bare.execute(
            "SELECT token FROM fencegate_fences WHERE lock_key = ?", [lock_key.encode()]
        ).fetchone()
        return None if found is None else int(found[0])

    def close(self) -> None:
        self.bare.close()
        self.ours.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "data.db")) as found:
        yield found


@pytest.fixture
def command(database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(database.url, capsys, monkeypatch)


def both(guard: str, token: int) -> dict[str, int]:
    """The locks of all rows that the writes touch."""
    return {guard.format(table="t", key=key): token for key in (1, 2, 3)}


# --- who is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", GUARDS)
def test_a_client_that_knows_nothing_of_us_is_refused_and_changes_nothing(database: Database, guard: str) -> None:
    database.protect(guard=guard)
    for statement in WRITES:
        with pytest.raises(sqlite3.OperationalError, match="fencing token required"):
            database.bare.execute(statement)
    assert database.rows() == [(1, "old"), (2, "old")]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_connection_of_ours_that_names_no_token_is_refused(database: Database, guard: str) -> None:
    database.protect(guard=guard)
    for statement in WRITES:
        with pytest.raises(sqlite3.IntegrityError, match="fencing token required"):
            database.run(statement)
    assert database.rows() == [(1, "old"), (2, "old")]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_stale_token_is_refused_and_changes_nothing(database: Database, guard: str) -> None:
    database.protect(guard=guard)
    database.run("UPDATE t SET text = 'x'", "INSERT INTO t VALUES (3, 'x')", tokens=both(guard, 34))
    database.run("DELETE FROM t WHERE id = 3", tokens=both(guard, 34))
    for statement in WRITES:
        with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
            database.run(statement, tokens=both(guard, 33))
    assert database.rows() == [(1, "x"), (2, "x")]
    assert database.mark(guard.format(table="t", key=3)) == 34


@pytest.mark.parametrize("guard", GUARDS)
def test_the_newest_token_writes_again_and_again(database: Database, guard: str) -> None:
    database.protect(guard=guard)
    for token in (33, 33, 2**63 - 1):
        for statement in WRITES:
            database.run(
                "INSERT OR IGNORE INTO t VALUES (1, 'x')", "DELETE FROM t WHERE id = 3", tokens=both(guard, token)
            )
            database.run(statement, tokens=both(guard, token))
    assert database.mark(guard.format(table="t", key=1)) == 2**63 - 1


def test_a_stale_statement_is_undone_and_a_transaction_may_go_on(database: Database) -> None:
    database.protect()
    database.run("UPDATE t SET text = 'x' WHERE id = 2", tokens={"t:2": 50})
    of_sqlite(database._info, database.ours.create_function, {"t:1": 40, "t:2": 40})
    database.ours.execute("BEGIN")
    database.ours.execute("UPDATE t SET text = 'mine' WHERE id = 1")
    with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
        database.ours.execute("UPDATE t SET text = 'stale'")
    database.ours.execute("COMMIT")
    assert database.rows() == [(1, "mine"), (2, "x")]


def test_a_cascade_from_another_table_is_refused(database: Database) -> None:
    database.bare.executescript(
        "CREATE TABLE child (id INTEGER, p REFERENCES t ON DELETE CASCADE);INSERT INTO child VALUES (7, 1)"
    )
    database.protect("child")
    database.ours.execute("PRAGMA foreign_keys=ON")
    with pytest.raises(sqlite3.IntegrityError, match="fencing token required"):
        database.run("DELETE FROM t WHERE id = 1")
    database.run("DELETE FROM t WHERE id = 1", tokens={"child:7": 1})


# --- which lock ------------------------------------------------------------------------------------------------------


def test_a_row_that_moves_to_another_lock_passes_both_fences(database: Database) -> None:
    database.protect()
    database.run("DELETE FROM t WHERE id = 2", tokens={"t:2": 50})
    move = "UPDATE t SET id = 2 WHERE id = 1"
    for tokens, said in (
        ({"t:1": 60}, "fencing token required"),
        ({"t:2": 60}, "fencing token required"),
        ({"t:1": 60, "t:2": 40}, "stale fencing token"),
    ):
        with pytest.raises(sqlite3.IntegrityError, match=said):
            database.run(move, tokens=tokens)
    database.run(move, tokens={"t:1": 60, "t:2": 50})
    assert (database.mark("t:1"), database.mark("t:2")) == (60, 50)


@pytest.mark.parametrize("key", ["NULL", "7.5", "X'41'", "''", f"'{'x' * 1025}'"])
def test_a_key_that_is_no_part_of_a_lock_key_is_refused(database: Database, key: str) -> None:
    database.bare.execute("CREATE TABLE loose (id)")
    database.protect("loose", guard="{key}")
    with pytest.raises(sqlite3.IntegrityError, match="fencing token required"):
        database.run(f"INSERT INTO loose VALUES ({key})", tokens={"": 1, "7.5": 1, "A": 1, "x" * 1025: 1, "None": 1})


def test_another_row_that_is_replaced_is_asked_for_when_triggers_recurse(database: Database, command: Command) -> None:
    database.bare.execute("CREATE TABLE u (id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
    database.bare.execute("INSERT INTO u VALUES (1, 'a'), (2, 'b')")
    assert "INSERT OR REPLACE" in command("u", "--key", "id").err
    database.ours.execute("PRAGMA recursive_triggers=ON")
    with pytest.raises(sqlite3.IntegrityError, match="fencing token required"):
        database.run("INSERT OR REPLACE INTO u VALUES (1, 'b')", tokens={"u:1": 33})


def test_a_floor_that_is_raised_is_respected(database: Database) -> None:
    database.protect(guard="job:a")
    database.protect(guard="job:a", floor=90)
    with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
        database.run("UPDATE t SET text = 'x'", tokens={"job:a": 89})
    database.run("UPDATE t SET text = 'x'", tokens={"job:a": 90})


def test_a_transaction_that_began_first_is_refused_once_a_newer_token_has_committed(database: Database) -> None:
    database.bare.execute("PRAGMA journal_mode=WAL")  # where who reads does not keep out who writes
    database.protect(guard="job:a")
    database.run("UPDATE t SET text = 'x'", tokens={"job:a": 33})
    with closing(sqlite3.connect(database.path, isolation_level=None)) as old:
        of_sqlite({}, old.create_function, {"job:a": 33})
        old.execute("BEGIN")
        old.execute("SELECT * FROM t").fetchall()
        database.run("UPDATE t SET text = 'newer'", tokens={"job:a": 34})
        with pytest.raises(sqlite3.OperationalError, match="locked"):  # by its snapshot
            old.execute("UPDATE t SET text = 'stale'")
        old.execute("ROLLBACK")
        with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
            old.execute("UPDATE t SET text = 'stale'")
    assert database.rows() == [(1, "newer"), (2, "newer")]


# --- connections of SQLAlchemy ---------------------------------------------------------------------------------------


def test_tokens_are_named_on_a_connection_of_sqlalchemy(database: Database) -> None:
    database.protect(guard="job:a")
    engine = create_engine(database.url)
    for _ in range(2):  # the second time with the same driver connection, from the pool
        with engine.begin() as connection:
            name_tokens(connection, {"job:a": 33})
            connection.exec_driver_sql("UPDATE t SET text = 'x'")
            name_tokens(connection, {})
    with engine.connect() as connection, pytest.raises(Exception, match="fencing token required"):
        connection.exec_driver_sql("UPDATE t SET text = 'y'")
    engine.dispose()


async def test_tokens_are_named_on_an_async_connection_of_sqlalchemy(database: Database) -> None:
    database.protect(guard="job:a")
    engine = create_async_engine(database.url.replace("sqlite:", "sqlite+aiosqlite:"))
    async with engine.begin() as connection:
        await connection.run_sync(name_tokens, {"job:a": 33})
        await connection.exec_driver_sql("UPDATE t SET text = 'x'")
    await engine.dispose()
    assert database.mark("job:a") == 33


# --- the command -----------------------------------------------------------------------------------------------------

HOSTILE = (
    'quo"te',
    "semi;colon' --",
    "per%cent %s ?",
    ":colon",
    "back\\slash",
    "ünïcode",
    "a.b",
    "<<parts>>",
    "x" * 200,
)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_names(database: Database, hostile: str) -> None:
    quoted = '"' + hostile.replace('"', '""') + '"'
    database.bare.execute(f"CREATE TABLE {quoted} ({quoted} TEXT)")
    for guard, lock in ((f"{{{hostile}}}", hostile), (f"{hostile}:job'", f"{hostile}:job'")):
        database.protect(quoted, hostile, guard=guard)
        of_sqlite(database._info, database.ours.create_function, {lock: 33})
        database.ours.execute(f"INSERT INTO {quoted} VALUES (?)", [hostile])
        with pytest.raises(sqlite3.OperationalError, match="fencing token required"):
            database.bare.execute(f"DELETE FROM {quoted}")
    install.unprotect(database.url, table_name(quoted))
    database.rows(f"SELECT * FROM {quoted}")  # a connection learns of it with the next statement that it runs
    database.bare.execute(f"DELETE FROM {quoted}")


def installed(database: Database) -> list[tuple[Any, ...]]:
    return database.rows("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY 1")


def sqlite(database: Database) -> list[str]:
    program = shutil.which("sqlite3")
    if program is None:
        pytest.skip("no sqlite3 command: install sqlite3 (Debian), or put sqlite3 on PATH")
    return [program, "-bail", str(database.path)]


def test_the_sqlite3_command_is_refused_like_everybody_else(database: Database) -> None:
    client = sqlite(database)
    database.protect()
    done = subprocess.run([*client, "DELETE FROM t"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "fencing token required" in done.stderr


def test_a_dry_run_does_nothing_and_its_output_by_hand_does_the_same(database: Database, command: Command) -> None:
    options = ("t", "--key", "id", "--guard", "it's \\ {key}")
    before = database.path.read_bytes()
    printed = command(*options, "--dry-run")
    assert printed.err == ""
    assert database.path.read_bytes() == before
    run_script(sqlite(database), printed.out)
    by_hand = installed(database)
    assert "it was already" in command(*options).out
    assert command(*options, "--dry-run").out == ""
    run_script(sqlite(database), command("t", "--remove", "--dry-run").out)
    assert installed(database) == []
    command(*options)
    assert installed(database) == by_hand


def test_the_journal_of_the_file_stays_what_it_is(database: Database, command: Command) -> None:
    assert database.rows("PRAGMA journal_mode") == [("delete",)]
    command("t", "--key", "id")
    assert database.rows("PRAGMA journal_mode") == [("delete",)]


def test_removal_takes_away_what_was_installed_and_keeps_the_marks(database: Database, command: Command) -> None:
    database.bare.execute("CREATE TABLE other (id)")
    command("other", "--key", "id")
    alone = installed(database)
    command("t", "--key", "id")
    database.run("UPDATE t SET text = 'x'", tokens=both("t:{key}", 34))
    command("t", "--remove")
    assert installed(database) == alone
    database.bare.execute("UPDATE t SET text = 'free'")
    assert "is not protected" in command("t", "--remove").out
    command("t", "--key", "id")
    with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
        database.run("UPDATE t SET text = 'stale'", tokens=both("t:{key}", 33))


def test_another_guard_takes_over_with_a_floor_at_the_highest_token_seen(database: Database, command: Command) -> None:
    command("t", "--key", "id", "--guard", "job:a")
    database.run("UPDATE t SET text = 'x'", tokens={"job:a": 50})
    assert "--floor" in command("t", "--key", "id", "--guard", "job:b").err
    assert len(installed(database)) == 3
    for tokens, said in (({"job:a": 50}, "fencing token required"), ({"job:b": 49}, "stale fencing token")):
        with pytest.raises(sqlite3.IntegrityError, match=said):
            database.run("UPDATE t SET text = 'y'", tokens=tokens)
    database.run("UPDATE t SET text = 'y'", tokens={"job:b": 50})


def test_a_forged_mark_of_another_lock_shuts_nobody_out_when_the_guard_changes(
    database: Database, command: Command
) -> None:
    command("t", "--key", "id", "--guard", "job:a")
    database.run("UPDATE t SET text = 'x'", tokens={"job:a": 50})
    for lock_key, token in (("elsewhere", 2**63 - 1), ("elsewhere:too", 70)):
        database.bare.execute("INSERT INTO fencegate_fences VALUES (?, 'enforce', ?)", [lock_key.encode(), token])
    command("t", "--key", "id")
    with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
        database.run("UPDATE t SET text = 'y'", tokens=both("t:{key}", 69))
    database.run("UPDATE t SET text = 'y'", tokens=both("t:{key}", 70))
    # One of its own locks may have been given such a token by another issuer, so that lower ones are stale.
    database.bare.execute("UPDATE fencegate_fences SET token = ? WHERE lock_key = ?", [2**63 - 1, b"t:1"])
    command("t", "--key", "id", "--guard", "job:b")
    with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
        database.run("UPDATE t SET text = 'z'", tokens={"job:b": 99})


def test_a_new_name_is_another_guard(database: Database, command: Command) -> None:
    command("t", "--key", "id")
    database.run("UPDATE t SET text = 'x'", tokens=both("t:{key}", 50))
    database.bare.execute("ALTER TABLE t RENAME TO renamed")
    assert "--floor" in command("renamed", "--key", "id").err
    with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
        database.run("UPDATE renamed SET text = 'y'", tokens=both("renamed:{key}", 49))
    database.run("UPDATE renamed SET text = 'y'", tokens=both("renamed:{key}", 50))


def test_a_table_that_takes_the_old_name_of_another_leaves_it_to_its_lock(database: Database, command: Command) -> None:
    command("t", "--key", "id")
    database.bare.execute("ALTER TABLE t RENAME TO t_old")
    database.bare.execute("CREATE TABLE t AS SELECT * FROM t_old")
    command("t", "--key", "id")
    assert "it was already" in command("t", "--key", "id").out
    for of in ("t", "t_old"):
        with pytest.raises(sqlite3.OperationalError, match="fencing token required"):
            database.bare.execute(f"UPDATE {of} SET text = 'x'")
    command("t_old", "--remove")
    command("t", "--key", "id")
    with pytest.raises(sqlite3.OperationalError, match="fencing token required"):
        database.bare.execute("UPDATE t SET text = 'x'")
    command("t", "--remove")
    assert installed(database) == []


def test_a_table_that_takes_the_name_of_one_that_was_protected_is_another_guard(
    database: Database, command: Command
) -> None:
    """Its triggers are those of its old name, whatever is remembered of the table that had the new one."""
    database.bare.execute("CREATE TABLE other (id INTEGER PRIMARY KEY, text TEXT)")
    command("t", "--key", "id")
    command("other", "--key", "id")
    database.run("UPDATE t SET text = 'x'", tokens=both("t:{key}", 50))
    database.bare.execute("DROP TABLE other")
    database.bare.execute("ALTER TABLE t RENAME TO other")
    assert "--floor" in command("other", "--key", "id").err
    with pytest.raises(sqlite3.IntegrityError, match="stale fencing token"):
        database.run("UPDATE other SET text = 'y'", tokens=both("other:{key}", 49))
    database.run("UPDATE other SET text = 'y'", tokens=both("other:{key}", 50))
    assert "--floor" not in command("other", "--key", "id").err


def test_ten_at_once_protect_it_once(database: Database) -> None:
    with ThreadPoolExecutor(10) as threads:
        for done in [threads.submit(database.protect, guard=f"job:{n % 2}") for n in range(10)]:
            done.result(60)
    assert len(installed(database)) == 3


def test_bad_usage_is_told_and_nothing_is_done(database: Database, command: Command) -> None:
    database.bare.execute("CREATE VIEW v AS SELECT * FROM t")
    for arguments, said in (
        (("nothing", "--key", "id"), "there is no table"),
        (("v", "--key", "id"), "is a view"),
        (("t", "--key", "nothing"), "has no column"),
        (("other.t", "--key", "id"), "another file"),
        (("t", "--key", "id", "--floor", str(2**63)), "--floor"),
    ):
        assert said in command(*arguments, code=2).err
    assert installed(database) == []


def test_a_file_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Command(f"sqlite:///{tmp_path}/none.db", capsys, monkeypatch)("t", "--key", "id", code=3)
    assert list(tmp_path.iterdir()) == []
