"""Rows over HTTP: JSON objects that are read, replaced, merged and removed, one by one or as a batch."""

from collections.abc import Sequence

from fencegate.clock import Clock
from fencegate.core.errors import InvalidInput, NotFound
from fencegate.core.ports import NO_CONDITIONS, Key, Row, Rows, RowWrite, Seen
from fencegate.core.token import Token
from fencegate.gateway.batch import Op, one_fence, parse_batch
from fencegate.gateway.bodies import json_object
from fencegate.gateway.call import Call
from fencegate.gateway.conditions import given_conditions, judge_read, quoted, wants_representation
from fencegate.gateway.paths import check_key
from fencegate.gateway.protected import Answer, Protected
from fencegate.gateway.resources import RowsSettings
from fencegate.web.asgi import Headers, Reply
from fencegate.web.json import dumps

REPRESENTED = (b"preference-applied", b"return=representation")


class ProtectedRows(Protected):
    """The calls of a resource of rows."""

    settings: RowsSettings

    def __init__(self, settings: RowsSettings, rows: Rows, clock: Clock, within_s: float) -> None:
        super().__init__(settings, rows, clock, within_s)
        self._rows = rows
        self._max_bytes = settings.max_row_bytes
        self.calls = {
            "GET": self._get,
            "HEAD": self._get,
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }

    def key_of(self, segments: Sequence[str], field: str = "key") -> Key:
        """A document's key is its whole path; a table's has a segment for each key column."""
        key = check_key(segments, field)
        if self.settings.documents:
            return ("/".join(key),)
        columns = self.settings.key_columns
        if len(key) != len(columns):
            raise InvalidInput(field, f"must have {len(columns)} segments ({'/'.join(columns)}), not {len(key)}")
        return key

    def verb(self, method: str, segments: Sequence[bytes]) -> Answer | None:
        return self._batch if method == "POST" and segments == (b"batch",) else None

    async def _get(self, call: Call) -> Reply:
        token = self.given(call)
        outcome = "not-written" if token is None else "unknown"
        row, seen = await self.within(self._rows.read(call.key, call.fence, token), outcome)
        call.saw(seen)
        if row is None or seen.etag is None:
            raise NotFound("there is no such row", resource=self.settings.name, key=call.key_text)
        return judge_read(call.request, seen.etag) or Reply(200, dumps(row), [(b"etag", quoted(seen.etag))])

    async def _put(self, call: Call) -> Reply:
        return await self._write(call, "put")

    async def _patch(self, call: Call) -> Reply:
        return await self._write(call, "patch")

    async def _delete(self, call: Call) -> Reply:
        token = self.required(call)
        conditions = given_conditions(call.request)
        seen = await self.within(self._rows.delete(call.key, call.fence, token, conditions), "unknown")
        call.saw(seen)
        return Reply(204)

    async def _write(self, call: Call, op: Op) -> Reply:
        token = self.required(call)
        conditions = given_conditions(call.request)
        value = await json_object(call.request, self._max_bytes, self.within_s)
        rows, seen = await self._written(call, token, [RowWrite(op, call.key, value, conditions)])
        headers: Headers = [(b"etag", quoted(seen.etag))] if seen.etag is not None else []
        if wants_representation(call.request):
            return Reply(201 if seen.created else 200, dumps(rows[0]), [*headers, REPRESENTED])
        return Reply(201 if seen.created else 204, headers=headers)

    async def _batch(self, call: Call) -> Reply:
        if self.guard.covers_all:
            call.fence = self.guard.lock_key()
        self.required(call)
        if given_conditions(call.request) != NO_CONDITIONS:
            raise InvalidInput("If-Match", "a batch has no conditions, nor has it If-None-Match")
        body = await json_object(call.request, self._max_bytes, self.within_s)
        writes = parse_batch(body, self.key_of)
        call.key = writes[0].key
        call.fence = one_fence(writes, self.guard)
        rows, _ = await self._written(call, self.required(call), writes)
        if wants_representation(call.request):
            return Reply(200, dumps({"written": len(writes), "rows": rows}), [REPRESENTED])
        return Reply(200, dumps({"written": len(writes)}))

    async def _written(self, call: Call, token: Token, writes: Sequence[RowWrite]) -> tuple[list[Row | None], Seen]:
        rows, seen = await self.within(self._rows.write(call.fence, token, writes), "unknown")
        call.saw(seen)
        return rows, seen
