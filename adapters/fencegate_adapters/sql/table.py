"""Rows of a table that was there before us: its columns are the members of the JSON object."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    CursorResult,
    Table,
    bindparam,
    delete,
    insert,
    literal_column,
    select,
    tuple_,
    types,
    update,
)
from sqlalchemy.sql.dml import Update

from fencegate.core.errors import InvalidInput, ResourceUnavailable, TooLarge
from fencegate.core.names import check_text
from fencegate.core.ports import NO_CONDITIONS, Key, Row, RowWrite
from fencegate_adapters.sql.bulk import DEFAULT, MAX_STATEMENTS, Signature, bulk_updates, signature_of
from fencegate_adapters.sql.codec import is_decimal
from fencegate_adapters.sql.columns import Columns
from fencegate_adapters.sql.shape import Change, Op, Unsure, canonical, merged

MAX_KNOWN_KEYS = 4096


class UserTable:
    """The shape of a resource that names a table and its key columns."""

    tables: tuple[Table, ...] = ()
    exact_keys = False

    def __init__(
        self,
        resource: str,
        table: str,
        key: tuple[str, ...],
        max_row_bytes: int,
        token_column: str | None = None,
        *,
        marks_rows: bool = True,
    ) -> None:
        self.columns = Columns(resource, table, key, token_column)
        self._name = table
        self.key_columns = key
        self._token_column = token_column
        self._marks_rows = marks_rows
        in_row = "" if token_column is None else f" token {token_column}"
        self.form = f"table {table} key {','.join(key)}{in_row}"
        self._max_row_bytes = max_row_bytes
        self._updates: dict[Signature, Update] = {}
        self._known_keys: dict[Key, tuple[Any, ...]] = {}

    def bind(self, connection: Connection) -> None:
        self.columns.bind(connection)
        self._table, self._codecs = self.columns.table, self.columns.codecs
        keys = [self._table.c[name] for name in self.key_columns]
        named = keys[0] if len(keys) == 1 else tuple_(*keys)
        self._fetch = select(*(self._table.c[name] for name in self._codecs)).where(
            named.in_(bindparam("keys", expanding=True))
        )
        self._lock = self._fetch.order_by(*keys).with_for_update()
        self.by_key = [column == bindparam(f"fencegate_key_{n}") for n, column in enumerate(keys)]
        self._delete = delete(self._table).where(*self.by_key)
        self._insert = insert(self._table)
        self._updates.clear()
        self._known_keys.clear()
        # Two spellings of one text would be two updates of one row, and one of them under a fence that is not its own.
        one_spelling = all(isinstance(column.type, types.Integer | types.Uuid) for column in keys)
        self._sure = one_spelling and connection.dialect.name in ("postgresql", "sqlite")
        self.bulk = bulk_updates(self._table, self.key_columns, list(self._codecs), connection.dialect)

    def unmarked(self, connection: Connection) -> bool:
        return False  # the table had rows before it was protected

    @property
    def tells_updates(self) -> bool:
        return self.bulk is not None

    def blind(self, write: RowWrite) -> bool:
        plain = write.op == "patch" and write.conditions is NO_CONDITIONS and bool(write.value)
        return plain and self._sure and not any(isinstance(value, dict) for value in write.value.values())

    # --- keys --------------------------------------------------------------------------------------------------------

    def checked(self, key: Key) -> Key:
        self.key_values(key)
        return key

    def key_values(self, key: Key) -> tuple[Any, ...]:
        values = self._known_keys.get(key)
        if values is None:
            values = self._key_values(key)
            if len(self._known_keys) >= MAX_KNOWN_KEYS:
                self._known_keys.clear()
            self._known_keys[key] = values
        return values

    def _key_values(self, key: Key) -> tuple[Any, ...]:
        if len(key) != len(self.key_columns):
            raise InvalidInput("key", f"has {len(key)} segments; it takes {len(self.key_columns)}: {self._template()}")
        for text in key:
            check_text("key", text, 1024)
        return tuple(self._decoded(name, text, "key") for name, text in zip(self.key_columns, key, strict=True))

    def _template(self) -> str:
        return "/".join(f"{{{name}}}" for name in self.key_columns)

    def named(self, key: Key) -> dict[str, Any]:
        return {f"fencegate_key_{n}": value for n, value in enumerate(self.key_values(key))}

    # --- reading -----------------------------------------------------------------------------------------------------

    def fetch(self, connection: Connection, keys: Sequence[Key], *, lock: bool = False) -> dict[Key, Row]:
        values = [self.key_values(key) for key in keys]
        parameters = {"keys": values if len(self.key_columns) > 1 else [value for (value,) in values]}
        try:
            found = connection.execute(self._lock if lock else self._fetch, parameters).all()
        except (ValueError, TypeError, RecursionError) as error:
            raise ResourceUnavailable(f"{self._name} holds a value that is not of its column's type: {error}") from None
        rows = self.by_spelling(found)
        for key in rows.keys() - set(keys):
            self._misspelled(keys, rows[key])
        return rows

    def by_spelling(self, found: Iterable[Sequence[Any]]) -> dict[Key, Row]:
        """Rows of the table as JSON, by their keys."""
        rows = [self._json(each) for each in found]
        return {tuple(str(row[name]) for name in self.key_columns): row for row in rows}

    def spelled(self, values: Sequence[Any]) -> Key:
        """The key of the row whose key columns hold these values."""
        return tuple(
            str(self._codecs[name].encode(value)) for name, value in zip(self.key_columns, values, strict=True)
        )

    def _json(self, found: Sequence[Any]) -> Row:
        pairs = zip(self._codecs.items(), found, strict=True)
        return {name: None if value is None else codec.encode(value) for (name, codec), value in pairs}

    def _misspelled(self, keys: Sequence[Key], row: Row) -> None:
        """`7` and `7.0`, or `a` and `A`, may be one row to the database, but they are two lock keys and two fences."""
        if len(keys) > 1:
            raise Unsure
        for name, text in zip(self.key_columns, keys[0], strict=True):
            if str(row[name]) != text:
                raise InvalidInput("key", f"{name} is spelled {row[name]!r} in the table: use that")

    # --- writing -----------------------------------------------------------------------------------------------------

    def change(self, op: Op, key: Key, old: Row | None, value: Row, token: int) -> Change:
        if op == "delete":
            return Change("delete", key, {}, None, known=True)
        if op == "patch":
            value = {name: merged((old or {}).get(name), new) for name, new in value.items()}
        values = self._values(key, value)
        if old is None:
            self._check_key_is_given()
            of_row = {} if self._token_column is None else {self._token_column: token if self._marks_rows else 0}
            named = dict(zip(self.key_columns, self.key_values(key), strict=True))
            return Change("insert", key, named | values | of_row)
        if op == "put":
            replaced = [column.name for column in self._table.columns if self.columns.replaceable(column)]
            values = dict.fromkeys(replaced, DEFAULT) | values
        return Change("update" if values else "nothing", key, values)

    def _check_key_is_given(self) -> None:
        for name in self.key_columns:
            if self.columns.computed(self._table.c[name]):
                raise InvalidInput("key", f"{name} is computed by the database: rows can be changed here, not created")

    def apply(self, connection: Connection, changes: Sequence[Change]) -> dict[Key, Row]:
        alike: dict[tuple[str, Signature], list[Change]] = defaultdict(list)
        for change in changes:
            if change.kind != "nothing":
                alike[change.kind, signature_of(change.values)].append(change)
        rows: dict[Key, Row] = {}
        for (kind, signature), some in alike.items():
            if kind == "insert":
                connection.execute(self._insert, [change.values for change in some])
            elif kind == "delete":
                _check_all(connection.execute(self._delete, [self.named(change.key) for change in some]), some)
            elif self.bulk is None:
                new = [self._new_values(signature, change) for change in some]
                _check_all(connection.execute(self._update(signature), new), some)
            else:
                named = [(self.key_values(change.key), change.values) for change in some]
                told = self.by_spelling(self.bulk.run(connection, signature, named))
                if not told.keys() <= {change.key for change in some}:
                    raise Unsure  # a row of another spelling was meant: that is undone, and told when it is alone
                rows |= told
        return rows

    def _update(self, signature: Signature) -> Update:
        statement = self._updates.get(signature)
        if statement is None:
            new: dict[Column[Any], Any] = {
                self._table.c[name]: literal_column("DEFAULT") if default else bindparam(f"fencegate_new_{n}")
                for n, (name, default) in enumerate(signature)
            }
            statement = update(self._table).where(*self.by_key).values(new)
            if len(self._updates) < MAX_STATEMENTS:
                self._updates[signature] = statement
        return statement

    def _new_values(self, signature: Signature, change: Change) -> dict[str, Any]:
        new = {f"fencegate_new_{n}": change.values[name] for n, (name, default) in enumerate(signature) if not default}
        return self.named(change.key) | new

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
                kept = name == self._token_column
                raise InvalidInput(name, "is kept by Fencegate" if kept else f"is not a column of {self._name}")
            if not self.columns.writable(self._table.c[name]):
                raise InvalidInput(name, "is computed by the database")
            values[name] = None if value is None else self._decoded(name, value, name)
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

    def check_kept(self, change: Change, row: Row) -> None:
        """A database that rounds what it is given must not be told yes; SQLite keeps decimals as doubles."""
        for name, value in change.values.items():
            if name not in row or not is_decimal(self._table.c[name].type):
                continue
            kept = row[name]
            if kept is not None and value is not DEFAULT and Decimal(kept) != value:
                raise InvalidInput(name, f"would be rounded to {kept}")


def _check_all(result: CursorResult[Any], changes: Sequence[Change]) -> None:
    """A trigger may quietly keep a row as it is; what was not written must not be told as written."""
    if result.rowcount not in (-1, len(changes)):
        raise Unsure
