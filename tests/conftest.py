"""Fixtures for tests that need a real server, and the options of the tests."""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from fencegate import Locks, connect
from tests.real import redis as real_redis
from tests.scheduling import schedule, turn
from tests.servers import MakeServer, Server, start_server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-scenarios", action="store_true", help="write down what the state machine answers now")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    items.sort(key=lambda item: turn(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Every worker collects five thousand tests, which stay: the garbage collector need not look at them ever again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    return schedule(config, log)


# What the machine is set up for must not reach the tests: neither a server of its own, nor a proxy for 127.0.0.1.
_OURS = ("FENCEGATE_EXAMPLES", "FENCEGATE_MYSQLD")
for _name in [name for name in os.environ if name.startswith("FENCEGATE_") and name not in _OURS]:
    del os.environ[_name]
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "127.0.0.1", "localhost")))

# Else every worker, and every one of the thousand processes that they start, compiles all of the code anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A client of httpx reads the certificates of all authorities, which takes it 50 ms, unless it is told of a folder. No
# test needs them: what speaks TLS here brings its own.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# Every run tries the same examples, however busy the machine is; FENCEGATE_EXAMPLES asks for a search by chance.
hypothesis.settings.register_profile(
    "steady",
    deadline=None,
    database=None,
    derandomize="FENCEGATE_EXAMPLES" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")

# A job in the background is started with SIGINT ignored, and hands that on; our children are to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Start servers of this test's own: `make_server("name", "--role", "gateway", FENCEGATE_…="…")`."""
    started: list[Server] = []

    def make(name: str = "data", *arguments: str, listen: str = "127.0.0.1:0", **environment: str) -> Server:
        started.append(start_server(tmp_path / name, *arguments, listen=listen, **environment))
        return started[-1]

    yield make
    for server in started:
        with contextlib.suppress(ProcessLookupError):
            server.signal(signal.SIGCONT)
        server.kill()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that only need some server: use lock keys of your own."""
    running = start_server(tmp_path_factory.mktemp("server") / "data")
    yield running
    assert running.terminate() == 0


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("running") / "data")
    yield server
    server.kill()


@pytest.fixture
def stoppable(running: Server) -> Iterator[Server]:
    """A server that a test may stop; it runs on afterwards."""
    yield running
    running.signal(signal.SIGCONT)


@pytest.fixture(scope="session")
def redis_program() -> str:
    """The server that tests take which need some server of this kind."""
    return real_redis.program_of(real_redis.VALKEY)


@pytest.fixture
async def locks(url: str) -> AsyncIterator[Locks]:
    """A client of whatever the test module calls `url`."""
    async with connect(url) as client:
        yield client


@pytest.fixture
async def rival(url: str) -> AsyncIterator[Locks]:
    """Another one."""
    async with connect(url) as client:
        yield client
