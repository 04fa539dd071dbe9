"""A table that was there before us, looked at: its columns, whether its key is unique, and how its values travel."""

import re
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Table, inspect, types
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import NoSuchTableError

from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.sql.codec import Codec, codec_of, takes_text
from fencegate_adapters.sql.far_times import taking_far_times
from fencegate_adapters.sql.tables import OWN_TABLES

_CHECKS = """
SELECT check_clause FROM information_schema.check_constraints
WHERE constraint_schema = COALESCE(%s, DATABASE()) AND table_name = %s
"""
_JSON_CHECK = re.compile(r"json_valid\(`(.+)`\)")


class Columns:
    """The table of a resource. `bind` looks at it, and raises UnsafeConfiguration when it can't be served."""

    def __init__(self, resource: str, table: str, key: tuple[str, ...], token_column: str | None) -> None:
        if table.lower().rpartition(".")[2] in OWN_TABLES:
            raise UnsafeConfiguration(f"resource {resource!r}: {table!r} is a table of Fencegate itself")
        if token_column in key:
            raise UnsafeConfiguration(f"resource {resource!r}: the token column {token_column!r} is part of the key")
        self._resource = resource
        self._name = table
        self._key = key
        self._token_column = token_column
        self.table: Table
        self.codecs: dict[str, Codec]

    def bind(self, connection: Connection) -> None:
        there = inspect(connection)
        name, schema = self._place(there)
        try:
            self.table = Table(name, MetaData(), schema=schema, autoload_with=connection, resolve_fks=False)
        except NoSuchTableError:
            raise self._unsafe(f"there is no table {self._name!r}") from None
        for column in filter(None, (*self._key, self._token_column)):
            if column not in self.table.c:
                raise self._unsafe(f"{self._name} has no column {column!r}")
        self._check_unique(there)
        narrow = types.Integer if connection.dialect.name == "sqlite" else types.BigInteger  # SQLite's have 64 bits
        if self._token_column is not None and not isinstance(self.table.c[self._token_column].type, narrow):
            raise self._unsafe(f"the token column {self._token_column!r} must be a BIGINT")
        json_columns = self._checked_as_json(connection)
        self.codecs = {
            column.name: self._codec(column, connection.dialect.name, json_columns)
            for column in self.table.columns
            if column.name != self._token_column
        }
        for column in self._key:
            if not takes_text(self.codecs[column]):
                raise self._unsafe(
                    f"the key column {column!r} is a {self.table.c[column].type}, which no path can name"
                )

    def writable(self, column: Column[Any]) -> bool:
        """Whether a row that is sent may name it, beside the key."""
        return column.name not in self._key and column.name != self._token_column and not self.computed(column)

    def computed(self, column: Column[Any]) -> bool:
        """Whether the database alone says what is in it."""
        return column.computed is not None or (column.identity is not None and bool(column.identity.always))

    def replaceable(self, column: Column[Any]) -> bool:
        """Whether a row that is replaced without naming it gets its default. Not a number that the database counts, nor
        another primary key than ours: the row is still the same one, and others may refer to it by them."""
        counted = column.primary_key or column.autoincrement is True or column.identity is not None
        return self.writable(column) and not counted

    def _place(self, there: Inspector) -> tuple[str, str | None]:
        """`accounts`, or `schema.accounts`; a table whose own name has a dot comes first."""
        schema, dot, name = self._name.partition(".")
        if dot and not there.has_table(self._name):
            return name, schema
        return self._name, None

    def _check_unique(self, there: Inspector) -> None:
        """A key that names several rows would write rows whose fence it never passed."""
        name, schema = self.table.name, self.table.schema
        unique = [set(self.table.primary_key.columns.keys())]
        unique += [set(constraint["column_names"]) for constraint in there.get_unique_constraints(name, schema)]
        unique += [
            {column or "" for column in index["column_names"]}
            for index in there.get_indexes(name, schema)
            if index["unique"] and not any(index.get("dialect_options", {}).get(f"{d}_where") for d in _PARTIAL)
        ]
        if set(self._key) not in unique:
            raise self._unsafe(f"{', '.join(self._key)} must be the primary key of {self._name}, or unique")

    def _checked_as_json(self, connection: Connection) -> set[str]:
        """MariaDB keeps JSON as text under a check, and tells only of the check."""
        if not getattr(connection.dialect, "is_mariadb", False):
            return set()
        checks = connection.exec_driver_sql(_CHECKS, (self.table.schema, self.table.name)).scalars()
        return {found[1] for check in checks if (found := _JSON_CHECK.fullmatch(check)) is not None}

    def _codec(self, column: Column[Any], dialect: str, json_columns: set[str]) -> Codec:
        if column.name in json_columns:
            column.type = mysql.JSON()
        while isinstance(column.type, postgresql.DOMAIN):  # a cast to it would cut what an assignment refuses
            column.type = column.type.data_type
        if isinstance(column.type, mysql.TIME):
            column.type = _Time(fsp=column.type.fsp)
        kind = column.type
        if isinstance(kind, types.JSON):
            kind.none_as_null = True  # null is the absence of a value, not the JSON value
        if isinstance(kind, types.Float):
            kind.asdecimal = False
        if isinstance(kind, types.Uuid):
            kind = column.type = types.Uuid(as_uuid=False)
        codec = codec_of(kind)
        if codec is None or (isinstance(kind, types.NullType) and dialect != "sqlite"):
            spelled = "one that is not known here" if isinstance(kind, types.NullType) else kind
            raise self._unsafe(f"{column.name!r} is of the type {spelled}, which has no JSON form")
        return taking_far_times(kind, codec) if dialect == "postgresql" else codec

    def _unsafe(self, detail: str) -> UnsafeConfiguration:
        return UnsafeConfiguration(f"resource {self._resource!r}: {detail}")


class _Time(mysql.TIME):
    """A TIME of MySQL may be a length, beyond a day or negative: SQLAlchemy shows what is left of it by days."""

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        return _shown


def _shown(value: Any) -> Any:
    if not isinstance(value, timedelta):
        return value
    if timedelta(0) <= value < timedelta(days=1):
        return (datetime.min + value).time()
    seconds, fraction = divmod(abs(value), timedelta(seconds=1))
    digits = f".{fraction.microseconds:06}" if fraction else ""
    sign = "-" if value < timedelta(0) else ""
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{digits}"


_PARTIAL = ("sqlite", "postgresql")
