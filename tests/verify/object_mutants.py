"""Planted bugs in the adapter of a bucket, each a small change to the real code while a simulation runs."""

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

from msgspec.structs import replace

from fencegate.core.errors import ResourceUnavailable
from fencegate.core.token import Token
from fencegate.verify.sim.bucket import ODD, BucketServer
from fencegate.verify.sim.gateways import Layout
from fencegate.verify.sim.objects import ObjectPlan, plan_of
from fencegate_adapters.objects import frame
from fencegate_adapters.objects.bucket import fenced
from fencegate_adapters.objects.bucket.blobs import Blobs, Version
from fencegate_adapters.objects.bucket.fenced import Fenced
from fencegate_adapters.objects.bucket.frames import Frame, Frames, _Fate
from fencegate_adapters.objects.bucket.janitor import Janitor
from fencegate_adapters.objects.bucket.keys import OBJECTS, Place, bodies_of
from fencegate_adapters.objects.bucket.resource import BucketObjects
from fencegate_adapters.objects.bucket.standing import standing_of
from fencegate_adapters.objects.frame import Header


def _no_frame() -> Any:
    """Token and nonce are beside the body, as in metadata: the ETag is that of the body alone, and comes back."""
    real = BucketServer.e_tag

    def e_tag(data: bytes) -> str:
        return real(data[frame.length(data) :])

    return patch.object(BucketServer, "e_tag", staticmethod(e_tag))


def _hard_delete() -> Any:
    """What is deleted is gone, and its mark with it."""
    real = Fenced.change

    async def change(self: Fenced, place: Place, token: Token, value: Any, *more: Any) -> Any:
        seen = await real(self, place, token, value, *more)
        if value is None:
            await self._frames._blobs.delete(place.key)
            self._frames.forget(place)
        return seen

    return patch.object(Fenced, "change", change)


def _put_without_condition() -> Any:
    """The mark is looked at, and then the frame is written, whatever is there by then."""
    real = Blobs.put

    async def put(self: Blobs, key: str, data: bytes, expected: Version | None, content_type: str) -> Version:
        if not key.startswith(OBJECTS) or expected is None:
            return await real(self, key, data, expected, content_type)
        done = await self._once.put_async(key, data, use_multipart=False)
        return Version(done["e_tag"], done["version"])

    return patch.object(Blobs, "put", put)


def _nonce_repeats() -> Any:
    """A nonce that is the same for all."""
    return patch.object(Fenced, "_nonce", lambda self: "5" * 32)


def _refused_is_never() -> Any:
    """A 412 is taken at its word, though our own write, sent twice, may be what was in the way."""
    real = Frames._fate

    async def fate(self: Frames, *args: Any, doubtful: bool) -> _Fate:
        found = await real(self, *args, doubtful=doubtful)
        return found if doubtful else _Fate.NEVER

    return patch.object(Frames, "_fate", fate)


def _unseen_is_not_written() -> Any:
    """After a 412 the bucket can't be read, and that is told as not written. (The simulation found this in the real
    code.)"""
    real = Frames._fate

    async def fate(self: Frames, *args: Any, doubtful: bool) -> _Fate:
        found = await real(self, *args, doubtful=doubtful)
        if found is _Fate.UNSEEN and not doubtful:
            raise ResourceUnavailable("the bucket can't be read")
        return found

    return patch.object(Frames, "_fate", fate)


def _doubtful_is_never() -> Any:
    """After a lost answer, whatever is there is taken for a sign that we never landed."""
    real = Frames._fate

    async def fate(self: Frames, *args: Any, doubtful: bool) -> _Fate:
        found = await real(self, *args, doubtful=doubtful)
        return _Fate.NEVER if doubtful else found

    return patch.object(Frames, "_fate", fate)


def _foreign_is_ours() -> Any:
    """After a lost answer, whatever is there is taken for ours."""
    real = Frames._fate

    async def fate(self: Frames, *args: Any, doubtful: bool) -> _Fate:
        found = await real(self, *args, doubtful=doubtful)
        return _Fate.LANDED if doubtful and found is not _Fate.OPEN else found

    return patch.object(Frames, "_fate", fate)


