"""The fence in a database: its mark, and the floor below which no fence accepts anything."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, case, select, update

from fencegate.core import fence as rule
from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.sql.dialect import Dialect, dialect_of
from fencegate_adapters.sql.tables import fences, resources


class Record(NamedTuple):
    """How a resource is protected, as its database remembers it."""

    name: str
    guard: str
    form: str
    mode: str

    def differences(self, other: "Record") -> str:
        """What changed between two of them, for a reader."""
        pairs = zip(self._fields, self, other, strict=True)
        return "; ".join(f"{field} was {old!r} and is {new!r}" for field, old, new in pairs if old != new)


def pass_fence(connection: Connection, dialect: Dialect, lock_key: str, mode: str, token: int) -> int:
    """Raise the fence as the first statement of this transaction; the mark that it has now.

    A mark above `token` means stale: whoever enforces must roll back. `rule.admit` says so.
    """
    return pass_fences(connection, dialect, {lock_key: token}, mode)[lock_key]


def pass_fences(connection: Connection, dialect: Dialect, claims: Mapping[str, int], mode: str) -> dict[str, int]:
    """The same for several fences at once: the mark that each has now. They are locked in the order of their keys."""
    return dialect.raise_marks(connection, claims, mode)


def read_mark(connection: Connection, lock_key: str, mode: str) -> int:
    mark = select(fences.c.token).where(fences.c.lock_key == lock_key.encode(), fences.c.mode == mode)
    return int(connection.execute(mark).scalar() or 0)


def floor_of(connection: Connection, record: Record) -> int:
    """The floor of a resource whose record is still the one that it was opened with.

    A floor that is raised meanwhile waits for this transaction: see `Dialect.locks_floors`.
    """
    c = resources.c
    stored = select(c.floor, c.name, c.guard, c.form, c.mode).where(c.name == record.name)
    return checked_floor(record, connection.execute(_locked(connection, stored)).first())


def checked_floor(record: Record, row: Sequence[Any] | None) -> int:
    """The floor in a row of `floor, name, guard, form, mode`, whose rest must be the record."""
    if row is None:
        raise UnsafeConfiguration(
            f"resource {record.name!r} has lost its record, and perhaps its marks: {cure(record)}"
        )
    floor, *rest = row
    kept = Record(*rest)
    if kept != record:
        raise UnsafeConfiguration(f"resource {record.name!r}: {kept.differences(record)}. {cure(record)}")
    return int(floor)


def _locked(connection: Connection, query: Select[Any]) -> Select[Any]:
    return query.with_for_update(read=True) if dialect_of(connection.dialect.name).locks_floors else query


def remember(connection: Connection, dialect: Dialect, record: Record) -> bool:
    """Write the record if there is none; returns whether there was none."""
    return dialect.insert_missing(connection, resources, {**record._asdict(), "floor": 0})


def raise_floor(connection: Connection, dialect: Dialect, record: Record, value: int) -> None:
    """Set the floor, never lower than it was, and take `record` for the truth from now on."""
    dialect.keep_out(connection)
    remember(connection, dialect, record)
    floor = case((resources.c.floor < value, value), else_=resources.c.floor)
    connection.execute(
        update(resources)
        .where(resources.c.name == record.name)
        .values(guard=record.guard, form=record.form, mode=record.mode, floor=floor)
    )


def admit(token: int, mark: int, floor: int) -> int:
    """The stale check over both, under the locks of this transaction."""
    return rule.admit(token, max(mark, floor))


def cure(record: Record) -> str:
    """What to do about a resource whose marks no longer protect it."""
    return (
        "Make sure that no lease from before is alive, and run "
        f"`fencegate fence floor {record.name} VALUE`, with VALUE above every token issued so far"
    )
