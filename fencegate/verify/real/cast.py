"""All processes of a cell, and the lines between them: workers, lock service replicas, gateways, proxies."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fencegate.clock import SYSTEM
from fencegate.gateway.resources import ResourceSettings, UpstreamSettings
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.verify.real.histories import Ledgers
from fencegate.verify.real.processes import Process, end_all
from fencegate.verify.real.record import ARMS, Arm, Tail
from fencegate.verify.real.sides import WITH_CLOCK, ResourceSide, StoreSide
from fencegate.verify.real.worker import Order, Part
from fencegate_demo.servers import table_of
from fencegate_demo.startable import moved_clock
from fencegate_demo.startable.moved_clock import MovedClock
from fencegate_demo.startable.ports import kept_address
from fencegate_demo.venues import Mode, ResourceVenue

SERVE = ("-c", "from fencegate.cli import main; main()")
WORKER = ("-m", "fencegate.verify.real.worker")
WORKERS = 4
GATEWAYS = 2
MODES: dict[Arm, Mode] = {"fenced": "enforce", "unfenced": "shadow"}
GIVES_UP, DRAINS = "3s", "2s"
"""What a gateway had sent to a service when it died is awaited until it would have given up."""
QUIET = {"FENCEGATE_ALLOW_UNSAFE_STORE": "1"}
"""What would be unsafe for the user's locks is said by `doctor`, and doesn't matter to ours."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The programs that are run, as arguments of Python: a test may put others in their place."""

    replica: Sequence[str] = SERVE
    gateway: Sequence[str] = SERVE
    worker: Sequence[str] = WORKER


@dataclass(slots=True)
class Line:
    """The proxies between one process and what it talks to."""

    name: str
    proxies: list[FaultProxy]
    commits: bytes = b""
    busy: bool = False


@dataclass(slots=True)
class Cast:
    """Everybody."""

    prefix: str
    folder: Path
    store: StoreSide
    resource: ResourceSide
    seed: str
    entries: Entries
    replicas: list[Process] = field(default_factory=list)
    gateways: list[Process] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    lines: dict[str, list[Line]] = field(default_factory=dict)
    clocks: list[MovedClock] = field(default_factory=list)
    """Of the replicas, where leases go by them and they can be moved."""
    ledgers: Ledgers = field(default_factory=Ledgers)
    order: Order | None = None
    keys: list[str] = field(default_factory=list)
    """All that were used so far."""
    _tails: dict[Path, Tail] = field(default_factory=dict)

    @property
    def processes(self) -> list[Process]:
        return [*self.replicas, *self.gateways, *self.workers]

    def settings(self, arm: Arm, venue: ResourceVenue | None = None) -> ResourceSettings:
        found = (venue or self.resource.venue).settings(f"{self.prefix}-{arm}", MODES[arm], self.folder)
        if isinstance(found, UpstreamSettings):
            return msgspec.structs.replace(found, total_timeout=GIVES_UP, drain_timeout=DRAINS)
        return found

    def tell(self, order: Order) -> None:
        self.order = order
        for worker in self.workers:
            worker.send(msgspec.json.encode(order))

    def tell_one(self, worker: Process) -> None:
        """Whoever begins late is told where the others are."""
        if self.order is not None:
            worker.send(msgspec.json.encode(self.order))

    def client(self, worker: Process) -> str:
        """What whoever plays this part now is called in the record."""
        return f"{worker.name}.{worker.lives}"

    def listen(self) -> None:
        """Take in what the workers have written down."""
        for worker in self.workers:
            for life in range(max(1, worker.lives - 1), worker.lives + 1):  # who came before is long silent
                path = self.record(worker, life)
                for said in self._tails.setdefault(path, Tail(path)).new():
                    self.ledgers.hear(said)

    def record(self, worker: Process, life: int) -> Path:
        return self.folder / f"{worker.name}.{life}.jsonl"


