"""The process that has the SQLite file: groups of jobs come in, results go out, and it ends with whoever started it.

It is a process of its own because the interpreter's lock changes hands at every SQL statement: as a thread it cost the
event loop more than SQLite and the disk together. What comes in together is one transaction and one flush.
"""

import contextlib
import logging
import signal
import socket
import sqlite3
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from fencegate.clock import SYSTEM, Clock, SystemClock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Change

KEEP_LOG = 200_000
MAX_ROWS = 5_000  # SQLite takes some 32,000 parameters in a statement
PART_BYTES = 1 << 16  # a buffer that needs no memory mapping of its own
CLEAN_EVERY = 64
CLEAN_ROWS = 4_096
IN_USE_S = 2.0  # how long a predecessor that was killed may take to notice

_LOG = "\x01log/"  # keys hold no control characters, so the log comes before them all
_KEYS = "\x02"
_DIGITS = 16

log = logging.getLogger("fencegate.store.sqlite")

Row = tuple[str, str, str, int | None]


# --- what goes over the wire -----------------------------------------------------------------------------------------


class Commit(msgspec.Struct, array_like=True, tag=0, gc=False):
    changes: list[Change]
    log: list[tuple[str, bytes]]
    not_after_us: int


class Load(msgspec.Struct, array_like=True, tag=1, gc=False):
    keys: list[str]


class Scan(msgspec.Struct, array_like=True, tag=2, gc=False):
    prefix: str
    after: str
    limit: int


class ReadLog(msgspec.Struct, array_like=True, tag=3, gc=False):
    since: int
    limit: int


Job = Commit | Load | Scan | ReadLog
Verdict = Literal["done", "conflict", "too-late", "ambiguous", "unavailable"]


class Result(msgspec.Struct, array_like=True, gc=False):
    """What became of a job: for a commit `found` is its revision in the log (0: none), else the rows."""

    verdict: Verdict
    found: Any = None


class Hello(msgspec.Struct, array_like=True, gc=False):
    """The first message: where the log stands; or why the file can't be had."""

    revision: int = 0
    trouble: str | None = None


encode = msgspec.msgpack.Encoder().encode
_decode_jobs = msgspec.msgpack.Decoder(list[Job]).decode
_encode_keys = msgspec.json.Encoder().encode
_decode_versions = msgspec.json.Decoder(dict[str, str]).decode


def framed(message: Any) -> bytes:
    data = encode(message)
    return struct.pack("!I", len(data)) + data


def receive(wire: socket.socket) -> bytes | None:
    """Wait for one message; None when the other side is gone."""
    inbox = Inbox()
    while True:
        if (message := inbox.take()) is not None:
            return message
        if not inbox.fill(wire, 0):
            return None


