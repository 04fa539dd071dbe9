"""A model of a protected resource: check and write are one step. Without the check it is what everybody else has."""

from collections.abc import Callable, Mapping
from typing import Any

from fencegate.core.errors import ResourceUnavailable
from fencegate.core.fence import admit
from fencegate.verify.sim.network import Network
from fencegate.verify.sim.world import Process

NAME = "resource"

Updates = tuple[str, ...]


class ResourceServer:
    """Lists of updates, each under the fence of its lock key. All that it has survives a restart."""

    def __init__(self, *, fenced: bool) -> None:
        self.fenced = fenced
        self.marks: dict[str, int] = {}
        self.values: dict[str, Updates] = {}
        self.stale = 0
        """Writes that came with a token below the mark, accepted or not."""

    def read(self, key: str, token: int | None) -> Updates:
        if token is not None:
            self._pass(key, token)
        return self.values.get(key, ())

    def claim(self, key: str, token: int) -> None:
        self._pass(key, token)

    def write(self, key: str, updates: Updates, token: int) -> None:
        self._count(key, token)
        self._pass(key, token)
        self.values[key] = updates

    def write_all(self, values: Mapping[str, tuple[Updates, int]]) -> None:
        """All of it, or nothing."""
        for key, (_, token) in values.items():
            self._count(key, token)
            if self.fenced:
                admit(token, self.marks.get(key, 0))
        for key, (updates, token) in values.items():
            self._pass(key, token)
            self.values[key] = updates

    def delete(self, key: str, token: int) -> None:
        """What is deleted leaves its mark behind."""
        self._count(key, token)
        self._pass(key, token)
        self.values.pop(key, None)

    def restart(self) -> None:
        """What was not durable is gone: nothing."""

    def _count(self, key: str, token: int) -> None:
        if token < self.marks.get(key, 0):
            self.stale += 1

    def _pass(self, key: str, token: int) -> None:
        mark = self.marks.get(key, 0)
        self.marks[key] = admit(token, mark) if self.fenced else max(token, mark)


class ResourceLink:
    """The resource as one process reaches it."""

    def __init__(self, network: Network, server: ResourceServer, process: Process) -> None:
        self._network = network
        self._server = server
        self._process = process

    async def read(self, key: str, token: int | None) -> Updates:
        found: Updates = await self._ask(lambda: self._server.read(key, token))
        return found

    async def claim(self, key: str, token: int) -> None:
        await self._ask(lambda: self._server.claim(key, token))

    async def write(self, key: str, updates: Updates, token: int) -> None:
        await self._ask(lambda: self._server.write(key, updates, token))

    async def write_all(self, values: Mapping[str, tuple[Updates, int]]) -> None:
        await self._ask(lambda: self._server.write_all(values))

    async def delete(self, key: str, token: int) -> None:
        await self._ask(lambda: self._server.delete(key, token))

    async def _ask(self, serve: Callable[[], Any]) -> Any:
        unanswered = ResourceUnavailable("no answer from the resource", outcome="unknown")
        return await self._network.ask(self._process, NAME, serve, unanswered, once=True)  # as over a connection