def _mark_in_the_cache() -> Any:
    """Each gateway knows the marks that it has seen itself, and no frame tells of others."""
    load, commit = Frames.load, Frames.commit

    async def load_(self: Frames, place: Place, *args: Any) -> Frame | None:
        found = await load(self, place, *args)
        if found is None:
            return None
        standing = replace(standing_of(found.header), mark=_own(self).get(place.key, 0))
        found = replace(found, header=replace(found.header, standing=standing))
        self._remember(place, replace(found, start=b""))
        return found

    async def commit_(self: Frames, place: Place, header: Header, *args: Any) -> bool:
        landed = await commit(self, place, header, *args)
        if landed:
            _own(self)[place.key] = standing_of(header).mark
        return landed

    return patch.multiple(Frames, load=load_, commit=commit_)


def _own(frames: Frames) -> dict[str, int]:
    own: dict[str, int] = frames.__dict__.setdefault("own_marks", {})
    return own


def _no_claim_on_read() -> Any:
    """A holder that has only read is unknown to the bucket."""
    real = BucketObjects.read

    async def read(self: BucketObjects, key: Any, fence: str, token: int | None = None, *more: Any) -> Any:
        return await real(self, key, fence, None, *more)

    return patch.object(BucketObjects, "read", read)


def _claim_is_not_written() -> Any:
    """A claim compares, and leaves the frame as it is."""

    async def rewrite(self: Fenced, place: Place, found: Frame, raised: Header) -> bool:
        return True

    return patch.object(Fenced, "_rewrite", rewrite)


def _admit_all() -> Any:
    """No check."""
    return patch.object(fenced, "shown", lambda header, token, mode: (header, None))


def _janitor_removes_all() -> Any:
    """Every body that no frame points to is removed, also one whose frame is about to be written."""

    async def clean(self: Janitor, place: Place, replaced: str = "") -> int:
        now = await self._frames.load(place)
        async for key in self._blobs.keys(bodies_of(place.name)):
            if now is not None and key != standing_of(now.header).body:
                await self._blobs.delete(key)
        return 0

    return patch.object(Janitor, "clean", clean)


class Mutant(NamedTuple):
    """`plant` it, in runs of this kind: where it does harm, so that it is found soon."""

    plant: Callable[[], Any]
    workload: str = "list"
    layout: Layout | None = None
    odd: tuple[str, ...] = ODD

    def plan(self, seed: int) -> ObjectPlan:
        usual = plan_of(seed)
        busy = usual.plan.but(workload=self.workload, callers=4, rounds=4, faults=("pause", "messages"))
        return ObjectPlan(busy, self.layout or usual.layout, self.odd)


MUTANTS = {
    "no check": Mutant(_admit_all),
    "no frame, so an ETag comes back": Mutant(_no_frame, layout="framed", odd=("held up",)),
    "hard delete": Mutant(_hard_delete, "set"),
    "check, then a put without condition": Mutant(_put_without_condition, odd=("held up",)),
    "a nonce that repeats": Mutant(_nonce_repeats),
    "412 told as refused, though it was our own write": Mutant(_refused_is_never, odd=("twice",)),
    "412 told as not written, for the bucket can't be read": Mutant(
        _unseen_is_not_written, layout="pointer", odd=("twice, then down",)
    ),
    "lost answer told as refused, though our nonce is there": Mutant(_doubtful_is_never, odd=("500",)),
    "lost answer told as done, though a foreign nonce is there": Mutant(_foreign_is_ours, odd=("503",)),
    "mark in the gateway's cache": Mutant(_mark_in_the_cache),
    "no claim on read": Mutant(_no_claim_on_read),
    "a claim that is not written": Mutant(_claim_is_not_written),
    "a janitor that removes what is about to be used": Mutant(_janitor_removes_all, layout="pointer"),
}

SEEDS = {
    "no check": (0, 10, 11, 12),
    "no frame, so an ETag comes back": (83, 162, 181, 255),
    "hard delete": (27, 178, 221, 328),
    "check, then a put without condition": (5, 8, 47, 57),
    "a nonce that repeats": (0, 2, 3, 4),
    "412 told as refused, though it was our own write": (35, 436, 448, 570),
    "412 told as not written, for the bucket can't be read": (26, 151, 194, 298),
    "lost answer told as refused, though our nonce is there": (8, 35, 436, 441),
    "lost answer told as done, though a foreign nonce is there": (35, 38, 161, 181),
    "mark in the gateway's cache": (8, 10, 25, 26),
    "no claim on read": (4, 12, 15, 22),
    "a claim that is not written": (14, 24, 30, 33),
    "a janitor that removes what is about to be used": (10, 14, 19, 79),
}
"""Where each was found in a search from seed 0: tried first, for a search takes up to 20 s. One that plays otherwise
after a change is likely not to be alone; when none of them shows it any more, search anew."""
