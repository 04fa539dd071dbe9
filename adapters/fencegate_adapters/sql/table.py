"""Rows of a table that was there before us: its columns are the members of the JSON object."""

from typing import Any

from sqlalchemy import Column, Connection, FetchedValue, MetaData, Table, delete, insert, inspect, select, types, update
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import DefaultClause
from sqlalchemy.sql.expression import null

from fencegate.core.errors import InvalidInput, ResourceUnavailable, TooLarge, UnsafeConfiguration
from fencegate.core.names import check_text
from fencegate.core.ports import Key, Row
from fencegate_adapters.sql.codec import Codec, codec_of
from fencegate_adapters.sql.shape import canonical, merged
from fencegate_adapters.sql.tables import OWN_TABLES


class UserTable:
    """The shape of a resource that names a table and its key columns."""

    tables: tuple[Table, ...] = ()

    def __init__(self, resource: str, table: str, key: tuple[str, ...], max_row_bytes: int) -> None:
        if table.lower() in OWN_TABLES:
            raise UnsafeConfiguration(f"resource {resource!r}: {table!r} is a table of Fencegate itself")
        self._resource = resource
        self._name = table
        self.key_columns = key
        self.form = f"table {table} key {','.join(key)}"
        self._max_row_bytes = max_row_bytes
        self._table: Table
        self._codecs: dict[str, Codec]

    # --- the database's side -----------------------------------------------------------------------------------------

    def bind(self, connection: Connection) -> None:
        try:
            self._table = Table(self._name, MetaData(), autoload_with=connection, resolve_fks=False)
        except NoSuchTableError:
            raise UnsafeConfiguration(f"resource {self._resource!r}: there is no table {self._name!r}") from None
        for name in self.key_columns:
            if name not in self._table.c:
                raise UnsafeConfiguration(f"resource {self._resource!r}: {self._name} has no column {name!r}")
        self._check_unique(connection)
        self._codecs = {column.name: self._codec(column) for column in self._table.columns}

    def _check_unique(self, connection: Connection) -> None:
        """A key that names several rows would write rows whose fence it never passed."""
        there = inspect(connection)
        unique = [set(self._table.primary_key.columns.keys())]
        unique += [set(constraint["column_names"]) for constraint in there.get_unique_constraints(self._name)]
        unique += [
            {name or "" for name in index["column_names"]}
            for index in there.get_indexes(self._name)
            if index["unique"] and not any(option.endswith("_where") for option in index.get("dialect_options", {}))
        ]
        if set(self.key_columns) not in unique:
            raise UnsafeConfiguration(
                f"resource {self._resource!r}: {', '.join(self.key_columns)} must be the primary key of "
                f"{self._name}, or unique"
            )

    def _codec(self, column: Column[Any]) -> Codec:
        codec = codec_of(column.type)
        if codec is None:
            raise UnsafeConfiguration(
                f"resource {self._resource!r}: {column.name!r} is of the type {column.type}, which has no JSON form"
            )
        return codec

    def unmarked(self, connection: Connection) -> bool:
        return False  # the table had rows before it was protected

    # --- reading -----------------------------------------------------------------------------------------------------

    def fetch(self, connection: Connection, key: Key) -> Row | None:
        try:
            found = connection.execute(select(self._table).where(*self._named(key))).mappings().first()
        except (ValueError, TypeError) as error:
            raise ResourceUnavailable(f"{self._name} holds a value that is not of its column's type: {error}") from None
        if found is None:
            return None
        row = {name: None if found[name] is None else self._codecs[name].encode(found[name]) for name in self._codecs}
        self._check_spelling(key, row)
        return row

    def _check_spelling(self, key: Key, row: Row) -> None:
        """`7` and `7.0`, or `a` and `A`, may be one row to the database, but they are two lock keys and two fences."""
        for name, text in zip(self.key_columns, key, strict=True):
            if str(row[name]) != text:
                raise InvalidInput("key", f"{name} is spelled {row[name]!r} in the table: use that")

    def _named(self, key: Key) -> tuple[Any, ...]:
        return tuple(self._table.c[name] == value for name, value in self._key_values(key).items())

    def _key_values(self, key: Key) -> dict[str, Any]:
        if len(key) != len(self.key_columns):
            raise InvalidInput("key", f"has {len(key)} segments; it takes {len(self.key_columns)}: {self._spelled()}")
        for text in key:
            check_text("key", text, 1024)
        return {name: self._decoded(name, text, "key") for name, text in zip(self.key_columns, key, strict=True)}

    def _spelled(self) -> str:
        return "/".join(f"{{{name}}}" for name in self.key_columns)

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, connection: Connection, key: Key, old: Row | None, value: Row) -> None:
        values = self._values(key, value)
        if old is None:
            connection.execute(insert(self._table).values(self._key_values(key) | values))
        else:
            missing = {c.name: _initial(c) for c in self._table.columns if self._writable(c) and c.name not in values}
            self._update(connection, key, missing | values)
        self._check_stored(connection, key, values)

    def patch(self, connection: Connection, key: Key, old: Row, value: Row) -> None:
        changes = {name: merged(old.get(name), change) for name, change in value.items()}
        values = self._values(key, changes)
        self._update(connection, key, values)
        self._check_stored(connection, key, values)

    def delete(self, connection: Connection, key: Key) -> None:
        connection.execute(delete(self._table).where(*self._named(key)))

    def _update(self, connection: Connection, key: Key, values: dict[str, Any]) -> None:
        if values:
            connection.execute(update(self._table).where(*self._named(key)).values(values))

    def _values(self, key: Key, row: Row) -> dict[str, Any]:
        """The values of the columns that `row` names, the key's left out: they must be what the key says."""
        if len(canonical(row).encode()) > self._max_row_bytes:
            raise TooLarge(f"the row is over {self._max_row_bytes} bytes")
        values: dict[str, Any] = {}
        of_key = dict(zip(self.key_columns, key, strict=False))
        for name, value in row.items():
            if name in of_key:
                if str(value) != of_key[name]:
                    raise InvalidInput(name, f"is part of the key, which says {of_key[name]!r}")
                continue
            if name not in self._codecs:
                raise InvalidInput(name, f"is not a column of {self._name}")
            if not self._writable(self._table.c[name]):
                raise InvalidInput(name, "is computed by the database")
            values[name] = null() if value is None else self._decoded(name, value, name)
        return values

    def _decoded(self, name: str, value: Any, field: str) -> Any:
        try:
            decoded = self._codecs[name].decode(value)
        except ValueError as error:
            raise InvalidInput(field, str(error) if field == name else f"{name} {error}") from None
        limit = getattr(self._table.c[name].type, "length", None)
        if limit is not None and isinstance(decoded, str | bytes) and len(decoded) > limit:
            raise InvalidInput(field, f"{name} is longer than {limit}")
        return decoded

    def _writable(self, column: Column[Any]) -> bool:
        return column.name not in self.key_columns and column.computed is None

    def _check_stored(self, connection: Connection, key: Key, values: dict[str, Any]) -> None:
        """A database that rounds what it is given must not be told yes; SQLite keeps decimals as doubles."""
        decimals = [name for name in values if isinstance(self._table.c[name].type, types.Numeric)]
        if not decimals:
            return
        stored = connection.execute(select(*(self._table.c[n] for n in decimals)).where(*self._named(key))).mappings()
        for name, value in stored.one().items():
            if value is not None and value != values[str(name)]:
                raise InvalidInput(str(name), f"would be rounded to {value}")


def _initial(column: Column[Any]) -> Any:
    """What a column holds when a row is replaced without naming it: its default, else null."""
    default: FetchedValue | None = column.server_default
    return default.arg if isinstance(default, DefaultClause) else null()
