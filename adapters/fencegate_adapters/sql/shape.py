"""What a row is, however it is laid out: a JSON object with one canonical spelling, an ETag, and a way to merge."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from sqlalchemy import Connection, Table

from fencegate.core.errors import InvalidInput
from fencegate.core.ports import Key, Row, RowWrite

Op = Literal["put", "patch", "delete"]


class Change(NamedTuple):
    """What one write does to its row, decided from the row as it was, and not done yet."""

    kind: Literal["insert", "update", "delete", "nothing"]
    key: Key
    values: dict[str, Any]
    row: Row | None = None
    """The row as it will be, where `known`; else only the database can tell."""
    known: bool = False


class Unsure(Exception):
    """Several rows at once can't be told apart for certain: look at each of them alone."""


class Shape(Protocol):
    """How rows are laid out in the database. What is asked for several rows at once costs few statements."""

    form: str
    tables: tuple[Table, ...]
    key_columns: tuple[str, ...]
    exact_keys: bool
    """Whether a key names a row only by its own spelling. Where a collation or a type takes two spellings for one
    row, that shows only when a row is looked at alone."""

    def bind(self, connection: Connection) -> None:
        """Look at the database, and raise UnsafeConfiguration when the rows can't be served from it."""

    def unmarked(self, connection: Connection) -> bool:
        """Whether there are rows that only Fencegate can have written: then their marks were lost."""

    @property
    def tells_updates(self) -> bool:
        """Whether `apply` gives every row that was updated: then one that is missing was not there, or not changed."""

    def blind(self, write: RowWrite) -> bool:
        """Whether what it does to its row does not depend on what is in it, and `apply` tells whether it is there."""

    def checked(self, key: Key) -> Key:
        """The key as it names the row here; raises InvalidInput when it can't be a key."""

    def fetch(self, connection: Connection, keys: Sequence[Key], *, lock: bool = False) -> dict[Key, Row]:
        """The rows as JSON, of checked keys; absent ones are left out. With `lock` nobody changes them until the
        commit, and they are locked in one order."""

    def change(self, op: Op, key: Key, old: Row | None, value: Row, token: int) -> Change:
        """What `op` does to `old`; None is only for `put`. Raises InvalidInput or TooLarge for a wrong `value`."""

    def apply(self, connection: Connection, changes: Sequence[Change]) -> dict[Key, Row]:
        """Do them: changes of different rows, one statement for those that are alike. Gives the rows as they are then,
        where the statements tell."""

    def check_kept(self, change: Change, row: Row) -> None:
        """Raise InvalidInput when the database made something else of the values than was given."""


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(row: Row) -> str:
    """The one spelling of a JSON object."""
    try:
        text = _CANONICAL.encode(row)
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
