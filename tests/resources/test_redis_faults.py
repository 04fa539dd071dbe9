"""Redis resources when things go wrong: paused writers, lost answers, flushed and unsafe servers."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest
import redis.asyncio

from fencegate.core.errors import ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.core.ports import RowWrite
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.resource_suite import opened
from fencegate_adapters.redis import RedisHashes
from fencegate_adapters.redis.link import Link
from tests.child import Child
from tests.eventually import eventually
from tests.real import redis as real
from tests.real.redis import redis_program
from tests.resources.redis_fixtures import DURABLE, MANY, redis_server, redis_url

__all__ = ["redis_program", "redis_server", "redis_url"]

_numbers = itertools.count()

STOPPED_BEFORE = """
import asyncio
from fencegate import failpoint
from fencegate.core.errors import StaleToken
from fencegate.core.ports import RowWrite
from fencegate_adapters.redis import RedisHashes

async def main():
    rows = RedisHashes("rows", sys.argv[1], guard_template="job:x")
    await rows.open()
    failpoint.arm("resource.write=stop@1")
    try:
        await rows.write("job:x", 7, [RowWrite("put", ("k",), {"of": "7"})])
        say("written")
    except StaleToken as stale:
        say("stale %d %d" % (stale.token, stale.highest))
    await rows.close()

