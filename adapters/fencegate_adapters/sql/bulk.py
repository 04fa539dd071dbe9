"""Updates of many rows by one statement, each row with values of its own, and the rows as they are then.

Where a database has no such statement (MySQL), `bulk_updates` gives None, and they are done one by one.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ARRAY, Column, Connection, Table, Text, bindparam, text, types
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import DefaultClause
from sqlalchemy.sql.selectable import TextualSelect

MAX_STATEMENTS = 256
"""So many kinds of updates are kept compiled; callers choose which columns they name."""
MAX_VARIABLES = 5000

DEFAULT = object()
"""As a value: what the column holds when nobody names it."""

Values = Mapping[str, Any]
Signature = tuple[tuple[str, bool], ...]
"""The columns that are set, each with whether it is set to its default."""


def signature_of(values: Values) -> Signature:
    return tuple(sorted((name, value is DEFAULT) for name, value in values.items()))


class BulkUpdates(Protocol):
    """Updates of one table."""

    def run(
        self, connection: Connection, signature: Signature, changes: Sequence[tuple[tuple[Any, ...], Values]]
    ) -> Iterator[Sequence[Any]]:
        """Set the values of the rows with these keys; gives the rows, in any order."""


def bulk_updates(table: Table, key: Sequence[str], returned: Sequence[str], dialect: Dialect) -> BulkUpdates | None:
    if dialect.name == "postgresql":
        return PostgresqlUpdates(table, key, returned, dialect)
    if dialect.name == "sqlite":
        return SqliteUpdates(table, key, returned, dialect)
    return None


class _Updates:
    def __init__(self, table: Table, key: Sequence[str], returned: Sequence[str], dialect: Dialect) -> None:
        self._table = table
        self._key = [table.c[name] for name in key]
        self.returned = [table.c[name] for name in returned]
        self._target = ".".join(_quoted(name) for name in (table.schema, table.name) if name)
        self._dialect = dialect
        self._statements: dict[Any, Any] = {}

    def _kept(self, about: Any, make: Callable[[], Any]) -> Any:
        found = self._statements.get(about)
        if found is None:
            found = make()
            if len(self._statements) < MAX_STATEMENTS:
                self._statements[about] = found
        return found

    def _typed(self, sql: str) -> TextualSelect:
        # Our own statement, so a colon in a name is no parameter.
        return text(sql).columns(*self.returned)

    def _bound(self, signature: Signature) -> list[Column[Any]]:
        return [*self._key, *(self._table.c[name] for name, default in signature if not default)]


class Parts(NamedTuple):
    """What an update in PostgreSQL is made of; its values come from the columns v0, v1, … of `v`."""

    change: str
    """`UPDATE … AS t SET …`"""
    values: tuple[str, ...]
    """The names of those columns: first the key's."""
    named: str
    """Which row of `t` a row of `v` is about."""
    returned: str


class PostgresqlUpdates(_Updates):
    """Values travel as arrays of text, one for each column: the statement is the same for any number of rows."""

    def run(
        self, connection: Connection, signature: Signature, changes: Sequence[tuple[tuple[Any, ...], Values]]
    ) -> Iterator[Sequence[Any]]:
        statement = self._kept(signature, lambda: self._statement(self.parts(signature)))
        spelled = dict(zip(self.parts(signature).values, self.spelled(signature, changes), strict=True))
        yield from connection.execute(statement, spelled)

    def spelled(
        self, signature: Signature, changes: Sequence[tuple[tuple[Any, ...], Values]]
    ) -> list[list[str | None]]:
        """The values, as PostgreSQL reads them: a list for each column."""
        names = [name for name, default in signature if not default]
        rows = [(*key, *(values[name] for name in names)) for key, values in changes]
        return [
            [None if value is None else _spelled(value, column) for value in of_column]
            for column, of_column in zip(self._bound(signature), zip(*rows, strict=True), strict=True)
        ]

    def parts(self, signature: Signature) -> Parts:
        found: Parts = self._kept(("parts", signature), lambda: self._parts(signature))
        return found

    def _parts(self, signature: Signature) -> Parts:
        bound = self._bound(signature)
        place = {column.name: f"CAST(v.v{n} AS {self._type(column)})" for n, column in enumerate(bound)}
        sets = [f"{_quoted(name)} = {'DEFAULT' if default else place[name]}" for name, default in signature]
        named = [f"t.{_quoted(column.name)} = {place[column.name]}" for column in self._key]
        return Parts(
            f"UPDATE {self._target} AS t SET {', '.join(sets)}",  # noqa: S608 - quoted names only
            tuple(f"v{n}" for n in range(len(bound))),
            " AND ".join(named),
            ", ".join(f"t.{_quoted(column.name)}" for column in self.returned),
        )

    def _statement(self, parts: Parts) -> TextualSelect:
        arrays = ", ".join(f"CAST(:{name} AS text[])" for name in parts.values)
        sql = (
            f"{_plain(parts.change)} FROM unnest({arrays}) AS v ({', '.join(parts.values)}) "
            f"WHERE {_plain(parts.named)} RETURNING {_plain(parts.returned)}"
        )
        statement = text(sql).bindparams(*(bindparam(name, type_=ARRAY(Text)) for name in parts.values))
        return statement.columns(*self.returned)

    def _type(self, column: Column[Any]) -> str:
        """The type to cast to. Without the length of a text: a cast would cut what an assignment refuses."""
        if isinstance(column.type, types.CHAR):
            return "bpchar"
        if isinstance(column.type, types.String) and not isinstance(column.type, types.Enum):
            return "text"
        return str(column.type.compile(dialect=self._dialect)).replace("%%", "%")


