"""What a user of Redis may not do is found out before the first script could be stopped in its middle."""

import re
from collections.abc import Iterator
from importlib import resources

import hiredis
import pytest

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Store, Unavailable
from fencegate.testing.committing import by, put, write
from fencegate_lockservice.stores import open_store as open_url
from fencegate_lockservice.stores import redis as redis_store
from tests.eventually import eventually
from tests.real.redis import RedisServer, redis_program
from tests.stores.redis_fixtures import redis_server, redis_url

__all__ = ["redis_program", "redis_server", "redis_url"]

ACL = "+@read +@write +@scripting +@connection -@dangerous +select +info +time"  # as docs/stores/redis.md says


def _called() -> set[str]:
    """Every command that a script of the store calls."""
    scripts = [file.read_text() for file in resources.files(redis_store).iterdir() if file.name.endswith(".lua")]
    return {name.lower() for script in scripts for name in re.findall(r"\bcall\('([A-Z]+)'", script)}


COMMANDS = sorted(_called() | {"xread", "type", "evalsha", "script|load", "info"})


@pytest.fixture
def prefix(redis_url: str) -> str:
    return redis_url.partition("prefix=")[2]


@pytest.fixture
def url(redis_server: RedisServer, prefix: str) -> Iterator[str]:
    """Of a user who may do no more than is needed."""
    user = _user(prefix)
    redis_server.ask("ACL", "SETUSER", user, "on", ">hunter2", f"~{prefix}*", *ACL.split())
    yield f"redis://{user}:hunter2@127.0.0.1:{redis_server.port}/0?prefix={prefix}"
    redis_server.ask("ACL", "DELUSER", user)


def _user(prefix: str) -> str:
    return f"modest{prefix.strip(':')}"


def _change(server: RedisServer, prefix: str, *rules: str) -> None:
    """The rights of the user. Older servers don't know all rules."""
    if server.ask("ACL", "SETUSER", _user(prefix), *rules) != b"+OK\r\n":
        pytest.skip(f"no such rule in this server: {rules[-1]}")


def names(server: RedisServer, prefix: str) -> list[str]:
    reader = hiredis.Reader(encoding="utf-8")
    reader.feed(server.ask("KEYS", f"{prefix}*"))
    return sorted(reader.gets())


async def is_refused(url: str) -> str:
    with pytest.raises(UnsafeConfiguration) as refused:
        await open_url(url)
    assert "hunter" not in str(refused.value)
    return str(refused.value)


def test_the_commands_of_the_scripts_are_found() -> None:
    assert {"zadd", "set", "incrby", "xadd", "del", "zrangebylex", "hset", "time"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_user_without_one_command_is_refused_at_start_and_told_which_and_nothing_was_written(
    redis_server: RedisServer, prefix: str, url: str, command: str
) -> None:
    _change(redis_server, prefix, f"-{command}")
    said = await is_refused(url)
    assert f"'{command}'" in said
    assert "ACL SETUSER" in said
    if command in _called():
        assert f"ACL SETUSER {_user(prefix)} +{command};" in said
    assert names(redis_server, prefix) == []


async def test_a_password_for_a_server_that_has_none_is_refused_as_such(redis_server: RedisServer) -> None:
    assert "refuses the user or the password" in await is_refused(f"redis://:hunter2@127.0.0.1:{redis_server.port}/0")


@pytest.mark.parametrize("command", ["", "zadd", "set", "incrby", "xadd"])
async def test_of_a_store_that_is_in_use_nothing_is_changed_by_the_look(
    redis_server: RedisServer, prefix: str, url: str, command: str
) -> None:
    store = await open_url(url)
    later_us = by(store, 3_600_000_000)
    await write(store, put("lock/k"), put("done/x", keep_until_us=later_us), put("session/s", keep_until_us=later_us))
    await store.close()

    def everything() -> list[tuple[str, bytes]]:
        return [(name, redis_server.ask("DUMP", name)) for name in names(redis_server, prefix)]

    before = everything()
    assert len(before) == 3 + 5
    if command:
        _change(redis_server, prefix, f"-{command}")
        await is_refused(url)
    else:
        await (await open_url(url)).close()
    assert everything() == before


@pytest.mark.parametrize("hidden", ["lock", "done", "session", "fencegate"])
async def test_a_user_who_may_not_use_all_names_is_refused_at_start(
    redis_server: RedisServer, prefix: str, url: str, hidden: str
) -> None:
    kinds = ("lock", "done", "session", "floor", "member", "history", "route", "fencegate", ":")
    patterns = [f"~{prefix}{kind}*" for kind in kinds if kind != hidden]
    _change(redis_server, prefix, "resetkeys", *patterns)
    said = await is_refused(url)
    assert f"~{prefix}*" in said
    assert hidden in said
    assert names(redis_server, prefix) == []


async def test_a_user_who_may_read_names_but_not_write_them_is_refused_at_start(
    redis_server: RedisServer, prefix: str, url: str
) -> None:
    _change(redis_server, prefix, "resetkeys", f"~{prefix}fencegate*", f"%R~{prefix}*")
    assert f"~{prefix}*" in await is_refused(url)


async def test_a_right_that_is_taken_from_a_running_store_is_noticed_and_told_until_it_is_given_back(
    redis_server: RedisServer, prefix: str, url: str
) -> None:
    store: Store = await open_url(url)
    try:
        _change(redis_server, prefix, "-zadd")
        with pytest.raises(Ambiguous):
            await store.commit([put("lock/k")], [], by(store))

        async def refuses_everything() -> bool:
            try:
                await store.load(["lock/k"])
            except Unavailable as error:
                return f"ACL SETUSER {_user(prefix)} +zadd" in str(error)
            return False

        await eventually(refuses_everything)
        _change(redis_server, prefix, "+zadd")

        async def takes_commits() -> bool:
            try:
                await write(store, put("lock/other"))
            except Unavailable:
                return False
            return True

        await eventually(takes_commits)
    finally:
        await store.close()