@asynccontextmanager
async def playing(found: Cast) -> AsyncIterator[None]:
    """All of them, ready; gone when the block is left, however it is left."""
    store, resource = found.store, found.resource
    replicas = 1 if store.embedded else 2
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_ended, found)
        if store.venue.name not in WITH_CLOCK and moved_clock.missing() is None:
            found.clocks = [MovedClock(found.folder / f"clock-{number}") for number in range(replicas)]
        found.lines["replica-store"] = _lines(stack, "replica", replicas, store.addresses, store.commits)
        found.lines["gateway-resource"] = _lines(stack, "gateway", GATEWAYS, resource.addresses, resource.commits)
        at = [stack.enter_context(kept_address()) for _ in range(replicas + GATEWAYS)]
        found.replicas = [_replica(found, number, address) for number, address in enumerate(at[:replicas])]
        found.gateways = [_gateway(found, number, address) for number, address in enumerate(at[replicas:])]
        to_replicas, to_gateways = _fronts(stack, "replica", at[:replicas]), _fronts(stack, "gateway", at[replicas:])
        found.lines["worker-replica"], found.lines["worker-gateway"] = to_replicas, to_gateways
        found.workers = [_worker(found, number) for number in range(WORKERS)]
        await _started([*found.replicas, *found.gateways, *found.workers])
        yield


async def _started(processes: Sequence[Process]) -> None:
    async with asyncio.TaskGroup() as group:
        for process in processes:
            group.create_task(process.begin())


async def _ended(found: Cast) -> None:
    await end_all(found.processes)


def _lines(stack: AsyncExitStack, name: str, count: int, addresses: Sequence[str], commits: bytes) -> list[Line]:
    if not addresses:
        return []
    return [
        Line(f"{name} {number + 1}", [stack.enter_context(FaultProxy(each)) for each in addresses], commits)
        for number in range(count)
    ]


def _fronts(stack: AsyncExitStack, name: str, addresses: Sequence[str]) -> list[Line]:
    commits = b"/acquire" if name == "replica" else b"PUT "
    return [
        Line(f"{name} {number + 1}", [stack.enter_context(FaultProxy(address))], commits)
        for number, address in enumerate(addresses)
    ]


def _through(url: str, addresses: Sequence[str], lines: Sequence[Line], number: int) -> str:
    """The same place, by way of the proxies of one process."""
    if lines:
        for address, proxy in zip(addresses, lines[number].proxies, strict=True):
            url = url.replace(address, proxy.address)
    return url


def _replica(found: Cast, number: int, address: str) -> Process:
    url = _through(found.store.venue.url, found.store.addresses, found.lines["replica-store"], number)
    data = found.folder / f"replica-{number + 1}"
    arguments = (*found.entries.replica, "serve", "--listen", address, "--role", "lockservice")
    arguments += ("--store", url, "--data", str(data))
    environment = {**QUIET, **(found.clocks[number].environment if found.clocks else {})}
    return Process(f"replica-{number + 1}", lambda: arguments, found.folder, environment)


def _gateway(found: Cast, number: int, address: str) -> Process:
    venue = found.resource.venue
    table = dict(venue.table)
    table["url"] = _through(table["url"], found.resource.addresses, found.lines["gateway-resource"], number)
    own = replace(venue, table=table)
    config = found.folder / f"gateway-{number + 1}.toml"
    config.write_text("".join(table_of(found.settings(arm, own)) for arm in ARMS), encoding="utf-8")
    data = found.folder / f"gateway-{number + 1}"
    arguments = (*found.entries.gateway, "serve", "--listen", address, "--role", "gateway")
    arguments += ("--data", str(data), "--config", str(config))
    return Process(f"gateway-{number + 1}", lambda: arguments, found.folder, QUIET)


def _worker(found: Cast, number: int) -> Process:
    def arguments() -> Sequence[str]:
        part = Part(
            found.client(worker),
            number,
            str(found.record(worker, worker.lives)),
            found.seed,
            [f"http://{line.proxies[0].address}" for line in found.lines["worker-replica"]],
            [f"http://{line.proxies[0].address}" for line in found.lines["worker-gateway"]],
            {arm: f"{found.prefix}-{arm}" for arm in ARMS},
        )
        return (*found.entries.worker, msgspec.json.encode(part).decode())

    worker = Process(f"w{number + 1}", arguments, found.folder)
    return worker


def new_prefix() -> str:
    """The beginning of all names that a campaign uses, and nobody else."""
    return f"verify-{SYSTEM.random_id(4)}"
