"""The rules of a fence that lives in a frame: pure steps from one header to the next."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from fencegate.core.errors import StaleToken
from fencegate.core.fence import admit
from fencegate.core.ports import ObjectInfo, Seen, ShadowRefusal
from fencegate.core.token import Token
from fencegate_adapters.objects.bucket.records import Kept
from fencegate_adapters.objects.frame import Header, Standing
from fencegate_adapters.objects.record import Mode

FRESH = Standing()


class Value(msgspec.Struct, frozen=True, gc=False):
    """What a write brings: everything of a header that does not belong to its fence."""

    size: int
    content_type: str
    metadata: Mapping[str, str]
    body: str = ""
    """Where it was uploaded to; empty when it goes into the frame."""


def standing_of(header: Header) -> Standing:
    return header.standing or FRESH


def empty(name: str, nonce: str, now_us: int) -> Header:
    """The first frame of a name: nothing is there, nothing was seen, and the record was not yet compared."""
    return Header(name, 1, nonce, modified_us=now_us, tombstone=True, standing=FRESH)


def settled(header: Header, kept: Kept) -> Header:
    """As the record wants it: nothing below its floor is accepted."""
    standing, floor = standing_of(header), kept.record.floor
    raised = replace(standing, mark=max(standing.mark, floor), shadow=max(standing.shadow, floor), epoch=kept.epoch)
    return replace(header, standing=raised)


def mark_of(header: Header, mode: Mode) -> int:
    standing = standing_of(header)
    return standing.mark if mode == "enforce" else standing.shadow


def shown(header: Header, token: Token, mode: Mode) -> tuple[Header, ShadowRefusal | None]:
    """The header once its fence was shown `token`; StaleToken when that is too low, unless in shadow mode."""
    standing = header.standing or FRESH
    mark = standing.mark if mode == "enforce" else standing.shadow
    try:
        admitted = admit(token, mark)
    except StaleToken as stale:
        if mode == "enforce":
            raise
        return header, ShadowRefusal(token, stale.highest)
    if admitted == mark:
        return header, None
    raised = replace(standing, **{"mark" if mode == "enforce" else "shadow": int(admitted)})
    return replace(header, standing=raised), None


def past_of(before: Header) -> str:
    """The `past` of the frame that comes after `before`."""
    return standing_of(before).past_after(before.nonce)


def again(header: Header, nonce: str, before: Header) -> Header:
    """The same value in the frame that comes after `before`."""
    return replace(header, nonce=nonce, standing=replace(standing_of(header), past=past_of(before)))


def with_value(header: Header, nonce: str, past: str, token: int, value: Value | None, now_us: int) -> Header:
    """Another value (None: nothing) in the frame that comes after those of the `past`; the frame's nonce names it."""
    fence = header.standing or FRESH
    if value is None:
        standing = Standing(fence.mark, fence.shadow, fence.epoch, past=past)
        return Header(header.key, token, nonce, modified_us=now_us, tombstone=True, standing=standing)
    standing = Standing(fence.mark, fence.shadow, fence.epoch, nonce, value.body, past)
    return Header(header.key, token, nonce, value.size, now_us, value.content_type, value.metadata, standing=standing)


def etag_of(header: Header) -> str | None:
    return None if header.tombstone else standing_of(header).etag


def info_of(header: Header) -> ObjectInfo:
    return ObjectInfo(
        header.size, standing_of(header).etag, header.token, header.content_type, header.metadata, header.modified_us
    )


def seen_of(header: Header, mode: Mode, shadow: ShadowRefusal | None = None, *, created: bool = False) -> Seen:
    standing = header.standing or FRESH
    mark = standing.mark if mode == "enforce" else standing.shadow
    return Seen(mark, None if header.tombstone else standing.etag, created, shadow)
