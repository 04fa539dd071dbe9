"""ZooKeeper servers for the tests: started once for all workers, but for the tests that kill them.

A JVM takes seconds to start, and an ensemble is three. Whoever comes first starts it, and whoever leaves last ends it.
"""

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Store
from fencegate.testing.committing import OpenStore
from fencegate_lockservice.stores import open_store as open_url
from tests.real import zookeeper as real

if TYPE_CHECKING:
    from kazoo.client import KazooClient


@contextmanager
def _state(folder: Path) -> Iterator[dict[str, object]]:
    """What all workers know of the server in this folder, under a lock."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "shared.json"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text()) if path.exists() else {"users": 0}
        yield state
        path.write_text(json.dumps(state))


def _shared(folder: Path, make: Callable[[Path], real.ZooKeeperServer | real.Ensemble]) -> Iterator[list[str]]:
    """The addresses of a server that all workers use."""
    with _state(folder) as state:
        if not state["users"]:
            server = make(folder / SYSTEM.random_id(3)).start()
            state |= {"addresses": server.addresses, "pids": server.pids}
        state["users"] = int(str(state["users"])) + 1
        addresses, pids = list(state["addresses"]), list(state["pids"])  # type: ignore[call-overload]
    yield addresses
    with _state(folder) as state:
        state["users"] = int(str(state["users"])) - 1
        if not state["users"]:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _common_folder(factory: pytest.TempPathFactory) -> Path:
    if reason := real.missing():
        pytest.skip(reason)
    base = factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = _common_folder(tmp_path_factory) / "zookeeper-one"
    yield from _shared(folder, real.ZooKeeperServer)


@pytest.fixture(scope="session")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = _common_folder(tmp_path_factory) / "zookeeper-three"
    yield from _shared(folder, real.Ensemble)


def url_of(addresses: list[str]) -> str:
    """A part of the tree that no other test uses."""
    return f"zookeeper://{','.join(addresses)}/test/{SYSTEM.random_id(5)}"


def opens(url: str) -> OpenStore:
    async def open_() -> Store:
        return await open_url(url)

    return open_


def opening_of(url: str) -> str:
    """The same, for another process."""
    return (
        f"from fencegate_lockservice import stores\nasync def open_store(): return await stores.open_store({url!r})\n"
    )


@contextmanager
def looking_at(url: str) -> Iterator["KazooClient"]:
    """The tree as another client sees it, and can change it."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=url.split("/")[2])
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()
