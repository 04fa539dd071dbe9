"""Changes to frames under their fences. Each is one conditional write: whoever was paused anywhere before it finds that
the version it built on is gone, and is judged anew."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fencegate.clock import Clock
from fencegate.core.errors import (
    FencegateError,
    NotFound,
    PreconditionFailed,
    ResourceUnavailable,
    UnsafeConfiguration,
)
from fencegate.core.fence import admit
from fencegate.core.ports import NO_CONDITIONS, Conditions, Seen
from fencegate.core.token import Token
from fencegate.failpoint import reach
from fencegate_adapters.objects.bucket.frames import Frame, Frames
from fencegate_adapters.objects.bucket.janitor import Janitor
from fencegate_adapters.objects.bucket.keys import Place
from fencegate_adapters.objects.bucket.outcomes import Moved
from fencegate_adapters.objects.bucket.records import Kept, Records
from fencegate_adapters.objects.bucket.standing import (
    Value,
    again,
    empty,
    etag_of,
    mark_of,
    past_of,
    seen_of,
    settled,
    shown,
    standing_of,
    with_value,
)
from fencegate_adapters.objects.bucket.turns import Turns
from fencegate_adapters.objects.bucket.values import Values
from fencegate_adapters.objects.frame import Header
from fencegate_adapters.objects.record import Mode, reopen

TRIES = 40
_PAUSES_S = tuple(min(0.25, 0.004 * 2**attempt) for attempt in range(TRIES))


class Fenced:
    """Set `kept` before anything else: the record that was found at the start."""

    kept: Kept

    def __init__(
        self,
        resource: str,
        frames: Frames,
        records: Records,
        values: Values,
        janitor: Janitor,
        mode: Mode,
        clock: Clock,
        wait_s: float,
    ) -> None:
        self._resource = resource
        self._frames = frames
        self._records = records
        self._values = values
        self._janitor = janitor
        self._mode = mode
        self._clock = clock
        self._turns = Turns(resource, wait_s)

    async def mark(self, place: Place) -> int:
        """The lowest token that would be accepted now."""
        found = await self._frames.load(place)
        if found is not None:
            return mark_of(await self._settled(found.header), self._mode)
        self.kept = await self._records.current()
        return self.kept.record.floor

    def refuse_stale(self, found: Frame | None, token: Token) -> None:
        """Refuse early what could only be refused later: a mark never goes back. To accept takes `change`."""
        if found is not None and self._mode == "enforce":
            admit(token, standing_of(found.header).mark)

    async def claim(self, place: Place, token: Token) -> Seen:
        async with self._turns.of(place):
            for pause_s in _PAUSES_S:
                found, header = await self._current(place, fresh=True)
                raised, shadow = shown(header, token, self._mode)
                if await self._rewrite(place, found, raised):
                    return seen_of(raised, self._mode, shadow)
                await self._pause(pause_s)
        raise self._contended()

    async def change(
        self, place: Place, token: Token, value: Value | None, body: Sequence[bytes], conditions: Conditions
    ) -> Seen:
        """Make this the value (None: nothing), if the token and the conditions allow.

        Mostly nobody is before us, the frame is known and there are no conditions: that way has few steps.
        """
        if not self._turns.take(place):
            await self._turns.wait(place)
        try:
            for pause_s in _PAUSES_S:
                found = self._frames.known(place)
                if found is not None and standing_of(found.header).epoch == self.kept.epoch:
                    header = found.header
                else:  # one that is known, but under another record, was replaced when that was made
                    found, header = await self._current(place, fresh=found is not None)
                raised, shadow = shown(header, token, self._mode)
                if (value is None or conditions is not NO_CONDITIONS) and (
                    _refusal(place, value, etag_of(header), conditions) is not None
                ):
                    await self._refuse(place, token, value, conditions)
                    continue
                # What was made ahead holds for a value that brings its body, under a fence that stays as it is.
                known = found.sequel if raised is found.header and value is not None and not value.body else None
                past = known.past if known is not None else past_of(found.header)
                written = with_value(raised, self._nonce(), past, token, value, self._clock.now_us())
                reach("resource.write")
                landing = self._frames.commit(place, written, body, found, known)
                # It is on its way: what is only needed afterwards is made while the server works.
                seen = seen_of(written, self._mode, shadow, created=value is not None and header.tombstone)
                if await landing:
                    before = standing_of(found.header).body
                    if before or (value is not None and value.body):
                        self._janitor.replaced(place, before)
                    return seen
                await self._pause(pause_s)
        finally:
            self._turns.end(place)
        raise self._contended()

    async def settle(self, place: Place, kept: Kept) -> None:
        """Bring a frame under this record, and with it whoever would write on the version that is there now."""
        async with self._turns.of(place):
            for pause_s in _PAUSES_S:
                found = await self._frames.load(place)
                if found is None or standing_of(found.header).epoch >= kept.epoch:
                    return
                where = Place(place.key, found.header.key)
                if await self._rewrite(where, found, settled(found.header, kept)):
                    return
                await self._pause(pause_s)
        raise self._contended()

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _refuse(self, place: Place, token: Token, value: Value | None, conditions: Conditions) -> None:
        """Raise the mark, then refuse by what is there; return when what is there allows it after all."""
        found, header = await self._current(place, fresh=True)
        raised, _ = shown(header, token, self._mode)
        refusal = _refusal(place, value, etag_of(header), conditions)
        with value_untouched():
            if refusal is not None and await self._rewrite(place, found, raised):
                raise refusal

    async def _rewrite(self, place: Place, found: Frame, raised: Header) -> bool:
        """Write what is there again, with its fence raised; False when others were faster."""
        if raised == found.header:
            return True
        try:
            body = await self._values.carried(place, found)
        except Moved:
            return False
        return await self._frames.commit(place, again(raised, self._nonce(), found.header), body, found)

    async def _current(self, place: Place, *, fresh: bool) -> tuple[Frame, Header]:
        """The frame, and its header as the record wants it. One that is missing is made, empty, and only then is the
        record read: so a floor that is raised at this moment either is seen here, or finds the frame."""
        # A frame that is not known was mostly looked for just before, by `refuse_stale`. One that is thought to be gone
        # may have been restored, or was looked for before it was first written, by an answer that came late.
        fresh = fresh or self._frames.gone(place) is not None
        found = await self._frames.load(place) if fresh else self._frames.known(place)
        for _ in range(TRIES):
            if found is not None:
                if standing_of(found.header).epoch == self.kept.epoch:
                    return found, found.header
                return found, await self._settled(found.header)
            await self._require_new(place)
            with value_untouched():
                await self._frames.commit(place, empty(place.name, self._nonce(), self._clock.now_us()), (), None)
            found = self._frames.known(place) or await self._frames.load(place)
        raise self._contended()

    async def _require_new(self, place: Place) -> None:
        """Refuse to make anew what somebody removed, unless a floor was raised since: its mark went with it."""
        epoch = self._frames.gone(place)
        if epoch is None:
            return
        self.kept = await self._records.current()
        if epoch >= self.kept.epoch:
            raise self._frames.lost(place)

    async def _settled(self, header: Header) -> Header:
        epoch = standing_of(header).epoch
        kept = self.kept
        if epoch != kept.epoch:
            kept = self.kept = await self._records.current()
        if epoch > kept.epoch:
            raise UnsafeConfiguration(
                f"resource {self._resource!r}: its record is older than its objects, as after a restore. "
                + reopen(self._resource)
            )
        return header if epoch == kept.epoch else settled(header, kept)

    async def _pause(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s * (0.5 + self._clock.jitter()))

    def _nonce(self) -> str:
        return self._clock.random_id(16)

    def _contended(self) -> ResourceUnavailable:
        return ResourceUnavailable(
            f"resource {self._resource!r}: the object is being changed by others all the time; nothing was written, "
            "try again"
        )


@contextmanager
def value_untouched() -> Iterator[None]:
    """For a step before the write: when its fate is unknown, the value is still what it was."""
    try:
        yield
    except ResourceUnavailable as error:
        if error.outcome != "unknown":
            raise
        raise ResourceUnavailable(f"{error.detail}; but the value was not") from error


def _refusal(place: Place, value: Value | None, etag: str | None, conditions: Conditions) -> FencegateError | None:
    if not conditions.hold(etag):
        return PreconditionFailed(f"the object {place.name!r} is not as your condition wants it: read it again")
    if value is None and etag is None:
        return NotFound(f"there is no object {place.name!r}")
    return None