asyncio.run(main())
"""


def rows_at(url: str, wait_ms: int = 5000) -> RedisHashes:
    return RedisHashes("rows", url, guard_template="job:x", wait_ms=wait_ms)


async def put(rows: RedisHashes, token: int, key: str = "k") -> None:
    await rows.write("job:x", token, [RowWrite("put", (key,), {"of": str(token)})])


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory, redis_program: str) -> Iterator[real.RedisServer]:
    """A server whose settings a test may change, if it puts them back."""
    server = real.RedisServer(tmp_path_factory.mktemp("own"), *DURABLE, *MANY, program=redis_program).start()
    yield server
    server.terminate()


@pytest.fixture
def own_url(own_server: real.RedisServer) -> str:
    """A database of this server that no other test uses."""
    return f"redis://{own_server.address}/{next(_numbers)}"


# --- paused writers, lost answers ------------------------------------------------------------------------------------


async def test_a_process_stopped_right_before_its_script_is_refused_after_its_successor(redis_url: str) -> None:
    with Child(STOPPED_BEFORE, redis_url) as stale:
        stale.wait_until_stopped()
        async with opened(rows_at(redis_url)) as resource:
            assert isinstance(resource, RedisHashes)
            await put(resource, 8, "other")
            stale.proceed()
            assert stale.line() == "stale 7 8"
            assert (await resource.read(("k",), "job:x"))[0] is None


async def test_a_write_whose_answer_is_lost_is_unknown_and_there(redis_url: str) -> None:
    address, _, db = redis_url.removeprefix("redis://").rpartition("/")
    with FaultProxy(address) as proxy:
        async with opened(rows_at(f"redis://{proxy.address}/{db}")) as resource:
            assert isinstance(resource, RedisHashes)
            await put(resource, 7)
            proxy.cut_answers(after=b"EVALSHA")
            with pytest.raises(ResourceUnavailable) as lost:
                await put(resource, 8)
            assert lost.value.outcome == "unknown"
            assert proxy.cuts == 1, "it was sent once"
            proxy.pass_()
            assert (await resource.read(("k",), "job:x"))[0] == {"of": "8"}
            proxy.cut()
            with pytest.raises(ResourceUnavailable):
                await put(resource, 9)  # perhaps on a connection that is not yet known to be dead
            with pytest.raises(ResourceUnavailable) as unreached:
                await put(resource, 9)
            assert unreached.value.outcome == "not-written"
            proxy.pass_()
            assert await resource.mark("job:x") == 8


async def test_a_server_that_stands_still_makes_the_outcome_unknown(own_server: real.RedisServer, own_url: str) -> None:
    async with opened(rows_at(own_url, wait_ms=400)) as resource:
        assert isinstance(resource, RedisHashes)
        await put(resource, 7)
        own_server.stop()
        try:
            with pytest.raises(ResourceUnavailable) as lost:
                await put(resource, 8)
        finally:
            own_server.resume()
        assert lost.value.outcome == "unknown"


async def test_a_server_that_forgot_the_scripts_is_told_them_again(redis_url: str) -> None:
    async with opened(rows_at(redis_url)) as resource, redis.asyncio.Redis.from_url(redis_url) as raw:
        assert isinstance(resource, RedisHashes)
        await put(resource, 7)
        await raw.script_flush()
        await put(resource, 8)
        assert await resource.mark("job:x") == 8


async def test_marks_survive_kill_9_of_the_server(own_server: real.RedisServer, own_url: str) -> None:
    async with opened(rows_at(own_url)) as resource:
        assert isinstance(resource, RedisHashes)
        await resource.claim("job:killed", 9)
        own_server.kill()
        with pytest.raises(ResourceUnavailable):
            await resource.claim("job:killed", 10)
        own_server.start()
        with pytest.raises(StaleToken):
            await resource.claim("job:killed", 8)


# --- marks that are lost ---------------------------------------------------------------------------------------------


async def test_after_a_flush_nothing_is_accepted_until_the_floor_is_raised(redis_url: str) -> None:
    async with opened(rows_at(redis_url)) as resource, redis.asyncio.Redis.from_url(redis_url) as raw:
        assert isinstance(resource, RedisHashes)
        await put(resource, 50)
        await raw.flushdb()
        for refused in (put(resource, 60), resource.claim("job:x", 60), resource.mark("job:x")):
            with pytest.raises(UnsafeConfiguration, match="fence floor rows"):
                await refused
        assert await raw.keys() == []
        await resource.raise_floor(55)
        with pytest.raises(StaleToken):
            await put(resource, 54)
        await put(resource, 55)


async def test_one_who_remembers_the_time_before_a_flush_stays_out_when_another_opens_anew(redis_url: str) -> None:
    async with opened(rows_at(redis_url)) as former, redis.asyncio.Redis.from_url(redis_url) as raw:
        assert isinstance(former, RedisHashes)
        await put(former, 50)
        await raw.flushdb()
        async with opened(rows_at(redis_url)) as fresh:
            assert isinstance(fresh, RedisHashes)
            with pytest.raises(UnsafeConfiguration):
                await put(former, 40)
            assert (await fresh.read(("k",), "job:x"))[0] is None


async def test_a_floor_of_one_resource_lets_nobody_into_another(redis_url: str) -> None:
    def other() -> RedisHashes:
        return RedisHashes("other", redis_url, guard_template="job:x")

    async with opened(other()) as former, redis.asyncio.Redis.from_url(redis_url) as raw:
        assert isinstance(former, RedisHashes)
        await put(former, 50)
        await raw.flushdb()
        rows = rows_at(redis_url)
        await rows.raise_floor(60)
        await rows.close()
        async with opened(other()):
            with pytest.raises(UnsafeConfiguration):
                await put(former, 40)


async def test_a_write_that_its_replica_has_is_fenced_there_after_a_failover(
    tmp_path_factory: pytest.TempPathFactory, own_server: real.RedisServer, own_url: str
) -> None:
    following = (*MANY, "--replicaof", own_server.host, str(own_server.port))
    replica = real.RedisServer(tmp_path_factory.mktemp("replica"), *following, program=own_server.program)
    replica.start()
    try:
        await eventually(lambda: b"state=online" in own_server.ask("INFO", "replication"))
        async with opened(rows_at(f"{own_url}?replicas=1")) as resource:
            assert isinstance(resource, RedisHashes)
            await put(resource, 80)
            own_server.stop()
            try:
                replica.ask("REPLICAOF", "NO", "ONE")
                async with opened(rows_at(own_url.replace(own_server.address, replica.address))) as promoted:
                    assert isinstance(promoted, RedisHashes)
                    with pytest.raises(StaleToken):
                        await put(promoted, 79)
                    assert (await promoted.read(("k",), "job:x"))[0] == {"of": "80"}
            finally:
                own_server.resume()
    finally:
        replica.terminate()


# --- unsafe servers --------------------------------------------------------------------------------------------------


async def test_a_cluster_is_refused(tmp_path_factory: pytest.TempPathFactory, redis_server: real.RedisServer) -> None:
    server = real.RedisServer(
        tmp_path_factory.mktemp("cluster"), "--cluster-enabled", "yes", program=redis_server.program
    ).start()
    try:
        resource = rows_at(server.url)
        for refused in (resource.open(), resource.raise_floor(5)):
            with pytest.raises(UnsafeConfiguration, match="cluster"):
                await refused
        await resource.close()
    finally:
        server.terminate()


POLICY = ("CONFIG", "SET", "maxmemory-policy")
REPLICA, PRIMARY = ("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    ("command", "back", "says"),
    [((*POLICY, "allkeys-lru"), (*POLICY, "noeviction"), "evict"), (REPLICA, PRIMARY, "primary")],
)
async def test_an_evicting_server_and_a_replica_are_refused(
    own_server: real.RedisServer, own_url: str, command: tuple[str, ...], back: tuple[str, ...], says: str
) -> None:
    own_server.ask(*command)
    try:
        resource = rows_at(own_url)
        with pytest.raises(UnsafeConfiguration, match=says):
            await resource.open()
        await resource.close()
    finally:
        own_server.ask(*back)


async def test_what_a_server_refuses_is_not_written(own_server: real.RedisServer, own_url: str) -> None:
    async with opened(rows_at(own_url)) as resource:
        assert isinstance(resource, RedisHashes)
        for command, back in (
            (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
            (REPLICA, PRIMARY),
        ):
            own_server.ask(*command)
            try:
                with pytest.raises(ResourceUnavailable) as refused:
                    await put(resource, 70)
            finally:
                own_server.ask(*back)
            assert refused.value.outcome == "not-written"
        assert (await resource.read(("k",), "job:x"))[0] is None


async def test_a_write_that_its_replicas_do_not_have_is_unknown(own_url: str) -> None:
    async with opened(RedisHashes("replicas", f"{own_url}?replicas=1", wait_ms=1200)) as resource:
        assert isinstance(resource, RedisHashes)
        with pytest.raises(ResourceUnavailable, match="0 of 1 replicas") as lost:
            await resource.write("job:r", 7, [RowWrite("put", ("k",), {"a": "1"})])
        assert lost.value.outcome == "unknown"
        assert (await resource.read(("k",), "job:r"))[0] == {"a": "1"}
        assert "failover" in resource.guarantee.durability


async def test_a_stale_write_is_told_as_stale_whatever_the_replicas_do(own_url: str) -> None:
    async with opened(rows_at(own_url)) as newer, opened(rows_at(f"{own_url}?replicas=1", wait_ms=1200)) as older:
        assert isinstance(newer, RedisHashes)
        assert isinstance(older, RedisHashes)
        await put(newer, 91)
        with pytest.raises(StaleToken):
            await put(older, 90)


async def test_a_write_after_which_the_server_is_busy_is_unknown(
    own_server: real.RedisServer, own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the refusal is of the question for the replicas: what was written before it is there."""
    await_replicas = Link._await_replicas

    async def busy(link: Link, connection: redis.asyncio.Connection) -> None:
        endless = asyncio.create_task(asyncio.to_thread(own_server.ask, "EVAL", "while true do end", "0"))
        await eventually(lambda: own_server.ask("PING").startswith(b"-BUSY"))
        try:
            await await_replicas(link, connection)
        finally:
            own_server.ask("SCRIPT", "KILL")
            await endless

    monkeypatch.setattr(Link, "_await_replicas", busy)
    own_server.ask("CONFIG", "SET", "busy-reply-threshold", "50")
    try:
        async with opened(rows_at(f"{own_url}?replicas=1")) as resource:
            assert isinstance(resource, RedisHashes)
            with pytest.raises(ResourceUnavailable) as lost:
                await put(resource, 95)
            assert lost.value.outcome == "unknown"
            assert (await resource.read(("k",), "job:x"))[0] == {"of": "95"}
    finally:
        own_server.ask("CONFIG", "SET", "busy-reply-threshold", "5000")


async def test_it_tells_what_a_crash_would_lose(own_server: real.RedisServer, own_url: str) -> None:
    async def told() -> str:
        async with opened(rows_at(own_url)) as resource:
            return resource.guarantee.durability

    assert "on disk before the answer" in await told()
    for command, back, says in (
        (("appendfsync", "everysec"), ("appendfsync", "always"), "last second"),
        (("no-appendfsync-on-rewrite", "yes"), ("no-appendfsync-on-rewrite", "no"), "while it rewrites"),
        (("appendonly", "no"), ("appendonly", "yes"), "appendonly is off"),
    ):
        own_server.ask("CONFIG", "SET", *command)
        try:
            assert says in await told()
        finally:
            own_server.ask("CONFIG", "SET", *back)


async def test_a_wrong_password_is_told_without_the_password(redis_url: str) -> None:
    resource = rows_at(redis_url.replace("redis://", "redis://nobody:hunter2@"))
    with pytest.raises(UnsafeConfiguration) as refused:
        await resource.open()
    await resource.close()
    assert "hunter2" not in str(refused.value)
    assert "NOAUTH" in str(refused.value)  # no outage, and nothing was opened
