"""A gateway with a bug in it, as a program: `python planted.py BUG serve …`. The campaign must notice."""

import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, delete

from fencegate.core.ports import Seen
from fencegate_adapters.objects.folder import Folder
from fencegate_adapters.sql import group, writer
from fencegate_adapters.sql.marks import FenceTable
from fencegate_adapters.sql.tables import fences


def _no_check() -> None:
    """Tokens are looked at, and whatever they are, the write is done."""

    def admitted(token: int, mark: int, floor: int, mode: str) -> Seen:
        del mode
        return Seen(max(token, mark, floor))

    patch.object(group, "admitted", admitted).start()
    patch.object(writer, "admitted", admitted).start()


def _mark_in_memory() -> None:
    """Marks are kept in the gateway: each has its own, and a restart loses them."""
    marks: dict[str, int] = {}

    def raised(fence: str, token: int) -> int:
        marks[fence] = max(token, marks.get(fence, 0))
        return marks[fence]

    def raise_free(self: Any, _connection: Any, claims: Mapping[str, int], *, wait_ms: int) -> tuple[Any, int]:
        del self, wait_ms
        return {fence: raised(fence, token) for fence, token in claims.items()}, 0

    patch.object(FenceTable, "raise_one", lambda _self, _connection, fence, token, **_: raised(fence, token)).start()
    patch.object(FenceTable, "raise_free", raise_free).start()


def _check_then_write() -> None:
    """The token is compared, and only then is the object written: a gateway that is stopped between the two writes
    what was overtaken in its sleep."""
    honest = Folder._admit

    def admit(self: Folder, fence: str, token: int) -> Seen:
        return honest(self, fence, max(token, self._fences.mark(fence)))

    patch.object(Folder, "_admit", admit).start()


def _hard_delete() -> None:
    """Whatever is deleted is gone, and its mark with it."""
    honest = FenceTable.raise_one

    def raise_one(self: FenceTable, connection: Connection, fence: str, token: int, *, deletes: bool) -> int:
        mark = honest(self, connection, fence, token, deletes=deletes)
        if deletes and mark <= token:
            connection.execute(delete(fences).where(fences.c.lock_key == fence.encode()))
        return mark

    patch.object(FenceTable, "raise_one", raise_one).start()
    patch.object(
        writer.Writer, "together", lambda _self, works: works
    ).start()  # each alone, so that it knows of deletes


BUGS: dict[str, Callable[[], None]] = {
    "no check": _no_check,
    "mark in memory": _mark_in_memory,
    "check, then write": _check_then_write,
    "hard delete": _hard_delete,
}


if __name__ == "__main__":
    from fencegate.cli import main

    BUGS[sys.argv.pop(1)]()
    main()
