"""A client straight on a store, whose event loop ends while tasks of the application hold locks and wait for them.

The loop then cancels all its tasks: those of the application, which give back what they hold, and at the same moment
those of the store and of the engine, by which they do it.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencegate import connect, sync
from fencegate.clock import SYSTEM
from tests.real import redis as real_redis

RUNS = 5


@pytest.fixture(params=["memory", "sqlite", "redis", "redlock", "postgres", "mysql", "etcd", "zookeeper"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "memory":
            yield f"memory://{SYSTEM.random_id(4)}"
        case "sqlite":
            yield f"sqlite:///{tmp_path}/locks.db"
        case "redis":
            server = real_redis.RedisServer(tmp_path, program=real_redis.program_of(real_redis.VALKEY)).start()
            yield server.url
            server.terminate()
        case "zookeeper":
            servers: list[str] = request.getfixturevalue("zookeeper_server")
            yield f"zookeeper://{','.join(servers)}/{SYSTEM.random_id(4)}"
        case store:
            yield str(request.getfixturevalue(f"{store}_url"))


def test_a_loop_that_ends_while_its_tasks_hold_and_wait_ends_soon_and_leaves_nothing_behind(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FENCEGATE_ALLOW_UNSAFE_STORE", "1")
    locks = connect(url)

    async def use(key: str, stay_s: float) -> None:
        while True:
            async with locks.hold(key, wait=60):
                await asyncio.sleep(stay_s)

    async def main(turns: int) -> float:
        users = [asyncio.create_task(use(f"k{number % 2}", 60 * (number % 2))) for number in range(6)]
        await asyncio.sleep(0.05)
        for _ in range(turns):  # each run ends at another moment of what is under way
            await asyncio.sleep(0)
        assert not any(user.done() for user in users)
        return SYSTEM.monotonic_us() / 1e6

    with sync.connect(url) as rival:
        rival.status("k0")  # an embedded store stays open, and so does what is left behind in it
        for run in range(RUNS):
            caplog.clear()
            ended_s = asyncio.run(main(run))
            assert SYSTEM.monotonic_us() / 1e6 - ended_s < 5  # the patience of a release is 10 s
            assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []
            for key in ("k0", "k1"):
                with rival.hold(key, wait=20):  # below the TTL
                    pass
    asyncio.run(locks.aclose())
