"""What a user of Redis may not do is found out before a script could be stopped between a mark and a value."""

import re
from collections.abc import Iterator
from importlib import resources

import pytest
import redis
import redis.asyncio

import fencegate_adapters.redis
from fencegate.clock import SYSTEM
from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate.core.ports import RowWrite
from fencegate.redis import FencedRedis
from fencegate_adapters.redis import RedisHashes, RedisStrings, script
from tests.real.redis import RedisServer, redis_program
from tests.resources.redis_fixtures import redis_server, redis_url
from tests.resources.test_redis_fenced import Held

__all__ = ["redis_program", "redis_server", "redis_url"]

# As docs/resources/redis.md says.
ACL = "+@read +@write +@scripting +@connection -@dangerous +select +client|setname +info"
KINDS: dict[str, type[RedisStrings] | type[RedisHashes]] = {"strings": RedisStrings, "hashes": RedisHashes}
PARTS = {
    "strings": ("numbers", "enter", "record", "fence", "string_read", "string_write", "string_list", "floor"),
    "hashes": ("numbers", "enter", "record", "fence", "row", "row_read", "row_write", "floor"),
}


def _called(parts: tuple[str, ...]) -> list[str]:
    """Every command that these parts of scripts call."""
    folder = resources.files(fencegate_adapters.redis)
    texts = [(folder / f"{part}.lua").read_text() for part in parts]
    return sorted({name.lower() for text in texts for name in re.findall(r"\bcall\('([A-Z]+)'", text)})


CASES = [(form, command) for form, parts in PARTS.items() for command in (*_called(parts), "info", "evalsha", "exists")]


class Modest:
    """A user who may do no more than is needed, for keys that begin with `p:`."""

    def __init__(self, server: RedisServer, url: str) -> None:
        self.name = f"modest{SYSTEM.random_id(4)}"
        self._server = server
        self._database = int(url.rpartition("/")[2])
        self.url = url.replace("//", f"//{self.name}:hunter2@") + "?prefix=p:"
        self.set("on", ">hunter2", "~p:*", "~fencegate:*", *ACL.split())

    def set(self, *rules: str) -> None:
        assert self._server.ask("ACL", "SETUSER", self.name, *rules) == b"+OK\r\n"

    def keys(self) -> list[str]:
        client = redis.Redis(port=self._server.port, db=self._database, decode_responses=True)
        try:
            return sorted(map(str, client.keys()))
        finally:
            client.close()


@pytest.fixture
def modest(redis_server: RedisServer, redis_url: str) -> Iterator[Modest]:
    user = Modest(redis_server, redis_url)
    yield user
    redis_server.ask("ACL", "DELUSER", user.name)


async def is_refused(made: RedisStrings | RedisHashes) -> str:
    try:
        with pytest.raises(UnsafeConfiguration) as refused:
            await made.open()
    finally:
        await made.close()
    assert "hunter" not in str(refused.value)
    return str(refused.value)


def test_the_commands_of_the_scripts_are_found() -> None:
    assert {("strings", "zadd"), ("strings", "set"), ("hashes", "hdel"), ("hashes", "del")} <= set(CASES)


@pytest.mark.parametrize(("form", "command"), CASES)
async def test_a_user_without_one_command_is_refused_at_start_and_told_which_and_nothing_was_written(
    modest: Modest, form: str, command: str
) -> None:
    modest.set(f"-{command}")
    said = await is_refused(KINDS[form]("r", modest.url))
    assert command in said
    assert "ACL SETUSER" in said
    assert modest.keys() == []


@pytest.mark.parametrize("form", sorted(KINDS))
@pytest.mark.parametrize(("left", "needed"), [("~p:*", "~fencegate:*"), ("~fencegate:*", "~p:*")])
async def test_a_user_who_may_not_use_all_names_is_refused_at_start(
    modest: Modest, form: str, left: str, needed: str
) -> None:
    modest.set("resetkeys", left)
    assert f"ACL SETUSER {modest.name} {needed}" in await is_refused(KINDS[form]("r", modest.url))


