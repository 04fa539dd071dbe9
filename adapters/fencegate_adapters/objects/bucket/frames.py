"""Frames in a bucket: read, and replaced if they are still what they were.

A frame's nonce makes every version unlike every other, so a condition on a version that is gone never holds again. A
frame also remembers the nonces before its own: when the answer to a write is lost, what is there now nearly always
tells whether it landed. The last known frame of each place is kept, so that a holder's next write is one round trip.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from enum import Enum, auto

import msgspec

from fencegate.clock import Clock
from fencegate.core.errors import InvalidInput, ResourceUnavailable
from fencegate_adapters.objects import frame
from fencegate_adapters.objects.bucket.blobs import Blobs, Version
from fencegate_adapters.objects.bucket.keys import Place
from fencegate_adapters.objects.bucket.outcomes import NotSent, Refused, Throttled, Unsettled
from fencegate_adapters.objects.bucket.standing import standing_of
from fencegate_adapters.objects.frame import Header, Sequel

CONTENT_TYPE = "application/vnd.fencegate.frame"
FIRST_BYTES = 64 * 1024
"""What is fetched of a frame at first: its header, and the whole of a small body."""
KNOWN = 2048
MAX_COPIED_BYTES = 64 * 1024
FEW_PARTS = 64
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_THROTTLED_US = 5_000_000
"""Google Cloud Storage takes about one write a second to one name, and the first write of an object is two of ours."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame that was there: `start` are the first bytes of its body, as far as they were fetched."""

    header: Header
    version: Version
    body_at: int
    start: bytes = b""
    sequel: Sequel | None = None
    """Made ahead for the frame after this one."""


def _in_one(start: bytes, body: Sequence[bytes], size: int) -> bytes | list[bytes]:
    """Many small parts in one piece; a large one is not copied for the sake of the header before it."""
    return [start, *body] if size > MAX_COPIED_BYTES and len(body) < FEW_PARTS else b"".join((start, *body))


class _Fate(Enum):
    LANDED = auto()
    NEVER = auto()
    OPEN = auto()
    UNSEEN = auto()
    """The bucket could not be read."""
    UNKNOWN = auto()


class Damaged(ResourceUnavailable):
    """What lies under the key is no frame of ours, so its mark is unknown, and nothing is accepted."""

    def __init__(self, place: Place, why: Exception) -> None:
        super().__init__(
            f"{place.name!r} is damaged ({why}), and its mark with it: restore {place.key!r}, or remove it and raise "
            "the floor"
        )


