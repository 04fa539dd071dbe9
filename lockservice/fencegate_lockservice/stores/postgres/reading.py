"""The statements, and what their rows mean. Those that read single keys or the log bring the server's time along."""

import hashlib
from collections.abc import Sequence
from typing import LiteralString, NamedTuple

from psycopg.sql import SQL, Composed, Identifier

from fencegate.core.model import LOCKS
from fencegate.core.ports import Entry, LogEntry, Unavailable
from fencegate_lockservice.stores.postgres.link import CLOCK, Row
from fencegate_lockservice.stores.sql.columns import is_lock

_LOAD = (
    "SELECT {now}, NULL, NULL, NULL "
    "UNION ALL SELECT 0, 'lock/' || lock_key, version, record "
    "FROM {schema}.distributed_locks WHERE lock_key = ANY (%s) "
    "UNION ALL SELECT 0, key, version, value FROM {schema}.fencegate_entries WHERE key = ANY (%s)"
)
_SCAN_LOCKS = (
    "SELECT 'lock/' || lock_key, version, record FROM {schema}.distributed_locks "
    "WHERE (%s::text IS NULL OR lock_key > %s) AND lock_key >= %s AND (%s::text IS NULL OR lock_key < %s) "
    "ORDER BY lock_key LIMIT %s"
)
_SCAN_ENTRIES = (
    "SELECT key, version, value FROM {schema}.fencegate_entries "
    "WHERE (%s::text IS NULL OR key > %s) AND key >= %s AND (%s::text IS NULL OR key < %s) "
    "ORDER BY key LIMIT %s"
)
_READ_LOG = (
    "SELECT {now}, {server}, meta.revision, meta.compacted, line.revision, line.line, line.key, line.event "
    "FROM {schema}.fencegate_meta AS meta LEFT JOIN {schema}.fencegate_log AS line "
    "ON line.revision > %s AND line.revision <= (SELECT max(revision) FROM ("
    "SELECT revision FROM {schema}.fencegate_log WHERE revision > %s ORDER BY revision, line LIMIT %s) AS page) "
    "WHERE meta.id = 1 ORDER BY line.revision, line.line"
)
SERVER: LiteralString = (
    "(SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system())"
)
"""Which server this is, and on which timeline: a standby that is promoted begins another one."""
NO_SERVER: LiteralString = "''"
"""Where it can't be told."""
_COMMIT = "SELECT * FROM {schema}.fencegate_commit_1(%s::bigint[], %s, %s, %s::json, %s::json, %s::json)"


class Statements:
    """The statements, for the tables of the schema that was found as the store was opened."""

    def __init__(self) -> None:
        self.use("public")

    def use(self, schema: str, server: LiteralString = SERVER) -> None:
        """`server` is what tells one server from another."""
        self.channel = f"fencegate_{hashlib.md5(schema.encode(), usedforsecurity=False).hexdigest()}"
        self.load = _in(schema, _LOAD)
        self.scan_locks = _in(schema, _SCAN_LOCKS)
        self.scan_entries = _in(schema, _SCAN_ENTRIES)
        self.read_log = _in(schema, _READ_LOG, server)
        self.commit = _in(schema, _COMMIT)
        self.notify = SQL("SELECT pg_notify(%s, '')").format()


def _in(schema: str, statement: LiteralString, server: LiteralString = "") -> Composed:
    name = Identifier(schema.replace("%", "%%"))  # the driver looks for its placeholders in names too
    return SQL(statement).format(schema=name, now=SQL(CLOCK), server=SQL(server))


def split_keys(keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Keys of locks, as their table has them, and all others."""
    return [key[len(LOCKS) :] for key in keys if is_lock(key)], [key for key in keys if not is_lock(key)]


def found_entries(rows: Sequence[Row]) -> dict[str, Entry]:
    return {key: Entry(version, value.encode()) for _, key, version, value in rows if key is not None}


def scan_arguments(prefix: str, after: str | None, limit: int) -> tuple[str | int | None, ...]:
    above = successor(prefix)
    return after, after, prefix, above, above, limit


def lock_range(prefix: str, after: str) -> tuple[str, str | None] | None:
    """The same prefix and place within the table of locks; None when there can be none of them."""
    if not prefix.startswith(LOCKS) and not LOCKS.startswith(prefix):
        return None
    within = prefix[len(LOCKS) :]
    if after.startswith(LOCKS):
        return within, after[len(LOCKS) :]
    return (within, None) if after.encode() < LOCKS.encode() else None


def successor(prefix: str) -> str | None:
    """The least text above all that begin with `prefix`; None when nothing is. (UTF-8 sorts as code points do.)"""
    for end in range(len(prefix), 0, -1):
        point = ord(prefix[end - 1]) + 1
        if point <= 0x10FFFF:
            return prefix[: end - 1] + chr(0xE000 if point == 0xD800 else point)
    return None


class Page(NamedTuple):
    """What was found in the change log."""

    server: str
    newest: int
    lines: list[LogEntry] | None
    """None when those that were asked for are gone, or never were."""


def found_lines(rows: Sequence[Row], since: int) -> Page:
    if not rows:
        raise Unavailable("the tables of the store were emptied: fencegate_meta has lost its row")
    _, server, newest, compacted, *_ = rows[0]
    if since < compacted or since > newest:
        return Page(server, newest, None)
    lines = (row[4:] for row in rows if row[4] is not None)
    return Page(server, newest, [LogEntry(revision, n, key, event.encode()) for revision, n, key, event in lines])
