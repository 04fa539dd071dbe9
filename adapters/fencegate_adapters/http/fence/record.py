"""How a service is protected, as its fence remembers it: never opened under another guard or mode by mistake."""

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, case, select, update

from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.http.fence.databases import Database
from fencegate_adapters.http.fence.tables import resources

_STORED = select(resources).where(resources.c.name == bindparam("resource"))
_LOCKED = _STORED.with_for_update(read=True)


class Record(NamedTuple):
    """The resource's name, its guard, the routes that have guards of their own, and its mode."""

    name: str
    guard: str
    form: str
    mode: str

    def remember(self, connection: Connection, database: Database) -> None:
        """Write it down, unless something is written there already."""
        database.insert_missing(connection, resources, {**self._asdict(), "floor": 0})

    def floor(self, connection: Connection, *, until_commit: bool = True) -> int:
        """The token below which no fence accepts anything; UnsafeConfiguration when another record was written."""
        row = connection.execute(_LOCKED if until_commit else _STORED, {"resource": self.name}).first()
        if row is None:
            raise UnsafeConfiguration(f"resource {self.name!r} has lost its record, and its marks. {self._cure}")
        kept = Record(row.name, row.guard, row.form, row.mode)
        if kept != self:
            pairs = zip(self._fields, kept, self, strict=True)
            changed = "; ".join(f"{field} was {old!r} and is {new!r}" for field, old, new in pairs if old != new)
            raise UnsafeConfiguration(f"resource {self.name!r}: {changed}. {self._cure}")
        return int(row.floor)

    def raise_floor(self, connection: Connection, database: Database, value: int) -> None:
        """Set the floor, never lower than it was, and take this record for the truth from now on."""
        self.remember(connection, database)
        floor = case((resources.c.floor < value, value), else_=resources.c.floor)
        values = {"guard": self.guard, "form": self.form, "mode": self.mode, "floor": floor}
        connection.execute(update(resources).where(resources.c.name == self.name).values(values))

    @property
    def _cure(self) -> str:
        return (
            "Make sure that no lease from before is alive, and run "
            f"`fencegate fence floor {self.name} VALUE`, with VALUE above every token issued so far"
        )
