"""The record of a bucket: which resource is kept in it, and the epoch that names this state of the record.

Every frame tells the epoch under which it was written. A process that finds another than its own reads the record
again, so nobody goes on by a record that was changed; and a frame that is made anew has none, so its maker reads the
record after the frame is there. That is what lets a floor bind those who have the bucket open: `raise_floor` writes the
record, then every frame that there is.
"""

import json
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Self

from fencegate.clock import Clock
from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.objects.bucket.blobs import Blobs, Version
from fencegate_adapters.objects.bucket.keys import FENCES, OBJECTS, RECORD
from fencegate_adapters.objects.bucket.outcomes import NotSent, Refused, Unsettled
from fencegate_adapters.objects.record import Record, reopen

TRIES = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """The record as it is in the bucket."""

    record: Record
    epoch: int
    """It only ever rises."""
    raising: bool = False
    """A floor was recorded, but not all frames carry it yet."""

    def encode(self) -> bytes:
        fields = json.loads(self.record.encode())
        return json.dumps({**fields, "epoch": str(self.epoch), "raising": self.raising}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        record = Record.decode(data)
        try:
            fields = json.loads(data)
            return cls(record, int(fields["epoch"]), bool(fields["raising"]))
        except (ValueError, KeyError, TypeError):
            raise UnsafeConfiguration("its fencegate.json is damaged: restore it before opening") from None


class Records:
    """Reads and replaces the record, by compare-and-set."""

    def __init__(self, blobs: Blobs, wanted: Record, clock: Clock) -> None:
        self._blobs = blobs
        self._wanted = wanted
        self._clock = clock

    async def current(self) -> Kept:
        """The record as it is now; UnsafeConfiguration when it no longer fits our configuration."""
        found = await self._read()
        if found is None:
            raise UnsafeConfiguration(
                f"resource {self._wanted.name!r}: the bucket's fencegate.json is gone. {reopen(self._wanted.name)}"
            )
        found[0].record.check(self._wanted)
        return found[0]

    async def enter(self) -> Kept:
        """The record, made when the bucket is new to us."""
        if await self._read() is None:
            if await self._holds_data() and await self._read() is None:  # nobody made the record meanwhile
                raise UnsafeConfiguration(
                    f"resource {self._wanted.name!r}: the bucket holds data, but its fencegate.json is missing. "
                    + reopen(self._wanted.name)
                )
            await self._replace(Kept(self._wanted, self._clock.now_us()), None)
        kept = await self.current()
        if kept.raising:
            raise UnsafeConfiguration(
                f"resource {self._wanted.name!r}: a floor is being raised, or that was broken off. If nobody is at it, "
                f"repeat it: `fencegate fence floor {self._wanted.name} {kept.record.floor}`."
            )
        return kept

    async def begin_raising(self, floor: int) -> Kept:
        """Record the configuration that we were given, with a floor that is never lowered."""
        for _ in range(TRIES):
            found = await self._read()
            version, epoch = None, self._clock.now_us()  # above every epoch before, also when the record was lost
            if found is not None:
                before, version = found
                floor, epoch = max(floor, before.record.floor), max(epoch, before.epoch + 1)
            raised = Kept(replace(self._wanted, floor=floor), epoch, raising=True)
            if await self._replace(raised, version):
                return raised
        raise ResourceUnavailable(f"resource {self._wanted.name!r}: the record is being changed by others; try again")

    async def end_raising(self, raised: Kept) -> None:
        """Say that all frames carry the floor, unless somebody has begun to raise it further."""
        found = await self._read()
        if found is not None and found[0] == raised:
            await self._replace(replace(raised, raising=False), found[1])

    async def _read(self) -> tuple[Kept, Version] | None:
        blob = await self._blobs.get(RECORD)
        return (Kept.decode(blob.data), blob.version) if blob is not None else None

    async def _replace(self, kept: Kept, expected: Version | None) -> bool:
        """Whether it was replaced. Whoever reads on finds out what is there, so a lost answer does no harm."""
        try:
            await self._blobs.put(RECORD, kept.encode(), expected, "application/json")
        except Refused:
            return False
        except (NotSent, Unsettled):
            found = await self._read()
            if found is None or found[0] != kept:
                raise ResourceUnavailable(
                    f"resource {self._wanted.name!r}: whether the record was written is unknown: repeat this",
                    outcome="unknown",
                ) from None
        return True

    async def _holds_data(self) -> bool:
        """The record is written before frames are made: frames without one have lost it, and with it their floor."""
        for within in (OBJECTS, FENCES):
            async with aclosing(self._blobs.keys(within, page=1)) as keys:
                async for _ in keys:
                    return True
        return False
