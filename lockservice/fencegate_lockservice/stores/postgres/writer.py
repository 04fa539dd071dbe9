"""Groups of commits on their way into PostgreSQL, and what becomes of each item."""

import asyncio
from collections.abc import Callable, Sequence

from fencegate.core.ports import Ambiguous, Conflict, TooLate, Unavailable
from fencegate_lockservice.stores.grouping import Groups, Waiting
from fencegate_lockservice.stores.postgres.group import Commit, arguments, parts
from fencegate_lockservice.stores.postgres.link import Cut, Link, Refused
from fencegate_lockservice.stores.postgres.reading import Statements

SINGLY_WITHIN_S = 5.0
"""How long the items of a group that was undone are tried one by one, before the rest is told so."""
TRIES = 3
LATE = "FG001"
_CLASHES = ("40001", "40P01")
"""A serialization failure, a deadlock: nothing was written, and the next try may go through."""

_FAILURES: dict[str, type[Exception]] = {"1": Conflict, "2": TooLate}


class Writer:
    """Sends at most as many groups at once as there are links; tells `committed` when the log has grown."""

    def __init__(self, links: Sequence[Link], statements: Statements, committed: Callable[[], None]) -> None:
        self._links = links
        self._free = list(links)
        self._statements = statements
        self._committed = committed
        self._groups: Groups[Commit] = Groups(self._carry, at_once=len(links))

    def add(self, commit: Commit) -> "asyncio.Future[None]":
        return self._groups.add(commit)

    async def close(self) -> None:
        await self._groups.close()
        for link in self._links:
            await link.close()

    async def _carry(self, group: Sequence[Waiting[Commit]]) -> None:
        link = self._free.pop()
        try:
            for part in parts(group):
                try:
                    await self._commit(link, part)
                except Refused:
                    await self._commit_singly(link, part)
        finally:
            self._free.append(link)

    async def _commit(self, link: Link, part: Sequence[Waiting[Commit]]) -> None:
        """One statement, which is one transaction. Nobody is answered before it is committed."""
        try:
            rows = await link.ask(self._statements.commit, arguments(part), timed=True)
        except Cut as error:
            for waiting in part:
                waiting.failed(Ambiguous(str(error)))
            return
        except Unavailable as error:
            for waiting in part:
                waiting.failed(Unavailable(str(error)))
            return
        for waiting, verdict in zip(part, rows[0][1], strict=True):
            if verdict == "0":
                waiting.done()
            else:
                waiting.failed(_FAILURES[verdict]())
        if any(waiting.item.lines for waiting in part):
            self._committed()

    async def _commit_singly(self, link: Link, part: Sequence[Waiting[Commit]]) -> None:
        """The group was undone because of one of them, or of somebody else: let the others through."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SINGLY_WITHIN_S
        for waiting in part:
            error: Exception = Unavailable("the database was too busy with what came before")
            for _ in range(TRIES):
                if loop.time() > until_s:
                    break
                try:
                    await self._commit(link, [waiting])
                    break
                except Refused as refused:
                    error = TooLate() if refused.sqlstate == LATE else Unavailable(f"the database refused: {refused}")
                    if refused.sqlstate not in _CLASHES:
                        break
            waiting.failed(error)
