"""A group of commits as one packet of SQL: a whole transaction, with nobody to wait for in the middle of it.

The server runs the statements of a packet one after the other. It locks the rows of all keys, in order (a row that is
not there is made empty, and gone again at the end), compares their versions, writes, takes the counter of the change
log last, and looks at its clock. Then it commits, or doesn't: `COMMIT` is a prepared statement whose text is chosen by
what was found. So a client that is stopped at any moment holds no lock on the server, and can't commit late.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fencegate.core.ports import Change
from fencegate_lockservice.stores.mysql.lines import Rows
from fencegate_lockservice.stores.mysql.statements import literal, literals, sql
from fencegate_lockservice.stores.mysql.tables import TableOf, by_table, empty_row, row


@dataclass(frozen=True, slots=True)
class Commit:
    """What a caller of `Store.commit` wants."""

    changes: Sequence[Change]
    log: Sequence[tuple[str, bytes]]
    not_after_us: int

    @property
    def size(self) -> int:
        """About half of what it takes in a packet, where keys occur up to five times."""
        values = sum(len(change.value or b"") + 5 * len(change.key) for change in self.changes)
        return values + sum(len(key) + len(event) for key, event in self.log)


@dataclass(slots=True)
class Plan:
    """What commits of a group come to, one after the other, if the rows are as `required`."""

    required: dict[str, str | None] = field(default_factory=dict)
    written: dict[str, Change] = field(default_factory=dict)
    logs: list[Sequence[tuple[str, bytes]]] = field(default_factory=list)
    not_after_us: int = 2**63 - 1

    def add(self, commit: Commit, actual: Mapping[str, str] | None) -> bool:
        """Put it behind the others, if it fits there; `actual` are the versions of all keys, where they are known."""
        required: dict[str, str | None] = {}
        for change in commit.changes:
            key = change.key
            if (before := self.written.get(key)) is not None:
                version = before.version if before.value is not None else None
            elif key in self.required:
                version = self.required[key]
            else:
                version = required.setdefault(key, change.expected if actual is None else actual.get(key))
            if version != change.expected:
                return False
        self.required |= required
        self.written |= {change.key: change for change in commit.changes if not change.compare_only}
        if commit.log:
            self.logs.append(commit.log)
        self.not_after_us = min(self.not_after_us, commit.not_after_us)
        return True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the server found."""

    done: bool
    now_us: int
    actual: Mapping[str, str] | None
    """The versions of the keys, when they were not as required."""


@dataclass(frozen=True, slots=True)
class Packet:
    """`statements[commit_at]` is the one that commits: before it nothing has happened yet."""

    statements: Sequence[str]
    commit_at: int
    versions_at: int

    def verdict(self, answers: Sequence[Rows]) -> Verdict:
        ((fits, done, now_us),) = answers[-1]
        actual: dict[str, str] | None = None
        if not fits:
            rows = answers[self.versions_at]
            actual = {(prefix + key).decode(): version.decode() for prefix, key, version in rows if version}
        return Verdict(bool(done), now_us, actual)


def packet(plan: Plan) -> Packet:
    """The transaction that carries out a plan, or finds that it can't be."""
    tables = by_table(plan.required)
    statements = ["START TRANSACTION"]
    for table, keys in tables:
        rows = ", ".join(empty_row(table, key) for key in keys)
        statements.append(sql("lock", table=table.table, columns=table.columns, rows=rows))
    statements.append(sql("compare", fits=" AND ".join(_fits(plan, table, keys) for table, keys in tables) or "1"))
    versions_at = len(statements)
    statements += [
        " UNION ALL ".join(_versions(table, keys) for table, keys in tables) or "DO 0",
        *_writes(plan),
        *_log(plan),
        sql("choose", not_after_us=int(plan.not_after_us)),
        "PREPARE fencegate_end FROM @fg_end",
        "EXECUTE fencegate_end",
        "ROLLBACK",
        sql("verdict"),
    ]
    return Packet(statements, len(statements) - 3, versions_at)


def _fits(plan: Plan, table: TableOf, keys: Sequence[str]) -> str:
    required = ((table.row_key(key), (plan.required[key] or "").encode()) for key in keys)
    pairs = ", ".join(f"({literals(pair)})" for pair in required)
    return sql("fits", table=table.table, key=table.key, keys=table.row_keys(keys), pairs=pairs, count=len(keys))


def _versions(table: TableOf, keys: Sequence[str]) -> str:
    prefix = literal(table.prefix)
    return sql("versions", table=table.table, prefix=prefix, key=table.key, keys=table.row_keys(keys))


def _writes(plan: Plan) -> Iterator[str]:
    for table, keys in by_table(key for key, change in plan.written.items() if change.value is not None):
        rows = ", ".join(row(table, plan.written[key]) for key in keys)
        yield sql("write", table=table.table, columns=table.columns, rows=rows, written=table.written)
    for table, keys in by_table(key for key in plan.required if _is_absent_after(plan, key)):
        yield sql("remove", table=table.table, key=table.key, keys=table.row_keys(keys))


def _is_absent_after(plan: Plan, key: str) -> bool:
    change = plan.written.get(key)
    return plan.required[key] is None if change is None else change.value is None


def _log(plan: Plan) -> Iterator[str]:
    """One revision for each commit that has lines."""
    count = len(plan.logs)
    if not count:
        return
    rows = []
    for back, some in zip(reversed(range(count)), plan.logs, strict=True):
        revision = sql("revision", back=back)
        rows += [
            f"({revision}, {line}, {literal(key.encode())}, {literal(event)})" for line, (key, event) in enumerate(some)
        ]
    yield sql("count", count=count, lines=len(rows))
    yield sql("append", rows=", ".join(rows))
