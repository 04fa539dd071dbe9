"""A gateway in a process of its own, for tests: `python -m tests.gateway_server FOLDER` prints its port and serves."""

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from fencegate.clock import SYSTEM
from fencegate.gateway import Gateway, ResourceSettings
from fencegate.web import ThinApp

ROOT = Path(__file__).parent.parent


def settings(folder: Path) -> dict[str, ResourceSettings]:
    """One resource of every shape, over data in `folder`."""

    def rows(name: str, **more: object) -> ResourceSettings:
        return ResourceSettings.of(name, {"url": f"sqlite:///{folder / name}.db", **more})

    def objects(name: str, **more: object) -> ResourceSettings:
        return ResourceSettings.of(name, {"url": f"file://{folder / name}", "max_bytes": 1_000_000, **more})

    found = [
        rows("rows"),
        rows("job", guard="job:rebuild"),
        rows("issued", issuer=True),
        rows("shadow", mode="shadow"),
        rows("accounts", table="accounts", key=["tenant", "id"], guard="acct:{tenant}"),
        objects("objects"),
        objects("jobs", guard="job:rebuild"),
    ]
    return {each.name: each for each in found}


def make_tables(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "accounts.db")) as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS accounts"
            " (tenant TEXT, id INTEGER, balance INTEGER NOT NULL DEFAULT 0, note TEXT, PRIMARY KEY (tenant, id))"
        )


def app(gateway: Gateway) -> ThinApp:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.open()
        yield
        await gateway.close()
        print("closed", flush=True)

    return ThinApp(gateway.route, Starlette(lifespan=lifespan))


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    gateway = Gateway(settings(Path(sys.argv[1])), SYSTEM)
    config = uvicorn.Config(app(gateway), log_level="warning", lifespan="on", timeout_graceful_shutdown=5)
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


class Server:
    """A running gateway process and its address."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.gateway_server", str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'adapters'}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> str:
        """End it as an orchestrator does; what it still said."""
        self.process.terminate()
        return self.process.communicate(timeout=60)[0]


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.kill()


if __name__ == "__main__":
    main()
