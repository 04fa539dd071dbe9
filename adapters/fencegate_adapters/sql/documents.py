"""Rows without a schema: each is a JSON object, kept as canonical JSON in a table of our own."""

import json
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update

from fencegate.core.errors import TooLarge
from fencegate.core.names import check_path
from fencegate.core.ports import Key, Row
from fencegate_adapters.sql.shape import canonical, merged
from fencegate_adapters.sql.tables import documents


class Documents:
    """The shape of a resource that names no table."""

    form = "documents"
    tables: tuple[Table, ...] = (documents,)
    key_columns: tuple[str, ...] = ("key",)

    def __init__(self, resource: str, max_row_bytes: int) -> None:
        self._resource = resource
        self._max_row_bytes = max_row_bytes

    def bind(self, connection: Connection) -> None:
        """Nothing to look at: the table is ours."""

    def unmarked(self, connection: Connection) -> bool:
        any_row = select(documents.c.key).where(documents.c.resource == self._resource).limit(1)
        return connection.execute(any_row).first() is not None

    def fetch(self, connection: Connection, key: Key) -> Row | None:
        text = connection.execute(select(documents.c.document).where(*self._named(key))).scalar()
        return None if text is None else dict(json.loads(text))

    def put(self, connection: Connection, key: Key, old: Row | None, value: Row) -> None:
        text = canonical(value)
        if len(text.encode()) > self._max_row_bytes:
            raise TooLarge(f"the row is over {self._max_row_bytes} bytes")
        if old is None:
            connection.execute(insert(documents).values(resource=self._resource, key=_bytes(key), document=text))
        else:
            connection.execute(update(documents).where(*self._named(key)).values(document=text))

    def patch(self, connection: Connection, key: Key, old: Row, value: Row) -> None:
        self.put(connection, key, old, merged(old, value))

    def delete(self, connection: Connection, key: Key) -> None:
        connection.execute(delete(documents).where(*self._named(key)))

    def _named(self, key: Key) -> tuple[Any, ...]:
        return documents.c.resource == self._resource, documents.c.key == _bytes(key)


def _bytes(key: Key) -> bytes:
    return check_path("key", "/".join(key)).encode()
