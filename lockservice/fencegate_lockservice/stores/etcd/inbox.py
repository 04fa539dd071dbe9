"""What a stream tells, for one reader, who takes all that has come.

A reader that is woken for each message of a busy stream does little else. So what is not pressing for it comes together
with whatever follows it within a moment; after a silence it comes at once.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_S = 0.02


class Inbox:
    """See the head of this file. None means that nothing more comes."""

    def __init__(self) -> None:
        self._told: list[bytes | None] = []
        self._woken = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        self.can_wait: Callable[[bytes], bool] = lambda _: False

    def put(self, message: bytes | None) -> None:
        self._told.append(message)
        if self._pause is None or message is None or not self.can_wait(message):
            self._woken.set()

    async def take(self) -> list[bytes | None]:
        await self._woken.wait()
        self._woken.clear()
        told, self._told = self._told, []
        if self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(PAUSE_S, self._end_pause)
        return told

    def _end_pause(self) -> None:
        self._pause = None
        if self._told:
            self._woken.set()
