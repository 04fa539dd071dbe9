"""The body of a batch: several writes of rows under one lock."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from fencegate.core.errors import InvalidInput
from fencegate.core.names import Guard
from fencegate.core.ports import Key, RowWrite

MAX_WRITES = 1000

Op = Literal["put", "patch", "delete"]

_FIELDS = frozenset({"op", "key", "value"})


def parse_batch(body: dict[str, Any], key_of: Callable[[Sequence[str], str], Key]) -> list[RowWrite]:
    """`{"writes": [{"op": "put", "key": "a" or ["a", "b"], "value": {…}}, …]}`, checked."""
    for name in body:
        if name != "writes":
            raise InvalidInput(name, "is not a field of a batch")
    writes = body.get("writes")
    if not isinstance(writes, list) or not 1 <= len(writes) <= MAX_WRITES:
        raise InvalidInput("writes", f"must be a list of 1 to {MAX_WRITES} writes")
    return [_parse(index, write, key_of) for index, write in enumerate(writes)]


def one_fence(writes: Sequence[RowWrite], guard: Guard) -> str:
    """The lock key that guards every write of the batch: one token can't speak for two locks."""
    fence = guard.lock_key(writes[0].key)
    for index, write in enumerate(writes):
        if guard.lock_key(write.key) != fence:
            raise _wrong(index, "key is guarded by another lock than the first write's")
    return fence


def _parse(index: int, write: Any, key_of: Callable[[Sequence[str], str], Key]) -> RowWrite:
    if not isinstance(write, dict) or not _FIELDS.issuperset(write):
        raise _wrong(index, "must be an object of op, key and value")
    op, key, value = write.get("op"), write.get("key"), write.get("value")
    if op not in ("put", "patch", "delete"):
        raise _wrong(index, "op must be put, patch or delete")
    if op == "delete" and "value" in write:
        raise _wrong(index, "a delete has no value")
    if op != "delete" and not isinstance(value, dict):
        raise _wrong(index, "value must be a JSON object")
    segments = [key] if isinstance(key, str) else key
    if not isinstance(segments, list) or not segments or not all(isinstance(segment, str) for segment in segments):
        raise _wrong(index, "key must be a string, or a list of strings")
    try:
        return RowWrite(cast(Op, op), key_of(segments, "key"), value or {})
    except InvalidInput as error:
        raise _wrong(index, error.detail) from None


def _wrong(index: int, detail: str) -> InvalidInput:
    return InvalidInput("writes", f"write {index}: {detail}")
