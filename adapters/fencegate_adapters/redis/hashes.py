"""Redis hashes as rows: a JSON object of strings, field by field, under the user's own names."""

from collections.abc import Iterator, Sequence
from typing import Any

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import InvalidInput, ResourceUnavailable
from fencegate.core.ports import NO_CONDITIONS, Conditions, Key, Row, RowWrite, Seen
from fencegate_adapters.redis import names, script
from fencegate_adapters.redis.link import Argument
from fencegate_adapters.redis.resource import WAIT_MS, Mode, RedisResource, spelled

DEFAULT_MAX_ROW_BYTES = 1024 * 1024
MAX_FIELDS = 10_000


class RedisHashes(RedisResource):
    """See the head of this file. PUT replaces the hash, PATCH sets and removes (null) fields of it."""

    form = "hashes"
    key_columns: tuple[str, ...] = ("key",)

    def __init__(
        self,
        name: str,
        url: str,
        *,
        guard_template: str = "{resource}:{key}",
        mode: Mode = "enforce",
        max_row_bytes: int = DEFAULT_MAX_ROW_BYTES,
        wait_ms: int = WAIT_MS,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(name, url, guard_template=guard_template, mode=mode, wait_ms=wait_ms, clock=clock)
        self._max_row_bytes = max_row_bytes

    async def read(self, key: Key, fence: str, token: int | None = None) -> tuple[Row | None, Seen]:
        passed = await self._pass(script.ROW_READ, fence, token, (self._key(key),))
        etag, flat = passed.found
        if flat is None:
            return None, passed.seen()
        try:
            row = _row(flat, "strict")
        except UnicodeDecodeError:
            raise ResourceUnavailable(
                "the hash holds bytes that are not UTF-8, which JSON can't carry: read it from Redis itself"
            ) from None
        return row, passed.seen(etag.decode())

    async def write(self, fence: str, token: int, writes: Sequence[RowWrite]) -> tuple[list[Row | None], Seen]:
        if not writes:
            raise InvalidInput("writes", "must not be empty")
        keys = list(dict.fromkeys(self._key(write.key) for write in writes))
        numbers = {key: number for number, key in enumerate(keys, 1)}
        said: list[Argument] = [self._max_row_bytes]
        for write in writes:
            said += [write.op, numbers[self._key(write.key)], *spelled(write.conditions), *_changes(write)]
        passed = await self._pass(script.ROW_WRITE, fence, token, tuple(keys), tuple(said), "resource.write")
        created, etag, rows = passed.found
        # The write is done, so bytes of others that are not UTF-8 must not make an error of it.
        told = [None if flat is None else _row(flat, "replace") for flat in rows]
        return told, passed.seen(etag.decode() if etag is not None else None, created=created == 1)

    async def delete(self, key: Key, fence: str, token: int, conditions: Conditions = NO_CONDITIONS) -> Seen:
        _, seen = await self.write(fence, token, [RowWrite("delete", key, conditions=conditions)])
        return seen

    def _key(self, key: Key) -> str:
        return names.value_name(self._prefix, names.name_of(key))


def _row(flat: list[bytes], errors: str) -> Row:
    texts = [part.decode(errors=errors) for part in flat]
    return dict(sorted(zip(texts[::2], texts[1::2], strict=True)))


def _changes(write: RowWrite) -> Iterator[Argument]:
    """The fields that a write sets, and the names of those that it removes, each counted."""
    if len(write.value) > MAX_FIELDS:
        raise InvalidInput("row", f"has over {MAX_FIELDS} fields")
    given = {_bytes(name, name): value for name, value in write.value.items()}
    removed = [name for name, value in given.items() if value is None and write.op == "patch"]
    kept = {name: value for name, value in given.items() if name not in removed}
    yield len(kept)
    for name, value in kept.items():
        yield name
        yield _bytes(name.decode(), _text(name.decode(), value))
    yield len(removed)
    yield from removed


def _text(field: str, value: Any) -> str:
    """Redis knows strings only. A whole number has one spelling; of other values the caller has to choose it."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidInput(field, 'must be a string or a whole number: spell others as you mean them, such as "12.50"')


def _bytes(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            field.encode(errors="replace").decode(), "holds half of a surrogate pair, which is not a character"
        ) from None
