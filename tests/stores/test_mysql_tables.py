"""The tables of the MySQL store: how they are made, and which ones, and which settings, are refused."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from fencegate.core.errors import TooManyWaiters, UnsafeConfiguration
from fencegate.core.model import Limits
from fencegate.core.ports import Conflict, Unavailable
from fencegate.testing.caller import Caller, engines
from fencegate.testing.committing import put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.sql import migrations
from fencegate_lockservice.stores.sql.schema import NEWEST_MIGRATION
from tests.real import mariadb
from tests.real.mariadb import MariadbServer
from tests.stores.ten_at_once import ten_open


async def test_ten_replicas_that_start_at_once_make_the_tables_once(
    mysql_server: MariadbServer, new_mysql_database: str
) -> None:
    await ten_open(mysql_server.url(new_mysql_database), "mysql")
    stores = await asyncio.gather(*(open_store(mysql_server.url(new_mysql_database)) for _ in range(10)))
    assert len(await stores[0].scan("k", "", 100)) == 10
    results = await asyncio.gather(*(write(store, put("lock/k")) for store in stores), return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [Conflict] * 9
    await asyncio.gather(*(store.close() for store in stores))
    assert mysql_server.ask("SELECT COUNT(*) FROM fencegate_migrations", new_mysql_database) == [(1,)]
    keys = mysql_server.ask(
        "SELECT table_name, data_type, character_octet_length FROM information_schema.columns"
        f" WHERE table_schema = '{new_mysql_database}' AND column_name IN ('key', 'lock_key') ORDER BY 1"
    )
    tables = ["distributed_locks", "fencegate_entries", "fencegate_log"]
    assert keys == [(table, "varbinary", 2048) for table in tables]


async def test_databases_that_one_process_opens_at_once_are_migrated_one_by_one(
    mysql_server: MariadbServer, new_mysql_database: str
) -> None:
    names = [f"{new_mysql_database}_{number}" for number in range(4)]  # each has a lock of its own in the server
    for name in names:
        mysql_server.ask(f"CREATE DATABASE {name}")
    for store in await asyncio.gather(*(open_store(mysql_server.url(name)) for name in names)):
        await write(store, put("lock/k"))
        await store.close()


async def test_tables_that_were_left_half_made_are_completed(
    mysql_server: MariadbServer, new_mysql_database: str
) -> None:
    url = mysql_server.url(new_mysql_database)
    await (await open_store(url)).close()
    for statement in ("DROP TABLE fencegate_migrations", "DROP TABLE fencegate_meta", "DROP TABLE fencegate_log"):
        mysql_server.ask(statement, new_mysql_database)
    store = await open_store(url)
    await write(store, put("lock/k"))
    await store.close()


async def test_tables_of_a_newer_release_are_refused(mysql_server: MariadbServer, new_mysql_database: str) -> None:
    url = mysql_server.url(new_mysql_database)
    await (await open_store(url)).close()
    mysql_server.ask("UPDATE fencegate_migrations SET version_num = '9999'", new_mysql_database)
    with pytest.raises(UnsafeConfiguration, match="newer release"):
        await open_store(url)


def test_the_newest_migration_is_the_one_that_stores_look_for() -> None:
    folder = Path(migrations.__file__).parent
    assert ScriptDirectory(str(folder)).get_current_head() == NEWEST_MIGRATION


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE distributed_locks (id INT PRIMARY KEY)",
        "CREATE TABLE fencegate_entries (`key` VARBINARY(9) PRIMARY KEY, value TEXT)",
    ],
)
async def test_tables_of_somebody_else_are_refused(
    mysql_server: MariadbServer, new_mysql_database: str, statement: str
) -> None:
    mysql_server.ask(statement, new_mysql_database)
    with pytest.raises(UnsafeConfiguration, match="did not make"):
        await open_store(mysql_server.url(new_mysql_database))
    assert len(mysql_server.ask("SHOW TABLES", new_mysql_database)) == 1  # and nothing was made beside them


async def test_a_table_that_was_lost_is_noticed(mysql_server: MariadbServer, new_mysql_database: str) -> None:
    url = mysql_server.url(new_mysql_database)
    await (await open_store(url)).close()
    mysql_server.ask("DROP TABLE fencegate_log", new_mysql_database)
    with pytest.raises(UnsafeConfiguration, match="has lost its table 'fencegate_log'"):
        await open_store(url)


async def test_tables_that_cannot_roll_back_are_refused(mysql_server: MariadbServer, new_mysql_database: str) -> None:
    url = mysql_server.url(new_mysql_database)
    await (await open_store(url)).close()
    mysql_server.ask("ALTER TABLE fencegate_meta ENGINE=MyISAM", new_mysql_database)
    with pytest.raises(UnsafeConfiguration, match="ENGINE=InnoDB"):
        await open_store(url)


async def test_a_user_who_may_not_make_tables_uses_those_that_are_there(
    mysql_server: MariadbServer, new_mysql_database: str
) -> None:
    url = mysql_server.url(new_mysql_database)
    user = f"user_{new_mysql_database[-6:]}"
    mysql_server.ask(f"CREATE USER {user} IDENTIFIED BY 'p@ss:w/rd%'")
    mysql_server.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {new_mysql_database}.* TO {user}")
    modest = url.replace("root@", f"{user}:p%40ss:w%2Frd%25@")
    with pytest.raises(UnsafeConfiguration, match="can't be made") as refused:
        await open_store(modest)
    assert "ss:w" not in str(refused.value)
    await (await open_store(url)).close()
    store = await open_store(modest)
    await write(store, put("lock/k"))
    assert [finding.level for finding in await store.inspect()] == ["fine"]
    await store.close()
    mysql_server.ask(f"DROP USER {user}")


@pytest.mark.parametrize(
    ("granted", "said"),
    [
        ("SELECT", "INSERT.* denied"),
        ("SELECT, INSERT, UPDATE", "DELETE.* denied"),
        ("SELECT, INSERT, DELETE", "UPDATE.* denied"),
        ("INSERT, UPDATE, DELETE", "SELECT.* denied"),
    ],
)
async def test_a_user_who_lacks_a_right_is_refused_at_start_and_told_which(
    mysql_server: MariadbServer, new_mysql_database: str, granted: str, said: str
) -> None:
    url = mysql_server.url(new_mysql_database)
    await (await open_store(url)).close()
    user = f"user_{new_mysql_database[-6:]}"
    mysql_server.ask(f"CREATE USER {user}")
    mysql_server.ask(f"GRANT {granted} ON {new_mysql_database}.* TO {user}")
    try:
        with pytest.raises(UnsafeConfiguration, match=said) as refused:
            await open_store(url.replace("root@", f"{user}@"))
        assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{new_mysql_database}`.*" in refused.value.detail
    finally:
        mysql_server.ask(f"DROP USER {user}")


@pytest.mark.parametrize(
    ("setting", "unsafe", "safe", "level", "said"),
    [
        ("innodb_flush_log_at_trx_commit", "2", "1", "unsafe", "a crash forgets locks"),
        ("read_only", "1", "0", "unsafe", "read-only"),
        ("max_allowed_packet", "1048576", "16777216", "warning", "may not fit"),
    ],
)
async def test_unsafe_settings_are_seen(
    mysql_server: MariadbServer, mysql_url: str, setting: str, unsafe: str, safe: str, level: str, said: str
) -> None:
    store = await open_store(mysql_url)
    assert [finding.level for finding in await store.inspect()] == ["fine"]
    mysql_server.ask(f"SET GLOBAL {setting} = {unsafe}")
    try:
        found = [finding for finding in await store.inspect() if finding.level != "fine"]
        assert [(finding.level, said in finding.what, bool(finding.advice)) for finding in found] == [
            (level, True, True)
        ]
    finally:
        mysql_server.ask(f"SET GLOBAL {setting} = {safe}")
        await store.close()


async def test_a_server_that_was_told_not_to_flush_is_unsafe(tmp_path: Path) -> None:
    if reason := mariadb.missing():
        pytest.skip(reason)
    server = MariadbServer(tmp_path, "--innodb-flush-method=nosync").start()
    try:
        server.ask("CREATE DATABASE locks")
        store = await open_store(f"mysql://root@127.0.0.1:{server.port}/locks")
        found = [finding for finding in await store.inspect() if finding.level != "fine"]
        await store.close()
    finally:
        server.terminate()
    assert [finding.level for finding in found] == ["unsafe"]
    assert "innodb_flush_method is NOSYNC" in found[0].what


async def test_who_waits_beyond_what_a_packet_holds_is_told_so_and_the_others_are_served(tmp_path: Path) -> None:
    if reason := mariadb.missing():
        pytest.skip(reason)
    server = MariadbServer(tmp_path, "--max-allowed-packet=262144").start()
    try:
        server.ask("CREATE DATABASE locks")
        store = await open_store(f"mysql://root@127.0.0.1:{server.port}/locks")
        async with engines(store, limits=Limits()) as (engine,), asyncio.timeout(60):
            first, *others = (Caller(engine, f"{number}-{'x' * 200}") for number in range(400))
            hold = await first.acquire("k", ttl_s=60)
            waits = [asyncio.ensure_future(other.acquire("k", wait_s=60, ttl_s=60)) for other in others]
            standing: list[str] = []
            while len(standing) + sum(wait.done() for wait in waits) < len(waits):
                await asyncio.sleep(0.02)
                standing = await first.waiters("k")
            refused = [wait for wait in waits if wait.done()]
            assert refused
            assert all(isinstance(wait.exception(), TooManyWaiters) for wait in refused)
            assert len(standing) > 50
            await first.release("k", hold)
            await asyncio.wait([wait for wait in waits if wait not in refused], return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        await store.close()
    finally:
        server.terminate()


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MariadbServer, Path]]:
    """A server with a certificate for 127.0.0.1, and the file that vouches for it."""
    if reason := mariadb.missing() or (None if shutil.which("openssl") else "no openssl to make a certificate with"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=fencegate test"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    server = MariadbServer(folder / "server", f"--ssl-cert={certificate}", f"--ssl-key={key}").start()
    server.ask("CREATE DATABASE locks")
    yield server, certificate
    server.terminate()


async def test_over_tls_the_certificate_of_the_server_is_checked(tls_server: tuple[MariadbServer, Path]) -> None:
    server, certificate = tls_server
    server.ask("CREATE USER careful IDENTIFIED BY 'pw' REQUIRE SSL")
    server.ask("GRANT ALL ON locks.* TO careful")
    url = server.url("locks").replace("root@", "careful:pw@")
    store = await open_store(f"{url}?tls=verify&ca={certificate}")
    await write(store, put("lock/k"))
    await store.close()
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await open_store(f"{url}?tls=verify")
    with pytest.raises(UnsafeConfiguration, match="refuses the user"):
        await open_store(url)
