"""Locks in an SQLite file: the embedded default. One process, one writer thread, one flush for many commits.

Commits that arrive while one is being flushed go out together in the next. Two statements handle a whole group, because
the interpreter's lock changes hands at every statement, and that costs more than SQLite does.
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

import msgspec

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
MAX_ROWS = 5_000  # SQLite takes some 32,000 parameters in a statement
CLEAN_EVERY = 64
CLEAN_ROWS = 512

_LOG = "\x01log/"  # keys hold no control characters, so the log comes before them all
_KEYS = "\x02"
_DIGITS = 16

_decode = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode

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


class _Group:
    """What a group of commits writes, put together for one statement."""

    def __init__(self, revision: int) -> None:
        self._revision = revision
        self.removed: set[str] = set()
        self._written: dict[str, tuple[str, str, str, int | None]] = {}
        self.lines: list[LogEntry] = []

    @property
    def empty(self) -> bool:
        return not (self.removed or self._written or self.lines)

    def add(self, commit: _Commit, versions: dict[str, str]) -> None:
        """Add a commit whose comparisons hold; later ones of the group are compared with what it writes."""
        for change in commit.changes:
            if change.compare_only:
                continue
            key = change.key
            if change.value is None:
                versions.pop(key, None)
                self._written.pop(key, None)
                self.removed.add(key)
            else:
                versions[key] = change.version
                self._written[key] = (key, change.version, change.value.decode(), change.keep_until_us)
                self.removed.discard(key)
        if commit.log:
            self._revision += 1
            self.lines += [LogEntry(self._revision, line, key, event) for line, (key, event) in enumerate(commit.log)]

    def rows(self) -> list[tuple[str, str, str, int | None]]:
        logged = [(_line_key(line), "", line.event.decode(), None) for line in self.lines]
        return [*self._written.values(), *logged]


def _line_key(line: LogEntry) -> str:
    return f"{_LOG}{line.revision:0{_DIGITS}d}/{line.index}/{line.key}"


def _line(key: str, event: str) -> LogEntry:
    _, revision, line, about = key.split("/", 3)
    return LogEntry(int(revision), int(line), about, event.encode())


def _revision_bound(revision: int) -> str:
    """Below every line of `revision`, and above every line before it."""
    return f"{_LOG}{revision:0{_DIGITS}d}/"


class SqliteStore:
    """See the head of this file. Safe to use from several event loops of one process."""

    name = "sqlite"
    capabilities = Capabilities(several_processes=False)

    def __init__(self, path: Path, clock: Clock = SYSTEM) -> None:
        self._path = path
        self._clock = clock
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._gathering: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        self._gate = threading.Lock()  # after the writer was told to stop, nothing may be handed to it
        self._db = _open(path)
        self._revision = self._newest()
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
                (prefix or _KEYS, after, prefix + "\U0010ffff", limit),
            )
            return [(key, Entry(version, value.encode())) for key, version, value in rows]

        found: list[tuple[str, Entry]] = await self._submit(_Read(self._future(), work=work))
        return found

    def now(self) -> Interval:
        now_us = self._clock.now_us()
        return Interval(now_us, now_us)

    async def close(self) -> None:
        with self._gate:
            if not self._closed:
                self._closed = True
                for gathered in self._gathering.values():
                    self._jobs.put(gathered)
                self._gathering.clear()
                self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- in the caller's thread ---

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _submit(self, job: _Job) -> Any:
        """Hand a job to the writer, together with all others that come in this turn of the event loop."""
        loop = job.future.get_loop()
        with self._gate:
            if self._closed:
                raise Unavailable("the store is closed")
            gathered = self._gathering.get(loop)
            if gathered is None:
                self._gathering[loop] = [job]
                loop.call_soon(self._hand_over, loop)
            else:
                gathered.append(job)
        return await job.future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._gate:
            if (gathered := self._gathering.pop(loop, None)) is not None:
                self._jobs.put(gathered)

    async def _read_log(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        def work(db: sqlite3.Connection) -> list[LogEntry] | None:
            oldest = self._oldest()
            if oldest is None or since < oldest - 1:
                return None
            bounds = _revision_bound(since + 1), _revision_bound(since + 1 + limit)
            rows = db.execute("SELECT key, value FROM entries WHERE key >= ? AND key < ? ORDER BY key", bounds)
            lines = [_line(key, value) for key, value in rows]
            return sorted(lines, key=lambda line: (line.revision, line.index))

        found: list[LogEntry] | None = await self._submit(_Read(self._future(), work=work))
        return found

    # --- in the writer thread ---

    def _newest(self) -> int:
        (key,) = self._db.execute("SELECT max(key) FROM entries WHERE key < ?", (_KEYS,)).fetchone()
        return _line(key, "").revision if key is not None else 0

    def _oldest(self) -> int | None:
        (key,) = self._db.execute("SELECT min(key) FROM entries WHERE key < ?", (_KEYS,)).fetchone()
        return _line(key, "").revision if key is not None else None

    def _write(self) -> None:
        stop = False
        while not stop:
            jobs: list[_Job] = []
            some = self._jobs.get()
            while some is not None:
                jobs += some
                if len(jobs) >= MAX_GROUP:
                    break
                try:
                    some = self._jobs.get_nowait()
                except queue.Empty:
                    break
            stop = some is None
            self._handle(jobs)
        self._db.close()

    def _handle(self, jobs: list[_Job]) -> None:
        commits = [job for job in jobs if isinstance(job, _Commit)]
        if commits:
            self._group(commits)
        for job in jobs:
            if isinstance(job, _Read):
                try:
                    job.result = job.work(self._db)
                except (sqlite3.Error, ValueError) as error:  # ValueError: text that is no Unicode
                    job.error = Unavailable(f"the store can't be read: {error}")
        _deliver(jobs)
        self._groups += bool(commits)
        if commits and self._groups % CLEAN_EVERY == 0:
            self._clean()

    def _group(self, commits: list[_Commit]) -> None:
        """One transaction for all of them. Nobody is answered before it is on the disk."""
        try:
            group = self._put_together(commits)
            rows = group.rows()
        except (sqlite3.Error, ValueError) as error:  # ValueError: bytes that are no text; and nothing is written yet
            if len(commits) > 1:
                for commit in commits:
                    self._group([commit])
            else:
                commits[0].error = Unavailable(f"the store can't take this: {error}")
            return
        if group.empty:
            return
        try:
            self._flush(rows, list(group.removed))
        except sqlite3.Error as error:
            self._fail([commit for commit in commits if commit.error is None], error)
            return
        if group.lines:
            self._revision = group.lines[-1].revision
            self._feed.publish(group.lines)

    def _flush(self, rows: list[tuple[str, str, str, int | None]], removed: list[str]) -> None:
        """Write it all. One insert is a transaction of its own; anything more needs one around it."""
        pieces = [rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS)]
        if len(pieces) == 1 and not removed:
            self._insert(rows)
            return
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in removed])
            for piece in pieces:
                self._insert(piece)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _insert(self, rows: list[tuple[str, str, str, int | None]]) -> None:
        marks = ",".join(["(?,?,?,?)"] * len(rows))
        values = [value for row in rows for value in row]
        self._db.execute(f"INSERT OR REPLACE INTO entries VALUES {marks}", values)  # noqa: S608 - only question marks

    def _put_together(self, commits: list[_Commit]) -> _Group:
        """Judge each commit by what is there and by those before it, and gather what the good ones write."""
        versions = self._versions(list({change.key for commit in commits for change in commit.changes}))
        group = _Group(self._revision)
        now_us = self._clock.now_us()
        for commit in commits:
            commit.error = self._judge(commit, versions, now_us)
            if commit.error is None:
                group.add(commit, versions)
        return group

    def _versions(self, keys: Sequence[str]) -> dict[str, str]:
        """The versions that are there now. One row for all: the interpreter's lock changes hands at every row."""
        statement = "SELECT json_group_object(key, version) FROM entries WHERE key IN (SELECT value FROM json_each(?))"
        (found,) = self._db.execute(statement, (_encode(keys).decode(),)).fetchone()
        return _decode(found)

    def _fail(self, commits: list[_Commit], error: sqlite3.Error) -> None:
        """The statement was rolled back, or its flush failed and nobody knows. Only a full disk says which."""
        log.error("a group of %d commits failed: %s", len(commits), error)
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        for commit in commits:
            commit.error = Unavailable(f"the store can't be written: {error}") if full else Ambiguous(str(error))

    @staticmethod
    def _judge(commit: _Commit, versions: Mapping[str, str], now_us: int) -> Exception | None:
        if now_us > commit.not_after_us:
            return TooLate()
        for change in commit.changes:
            if versions.get(change.key) != change.expected:
                return Conflict()
        return None

    def _clean(self) -> None:
        """Forget a bounded number of rows past their time. Losing this is losing nothing."""
        try:
            self._db.execute(
                "DELETE FROM entries WHERE key IN (SELECT key FROM entries WHERE keep_until < ? LIMIT ?)",
                (self._clock.now_us(), CLEAN_ROWS * 8),
            )
            oldest = self._oldest()
            if oldest is not None and oldest <= self._revision - KEEP_LOG:
                end = min(self._revision - KEEP_LOG, oldest + CLEAN_ROWS * 8) + 1
                self._db.execute("DELETE FROM entries WHERE key >= ? AND key < ?", (_LOG, _revision_bound(end)))
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
