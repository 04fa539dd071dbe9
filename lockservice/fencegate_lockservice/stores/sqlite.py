"""Locks in an SQLite file: the embedded default. One process, one writer thread, one flush for many commits.

Commits that arrive while one is being flushed go out together in the next transaction. Each statement handles the whole
group, because the interpreter's lock changes hands at every statement, and that costs more than SQLite does.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import (
    Ambiguous,
    Capabilities,
    Change,
    Changes,
    Conflict,
    Entry,
    Interval,
    LogEntry,
    TooLate,
    Unavailable,
)
from fencegate.feed import Feed

KEEP_LOG = 200_000
MAX_GROUP = 256
CLEAN_EVERY = 64
CLEAN_ROWS = 512

log = logging.getLogger("fencegate.store.sqlite")


@dataclass(slots=True, eq=False)
class _Job:
    """Something for the writer thread to do, and where to bring the result."""

    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None

    def deliver(self) -> None:
        if self.future.cancelled():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


@dataclass(slots=True, eq=False)
class _Commit(_Job):
    changes: Sequence[Change] = ()
    log: Sequence[tuple[str, bytes]] = ()
    not_after_us: int = 0


@dataclass(slots=True, eq=False)
class _Read(_Job):
    """Runs after the commits of its group, so that it sees nothing that could still be lost."""

    work: Callable[[sqlite3.Connection], Any] = lambda _: None


class SqliteStore:
    """See the head of this file. Safe to use from several event loops of one process."""

    name = "sqlite"
    capabilities = Capabilities(several_processes=False)

    def __init__(self, path: Path, clock: Clock = SYSTEM) -> None:
        self._path = path
        self._clock = clock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._db = _open(path)
        self._revision = int(self._db.execute("SELECT coalesce(max(revision), 0) FROM log").fetchone()[0])
        self._feed = Feed(self._revision, self._read_log)
        self._groups = 0
        self._closed = False
        self._thread = threading.Thread(target=self._write, name="fencegate-sqlite", daemon=True)
        self._thread.start()

    # --- the contract ---

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        def work(db: sqlite3.Connection) -> dict[str, Entry]:
            rows = db.execute(f"SELECT key, version, value FROM entries WHERE key IN ({_marks(keys)})", keys)  # noqa: S608 - only question marks
            return {key: Entry(version, value.encode()) for key, version, value in rows}

        found: dict[str, Entry] = await self._submit(_Read(self._future(), work=work))
        return found

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await self._submit(_Commit(self._future(), changes=changes, log=log, not_after_us=not_after_us))

    def changes(self, since: int | None) -> AsyncIterator[Changes]:
        return self._feed.follow(since)

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        def work(db: sqlite3.Connection) -> list[tuple[str, Entry]]:
            # U+10FFFF is above every character of a key, so this is the range of the prefix without a LIKE.
            rows = db.execute(
                "SELECT key, version, value FROM entries WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?",
                (prefix, after, prefix + "\U0010ffff", limit),
            )
            return [(key, Entry(version, value.encode())) for key, version, value in rows]

        found: list[tuple[str, Entry]] = await self._submit(_Read(self._future(), work=work))
        return found

    def now(self) -> Interval:
        now_us = self._clock.now_us()
        return Interval(now_us, now_us)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- in the caller's thread ---

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _submit(self, job: _Job) -> Any:
        if self._closed:
            raise Unavailable("the store is closed")
        self._jobs.put(job)
        return await job.future

    async def _read_log(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        def work(db: sqlite3.Connection) -> list[LogEntry] | None:
            first = db.execute("SELECT min(revision) FROM log").fetchone()[0]
            if first is None or since < first - 1:
                return None
            rows = db.execute(
                "SELECT * FROM log WHERE revision > ? AND revision <= ? ORDER BY revision, line",
                (since, since + limit),
            )
            return [LogEntry(revision, line, key, event.encode()) for revision, line, key, event in rows]

        found: list[LogEntry] | None = await self._submit(_Read(self._future(), work=work))
        return found

    # --- in the writer thread ---

    def _write(self) -> None:
        stop = False
        while not stop:
            jobs: list[_Job] = []
            job = self._jobs.get()
            while job is not None:
                jobs.append(job)
                if len(jobs) >= MAX_GROUP:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            stop = job is None
            self._handle(jobs)
        self._db.close()
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job.error = Unavailable("the store was closed")
                _deliver([job])

    def _handle(self, jobs: list[_Job]) -> None:
        commits = [job for job in jobs if isinstance(job, _Commit)]
        if commits:
            self._group(commits)
        for job in jobs:
            if isinstance(job, _Read):
                try:
                    job.result = job.work(self._db)
                except sqlite3.Error as error:
                    job.error = Unavailable(f"the store can't be read: {error}")
        _deliver(jobs)
        self._groups += 1
        if commits and self._groups % CLEAN_EVERY == 0:
            self._clean()

    def _group(self, commits: list[_Commit]) -> None:
        """One transaction for all of them. Nobody is answered before COMMIT returned."""
        try:
            lines = self._execute(commits)
        except sqlite3.Error as error:  # before COMMIT was sent: nothing of it is there
            self._roll_back()
            if len(commits) == 1:
                commits[0].error = Unavailable(f"the store can't be written: {error}")
                return
            for commit in commits:
                self._group([commit])
            return
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            log.error("a commit of %d changes has an unknown fate: %s", len(commits), error)
            for commit in commits:
                commit.error = commit.error or Ambiguous(str(error))
            return
        if lines:
            self._revision = lines[-1].revision
            self._feed.publish(lines)

    def _execute(self, commits: list[_Commit]) -> list[LogEntry]:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        keys = list({change.key for commit in commits for change in commit.changes})
        versions: dict[str, str] = {}
        for some in _pieces(keys, 1):
            versions.update(
                db.execute(f"SELECT key, version FROM entries WHERE key IN ({_marks(some)})", some)  # noqa: S608 - only question marks
            )
        rows: dict[str, tuple[str, str, str, int | None]] = {}
        gone: set[str] = set()
        lines: list[LogEntry] = []
        now_us = self._clock.now_us()
        for commit in commits:
            commit.error = self._judge(commit, versions, now_us)
            if commit.error is not None:
                continue
            for change in commit.changes:
                if change.compare_only:
                    continue
                if change.value is None:
                    versions.pop(change.key, None)
                    rows.pop(change.key, None)
                    gone.add(change.key)
                else:
                    versions[change.key] = change.version
                    rows[change.key] = (change.key, change.version, change.value.decode(), change.keep_until_us)
                    gone.discard(change.key)
            if commit.log:
                revision = (lines[-1].revision if lines else self._revision) + 1
                lines += [LogEntry(revision, line, key, event) for line, (key, event) in enumerate(commit.log)]
        for piece in _pieces(list(gone), 1):
            db.execute(f"DELETE FROM entries WHERE key IN ({_marks(piece)})", piece)  # noqa: S608 - only question marks
        _insert(db, "INSERT OR REPLACE INTO entries VALUES", 4, list(rows.values()))
        _insert(db, "INSERT INTO log VALUES", 4, [(e.revision, e.index, e.key, e.event.decode()) for e in lines])
        return lines

    @staticmethod
    def _judge(commit: _Commit, versions: Mapping[str, str], now_us: int) -> Exception | None:
        if now_us > commit.not_after_us:
            return TooLate()
        for change in commit.changes:
            if versions.get(change.key) != change.expected:
                return Conflict()
        return None

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            log.error("rollback failed: %s", error)

    def _clean(self) -> None:
        """Forget a bounded number of rows past their time. Losing this is losing nothing."""
        try:
            self._db.execute(
                "DELETE FROM entries WHERE key IN (SELECT key FROM entries WHERE keep_until < ? LIMIT ?)",
                (self._clock.now_us(), CLEAN_ROWS * 8),
            )
            self._db.execute(
                "DELETE FROM log WHERE revision <= ? AND revision <= (SELECT min(revision) FROM log) + ?",
                (self._revision - KEEP_LOG, CLEAN_ROWS * 8),
            )
        except sqlite3.Error as error:
            log.warning("clean-up failed: %s", error)


def _open(path: Path) -> sqlite3.Connection:
    """Open the file for this process alone, and make sure that a commit is on disk when it returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.5, cached_statements=1024)
    except (OSError, sqlite3.Error) as error:
        raise UnsafeConfiguration(f"the lock store {path} can't be opened: {error}") from None
    try:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA wal_autocheckpoint=4000")
        db.execute("PRAGMA temp_store=MEMORY")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
        level = db.execute("PRAGMA synchronous").fetchone()[0]
        if (mode, level) != ("wal", 2):
            raise UnsafeConfiguration(
                f"the lock store {path} runs with {mode}/{level}, not with WAL and synchronous=FULL"
            )
        db.executescript(files(__package__).joinpath("sqlite.sql").read_text())
    except sqlite3.Error as error:
        db.close()
        if "locked" in str(error):
            raise UnsafeConfiguration(
                f"the lock store {path} is in use by another process; stop that one, or give this one its own --data"
            ) from None
        raise UnsafeConfiguration(f"the lock store {path} can't be used: {error}") from None
    return db


def _deliver(jobs: Sequence[_Job]) -> None:
    """Bring the results of a group to their event loops: one wake-up for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        loops.setdefault(job.future.get_loop(), []).append(job)
    for loop, some in loops.items():
        try:
            loop.call_soon_threadsafe(_deliver_here, some)
        except RuntimeError:  # the loop was closed: nobody waits any more
            log.debug("results for a closed event loop were dropped")


def _deliver_here(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.deliver()


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))


def _pieces(values: Sequence[Any], columns: int) -> list[Sequence[Any]]:
    """SQLite takes some 32,000 parameters in a statement."""
    size = 30_000 // columns
    return [values[start : start + size] for start in range(0, len(values), size)]


def _insert(db: sqlite3.Connection, verb: str, columns: int, rows: Sequence[tuple[Any, ...]]) -> None:
    one = f"({','.join('?' * columns)})"
    for piece in _pieces(rows, columns):
        db.execute(f"{verb} {','.join([one] * len(piece))}", [value for row in piece for value in row])