@pytest.mark.parametrize("form", sorted(KINDS))
async def test_a_wrong_password_is_refused_at_start_and_no_outage(modest: Modest, form: str) -> None:
    assert "password" in await is_refused(KINDS[form]("r", modest.url.replace("hunter2", "hunter3")))


async def test_a_user_who_may_not_wait_for_replicas_is_refused_at_start(modest: Modest) -> None:
    modest.set("-wait")
    assert "'wait'" in await is_refused(RedisStrings("r", modest.url + "&replicas=1"))


async def test_the_look_changes_nothing_of_others(modest: Modest, redis_url: str) -> None:
    """Also not where a key is named like the prefix, or like the name that is tried."""
    raw = redis.asyncio.Redis.from_url(redis_url)
    tried = ["p:", "p:fencegate-nothing", "p:fencegate-nothing-", "fencegate:about:p:fencegate-nothing--"]
    for name in tried:
        await raw.set(name, "theirs")
    for made in (RedisStrings("s", modest.url), RedisHashes("h", modest.url)):
        await made.open()
        await made.close()
    assert [await raw.get(name) for name in tried] == [b"theirs"] * 4
    assert modest.keys() == sorted([*tried, "fencegate:resource:h", "fencegate:resource:s"])
    await raw.aclose()


@pytest.mark.parametrize("lacking", ["set", "hset", "get", "hmget"])
async def test_a_floor_that_is_stopped_in_its_middle_opens_nothing(
    modest: Modest, redis_url: str, lacking: str
) -> None:
    """A birth without its floor would let in those whom the floor is to keep out."""
    modest.set(f"-{lacking}")
    client = redis.Redis.from_url(modest.url.partition("?")[0])
    keys = ["fencegate:resource:r", "fencegate:born", "fencegate:floor"]
    with pytest.raises(redis.ResponseError):
        client.eval(script.FLOOR.text, 3, *keys, "g", "f", "enforce", "77")
    client.close()
    raw = redis.Redis.from_url(redis_url, decode_responses=True)
    assert raw.get("fencegate:born") is None
    assert raw.hget("fencegate:resource:r", "born") is None
    raw.close()


@pytest.mark.parametrize("command", ["set", "hset", "del"])
async def test_a_right_that_is_taken_away_later_leaves_no_value_without_its_mark(
    modest: Modest, redis_url: str, command: str
) -> None:
    rows = RedisHashes("r", modest.url)
    await rows.open()
    await rows.write("r:a", 5, [RowWrite("put", ("a",), {"n": "5"})])
    modest.set(f"-{command}")
    with pytest.raises(ResourceUnavailable) as failed:
        await rows.write("r:a", 7, [RowWrite("put", ("a",), {"n": "7"})])
    assert failed.value.outcome == "unknown"
    await rows.close()
    raw = redis.Redis.from_url(redis_url, decode_responses=True)
    if command == "set":  # the mark could not be raised: nothing after it was done
        assert (raw.get("fencegate:fence:r:a"), raw.hgetall("p:a")) == ("5", {"n": "5"})
    else:
        assert raw.get("fencegate:fence:r:a") == "7"
    raw.close()


@pytest.mark.parametrize(("rule", "needed"), [("-set", "+set"), ("-get", "+get"), ("resetkeys", "~fencegate:*")])
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
async def test_a_holder_whose_user_may_not_raise_the_fence_is_told_what_it_needs(
    modest: Modest, rule: str, needed: str, face: str
) -> None:
    modest.set(rule, "~p:*")
    url = modest.url.partition("?")[0]
    with pytest.raises(UnsafeConfiguration, match=re.escape(f"ACL SETUSER {modest.name} {needed}")):
        if face == "blocking":
            with redis.Redis.from_url(url) as client:
                FencedRedis(client, Held(7)).claim()
        else:
            async with redis.asyncio.Redis.from_url(url) as asking:
                await FencedRedis(asking, Held(7)).claim()
    assert modest.keys() == []
