"""A worker's bench: what the program of a use is given there, and where its process can be stopped."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import httpx
from sqlalchemy import Engine, create_engine

import fencegate
from fencegate import sync
from fencegate.core.errors import LockLost, StaleToken
from fencegate_demo.trials.boundary import Boundary
from fencegate_demo.trials.use import Place, Role

Hooks = dict[str, list[Callable[..., Any]]]
T = TypeVar("T")
TIMEOUT_S = 30.0
MAX_LOSSES = 50


@dataclass(slots=True)
class Bench:
    name: str
    role: Role
    ttl: float
    lock_service: str
    place: Place
    boundary: Boundary
    passes: int = 1
    """The process stops when `reach` is called for this time."""
    losses: int = 0

    def reach(self, *_: object) -> None:
        """The line where a worker is stopped, if it is one of those that are; it holds the lock here.

        It stops itself, so that it surely is here when it is. Who was to be killed is killed where it stands.
        """
        if self.role != "free":
            self.passes -= 1
            if self.passes == 0:
                signal.raise_signal(signal.SIGSTOP)

    @property
    def was_stopped(self) -> bool:
        return self.role != "free" and self.passes <= 0

    def attempt(self, job: Callable[[], T]) -> T:
        """Do a job as a queue would have it done: again, with a new lock, after the old one turned out to be lost."""
        while True:
            try:
                return job()
            except (LockLost, StaleToken):
                self._count_loss()
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 412:
                    raise
                self._count_loss()

    def _count_loss(self) -> None:
        self.losses += 1
        if self.losses > MAX_LOSSES:
            raise TimeoutError(f"the lock was lost {self.losses} times")

    def locks(self) -> sync.Locks:
        return sync.connect(self.lock_service, owner_id=self.owner_id, timeout=TIMEOUT_S)

    def async_locks(self) -> fencegate.Locks:
        return fencegate.connect(self.lock_service, owner_id=self.owner_id, timeout=TIMEOUT_S)

    @property
    def owner_id(self) -> str:
        return f"{self.place.name}-{self.name}"

    def engine(self, program: ModuleType) -> Engine:
        """The database of this program, whose fence is watched from now on."""
        engine = create_engine(self.place.database, connect_args={"timeout": TIMEOUT_S})
        self.boundary.watch_database(program, engine, checks=self.place.arm == "fenced")
        return engine

    def http(self) -> httpx.Client:
        """The protected resource at the gateway; a worker can be stopped when its write is about to leave."""
        hooks: Hooks = {"request": [self._before], "response": [self.boundary.answered]}
        return httpx.Client(base_url=self._address, timeout=TIMEOUT_S, trust_env=False, event_hooks=hooks)

    def async_http(self) -> httpx.AsyncClient:
        async def before(request: httpx.Request) -> None:
            self._before(request)

        async def answered(response: httpx.Response) -> None:
            self.boundary.answered(response)

        hooks: Hooks = {"request": [before], "response": [answered]}
        return httpx.AsyncClient(base_url=self._address, timeout=TIMEOUT_S, trust_env=False, event_hooks=hooks)

    @property
    def _address(self) -> str:
        return f"{self.lock_service}/v1/resources/{self.place.name}/"

    def _before(self, request: httpx.Request) -> None:
        if request.method == "PUT":
            self.reach()
