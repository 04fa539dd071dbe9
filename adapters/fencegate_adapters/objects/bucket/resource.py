"""Objects in a bucket, as the gateway sees them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import FencegateError, InvalidInput, ResourceUnavailable
from fencegate.core.names import Guard, check_lock_key
from fencegate.core.ports import NO_CONDITIONS, Body, Conditions, Guarantee, Key, ObjectInfo, Seen
from fencegate.core.token import MAX_TOKEN, Token
from fencegate_adapters.objects.bucket.blobs import Blobs, Connect
from fencegate_adapters.objects.bucket.fenced import Fenced, value_untouched
from fencegate_adapters.objects.bucket.frames import KNOWN, Damaged, Frame, Frames
from fencegate_adapters.objects.bucket.janitor import READERS_S, Janitor
from fencegate_adapters.objects.bucket.keys import FENCES, OBJECTS, Homes, Place, name_of, object_name, object_place
from fencegate_adapters.objects.bucket.layouts import Framed, Layout, Pointer
from fencegate_adapters.objects.bucket.listing import page
from fencegate_adapters.objects.bucket.outcomes import Moved
from fencegate_adapters.objects.bucket.probe import ROUNDS, probe
from fencegate_adapters.objects.bucket.records import Kept, Records
from fencegate_adapters.objects.bucket.standing import Value, info_of, mark_of, seen_of, shown
from fencegate_adapters.objects.bucket.url import BucketUrl
from fencegate_adapters.objects.bucket.values import Values
from fencegate_adapters.objects.record import Mode, Record

DEFAULT_MAX_BYTES = 64 * 1024 * 1024
AT_ONCE = 4
TRIES = 8

log = logging.getLogger("fencegate.objects")


class BucketObjects:
    """Objects in a bucket, each fenced by conditional writes to itself: any number of processes may share it."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        guard_template: str,
        layout: Literal["framed", "pointer"] = "framed",
        mode: Mode = "enforce",
        max_bytes: int = DEFAULT_MAX_BYTES,
        timeout_s: float = 20.0,
        readers_s: float = READERS_S,
        clock: Clock = SYSTEM,
        connect: Connect | None = None,
        probe_rounds: int = ROUNDS,
    ) -> None:
        where = BucketUrl.parse(name, url)
        guard = Guard(guard_template, name)
        self.max_bytes = max_bytes
        self._name = name
        self._mode = mode
        self._clock = clock
        self._prefix = where.prefix
        self._probe_rounds = probe_rounds
        self._homes = Homes(guard, where.prefix)
        self._places = lru_cache(KNOWN)(self._found_places)
        self.guarantee = _guarantee(self._homes.one_by_one)
        self._blobs = Blobs(name, where, timeout_s, connect)
        self._frames = Frames(name, self._blobs, clock, timeout_s)
        self._records = Records(self._blobs, Record(name, guard_template, mode, layout), clock)
        self._layout: Layout = Framed(name, max_bytes) if layout == "framed" else Pointer(self._blobs, max_bytes, clock)
        self._values = Values(self._blobs)
        self._janitor = Janitor(self._blobs, self._frames, mode, clock, readers_s)
        self._fenced = Fenced(
            name, self._frames, self._records, self._values, self._janitor, mode, clock, wait_s=timeout_s
        )

    # --- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Refuse a server that ignores conditions, make the record if it is missing, and check it."""
        await probe(self._name, self._blobs, self._clock, self._probe_rounds)
        self._fenced.kept = await self._records.enter()

    async def close(self) -> None:
        await self._janitor.close()
        await self._blobs.close()

    async def raise_floor(self, value: int) -> None:
        """From now on no fence accepts less than `value`; works on a bucket that refuses to open.

        Every frame is written again, so that nobody who read the record before can still write.
        """
        if not 0 <= value <= MAX_TOKEN:
            raise InvalidInput("value", "a floor is a whole number from 0 to 2^63-1")
        kept = await self._records.begin_raising(value)
        self._fenced.kept = kept
        waiting: set[asyncio.Task[None]] = set()
        try:
            for within in (OBJECTS, FENCES):
                async for key in self._blobs.keys(within):
                    if len(waiting) >= AT_ONCE:
                        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                        for task in done:
                            task.result()
                    waiting.add(asyncio.create_task(self._settle(Place(key, name_of(key) or ""), kept)))
            await asyncio.gather(*waiting)
        except ResourceUnavailable as broken:
            raise ResourceUnavailable(
                f"the floor is recorded, but not all objects carry it yet: repeat this ({broken})", outcome="unknown"
            ) from broken
        finally:
            for task in waiting:
                task.cancel()
        await self._records.end_raising(kept)

    async def _settle(self, place: Place, kept: Kept) -> None:
        try:
            await self._fenced.settle(place, kept)
        except Damaged as damaged:
            log.warning("%s", damaged.detail)  # it accepts nothing, so it needs no floor

    # --- the calls ---------------------------------------------------------------------------------------------------

    async def claim(self, fence: str, token: int) -> Seen:
        return await self._fenced.claim(self._homes.place(check_lock_key(fence)), Token(token))

    async def mark(self, fence: str) -> int:
        return await self._fenced.mark(self._homes.place(check_lock_key(fence)))

    async def head(self, key: Key, fence: str, token: int | None = None) -> tuple[ObjectInfo | None, Seen]:
        info, _, seen = await self.read(key, fence, token, (0, -1))
        return info, seen

    async def read(
        self, key: Key, fence: str, token: int | None = None, byte_range: tuple[int, int] | None = None
    ) -> tuple[ObjectInfo | None, AsyncIterator[bytes], Seen]:
        """One version of the object, whatever is written meanwhile; of a range, the bytes that there are."""
        place, home = self._places(key, fence)
        given = Token(token) if token is not None else None
        claimed = await self._fenced.claim(home, given) if given is not None else None
        tried = ""
        for _ in range(TRIES):
            found = await self._frames.load(place)
            if found is None or found.header.tombstone:
                return None, _nothing(), await self._seen(found, place, home, given, claimed)
            first, last = byte_range or (0, found.header.size - 1)
            try:
                body = await self._values.stream(place, found, first, min(last + 1, found.header.size))
            except Moved:
                if found.header.nonce == tried:
                    break
                tried = found.header.nonce
                continue
            return info_of(found.header), body, await self._seen(found, place, home, given, claimed)
        raise ResourceUnavailable(
            f"the bytes of {place.name!r} are not there: try again, and if that does not help, restore them"
        )

    async def write(
        self,
        key: Key,
        fence: str,
        token: int,
        body: Body,
        *,
        content_type: str,
        metadata: Mapping[str, str],
        conditions: Conditions = NO_CONDITIONS,
    ) -> Seen:
        place, home = self._places(key, fence)
        given = Token(token)
        known = self._frames.known(home)
        received = self._layout.at_hand(body)
        if known is None or received is None:  # who is stale now need not send its body first
            self._fenced.refuse_stale(known or await self._frames.load(home), given)
        if received is None:
            received = await self._layout.receive(place, given, content_type, body)
        value = Value(received.size, content_type, metadata, received.key)
        try:
            if home == place:
                return await self._fenced.change(place, given, value, received.parts, conditions)
            return await self._claim_and_change(place, home, given, value, received.parts, conditions)
        except FencegateError as error:
            if error.members.get("outcome") != "unknown":
                await self._layout.discard(received)
            raise

    async def delete(self, key: Key, fence: str, token: int, conditions: Conditions = NO_CONDITIONS) -> Seen:
        place, home = self._places(key, fence)
        given = Token(token)
        self._fenced.refuse_stale(self._frames.known(home) or await self._frames.load(home), given)
        if home == place:
            return await self._fenced.change(place, given, None, (), conditions)
        return await self._claim_and_change(place, home, given, None, (), conditions)

    async def list(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, ObjectInfo]]:
        """In the order of their keys in the bucket, as the server has it."""
        return await page(self._blobs, self._frames, prefix, after, limit)

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _claim_and_change(
        self,
        place: Place,
        home: Place,
        token: Token,
        value: Value | None,
        parts: Sequence[bytes],
        conditions: Conditions,
    ) -> Seen:
        """Two steps, and a pause between them is why this is best effort: the mark, then the object, which has its
        own."""
        with value_untouched():
            claimed = await self._fenced.claim(home, token)
        seen = await self._fenced.change(place, token, value, parts, conditions)
        return Seen(claimed.mark, seen.etag, seen.created, claimed.shadow or seen.shadow)

    async def _seen(
        self, found: Frame | None, place: Place, home: Place, token: Token | None, claimed: Seen | None
    ) -> Seen:
        """What a read says of the fence: looked at after the object, so the mark is never below its token."""
        fence = found if home == place else await self._frames.load(home)
        if fence is None:
            seen = Seen(self._fenced.kept.record.floor)
        else:
            if token is not None:
                shown(fence.header, token, self._mode)  # another holder may have come since the claim
            seen = Seen(mark_of(fence.header, self._mode))
        etag = seen_of(found.header, self._mode).etag if found is not None else None
        return Seen(seen.mark, etag, False, claimed.shadow if claimed is not None else None)

    def _found_places(self, key: Key, fence: str) -> tuple[Place, Place]:
        """Where the object is, and where the mark of its fence is."""
        return object_place(object_name(key), self._prefix), self._homes.place(check_lock_key(fence))


def _guarantee(one_by_one: bool) -> Guarantee:
    durable = (
        "marks and objects are as durable as the bucket keeps its objects; a mark is lost with an object that is "
        "removed from outside (also by a lifecycle rule). After a restore a floor is needed."
    )
    if one_by_one:
        return Guarantee(
            "atomic", f"the mark is part of the object, and both change by one conditional write; {durable}"
        )
    return Guarantee(
        "best-effort",
        "one lock guards several objects here, and a bucket can't compare one object while it writes another: a writer "
        f"that is paused between the two can still write an object that its successor has not written; {durable}",
    )


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""