class Frames:
    """See the head of this file. `within_s` bounds the time that a commit of unknown fate is followed."""

    def __init__(self, resource: str, blobs: Blobs, clock: Clock, within_s: float) -> None:
        self._resource = resource
        self._blobs = blobs
        self._clock = clock
        self._within_us = int(within_s * 1_000_000)
        self._known: OrderedDict[str, Frame] = OrderedDict()
        self._gone: OrderedDict[str, int] = OrderedDict()
        """By key of a frame that somebody removed: the epoch of the record that it had."""

    def known(self, place: Place) -> Frame | None:
        """The last known frame, without asking: good to write on, not to refuse by."""
        return self._known.get(place.key)

    async def load(self, place: Place, first_bytes: int = FIRST_BYTES) -> Frame | None:
        """The frame as it is now; None when there never was one."""
        blob = await self._blobs.get(place.key, first_bytes)
        if blob is None:
            if (before := self._known.get(place.key)) is not None:
                self._lose(place, before)
            return None
        try:
            if len(blob.data) < frame.length(blob.data) <= frame.MAX_HEADER_BYTES:
                blob = await self._blobs.get(place.key, frame.MAX_HEADER_BYTES) or blob
            header, body_at = frame.decode(blob.data, blob.size)
            if header.standing is None or (place.name and header.key != place.name):
                raise frame.BadFrame("the frame is that of another object")
        except frame.BadFrame as bad:
            raise Damaged(place, bad) from bad
        self._remember(place, Frame(header, blob.version, body_at))
        return Frame(header, blob.version, body_at, blob.data[body_at:])

    def commit(
        self, place: Place, header: Header, body: Sequence[bytes], base: Frame | None, known: Sequel | None = None
    ) -> Awaitable[bool]:
        """Replace `base` (None: nothing) by this frame, which is on its way when this returns. False when others were
        faster, and nothing was written.

        An attempt of unknown fate is followed up: read back, and sent again while it can still land.
        """
        try:
            start = frame.encode(header, known)
        except ValueError as error:
            raise InvalidInput("metadata", str(error)) from error
        data = _in_one(start, body, header.size)
        sent = self._blobs.put(place.key, data, base.version if base is not None else None, CONTENT_TYPE)
        return self._landed(place, header, base, data, len(start), sent)

    async def _landed(
        self,
        place: Place,
        header: Header,
        base: Frame | None,
        data: bytes | list[bytes],
        body_at: int,
        sent: Awaitable[Version],
    ) -> bool:
        # It is on its way: what the next write needs is made while the server works.
        sequel = frame.sequel(header)
        began_us = self._clock.monotonic_us()
        deadline_us = began_us + self._within_us
        doubtful, pause_s = False, _FIRST_PAUSE_S
        while True:
            throttled = False
            try:
                version = await sent
            except Refused:
                pass
            except NotSent:
                if not doubtful:
                    raise self._unavailable("can't be reached; nothing was written") from None
            except Unsettled:
                doubtful = True
            except ResourceUnavailable as error:  # nothing was written by this attempt; one before it can still land
                throttled = isinstance(error, Throttled) and not doubtful
                if not doubtful and not (throttled and self._clock.monotonic_us() < began_us + _THROTTLED_US):
                    self.forget(place)
                    raise
            except BaseException:
                self.forget(place)
                raise
            else:
                self._remember(place, Frame(header, version, body_at, b"", sequel))
                return True
            if not throttled:
                fate = await self._fate(place, header, base, doubtful=doubtful)
                if fate is _Fate.LANDED or fate is _Fate.NEVER:
                    return fate is _Fate.LANDED
                # Something on the way may have sent it twice, and then its own first copy is what it was refused for.
                doubtful = doubtful or fate is _Fate.UNSEEN
                if not doubtful:
                    return False  # the server refused, and it was asked only once
                if fate is _Fate.UNKNOWN or self._clock.monotonic_us() >= deadline_us:
                    raise self._unknown()
            await asyncio.sleep(pause_s * (0.5 + self._clock.jitter()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            sent = self._blobs.put(place.key, data, base.version if base is not None else None, CONTENT_TYPE)

    def gone(self, place: Place) -> int | None:
        """The epoch of a frame that was known and then removed from outside; a new one in its place has no mark."""
        return self._gone.get(place.key)

    def lost(self, place: Place) -> ResourceUnavailable:
        return self._unavailable(f"lost {place.key!r}, and its mark with it: restore it, or raise the floor")

    def _lose(self, place: Place, before: Frame) -> None:
        self.forget(place)
        self._gone[place.key] = standing_of(before.header).epoch
        if len(self._gone) > KNOWN:
            self._gone.popitem(last=False)

    def forget(self, place: Place) -> None:
        self._known.pop(place.key, None)

    async def _fate(self, place: Place, header: Header, base: Frame | None, *, doubtful: bool) -> _Fate:
        """What became of the frame, as far as what is there now tells."""
        self.forget(place)
        try:
            now = await self.load(place)
        except Damaged:
            if doubtful:
                return _Fate.OPEN
            raise
        except ResourceUnavailable:
            return _Fate.UNSEEN
        if now is None and base is not None:
            self._lose(place, base)
            if doubtful:
                return _Fate.UNKNOWN
            raise self.lost(place)
        if now is None:
            return _Fate.OPEN
        past = standing_of(now.header).nonces
        if header.nonce in (now.header.nonce, *past):
            return _Fate.LANDED
        if base is not None and now.header.nonce == base.header.nonce:
            return _Fate.OPEN
        # The chain from what we built on is all there, and we are not in it.
        whole = base.header.nonce in past if base is not None else len(past) < frame.PAST
        return _Fate.NEVER if whole else _Fate.UNKNOWN

    def _remember(self, place: Place, found: Frame) -> None:
        if found.version.e_tag is None and found.version.version is None:
            return
        self._known[place.key] = found
        self._known.move_to_end(place.key)
        self._gone.pop(place.key, None)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def _unavailable(self, what: str) -> ResourceUnavailable:
        return ResourceUnavailable(f"resource {self._resource!r}: the bucket {what}")

    def _unknown(self) -> ResourceUnavailable:
        return ResourceUnavailable(
            f"resource {self._resource!r}: the bucket's answer was lost; whether the frame was written is unknown",
            outcome="unknown",
        )