class Inbox:
    """Bytes that came over the wire, and the whole messages among them."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def fill(self, wire: socket.socket, flags: int = socket.MSG_DONTWAIT) -> bool:
        """Read what is there; False when the other side is gone, BlockingIOError when nothing has come."""
        try:
            part = wire.recv(PART_BYTES, flags)
        except ConnectionResetError:
            return False
        self._bytes += part
        return bool(part)

    def take(self) -> bytes | None:
        if len(self._bytes) < 4:
            return None
        (size,) = struct.unpack_from("!I", self._bytes)
        if len(self._bytes) < 4 + size:
            return None
        message = bytes(self._bytes[4 : 4 + size])
        del self._bytes[: 4 + size]
        return message


# --- the writer ------------------------------------------------------------------------------------------------------


class _Group:
    """What a group of commits writes, put together for one statement."""

    def __init__(self, versions: dict[str, str], revision: int) -> None:
        self._versions = versions
        self._written: dict[str, Row] = {}
        self._logged: list[Row] = []
        self.removed: set[str] = set()
        self.revision = revision

    def judge(self, commit: Commit, now_us: int) -> Verdict:
        """Compare with what is there, and with what the commits before it in this group write."""
        if now_us > commit.not_after_us:
            return "too-late"
        versions = self._versions
        return "done" if all(versions.get(c.key) == c.expected for c in commit.changes) else "conflict"

    def add(self, commit: Commit) -> int:
        """Take a good commit in; gives its revision in the log, 0 when it logs nothing."""
        # All text first: a commit that can't be taken must not be taken by half.
        values = [None if change.value is None else change.value.decode() for change in commit.changes]
        events = [event.decode() for _, event in commit.log]
        for change, value in zip(commit.changes, values, strict=True):
            if change.compare_only:
                continue
            key = change.key
            if value is None:
                self._versions.pop(key, None)
                self._written.pop(key, None)
                self.removed.add(key)
            else:
                self._versions[key] = change.version
                self._written[key] = (key, change.version, value, change.keep_until_us)
                self.removed.discard(key)
        if not events:
            return 0
        self.revision += 1
        for line, ((key, _), event) in enumerate(zip(commit.log, events, strict=True)):
            self._logged.append((f"{_bound(self.revision)}{line}/{key}", "", event, None))
        return self.revision

    def rows(self) -> list[Row]:
        return [*self._written.values(), *self._logged]


class Writer:
    """The file, and what is done to it. One of these for a file, in one thread."""

    def __init__(self, path: Path, clock: Clock = SYSTEM, wait_s: float = IN_USE_S) -> None:
        self._clock = clock
        self.db = _open(path, wait_s)
        (newest,) = self.db.execute("SELECT max(key) FROM entries WHERE key < ?", (_KEYS,)).fetchone()
        self.revision = _line(newest)[0] if newest is not None else 0
        self._groups = 0
        self._passing = 0
        """Rows written since the last clean-up that will have to go some day."""

    def close(self) -> None:
        self.db.close()

    def handle(self, jobs: Sequence[Job]) -> list[Result]:
        """The commits first, in one transaction; then the reads, which see nothing that could still be lost."""
        commits = [job for job in jobs if isinstance(job, Commit)]
        done = iter(self._commit(commits)) if commits else iter(())
        results = [next(done) if isinstance(job, Commit) else self._read(job) for job in jobs]
        if commits:
            self._groups += 1
            # Half as many as a clean-up takes away: then they never pile up, however large the groups are.
            if self._groups >= CLEAN_EVERY or self._passing >= CLEAN_ROWS // 2:
                self._groups = self._passing = 0
                self._clean()
        return results

    # --- commits ---

    def _commit(self, commits: Sequence[Commit]) -> list[Result]:
        try:
            versions = self._versions({change.key for commit in commits for change in commit.changes})
        except (sqlite3.Error, ValueError) as error:
            if len(commits) > 1:  # one of them can't even be asked for
                return [result for commit in commits for result in self._commit([commit])]
            return [Result("unavailable", f"the store can't take this: {error}")]
        group = _Group(versions, self.revision)
        now_us = self._clock.now_us()
        results = [self._take(group, commit, now_us) for commit in commits]
        rows = group.rows()
        try:
            if rows or group.removed:
                self._flush(rows, list(group.removed))
        except sqlite3.Error as error:
            self.revision = group.revision  # it may have landed: its revisions are never used again
            return self._failed(results, error)
        self.revision = group.revision
        self._passing += sum([row[3] is not None or row[0] < _KEYS for row in rows])
        return results

    @staticmethod
    def _take(group: _Group, commit: Commit, now_us: int) -> Result:
        verdict = group.judge(commit, now_us)
        if verdict != "done":
            return Result(verdict)
        try:
            return Result("done", group.add(commit))
        except ValueError as error:  # bytes that are no text
            return Result("unavailable", f"the store can't take this: {error}")

    def _versions(self, keys: set[str]) -> dict[str, str]:
        statement = "SELECT json_group_object(key, version) FROM entries WHERE key IN (SELECT value FROM json_each(?))"
        (found,) = self.db.execute(statement, (_encode_keys(list(keys)).decode(),)).fetchone()
        return _decode_versions(found)

    def _flush(self, rows: list[Row], removed: list[str]) -> None:
        """Write it all. One insert is a transaction of its own; anything more needs one around it."""
        if len(rows) <= MAX_ROWS and not removed:
            self._insert(rows)
            return
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.db.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in removed])
            for start in range(0, len(rows), MAX_ROWS):
                self._insert(rows[start : start + MAX_ROWS])
            self.db.execute("COMMIT")
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")

    def _insert(self, rows: list[Row]) -> None:
        marks = ",".join(["(?,?,?,?)"] * len(rows))
        values = [value for row in rows for value in row]
        self.db.execute(f"INSERT OR REPLACE INTO entries VALUES {marks}", values)  # noqa: S608 - only question marks

    @staticmethod
    def _failed(results: list[Result], error: sqlite3.Error) -> list[Result]:
        """It was rolled back, or its flush failed and nobody knows. Only a full disk says which."""
        log.error("a group of %d commits failed: %s", len(results), error)
        full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
        failed = Result("unavailable" if full else "ambiguous", f"the store can't be written: {error}")
        return [failed if result.verdict == "done" else result for result in results]

    def _clean(self) -> None:
        """Forget a bounded number of rows past their time. Losing this is losing nothing."""
        try:
            self.db.execute(
                "DELETE FROM entries WHERE key IN (SELECT key FROM entries WHERE keep_until < ? LIMIT ?)",
                (self._clock.now_us(), CLEAN_ROWS),
            )
            oldest = self._oldest()
            if oldest is not None and oldest <= self.revision - KEEP_LOG:
                end = min(self.revision - KEEP_LOG, oldest + CLEAN_ROWS) + 1
                self.db.execute("DELETE FROM entries WHERE key < ?", (_bound(end),))
        except sqlite3.Error as error:
            log.warning("clean-up failed: %s", error)

    # --- reads ---

    def _read(self, job: Load | Scan | ReadLog) -> Result:
        try:
            match job:
                case Load(keys):
                    return Result("done", self._load(keys))
                case Scan(prefix, after, limit):
                    return Result("done", self._scan(prefix, after, limit))
                case ReadLog(since, limit):
                    return Result("done", self._read_log(since, limit))
        except (sqlite3.Error, ValueError) as error:  # ValueError: text that is no Unicode
            return Result("unavailable", f"the store can't be read: {error}")

    def _load(self, keys: Sequence[str]) -> list[Any]:
        marks = ",".join("?" * len(keys))
        statement = f"SELECT key, version, value FROM entries WHERE key IN ({marks})"  # noqa: S608 - only question marks
        return self.db.execute(statement, keys).fetchall()

    def _scan(self, prefix: str, after: str, limit: int) -> list[Any]:
        # U+10FFFF is above every character of a key, so this is the range of the prefix without a LIKE.
        return self.db.execute(
            "SELECT key, version, value FROM entries WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?",
            (prefix or _KEYS, after, prefix + "\U0010ffff", limit),
        ).fetchall()

    def _read_log(self, since: int, limit: int) -> list[tuple[int, int, str, str]] | None:
        oldest = self._oldest()
        if oldest is None or since < oldest - 1:
            return None
        first = self._oldest(since + 1)  # groups that failed have left out their revisions, maybe more than a page
        if first is None:
            return []
        bounds = _bound(first), _bound(first + limit)
        rows = self.db.execute("SELECT key, value FROM entries WHERE key >= ? AND key < ?", bounds)
        return sorted((*_line(key), value) for key, value in rows)

    def _oldest(self, since: int = 0) -> int | None:
        """The first revision in the log, from this one on."""
        bounds = _bound(since), _KEYS
        (key,) = self.db.execute("SELECT min(key) FROM entries WHERE key >= ? AND key < ?", bounds).fetchone()
        return _line(key)[0] if key is not None else None


def _bound(revision: int) -> str:
    """Below every line of `revision` in the log, and above every line before it."""
    return f"{_LOG}{revision:0{_DIGITS}d}/"


def _line(key: str) -> tuple[int, int, str]:
    _, revision, line, about = key.split("/", 3)
    return int(revision), int(line), about


def _open(path: Path, wait_s: float) -> sqlite3.Connection:
    """Open the file for this process alone, and make sure that a commit is on disk when it returns."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds lockTokens
        db = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=wait_s, cached_statements=1024
        )
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
            raise UnsafeConfiguration(f"the lock store {path} runs in {mode}/{level}, not in WAL with synchronous=FULL")
        db.executescript(Path(__file__).with_name("sqlite.sql").read_text("utf-8"))
    except sqlite3.Error as error:
        db.close()
        if "locked" in str(error):
            raise UnsafeConfiguration(
                f"the lock store {path} is in use by another process; stop that one, or give this one its own --data"
            ) from None
        raise UnsafeConfiguration(f"the lock store {path} can't be used: {error}") from None
    except BaseException:
        db.close()
        raise
    return db


def main() -> None:
    """Arguments: the number of the socket, the file, and the offset of the starter's clock."""
    # A terminal and a service manager signal every process; this one ends when its starter has said all.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as wire:
        try:
            writer = Writer(Path(sys.argv[2]), SystemClock(offset_us=int(sys.argv[3])))
        except UnsafeConfiguration as error:
            wire.sendall(framed(Hello(trouble=error.detail)))
            return
        wire.sendall(framed(Hello(writer.revision)))
        with contextlib.suppress(ConnectionError):  # the starter was killed
            inbox = Inbox()
            while inbox.fill(wire, 0):
                while (message := inbox.take()) is not None:
                    wire.sendall(framed(writer.handle(_decode_jobs(message))))
        writer.close()


if __name__ == "__main__":
    main()
