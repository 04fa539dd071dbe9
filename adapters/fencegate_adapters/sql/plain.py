"""A group of plain patches in PostgreSQL, which is one statement: it locks the fences and changes the rows.

It changes those rows whose fence it could lock and then found at the very token, and no others, and tells which. So
whatever else there is (a newer holder, a floor, a row that is gone, somebody else's lock) shows as a row that is
missing. Then all of it is taken back, and the group goes the way that is there for every group.

A holder who writes many times finds its mark where it left it, which is why this is worth a statement of its own.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection

from fencegate.core.ports import Key, Row, Seen
from fencegate_adapters.sql import fences, messages
from fencegate_adapters.sql.bulk import PostgresqlUpdates, Signature, signature_of
from fencegate_adapters.sql.group import Refused, row_after
from fencegate_adapters.sql.marks import locking, spelled, spelled_keys
from fencegate_adapters.sql.shape import Change, Shape, etag_of
from fencegate_adapters.sql.table import UserTable
from fencegate_adapters.sql.work import Done, Outcome, Work

MAX_REMEMBERED = 4096

# `free.token` is the mark as it is under the lock, however long that took to get. The mark is not looked at by itself:
# the statement sees everything else as it was when it began.
_UPDATE = """
{change}
FROM free, unnest({arrays}) AS v (fence, token, {values})
WHERE free.lock_key = v.fence AND free.token = v.token AND {named}
    AND free.token >= (SELECT floor FROM fencegate_resources WHERE {recorded})
RETURNING {returned}
"""


class NotPlain(Exception):
    """Something else was found: take it back, and judge each of the group by what is there."""


class PlainPatches:
    """Those of one resource, whose marks are in the fence table."""

    def __init__(self, shape: Shape, record: fences.Record) -> None:
        self._shape = shape
        self._record = record
        self._left_at: dict[str, int] = {}
        """By fence: the mark that we saw last. A guess of what is worth trying, and nothing rests on it."""

    def group(self, works: Sequence[Work]) -> "PlainGroup | None":
        """These as one statement; None when they can't be."""
        shape = self._shape
        if not isinstance(shape, UserTable) or not isinstance(shape.bulk, PostgresqlUpdates):
            return None
        changes: list[Change] = []
        for work in works:
            if len(work.writes) != 1 or self._left_at.get(work.fence) != work.token or not shape.blind(work.writes[0]):
                return None
            write = work.writes[0]
            try:
                changes.append(shape.change(write.op, shape.checked(write.key), {}, write.value, work.token))
            except Refused:
                return None
        signatures = {signature_of(change.values) for change in changes}
        if len(signatures) != 1 or any(change.kind != "update" for change in changes):
            return None
        return PlainGroup(shape, shape.bulk, self._record, signatures.pop(), changes)

    def remember(self, outcomes: Mapping[Work, Outcome]) -> None:
        if len(self._left_at) > MAX_REMEMBERED:
            self._left_at.clear()
        self._left_at.update((work.fence, done.seen.mark) for work, done in outcomes.items() if isinstance(done, Done))


class PlainGroup:
    """One group in one transaction, as `Group` is; `run` raises NotPlain."""

    def __init__(
        self,
        shape: UserTable,
        updates: PostgresqlUpdates,
        record: fences.Record,
        signature: Signature,
        changes: Sequence[Change],
    ) -> None:
        self._shape = shape
        self._updates = updates
        self._record = record
        self._signature = signature
        self._changes = changes
        self.outcomes: dict[Work, Outcome] = {}
        self.left: list[Work] = []

    def run(self, connection: Connection, works: Sequence[Work], wait_ms: int) -> None:
        message = locking({work.fence: work.token for work in works}, self._record.mode, wait_ms) + self._update(works)
        rows = self._shape.by_spelling(messages.rows_of(connection, message, self._updates.returned))
        if any(change.key not in rows for change in self._changes):
            raise NotPlain
        for work, change in zip(works, self._changes, strict=True):
            self.outcomes[work] = self._done(work, change, rows)

    def _update(self, works: Sequence[Work]) -> str:
        parts = self._updates.parts(self._signature)
        named = [(self._shape.key_values(change.key), change.values) for change in self._changes]
        tokens = ",".join(str(int(work.token)) for work in works)
        columns = map(_spelled_array, self._updates.spelled(self._signature, named))
        recorded = (f"{name} = {spelled(value)}" for name, value in self._record._asdict().items())
        return _UPDATE.format(
            change=parts.change,
            arrays=", ".join((spelled_keys(work.fence for work in works), f"'{{{tokens}}}'::bigint[]", *columns)),
            values=", ".join(parts.values),
            recorded=" AND ".join(recorded),
            named=parts.named,
            returned=parts.returned,
        )

    def _done(self, work: Work, change: Change, rows: dict[Key, Row]) -> Done:
        row = row_after(change, rows, self._shape)
        return Done([row], Seen(work.token, etag_of(row)))


def _spelled_array(texts: Iterable[str | None]) -> str:
    quoted = ("NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)
    return f"{spelled('{' + ','.join(quoted) + '}')}::text[]"
