"""The fence in a database: its mark, and the floor below which no fence accepts anything."""

from typing import NamedTuple

from sqlalchemy import Connection, case, select, update

from fencegate.core import fence as rule
from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.sql.dialect import Dialect
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
    if dialect.raise_mark(connection, lock_key, mode, token):
        return token
    return read_mark(connection, lock_key, mode)


def read_mark(connection: Connection, lock_key: str, mode: str) -> int:
    mark = select(fences.c.token).where(fences.c.lock_key == lock_key.encode(), fences.c.mode == mode)
    return int(connection.execute(mark).scalar() or 0)


def floor_of(connection: Connection, record: Record) -> int:
    """The floor of a resource whose record is still the one that it was opened with.

    The row is locked for sharing where the database can: a floor that is raised meanwhile waits for this transaction.
    """
    stored = select(resources).where(resources.c.name == record.name).with_for_update(read=True)
    row = connection.execute(stored).first()
    if row is None:
        raise UnsafeConfiguration(
            f"resource {record.name!r} has lost its record, and perhaps its marks: {cure(record)}"
        )
    kept = Record(row.name, row.guard, row.form, row.mode)
    if kept != record:
        raise UnsafeConfiguration(f"resource {record.name!r}: {kept.differences(record)}. {cure(record)}")
    return int(row.floor)


def highest_floor(connection: Connection) -> int:
    """The floor for a transaction that belongs to no resource: it can't know which of them its rows are part of."""
    floors = connection.execute(select(resources.c.floor).with_for_update(read=True)).scalars()
    return max(floors, default=0)


def remember(connection: Connection, dialect: Dialect, record: Record) -> bool:
    """Write the record if there is none; returns whether there was none."""
    return dialect.insert_missing(connection, resources, {**record._asdict(), "floor": 0})


def raise_floor(connection: Connection, dialect: Dialect, record: Record, value: int) -> None:
    """Set the floor, never lower than it was, and take `record` for the truth from now on."""
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
