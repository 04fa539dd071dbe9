"""Objects in a local folder, as the gateway sees them: nothing here blocks the event loop."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import InvalidInput, ResourceUnavailable, TooLarge
from fencegate.core.names import check_lock_key
from fencegate.core.ports import NO_CONDITIONS, Body, Conditions, Guarantee, Key, ObjectInfo, Seen
from fencegate.core.token import MAX_TOKEN
from fencegate.failpoint import reach
from fencegate_adapters.objects import body as bodies
from fencegate_adapters.objects.draft import Draft
from fencegate_adapters.objects.folder import Folder
from fencegate_adapters.objects.frame import Header
from fencegate_adapters.objects.names import object_name
from fencegate_adapters.objects.patience import Patience
from fencegate_adapters.objects.record import Mode, Record

DEFAULT_MAX_BYTES = 64 * 1024 * 1024


class FolderObjects:
    """Framed files in a folder, fenced by a flock beside them: any number of processes of one machine may share it."""

    guarantee = Guarantee(
        "atomic",
        "mark and object change under one flock, and both are fsynced, file and folder, before the answer: they "
        "survive a crash of the process or the machine as far as the disk keeps what it was told to flush. After a "
        "restore from a backup a floor is needed. This is for local file systems: over NFS, a machine that is cut off "
        "can lose its flock unnoticed.",
    )

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        guard_template: str,
        mode: Mode = "enforce",
        max_bytes: int = DEFAULT_MAX_BYTES,
        lock_wait_s: float = 10.0,
        clock: Clock = SYSTEM,
    ) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._folder = Folder(folder, Record(name, guard_template, mode), clock)
        self._steps = Patience(name, lock_wait_s, clock)

    async def open(self) -> None:
        """Make what is missing, and check what is recorded."""
        await self._steps.until_free(self._folder.enter)

    async def close(self) -> None:
        await self._steps.close()
        self._folder.close()

    async def raise_floor(self, value: int) -> None:
        """From now on no fence accepts less than `value`; works on a folder that refuses to open."""
        if not 0 <= value <= MAX_TOKEN:
            raise InvalidInput("value", "a floor is a whole number from 0 to 2^63-1")
        await self._steps.until_free(self._folder.raise_floor, value)
        try:
            await self._steps.until_free(self._folder.pass_fences, await self._steps.run(self._folder.fence_locks))
        except ResourceUnavailable as busy:
            raise ResourceUnavailable(
                f"the floor is recorded, but a write that began before it may still land: repeat this ({busy})",
                outcome="unknown",
            ) from busy

    async def claim(self, fence: str, token: int) -> Seen:
        return await self._steps.in_turn(fence, self._folder.claim, check_lock_key(fence), token)

    async def mark(self, fence: str) -> int:
        return await self._steps.run(self._folder.mark, check_lock_key(fence))

    async def head(self, key: Key, fence: str, token: int | None = None) -> tuple[ObjectInfo | None, Seen]:
        info, _, seen = await self.read(key, fence, token, (0, -1))
        return info, seen

    async def read(
        self, key: Key, fence: str, token: int | None = None, byte_range: tuple[int, int] | None = None
    ) -> tuple[ObjectInfo | None, AsyncIterator[bytes], Seen]:
        """One version of the object, whatever is written meanwhile; of a range, the bytes that there are."""
        name, fence = object_name(key), check_lock_key(fence)
        if token is None:
            return await self._steps.run(self._look, name, fence, token, byte_range)
        return await self._steps.in_turn(fence, self._look, name, fence, token, byte_range)

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
        header = Header(object_name(key), token, self._nonce(), 0, self._clock.now_us(), content_type, metadata)
        return await self._replace(header, fence, body, conditions)

    async def delete(self, key: Key, fence: str, token: int, conditions: Conditions = NO_CONDITIONS) -> Seen:
        header = Header(object_name(key), token, self._nonce(), 0, self._clock.now_us(), tombstone=True)
        return await self._replace(header, fence, bodies.nothing(), conditions)

    async def list(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, ObjectInfo]]:
        """In the order of the names' UTF-8 bytes."""
        return await self._steps.run(self._folder.page, prefix, after, limit)

    def _look(
        self, name: str, fence: str, token: int | None, byte_range: tuple[int, int] | None
    ) -> tuple[ObjectInfo | None, AsyncIterator[bytes], Seen]:
        found, seen = self._folder.look(name, fence, token)
        if found is None:
            return None, bodies.nothing(), seen
        return found.info, bodies.stream(found, byte_range), seen

    async def _replace(self, header: Header, fence: str, body: Body, conditions: Conditions) -> Seen:
        # A mark never goes back, so who is stale now need not send its body first.
        await self._steps.run(self._folder.refuse_stale, check_lock_key(fence), header.token)
        draft = self._folder.draft(header)
        try:
            # The fence is taken only when the whole body is on the disk: a slow sender must not hold it.
            await self._receive(draft, body)
            reach("resource.write")
            return await self._steps.in_turn(fence, self._folder.publish, draft, fence, conditions)
        finally:
            await asyncio.shield(asyncio.to_thread(draft.discard))

    async def _receive(self, draft: Draft, body: Body) -> None:
        waiting, size = bytearray(), 0
        async for data in bodies.whole(body) if isinstance(body, bytes) else body:
            size += len(data)
            if size > self.max_bytes:
                raise TooLarge(f"an object has at most {self.max_bytes} bytes here", maxBytes=self.max_bytes)
            waiting += data
            if len(waiting) >= bodies.PIECE_BYTES:
                await self._steps.run(draft.append, waiting)
                waiting = bytearray()
        await self._steps.run(draft.finish, waiting)

    def _nonce(self) -> str:
        return self._clock.random_id(16)
