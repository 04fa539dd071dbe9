"""Real server processes for the tests: started on a free port, stopped by their own process id."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest


@dataclass
class Server:
    """A `fencegate serve` process."""

    url: str
    process: subprocess.Popen[str]
    data: Path

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def terminate(self, within_s: float = 10.0) -> int:
        self.process.terminate()
        return self.process.wait(within_s)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


def start_server(data: Path, *arguments: str, listen: str = "127.0.0.1:0", **environment: str) -> Server:
    """Start a server and wait until it says `ready`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FENCEGATE_")}
    process = subprocess.Popen(
        [sys.executable, "-c", "from fencegate.cli import main; main()", "serve", "--listen", listen]
        + ["--data", str(data), *arguments],
        stdout=subprocess.PIPE,
        stderr=(data.parent / f"{data.name}.err").open("a"),
        text=True,
        env={**inherited, **environment},
    )
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        if line.startswith("docs"):
            url = line.split()[1].removesuffix("/docs")
        if line.strip() == "ready":
            return Server(url, process, data)
    process.wait()
    raise AssertionError(f"the server did not start: {(data.parent / f'{data.name}.err').read_text()}")


MakeServer = Callable[..., Server]


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
