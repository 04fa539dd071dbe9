"""`FencedRedis`: a holder's own commands on a client of redis-py."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import redis
import redis.asyncio

from fencegate.core.errors import (
    InvalidInput,
    LockLost,
    ResourceUnavailable,
    StaleToken,
    UnsafeConfiguration,
)
from fencegate.redis import FencedRedis
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.resource_suite import opened
from fencegate_adapters.redis import RedisHashes
from tests.child import Child
from tests.real.redis import redis_program
from tests.resources.redis_fixtures import redis_server, redis_url

__all__ = ["redis_program", "redis_server", "redis_url"]


@dataclass
class Held:
    """A lease, as far as FencedRedis looks at it."""

    token: int
    lock_key: str = "job:x"
    lost: bool = False
    mode: str = "exclusive"

    @property
    def fence(self) -> str:
        return self.lock_key

    def ensure_held(self) -> None:
        if self.lost:
            raise LockLost("the lease is over")


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def blocking(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


async def test_a_newer_holder_shuts_the_older_one_out_of_every_command(client: redis.asyncio.Redis) -> None:
    older, newer = FencedRedis(client, Held(2**53)), FencedRedis(client, Held(2**53 + 1))
    assert await older.set("k", "old")
    assert await newer.get("k") == b"old"
    for refused in (
        older.set("k", "late"),
        older.get("k"),
        older.delete("k"),
        older.hset("h", {"a": "1"}),
        older.incrby("n"),
        older.expire("k", 10),
        older.claim(),
        older.call("RPUSH", "list", "x"),
    ):
        with pytest.raises(StaleToken) as stale:
            await refused
        assert stale.value.highest == 2**53 + 1
    assert await client.get("k") == b"old"
    assert await client.exists("h", "n", "list") == 0


async def test_commands_answer_as_those_of_the_client_do(client: redis.asyncio.Redis) -> None:
    fenced = FencedRedis(client, Held(7))
    assert await fenced.set("k", b"\x00", ex=100)
    assert not await fenced.set("k", "other", nx=True)
    assert 0 < await client.ttl("k") <= 100
    assert await fenced.persist("k")
    assert await fenced.incrby("n", 5) == 5
    assert await fenced.hset("h", {"a": 1, "b": "2"}) == 2
    assert await fenced.hincrby("h", "a") == 2
    assert await fenced.hget("h", "none") is None
    assert await fenced.hgetall("h") == {b"a": b"2", b"b": b"2"}
    assert await fenced.hdel("h", "a", "none") == 1
    assert await fenced.call("zadd", "z", 1, "one") == 1
    assert await fenced.call("ZRANGE", "z", 0, -1) == [b"one"]
    assert await fenced.delete("k", "n", "none") == 2
    assert await client.get("fencegate:fence:job:x") == b"7"


def test_the_same_without_await(blocking: redis.Redis) -> None:
    older, newer = FencedRedis(blocking, Held(7)), FencedRedis(blocking, Held(8))
    assert older.set("k", "text")
    assert older.get("k") == "text"
    assert older.hset("h", {"a": 1}) == 1
    assert older.hgetall("h") == {"a": "1"}
    assert (older.incrby("n"), older.hincrby("h", "a"), older.hget("h", "a")) == (1, 2, "2")
    assert (older.expire("k", 100), older.persist("k"), older.hdel("h", "a")) == (True, True, 1)
    assert older.call("TYPE", "k") == "string"
    newer.claim()
    with pytest.raises(StaleToken):
        older.delete("k")
    assert newer.delete("k") == 1


async def test_a_gateway_and_a_library_share_the_fence_of_a_lock(redis_url: str, client: redis.asyncio.Redis) -> None:
    async with opened(RedisHashes("rows", redis_url, guard_template="job:x")) as resource:
        fenced = FencedRedis(client, Held(7))
        await fenced.hset("k", {"a": "1"})
        await resource.claim("job:x", 8)
        with pytest.raises(StaleToken):
            await fenced.hset("k", {"a": "2"})
        await resource.raise_floor(20)
        with pytest.raises(StaleToken) as stale:
            await FencedRedis(client, Held(19, "another:lock")).claim()
        assert stale.value.highest == 20


async def test_a_holder_from_before_a_flush_is_refused(client: redis.asyncio.Redis) -> None:
    before = FencedRedis(client, Held(7))
    await before.set("k", "before")
    await client.flushdb()
    with pytest.raises(UnsafeConfiguration, match="lost its fences"):
        await before.set("k", "late")
    await FencedRedis(client, Held(8)).set("k", "after")
    with pytest.raises(UnsafeConfiguration, match="lost its fences"):
        await before.set("k", "late")
    assert await client.get("k") == b"after"


async def test_an_increment_whose_answer_is_lost_is_not_sent_again(redis_url: str) -> None:
    address, _, db = redis_url.removeprefix("redis://").rpartition("/")
    with FaultProxy(address) as proxy:
        url = f"redis://{proxy.address}/{db}"
        async with redis.asyncio.Redis.from_url(url) as client:
            fenced = FencedRedis(client, Held(7))
            await fenced.claim()
            proxy.cut_answers(after=b"EVALSHA")
            with pytest.raises(ResourceUnavailable) as lost:
                await fenced.incrby("n")
            assert lost.value.outcome == "unknown"
            assert await client.get("n") == b"1"
        with redis.Redis.from_url(url) as blocking:
            sync = FencedRedis(blocking, Held(7))
            sync.claim()
            proxy.cut_answers(after=b"EVALSHA")
            with pytest.raises(ResourceUnavailable) as lost:
                sync.incrby("n")
            assert lost.value.outcome == "unknown"
            assert blocking.get("n") == b"2"


async def test_a_cancelled_command_does_not_leave_its_answer_to_the_next(client: redis.asyncio.Redis) -> None:
    fenced = FencedRedis(client, Held(7))
    await fenced.set("a", "of a")
    await fenced.set("b", "of b")
    for _ in range(20):
        task = asyncio.ensure_future(fenced.get("a"))
        await asyncio.sleep(0)
        task.cancel()
        assert await fenced.get("b") == b"of b"


async def test_what_redis_says_of_a_wrong_command_is_told(client: redis.asyncio.Redis) -> None:
    fenced = FencedRedis(client, Held(7))
    await fenced.set("k", "text")
    for wrong in (fenced.hset("k", {"a": "1"}), fenced.incrby("k"), fenced.call("SET", "k")):
        with pytest.raises(InvalidInput):
            await wrong
    for name, key in (("EVAL", "return 1"), ("RENAME", "k"), ("FLUSHALL", "k"), ("SET", "fencegate:born")):
        with pytest.raises(InvalidInput):
            await fenced.call(name, key, "x")


async def test_a_value_that_redis_has_no_spelling_for_is_refused_and_nothing_is_sent(
    client: redis.asyncio.Redis,
) -> None:
    fenced = FencedRedis(client, Held(7))
    for wrong in (True, None, ["list"], "half of a pair \ud800"):
        with pytest.raises(InvalidInput):
            await fenced.set("k", wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await fenced.hset("h", {"field": wrong})  # type: ignore[dict-item]
    assert await client.exists("k", "h") == 0


async def test_a_lease_that_is_over_or_shared_sends_nothing(client: redis.asyncio.Redis) -> None:
    held = Held(7)
    fenced = FencedRedis(client, held)
    held.lost = True
    with pytest.raises(LockLost):
        await fenced.set("k", "late")
    with pytest.raises(TypeError):
        FencedRedis(client, Held(7, mode="shared"))
    assert await client.exists("k") == 0


async def test_a_holder_stopped_in_the_middle_is_refused(redis_url: str, client: redis.asyncio.Redis) -> None:
    script = """
    import redis
    from fencegate.core.errors import StaleToken
    from fencegate.redis import FencedRedis

    class Lease:
        lock_key, token = "job:x", 7
        def ensure_held(self):
            if fenced.armed:
                signal.raise_signal(signal.SIGSTOP)

    with redis.Redis.from_url(sys.argv[1]) as client:
        lease = Lease()
        fenced = FencedRedis(client, lease)
        fenced.armed = False
        fenced.set("k", "of 7")
        fenced.armed = True
        try:
            fenced.set("k", "late")
            say("written")
        except StaleToken as stale:
            say("stale %d %d" % (stale.token, stale.highest))
    """
    with Child(script, redis_url) as stale:
        stale.wait_until_stopped()
        await FencedRedis(client, Held(8)).set("k", "of 8")
        stale.proceed()
        assert stale.line() == "stale 7 8"
    assert await client.get("k") == b"of 8"


def test_what_waits_in_a_multi_that_somebody_left_open_is_unknown_and_compared_at_its_exec(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, max_connections=1) as one, redis.Redis.from_url(redis_url) as other:
        fenced = FencedRedis(one, Held(7))
        fenced.set("k", "first")
        for token in (7, 8):
            one.execute_command("MULTI")
            with pytest.raises(ResourceUnavailable) as unknown:
                fenced.set("k", "second" if token == 7 else "stale")
            assert unknown.value.outcome == "unknown"
            FencedRedis(other, Held(token)).claim()
            one.execute_command("EXEC")
            assert other.get("k") == b"second"


async def test_the_same_with_await(redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url, max_connections=1) as client:
        fenced = FencedRedis(client, Held(7))
        await fenced.set("k", "first")
        await client.execute_command("MULTI")  # type: ignore[no-untyped-call]
        with pytest.raises(ResourceUnavailable) as unknown:
            await fenced.set("k", "second")
        assert unknown.value.outcome == "unknown"
        await client.execute_command("EXEC")  # type: ignore[no-untyped-call]
        assert await fenced.get("k") == b"second"


def test_a_client_of_a_cluster_is_refused() -> None:
    cluster = redis.RedisCluster.__new__(redis.RedisCluster)  # to connect it would take a cluster
    with pytest.raises(UnsafeConfiguration, match="cluster"):
        FencedRedis(cluster, Held(7))  # type: ignore[call-overload]
