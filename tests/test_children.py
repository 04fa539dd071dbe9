"""What is started for a demo, a campaign or a test ends with whoever started it, however that ends."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import eventually_sync
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


def runs(pid: int) -> bool:
    """Whether it is there, and no zombie: who takes those in is not ours to say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


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
