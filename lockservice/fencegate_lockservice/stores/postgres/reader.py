"""Loads, scans and pages of the log, asked for by many callers and carried out by one task on one connection.

So a caller that goes away breaks nothing, and what came while one group was under way is read together in the next.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fencegate.core.model import LOCKS
from fencegate.core.ports import Entry, LogEntry, Unavailable
from fencegate_lockservice.stores.grouping import Groups, Waiting
from fencegate_lockservice.stores.postgres.group import check_text
from fencegate_lockservice.stores.postgres.link import Cut, Link, Query, Refused, Row
from fencegate_lockservice.stores.postgres.reading import (
    Page,
    Statements,
    found_entries,
    found_lines,
    lock_range,
    scan_arguments,
    split_keys,
)

_FAR = 1 << 62


class _Load:
    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = [check_text(key) for key in keys]
        self.found: dict[str, Entry] = {}


class _Scan:
    def __init__(self, prefix: str, after: str, limit: int) -> None:
        self.prefix, self.after, self.limit = check_text(prefix), check_text(after), limit
        self.found: list[tuple[str, Entry]] = []


class _Log:
    def __init__(self, since: int, limit: int) -> None:
        self.since, self.limit = since, limit
        self.rows: list[Row] = []


class _Notify:
    pass


_Job = _Load | _Scan | _Log | _Notify


class Reader:
    """All loads of a group are one statement; a scan, or a page of the log, is one of its own."""

    def __init__(self, link: Link, statements: Statements) -> None:
        self._link = link
        self._statements = statements
        self._groups: Groups[_Job] = Groups(self._carry)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        job = _Load(keys)
        await self._groups.add(job)
        return job.found

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        job = _Scan(prefix, after, limit)
        await self._groups.add(job)
        return job.found

    async def read_log(self, since: int, limit: int) -> list[LogEntry] | None:
        return (await self.page(since, limit)).lines

    async def newest(self) -> int:
        return (await self.page(_FAR, 1)).newest

    async def page(self, since: int, limit: int) -> Page:
        """Lines after a revision, and which server has them."""
        job = _Log(since, limit)
        await self._groups.add(job)
        return found_lines(job.rows, since)

    async def notify(self) -> None:
        """Wake all who listen for changes."""
        await self._groups.add(_Notify())

    async def close(self) -> None:
        await self._groups.close()
        await self._link.close()

    async def _carry(self, group: Sequence[Waiting[_Job]]) -> None:
        loads = [waiting.item for waiting in group if isinstance(waiting.item, _Load)]
        if loads:
            await self._load(loads)
        for waiting in group:
            if isinstance(waiting.item, _Scan):
                await self._scan(waiting.item)
            elif isinstance(waiting.item, _Log):
                await self._read_log(waiting.item)
            elif isinstance(waiting.item, _Notify):
                await self._ask(self._statements.notify, [self._statements.channel])
            waiting.done()

    async def _load(self, loads: Sequence[_Load]) -> None:
        keys = [key for load in loads for key in load.keys]
        rows = await self._ask(self._statements.load, split_keys(keys), timed=True)
        found = found_entries(rows)
        for load in loads:
            load.found = {key: found[key] for key in load.keys if key in found}

    async def _scan(self, scan: _Scan) -> None:
        rows: list[Row] = []
        within_locks = lock_range(scan.prefix, scan.after)
        if within_locks is not None:
            rows += await self._ask(self._statements.scan_locks, scan_arguments(*within_locks, scan.limit))
        if not scan.prefix.startswith(LOCKS):
            rows += await self._ask(self._statements.scan_entries, scan_arguments(scan.prefix, scan.after, scan.limit))
            rows.sort(key=lambda row: str(row[0]).encode())
        scan.found = [(key, Entry(version, value.encode())) for key, version, value in rows[: scan.limit]]

    async def _read_log(self, page: _Log) -> None:
        arguments = (page.since, page.since, page.limit)
        page.rows = await self._ask(self._statements.read_log, arguments, timed=True)

    async def _ask(self, query: Query, arguments: Sequence[Any], timed: bool = False) -> list[Row]:
        try:
            return await self._link.ask(query, arguments, timed=timed)
        except (Refused, Cut) as error:
            raise Unavailable(str(error)) from None
