"""Which stores and resources can be started on this machine, by name; and why others can't."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fencegate.core.errors import FencegateError
from fencegate_demo.processes import START_WITHIN_S, started
from fencegate_demo.venues import ResourceVenue, StoreVenue

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
REDLOCK_NODES = 5


class Startable(Protocol):
    """A server, or several that are one."""

    def start(self) -> object: ...
    def terminate(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of server: which stores and resources it is good for, and how it is started."""

    module: str
    stores: tuple[str, ...]
    resources: tuple[str, ...]
    make: Callable[[Any, Path], Startable]
    tell: Callable[[Any], tuple[Mapping[str, str], Mapping[str, Mapping[str, Any]]]]
    """The URLs of its stores, and the tables of its resources, when it runs."""
    needs: tuple[str, ...] = ()
    """Packages that the adapter or store needs beside the server."""
    extra: str = ""
    """What brings them."""
    killable: bool = True
    """Whether it has what it acknowledged after a kill."""


@dataclass(slots=True)
class Here:
    """What was started, by name, and why the rest was not."""

    stores: dict[str, StoreVenue] = field(default_factory=dict)
    resources: dict[str, ResourceVenue] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


class Several:
    """Independent servers that one store is made of."""

    def __init__(self, members: Iterable[Any]) -> None:
        self.members = list(members)

    def start(self) -> None:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait()

    def terminate(self) -> None:
        for member in self.members:
            member.terminate()


def _mariadb(server: Any) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    for database in ("locks", "app"):
        server.ask(f"CREATE DATABASE {database} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    return {"mysql": server.url("locks")}, {"mariadb": {"url": server.url("app").replace("mysql:", "mariadb:", 1)}}


def _redis(server: Any) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    address = f"redis://{server.address}"
    return {"redis": f"{address}/0"}, {
        "redis": {"url": f"{address}/1"},
        "redis-hashes": {"url": f"{address}/2", "values": "hashes"},
    }


def _seaweed(server: Any) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    from fencegate_demo.startable.seaweed import ACCESS_KEY, SECRET_KEY

    # Where every program that uses a bucket looks for them, the gateways that we start among them.
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    server.make_bucket("demo")
    return {}, {"s3": {"url": f"s3://demo/data?endpoint={server.endpoint}&region=us-east-1"}}


def _azurite(server: Any) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    from fencegate_demo.startable.azurite import ACCOUNT, KEY

    os.environ["AZURE_STORAGE_ACCOUNT_KEY"] = KEY
    server.make_container("demo")
    return {}, {"azure": {"url": f"az://demo/data?account={ACCOUNT}&endpoint={server.endpoint}"}}


KINDS = (
    Kind(
        "postgres",
        ("postgresql",),
        ("postgresql",),
        lambda module, _folder: module.PostgresServer(),
        lambda server: ({"postgresql": server.url}, {"postgresql": {"url": server.url}}),
        ("psycopg",),
        "postgres",
    ),
    Kind(
        "mariadb",
        ("mysql",),
        ("mariadb",),
        lambda module, folder: module.MariadbServer(folder),
        _mariadb,
        ("aiomysql", "pymysql"),
        "mysql",
    ),
    Kind(
        "redis",
        ("redis",),
        ("redis", "redis-hashes"),
        lambda module, folder: module.RedisServer(folder, *DURABLE),
        _redis,
        ("redis", "hiredis"),
        "redis",
    ),
    Kind(
        "redis",
        ("redlock",),
        (),
        lambda module, folder: Several(module.RedisServer(folder / str(n), *DURABLE) for n in range(REDLOCK_NODES)),
        lambda servers: ({"redlock": f"redlock://{','.join(each.address for each in servers.members)}"}, {}),
        ("redis", "hiredis"),
        "redis",
    ),
    Kind(
        "etcd",
        ("etcd",),
        (),
        lambda module, folder: module.EtcdServer(folder),
        lambda server: ({"etcd": server.url}, {}),
    ),
    Kind(
        "zookeeper",
        ("zookeeper",),
        (),
        lambda module, folder: module.ZooKeeperServer(folder),
        lambda server: ({"zookeeper": server.url}, {}),
    ),
    Kind("seaweed", (), ("s3",), lambda module, folder: module.SeaweedServer(folder), _seaweed, ("obstore",), "s3"),
    Kind(
        "azurite",
        (),
        ("azure",),
        lambda module, folder: module.AzuriteServer(folder),
        _azurite,
        ("obstore",),
        "azure",
        killable=False,  # it writes down what it has every few seconds
    ),
)
STORES = tuple(dict.fromkeys(name for kind in KINDS for name in kind.stores))
RESOURCES = (*dict.fromkeys(name for kind in KINDS for name in kind.resources), "service")


@asynccontextmanager
async def running(stores: Iterable[str], resources: Iterable[str], folder: Path) -> AsyncIterator[Here]:
    """Start what these need, all at once; it is gone when the block is left, however it is left."""
    wanted = frozenset(stores), frozenset(resources)
    here = Here()
    async with AsyncExitStack() as stack:
        if "service" in wanted[1]:
            try:
                here.resources["service"] = await stack.enter_async_context(_service(folder))
            except FencegateError as error:
                here.missing["service"] = error.detail
        kinds = [kind for kind in KINDS if wanted[0] & set(kind.stores) or wanted[1] & set(kind.resources)]
        await asyncio.gather(*(_start(kind, folder / f"server-{n}", here, stack) for n, kind in enumerate(kinds)))
        yield here


def startable(kind: Kind) -> tuple[Any, str | None]:
    """The module that starts it; or why it can't be started here."""
    try:
        for package in kind.needs:
            import_module(package)
        module = import_module(f"fencegate_demo.startable.{kind.module}")
    except ImportError as error:
        return None, f"no {error.name or error}: pip install 'fencegate[{kind.extra}]'"
    return module, module.missing()


async def _start(kind: Kind, folder: Path, here: Here, stack: AsyncExitStack) -> None:
    module, why = startable(kind)
    if why is None:
        server = kind.make(module, folder)
        stack.push_async_callback(asyncio.to_thread, server.terminate)
        try:
            await _finished(asyncio.create_task(asyncio.to_thread(server.start)))
            stores, resources = await asyncio.to_thread(kind.tell, server)
        except Exception as error:
            why = f"did not start: {' '.join(str(error).split())[-200:] or type(error).__name__}"
    if why is not None:
        here.missing |= dict.fromkeys((*kind.stores, *kind.resources), why)
        return
    here.stores |= {name: StoreVenue(name, url) for name, url in stores.items()}
    here.resources |= {name: ResourceVenue(name, table) for name, table in resources.items()}


async def _finished(task: "asyncio.Task[object]") -> None:
    """A thread can't be interrupted: whoever cancels us waits until the server is there, and can be ended."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception):
            await task
        raise


@asynccontextmanager
async def _service(folder: Path) -> AsyncIterator[ResourceVenue]:
    database = folder / "service.db"
    program = ("-m", "fencegate_demo.service", f"sqlite:///{database}")
    async with started("service", program, folder) as process:
        try:
            async with asyncio.timeout(START_WITHIN_S):
                port = await process.line()
        except TimeoutError:
            raise process.failure(f"was not ready within {START_WITHIN_S:g} s") from None
        if port is None:
            raise await process.refusal()
        yield ResourceVenue("service", {"url": f"http://127.0.0.1:{port}"}, database=database)
