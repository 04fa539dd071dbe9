"""What is started for a demo, a campaign or a test ends with whoever started it, however that ends."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from fencegate_demo.processes import runs
from tests.eventually import eventually_sync
from tests.real import postgres
from tests.real.redis import RedisServer, missing

DRIVER = """
import asyncio, sys
from pathlib import Path
from fencegate_demo.processes import spawn
from fencegate_demo.startable.redis import RedisServer

async def main(folder):
    server = await asyncio.to_thread(RedisServer(folder / "redis").start)
    with open(folder / "err", "wb") as err:
        child = await spawn(["-c", "import time; time.sleep(600)"], err, {})
    print(server.pid, child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="it is the kernel of Linux that sees to it")


@pytest.fixture(autouse=True)
def _there_is_a_server() -> None:
    if reason := missing():
        pytest.skip(reason)


@needs_linux
def test_a_driver_that_is_killed_leaves_no_servers_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(runs, pids))
        driver.send_signal(signal.SIGKILL)
    eventually_sync(lambda: not any(map(runs, pids)))


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis")
    try:
        asyncio.run(asyncio.to_thread(server.start))  # which ends its threads when it is over
        assert server.answers()
    finally:
        server.terminate()


@needs_linux
@pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing()))
def test_nothing_of_a_killed_postgres_is_left_to_be_in_the_way_of_the_next() -> None:
    server = postgres.PostgresServer(shared_buffers="256MB")  # memory that takes its time to be given back
    server.start()
    try:
        for _ in range(5):
            callers = [psycopg.connect(server.url) for _ in range(60)]
            for caller in callers:
                caller.execute("CREATE TEMP TABLE t AS SELECT generate_series(1, 10000) AS n")
            pids = [caller.info.backend_pid for caller in callers]
            server.kill()
            assert not any(map(runs, pids))
            for caller in callers:
                caller.close()
            server.start()
    finally:
        server.terminate()
