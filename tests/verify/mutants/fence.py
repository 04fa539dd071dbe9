"""Planted in the resource: how marks are kept, and compared."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

from fencegate.core.errors import StaleToken
from fencegate.core.fence import admit
from fencegate.verify.sim import resource, schedule
from fencegate.verify.sim.resource import ResourceServer, Updates

Mutant = Callable[[], Any]


def _admit_all() -> Any:
    """The resource does not check."""
    return patch.object(resource, "admit", lambda token, mark: max(token, mark))


def _refuses_equal() -> Any:
    """`<` where `<=` belongs: a holder can write once, and not after it has read."""

    def admit(token: int, mark: int) -> int:
        if not mark < token:
            raise StaleToken(token, mark)
        return token

    return patch.object(resource, "admit", admit)


def _mark_in_memory() -> Any:
    """The mark is kept where a restart loses it."""

    class Forgetful(ResourceServer):
        def restart(self) -> None:
            self.marks.clear()

    return patch.object(schedule, "ResourceServer", Forgetful)


def _claim_in_memory() -> Any:
    """A write raises the mark for good; a claim is only remembered until a restart."""

    class Forgetful(ResourceServer):
        def __init__(self, *, fenced: bool) -> None:
            super().__init__(fenced=fenced)
            self.claimed: dict[str, int] = {}

        def claim(self, key: str, token: int) -> None:
            admit(token, max(self.marks.get(key, 0), self.claimed.get(key, 0)))
            self.claimed[key] = token

        def _pass(self, key: str, token: int) -> None:
            admit(token, self.claimed.get(key, 0))
            super()._pass(key, token)

        def restart(self) -> None:
            self.claimed.clear()

    return patch.object(schedule, "ResourceServer", Forgetful)


def _mark_per_gateway() -> Any:
    """Two gateways in front of the resource, each with a mark of its own."""

    class Two(ResourceServer):
        turn = 0

        def _pass(self, key: str, token: int) -> None:
            self.turn += 1
            super()._pass(f"{key}@{self.turn % 2}", token)

    return patch.object(schedule, "ResourceServer", Two)


def _check_then_write() -> Any:
    """The gateway looks at the mark, and writes a moment later."""

    async def write(self: resource.ResourceLink, key: str, updates: Updates, token: int) -> None:
        server = self._server
        await self._ask(lambda: admit(token, server.marks.get(key, 0)))

        def put() -> None:
            server.marks[key] = max(token, server.marks.get(key, 0))
            server.values[key] = updates

        await self._ask(put)

    return patch.object(resource.ResourceLink, "write", write)


def _no_claim_on_read() -> Any:
    """A new holder that has only read is unknown to the resource, and an old token still passes."""
    return patch.object(ResourceServer, "read", lambda self, key, token: self.values.get(key, ()))


def _hard_delete() -> Any:
    """The mark goes with what was deleted, and a stale create succeeds."""

    def delete(self: ResourceServer, key: str, token: int) -> None:
        self._pass(key, token)
        self.values.pop(key, None)
        self.marks.pop(key, None)

    return patch.object(ResourceServer, "delete", delete)


def _one_by_one() -> Any:
    """A write to several keys stops at the first that refuses it."""

    def write_all(self: ResourceServer, values: Mapping[str, tuple[Updates, int]]) -> None:
        for key, (updates, token) in values.items():
            self.write(key, updates, token)

    return patch.object(ResourceServer, "write_all", write_all)


FENCE: dict[str, Mutant] = {
    "no check": _admit_all,
    "`<` for `<=`": _refuses_equal,
    "mark in memory": _mark_in_memory,
    "claim not durable": _claim_in_memory,
    "mark per gateway": _mark_per_gateway,
    "check, then write": _check_then_write,
    "no claim on read": _no_claim_on_read,
    "hard delete": _hard_delete,
    "a batch that stops half-way": _one_by_one,
}
