"""What `fencegate doctor --config` says of resources: reachable or not, and what makes them unsafe."""

import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fencegate import settings
from fencegate.doctor import Examined, examine
from tests.real import redis as real
from tests.servers import kept_address


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.RedisServer]:
    """A server that keeps nothing on disk."""
    if reason := real.missing():
        pytest.skip(reason)
    server = real.RedisServer(tmp_path_factory.mktemp("careless")).start()
    yield server
    server.terminate()


@pytest.fixture
def service() -> Iterator[str]:
    """The address of one that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"


async def look_at(folder: Path, table: str) -> Examined:
    config = folder / "fencegate.toml"
    config.write_text(f'role = "gateway"\n[resources.a]\n{table}\n')
    found = await examine(settings.read(config=config))
    (resource,) = [each for each in found if each.kind == "resource"]
    assert resource.facts["configured in"] == f"{config}:2"
    assert "hunter2" not in str(resource)
    return resource


async def test_marks_that_a_restart_loses_are_warned_of(tmp_path: Path, careless: real.RedisServer) -> None:
    found = await look_at(tmp_path, f'url = "redis://{careless.address}/0"')
    assert found.level == "warning"
    assert "appendonly" in found.findings[0].what
    assert "round trip" in found.facts


@pytest.mark.parametrize("key_type", ["TEXT", "INTEGER"])
async def test_a_table_whose_rows_keep_their_marks_is_looked_at(tmp_path: Path, key_type: str) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as database:
        database.execute(f"CREATE TABLE t (id {key_type} PRIMARY KEY NOT NULL, token BIGINT)")
    table = f'url = "sqlite:///{tmp_path}/app.db"\ntable = "t"\nkey = "id"\ntoken_column = "token"'
    found = await look_at(tmp_path, table)
    assert found.level == "fine"
    assert "round trip" in found.facts


async def test_a_server_that_evicts_fences_is_unsafe(tmp_path: Path, careless: real.RedisServer) -> None:
    careless.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        found = await look_at(tmp_path, f'url = "redis://{careless.address}/1"')
    finally:
        careless.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert found.level == "unsafe"
    assert "allkeys-lru" in found.findings[0].what


async def test_what_can_not_be_reached_is_told_without_the_password(tmp_path: Path) -> None:
    with kept_address() as nobody:
        found = await look_at(tmp_path, f'url = "redis://:hunter2@{nobody}/0"\nvalues = "hashes"')
    assert found.level == "unreachable"


async def test_a_service_that_does_not_check_is_best_effort(tmp_path: Path, service: str) -> None:
    url = f'url = "{service}"\nfence = "sqlite:///{tmp_path}/fence.db"'
    found = await look_at(tmp_path, url)
    assert found.level == "warning"
    assert "best effort" in found.findings[0].what
    checked = await look_at(tmp_path, f"{url}\nupstream_checks = true")
    assert checked.level == "fine"


async def test_the_guards_of_a_service_are_those_of_its_rules(tmp_path: Path, service: str) -> None:
    url = f'url = "{service}"\nfence = "sqlite:///{tmp_path}/fence.db"\n'
    assert (await look_at(tmp_path, url)).what_for == "guard {resource}:{key}"
    rules = [("/a/{id:int}/*", 'guard = "acct:{id}"'), ("/b/{id}", 'guard = "acct:{id}"'), ("/*", "")]
    routes = "".join(f'[[resources.a.routes]]\npath = "{path}"\n{guard}\n' for path, guard in rules)
    assert (await look_at(tmp_path, url + routes)).what_for == "guard acct:{id}, {resource}:{key}"


async def test_a_rule_that_no_path_comes_to_is_warned_of(tmp_path: Path, service: str) -> None:
    paths = ["/a/{id:int}/*", "/a/x", "/b/{id}", "/b/{other}/c", "/b/*", "/b/c", "/*", "/"]
    rules = "".join(f'[[resources.a.routes]]\npath = "{path}"\n' for path in paths)
    found = await look_at(tmp_path, f'url = "{service}"\nfence = "sqlite:///{tmp_path}/fence.db"\n{rules}')
    told = [finding.what for finding in found.findings if "never" in finding.what]
    assert [what.split("'")[1] for what in told] == ["/a/x", "/b/c", "/"]
    assert "'/a/{id:int}/*'" in told[0]


async def test_a_fence_that_is_not_there_yet_is_not_made(tmp_path: Path, service: str) -> None:
    found = await look_at(tmp_path, f'url = "{service}"\nfence = "sqlite:///{tmp_path}/fence.db"')
    assert "not there yet" in found.facts["its fence"]
    assert "best effort" in found.findings[0].what
    assert not (tmp_path / "fence.db").exists()


async def test_a_service_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with kept_address() as nobody:
        found = await look_at(tmp_path, f'url = "http://{nobody}/"\nfence = "sqlite:///{tmp_path}/fence.db"')
    assert found.level == "unreachable"
    assert found.unreachable is not None
    assert nobody in found.unreachable


async def test_a_service_that_does_not_speak_tls_is_unreachable_by_https(tmp_path: Path, service: str) -> None:
    url = service.replace("http:", "https:")
    fence = f'fence = "sqlite:///{tmp_path}/fence.db"'
    found = await look_at(tmp_path, f'url = "{url}"\n{fence}\nconnect_timeout = "200ms"')
    assert found.level == "unreachable"


async def test_shadow_mode_is_warned_of_before_there_is_anything(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/rows.db", f"file://{tmp_path}/objects"):
        found = await look_at(tmp_path, f'url = "{url}"\nmode = "shadow"')
        assert found.level == "warning"
        assert "shadow" in found.findings[-1].what


async def test_a_changed_guard_is_unsafe_until_the_floor_is_raised(tmp_path: Path) -> None:
    url = f'url = "file://{tmp_path}/objects"'
    (tmp_path / "objects").mkdir()
    assert (await look_at(tmp_path, url)).level == "fine"
    changed = await look_at(tmp_path, f'{url}\nguard = "job:x"')
    assert changed.level == "unsafe"
    assert "fence floor a" in changed.findings[0].what