class SqliteUpdates(_Updates):
    """Values travel as a list of rows."""

    def run(
        self, connection: Connection, signature: Signature, changes: Sequence[tuple[tuple[Any, ...], Values]]
    ) -> Iterator[Sequence[Any]]:
        bound = self._bound(signature)
        processors = self._kept(("processors", signature), lambda: [self._processor(column) for column in bound])
        names = [name for name, default in signature if not default]
        step = max(1, MAX_VARIABLES // len(bound))
        for at in range(0, len(changes), step):
            some = changes[at : at + step]
            statement = self._kept((signature, len(some)), lambda: self._statement(signature, len(some)))  # noqa: B023
            rows = ((*key, *(values[name] for name in names)) for key, values in some)
            flat = [
                value if of is None else of(value) for row in rows for of, value in zip(processors, row, strict=True)
            ]
            yield from connection.execute(statement, {f"v{n}": value for n, value in enumerate(flat)})

    def _statement(self, signature: Signature, number: int) -> TextualSelect:
        bound = self._bound(signature)
        place = {column.name: f"v.column{n}" for n, column in enumerate(bound, 1)}
        sets = [
            f"{_plain(_quoted(name))} = {_initial(self._table.c[name]) if default else place[name]}"
            for name, default in signature
        ]
        named = [f"t.{_plain(_quoted(column.name))} = {place[column.name]}" for column in self._key]
        width = len(bound)
        rows = ", ".join(
            f"({', '.join(f':v{n}' for n in range(row * width, (row + 1) * width))})" for row in range(number)
        )
        returned = ", ".join(_plain(_quoted(column.name)) for column in self.returned)
        sql = (
            f"UPDATE {_plain(self._target)} AS t SET {', '.join(sets)} FROM (VALUES {rows}) AS v "  # noqa: S608
            f"WHERE {' AND '.join(named)} RETURNING {returned}"
        )
        return self._typed(sql)

    def _processor(self, column: Column[Any]) -> Callable[[Any], Any] | None:
        return column.type.dialect_impl(self._dialect).bind_processor(self._dialect)


def _quoted(name: str) -> str:
    """As both databases want it. (SQLAlchemy's own doubles a percent sign, and so does `text` once more.)"""
    return '"' + name.replace('"', '""') + '"'


def _plain(sql: str) -> str:
    """A name may hold a colon, which would be a parameter."""
    return sql.replace(":", "\\:")


def _initial(column: Column[Any]) -> str:
    default = column.server_default
    return _plain(f"({default.arg})") if isinstance(default, DefaultClause) else "NULL"


_SPELLED: Mapping[type, Callable[[Any], str]] = {
    str: str,
    int: str,
    bool: lambda value: "true" if value else "false",
    float: repr,
    bytes: lambda value: f"\\x{value.hex()}",
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    Decimal: str,
}


def _spelled(value: Any, column: Column[Any]) -> str:
    """As PostgreSQL reads it."""
    if isinstance(column.type, types.JSON):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _SPELLED[type(value)](value)
