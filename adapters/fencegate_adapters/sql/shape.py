"""What a row is, however it is laid out: a JSON object with one canonical spelling, an ETag, and a way to merge."""

import hashlib
import json
from typing import Any, Protocol

from sqlalchemy import Connection, Table

from fencegate.core.errors import InvalidInput
from fencegate.core.ports import Key, Row


class Shape(Protocol):
    """How rows are laid out in the database."""

    form: str
    tables: tuple[Table, ...]
    key_columns: tuple[str, ...]

    def bind(self, connection: Connection) -> None:
        """Look at the database, and raise UnsafeConfiguration when the rows can't be served from it."""

    def unmarked(self, connection: Connection) -> bool:
        """Whether there are rows that only Fencegate can have written: then their marks were lost."""

    def fetch(self, connection: Connection, key: Key) -> Row | None:
        """The row as JSON."""

    def put(self, connection: Connection, key: Key, old: Row | None, value: Row) -> None:
        """Replace `old`, or create the row when there was none."""

    def patch(self, connection: Connection, key: Key, old: Row, value: Row) -> None:
        """Merge `value` into `old` (RFC 7396)."""

    def delete(self, connection: Connection, key: Key) -> None:
        """Remove the row."""


def canonical(row: Row) -> str:
    """The one spelling of a JSON object."""
    try:
        text = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("row", "holds half of a surrogate pair, which is not a character") from None
    except RecursionError:
        raise InvalidInput("row", "is nested too deeply") from None
    except (TypeError, ValueError):
        raise InvalidInput("row", "is not JSON") from None
    return text


def etag_of(row: Row | None) -> str | None:
    return None if row is None else hashlib.sha256(canonical(row).encode()).hexdigest()[:32]


def merged(old: Any, patch: Any) -> Any:
    """RFC 7396: objects merge, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
