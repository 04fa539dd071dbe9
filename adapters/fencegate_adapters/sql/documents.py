"""Rows without a schema: each is a JSON object, kept as canonical JSON in a table of our own."""

import json
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from fencegate.core.errors import TooLarge
from fencegate.core.names import check_path
from fencegate.core.ports import Key, Row, RowWrite
from fencegate_adapters.sql.bulk import bulk_updates, signature_of
from fencegate_adapters.sql.shape import Change, Op, Unsure, canonical, merged
from fencegate_adapters.sql.tables import documents

STATEMENT_BYTES = 1024 * 1024
"""What one statement carries at most, beyond a single document: some servers refuse large packets."""

_NAMED = (documents.c.resource == bindparam("of"), documents.c.key == bindparam("named"))
_FETCH = select(documents.c.key, documents.c.document).where(
    documents.c.resource == bindparam("of"), documents.c.key.in_(bindparam("keys", expanding=True))
)
_LOCK = _FETCH.order_by(documents.c.key).with_for_update()
_INSERT = insert(documents)
_UPDATE = update(documents).where(*_NAMED).values(document=bindparam("text"))
_TEXT = signature_of({"document": ""})
_DELETE = delete(documents).where(*_NAMED)


class Documents:
    """The shape of a resource that names no table."""

    form = "documents"
    tables: tuple[Table, ...] = (documents,)
    key_columns: tuple[str, ...] = ("key",)
    exact_keys = True  # they are bytes
    tells_updates = False

    def __init__(self, resource: str, max_row_bytes: int) -> None:
        self._resource = resource
        self._max_row_bytes = max_row_bytes

    def bind(self, connection: Connection) -> None:
        self._bulk = bulk_updates(documents, ("resource", "key"), ("key",), connection.dialect)

    def unmarked(self, connection: Connection) -> bool:
        any_row = select(documents.c.key).where(documents.c.resource == self._resource).limit(1)
        return connection.execute(any_row).first() is not None

    def blind(self, write: RowWrite) -> bool:
        return False

    def checked(self, key: Key) -> Key:
        return (check_path("key", "/".join(key)),)

    def fetch(self, connection: Connection, keys: Sequence[Key], *, lock: bool = False) -> dict[Key, Row]:
        by_bytes = {_bytes(key): key for key in keys}
        parameters = {"of": self._resource, "keys": list(by_bytes)}
        found = connection.execute(_LOCK if lock else _FETCH, parameters)
        return {by_bytes[bytes(name)]: json.loads(text) for name, text in found}

    def change(self, op: Op, key: Key, old: Row | None, value: Row, token: int) -> Change:
        if op == "delete":
            return Change("delete", key, {}, None, known=True)
        row = value if op == "put" else merged(old, value)
        text = canonical(row)
        if len(text.encode()) > self._max_row_bytes:
            raise TooLarge(f"the row is over {self._max_row_bytes} bytes")
        return Change("insert" if old is None else "update", key, {"document": text}, row, known=True)

    def apply(self, connection: Connection, changes: Sequence[Change]) -> dict[Key, Row]:
        for some in _in_parts(_of("insert", changes)):
            rows = [{"resource": self._resource, "key": _bytes(one.key), **one.values} for one in some]
            connection.execute(_INSERT, rows)
        for some in _in_parts(_of("update", changes)):
            self._update(connection, some)
        deleted = [self._named(change) for change in _of("delete", changes)]
        if deleted:
            connection.execute(_DELETE, deleted)
        return {}

    def _update(self, connection: Connection, changes: Sequence[Change]) -> None:
        if self._bulk is None:
            connection.execute(_UPDATE, [self._named(one) | {"text": one.values["document"]} for one in changes])
            return
        named = [((self._resource, _bytes(one.key)), one.values) for one in changes]
        if len(list(self._bulk.run(connection, _TEXT, named))) != len(changes):
            raise Unsure

    def check_kept(self, change: Change, row: Row) -> None:
        """It is text, and kept as it is."""

    def _named(self, change: Change) -> dict[str, object]:
        return {"of": self._resource, "named": _bytes(change.key)}


def _of(kind: str, changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.kind == kind]


def _in_parts(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Parts that fit into a statement."""
    part: list[Change] = []
    size = 0
    for change in changes:
        more = len(change.values["document"])
        if part and size + more > STATEMENT_BYTES:
            yield part
            part, size = [], 0
        part.append(change)
        size += more
    if part:
        yield part


def _bytes(key: Key) -> bytes:
    (name,) = key
    return name.encode()
