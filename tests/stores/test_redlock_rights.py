"""Nodes that refuse the user of the URL, or what a vote needs: told at start, and no vote is done by halves."""

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.testing.committing import put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores import redlock as redlock_store
from fencegate_lockservice.stores.redlock import store as redlock
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.node import ACCEPT, PREPARE, Node, NodeDown
from fencegate_lockservice.stores.redlock.url import parse
from tests.eventually import eventually
from tests.stores.redlock_fixtures import Five, address
from tests.test_serve import run

ACL = "+@read +@write +@scripting +@connection -@dangerous +time"  # as docs/stores/redlock.md says


def _called() -> set[str]:
    """Every command that a script of the store calls."""
    scripts = [file.read_text() for file in resources.files(redlock_store).iterdir() if file.name.endswith(".lua")]
    return {name.lower() for script in scripts for name in re.findall(r"\bredis\.call\('([A-Z]+)'", script)}


COMMANDS = sorted(_called() | {"evalsha", "script|load", "time", "hgetall", "xread", "xrange", "xrevrange"})


@pytest.fixture
def user() -> str:
    return f"modest{SYSTEM.random_id(4)}"


@pytest.fixture
def url(lasting_five: Five, user: str) -> Iterator[str]:
    """Of a user who may do no more than is needed."""
    for server in lasting_five:
        server.ask("ACL", "SETUSER", user, "on", ">hunter2", f"~{user}:*", *ACL.split())
    hosts = address(lasting_five).removeprefix("redlock://")
    yield f"redlock://{user}:hunter2@{hosts}?prefix={user}:"
    for server in lasting_five:
        server.ask("ACL", "DELUSER", user)


async def is_refused(url: str) -> str:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UnsafeConfiguration) as refused:
        patch.setattr(redlock, "OPEN_WITHIN_S", 60.0)  # it is not waited for
        await open_store(url)
    assert "hunter" not in str(refused.value)
    return str(refused.value)


def test_the_commands_of_the_scripts_are_found() -> None:
    assert {"hset", "hincrby", "zadd", "xadd", "hmget"} <= set(COMMANDS)


async def test_a_user_who_may_do_no_more_than_needed_is_enough(url: str) -> None:
    store = await open_store(url)
    await write(store, put("lock/k"))
    assert [key for key, _ in await store.scan("lock/", "", 10)] == ["lock/k"]
    await store.close()


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_user_without_one_command_is_refused_at_start_and_told_which_and_nothing_was_written(
    lasting_five: Five, user: str, url: str, command: str
) -> None:
    for server in lasting_five:
        server.ask("ACL", "SETUSER", user, f"-{command}")
    said = await is_refused(url)
    assert f"'{command}'" in said
    assert f"ACL SETUSER {user} +{command};" in said or command in ("evalsha", "script|load")
    assert "ACL SETUSER" in said
    assert str(lasting_five[0].port) in said
    for server in lasting_five:
        assert server.ask("KEYS", f"{user}:*") == b"*0\r\n"


@pytest.mark.parametrize("hidden", ["lock", "entry", "fencegate"])
async def test_a_user_who_may_not_use_all_names_is_refused_at_start(
    lasting_five: Five, user: str, url: str, hidden: str
) -> None:
    patterns = [f"~{user}:{kind}:*" for kind in ("lock", "entry", "fencegate") if kind != hidden]
    for server in lasting_five:
        server.ask("ACL", "SETUSER", user, "resetkeys", *patterns)
    said = await is_refused(url)
    assert f"ACL SETUSER {user} ~{user}:*" in said
    assert f"{user}:{hidden}:" in said


async def test_one_node_that_refuses_is_left_out_like_one_that_is_down_and_told(
    lasting_five: Five, user: str, url: str
) -> None:
    await (await open_store(url)).close()
    lasting_five[2].ask("ACL", "SETUSER", user, "-zadd")
    store = await open_store(url)
    try:
        await write(store, put("lock/k"))
        told = [f for f in await store.inspect() if str(lasting_five[2].port) in f.what and "'zadd'" in f.what]
        assert [finding.level for finding in told] == ["warning"]
        assert f"ACL SETUSER {user} +zadd" in told[0].what
        lasting_five[2].ask("ACL", "SETUSER", user, "+zadd")

        async def is_back() -> bool:
            return not any("'zadd'" in finding.what for finding in await store.inspect())

        await eventually(is_back)
    finally:
        await store.close()


async def test_a_first_start_to_which_one_node_refuses_its_part_is_refused_and_not_told_as_an_outage(
    lasting_five: Five, user: str, url: str
) -> None:
    lasting_five[2].ask("ACL", "SETUSER", user, "-zadd")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UnsafeConfiguration, match="'zadd'"):
        patch.setattr(redlock, "OPEN_WITHIN_S", 3.0)
        await open_store(url)


@pytest.mark.parametrize("lacking", ["zadd", "hincrby", "hset", "hmget"])
@pytest.mark.parametrize("script", [PREPARE, ACCEPT], ids=["prepare", "accept"])
async def test_a_vote_that_is_stopped_in_its_middle_leaves_no_register_that_a_copy_would_not_find(
    lasting_five: Five, user: str, url: str, script: object, lacking: str
) -> None:
    """A register that is not in the index is never copied to a node that lost its data: a lock that is forgotten."""
    await (await open_store(url)).close()
    server, keys = lasting_five[0], Keys(f"{user}:")
    settings = parse(url)
    seat = next(seat for seat in settings.seats if seat.port == server.port)
    node = Node(0, seat, settings, SYSTEM, lambda: None)
    line = await node.connect()
    try:
        said = await line.call("HMGET", keys.node, "digest", "identity")
        server.ask("ACL", "SETUSER", user, f"-{lacking}")
        names = [keys.node, keys.index, keys.register("lock/k"), keys.changes]
        words = [*said, "lock/k", "1", "2", "value", "", "10"]
        for _ in range(2):  # what was begun must not make a second try pass
            with pytest.raises(NodeDown):
                await line.call("EVALSHA", script.digest, len(names), *names, *words)  # type: ignore[attr-defined]
        assert server.ask("EXISTS", keys.register("lock/k")) == b":0\r\n"
    finally:
        line.abort()


@pytest.mark.parametrize("login", ["", "nobody:hunter3@"])
def test_serve_and_doctor_tell_of_a_user_who_is_refused_as_such_and_not_as_an_outage(
    five: Five, login: str, tmp_path: Path
) -> None:
    for server in five:
        server.ask("ACL", "SETUSER", "default", "resetpass", ">hunter2")
    url = f"redlock://{login}{address(five).removeprefix('redlock://')}"
    for command, code in (("serve", 2), ("doctor", 1)):
        done = run(command, "--store", url, "--data", str(tmp_path))
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "NOAUTH" in said or "WRONGPASS" in said
        assert "hunter" not in said
