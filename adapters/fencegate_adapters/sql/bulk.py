"""Updates of many rows by one statement, each row with values of its own, and the rows as they are then.

Where a database has no such statement (MySQL), `bulk_updates` gives None, and they are done one by one.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from typing import Any, Protocol

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
        self._returned = [table.c[name] for name in returned]
        self._quote = dialect.identifier_preparer.quote
        self._target = dialect.identifier_preparer.format_table(table)
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
        return text(sql).columns(*self._returned)

    def _bound(self, signature: Signature) -> list[Column[Any]]:
        return [*self._key, *(self._table.c[name] for name, default in signature if not default)]


class PostgresqlUpdates(_Updates):
    """Values travel as arrays of text, one for each column: the statement is the same for any number of rows."""

    def run(
        self, connection: Connection, signature: Signature, changes: Sequence[tuple[tuple[Any, ...], Values]]
    ) -> Iterator[Sequence[Any]]:
        statement = self._kept(signature, lambda: self._statement(signature))
        names = [name for name, default in signature if not default]
        rows = [(*key, *(values[name] for name in names)) for key, values in changes]
        spelled = {
            f"v{n}": [None if value is None else _spelled(value, column) for value in of_column]
            for n, (column, of_column) in enumerate(zip(self._bound(signature), zip(*rows, strict=True), strict=True))
        }
        yield from connection.execute(statement, spelled)

    def _statement(self, signature: Signature) -> TextualSelect:
        bound = self._bound(signature)
        place = {column.name: f"CAST(v.v{n} AS {self._type(column)})" for n, column in enumerate(bound)}
        sets = [f"{self._quote(name)} = {'DEFAULT' if default else place[name]}" for name, default in signature]
        named = [f"t.{self._quote(column.name)} = {place[column.name]}" for column in self._key]
        arrays = ", ".join(f"CAST(:v{n} AS text[])" for n in range(len(bound)))
        columns = ", ".join(f"v{n}" for n in range(len(bound)))
        returned = ", ".join(f"t.{self._quote(column.name)}" for column in self._returned)
        sql = (
            f"UPDATE {_plain(self._target)} AS t SET {_plain(', '.join(sets))} "  # noqa: S608 - quoted names only
            f"FROM unnest({arrays}) AS v ({columns}) WHERE {_plain(' AND '.join(named))} RETURNING {_plain(returned)}"
        )
        statement = text(sql).bindparams(*(bindparam(f"v{n}", type_=ARRAY(Text)) for n in range(len(bound))))
        return statement.columns(*self._returned)

    def _type(self, column: Column[Any]) -> str:
        """The type to cast to. Without the length of a text: a cast would cut what an assignment refuses."""
        if isinstance(column.type, types.CHAR):
            return "bpchar"
        if isinstance(column.type, types.String) and not isinstance(column.type, types.Enum):
            return "text"
        return str(column.type.compile(dialect=self._dialect))


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
            f"{_plain(self._quote(name))} = {_initial(self._table.c[name]) if default else place[name]}"
            for name, default in signature
        ]
        named = [f"t.{_plain(self._quote(column.name))} = {place[column.name]}" for column in self._key]
        width = len(bound)
        rows = ", ".join(
            f"({', '.join(f':v{n}' for n in range(row * width, (row + 1) * width))})" for row in range(number)
        )
        returned = ", ".join(_plain(self._quote(column.name)) for column in self._returned)
        sql = (
            f"UPDATE {_plain(self._target)} AS t SET {', '.join(sets)} FROM (VALUES {rows}) AS v "  # noqa: S608
            f"WHERE {' AND '.join(named)} RETURNING {returned}"
        )
        return self._typed(sql)

    def _processor(self, column: Column[Any]) -> Callable[[Any], Any] | None:
        return column.type.dialect_impl(self._dialect).bind_processor(self._dialect)


def _plain(sql: str) -> str:
    """A name may hold a colon, which would be a parameter."""
    return sql.replace(":", "\\:")


def _initial(column: Column[Any]) -> str:
    default = column.server_default
    return _plain(f"({default.arg})") if isinstance(default, DefaultClause) else "NULL"


def _spelled(value: Any, column: Column[Any]) -> str:
    """As PostgreSQL reads it."""
    if isinstance(column.type, types.JSON):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
