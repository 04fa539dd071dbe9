"""What is asked of `fencegate protect`: which table, by which key, under which lock."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate.core.names import check_lock_key, check_text
from fencegate.core.token import Token

DEFAULT_GUARD = "{table}:{key}"
_MAX_NAME_BYTES = 512
_MAX_GUARD_BYTES = 512
_MAX_KEY_COLUMNS = 16

_QUOTED = r'"(?:[^"]|"")+"|`(?:[^`]|``)+`'
_NAME = re.compile(rf'(?:({_QUOTED}|[^."`]+)\.)?({_QUOTED}|[^."`]+)')
_HOLE = re.compile(r"\{([^{}]*)\}")


class TableName(NamedTuple):
    """A table, perhaps with its schema, as it is spelled in the catalog."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


class ColumnPart(NamedTuple):
    """A part of a lock key that comes from a column of the row."""

    column: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """`key` are columns in the order in which `{key}` joins them."""

    table: TableName
    key: tuple[str, ...]
    guard: str = DEFAULT_GUARD
    floor: int | None = None
    allow_gaps: bool = False
    """Install although the database lets some writes go round the triggers."""

    def __post_init__(self) -> None:
        for column in self.key:
            check_text("key", column, _MAX_NAME_BYTES)
        if len(set(self.key)) != len(self.key) or not 1 <= len(self.key) <= _MAX_KEY_COLUMNS:
            raise InvalidInput("key", f"name 1 to {_MAX_KEY_COLUMNS} columns, each once")
        check_text("guard", self.guard, _MAX_GUARD_BYTES)
        if self.floor is not None:
            Token(self.floor)


def table_name(text: str) -> TableName:
    """From the command line: `accounts`, `shop.accounts`, or quoted where a name holds a dot: `"shop"."a.b"`.

    >>> table_name('shop."a.b"')
    TableName(schema='shop', name='a.b')
    """
    check_text("table", text, 2 * _MAX_NAME_BYTES)
    found = _NAME.fullmatch(text)
    if found is None:
        raise InvalidInput("table", 'is not a name: TABLE or SCHEMA.TABLE, in double quotes where a name holds a "."')
    schema, name = (_unquoted(part) if part is not None else None for part in found.groups())
    return TableName(schema, name or "")


def _unquoted(part: str) -> str:
    return part[1:-1].replace(part[0] * 2, part[0]) if part[0] in '"`' else part


def guard_parts(guard: str, table: str, key: tuple[str, ...]) -> tuple[str | ColumnPart, ...]:
    """The lock key as text and columns in turn.

    >>> guard_parts("{table}:{key}", "accounts", ("tenant", "id"))
    ('accounts:', ColumnPart(column='tenant'), '/', ColumnPart(column='id'))
    """
    parts: list[str | ColumnPart] = []
    for number, piece in enumerate(_HOLE.split(guard)):
        new = _of_hole(guard, piece, table, key) if number % 2 else [_literal(guard, piece)]
        for part in new:
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            elif part:
                parts.append(part)
    if not any(isinstance(part, ColumnPart) for part in parts):
        check_lock_key("".join(map(str, parts)), "guard")
    return tuple(parts)


def beginning(guard: str, table: str) -> bytes:
    """How the fences of all locks that a guard can name begin. (A permit's goes on with `#` and its slot.)

    >>> beginning("{table}:{key}", "accounts")
    b'accounts:'
    """
    begun = ""
    for number, piece in enumerate(_HOLE.split(guard)):
        if number % 2 and piece not in ("table", "resource"):
            break
        begun += table if number % 2 else piece
    return begun.partition("#")[0].encode(errors="surrogatepass")


def _literal(guard: str, piece: str) -> str:
    if "{" in piece or "}" in piece:
        raise UnsafeConfiguration(f"unbalanced braces in the guard {guard!r}")
    return piece


def _of_hole(guard: str, hole: str, table: str, key: tuple[str, ...]) -> list[str | ColumnPart]:
    if hole in ("table", "resource"):  # a resource of the gateway often has the name of its table
        return [table]
    if hole == "key":
        joined: list[str | ColumnPart] = [part for column in key for part in ("/", ColumnPart(column))]
        return joined[1:]
    if hole in key:
        return [ColumnPart(hole)]
    allowed = ", ".join(f"{{{name}}}" for name in ("table", "key", *key))
    raise UnsafeConfiguration(f"the guard {guard!r} names {{{hole}}}, but only {allowed} can be filled in")
