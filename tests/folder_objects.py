"""Short ways to call the folder adapter, for its tests; run as a program it is one of several processes that write.

python -m tests.folder_objects FOLDER COMMAND ARGUMENTS…
"""

import asyncio
import contextlib
import resource as limits
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from fencegate import failpoint
from fencegate.core.errors import FencegateError, StaleToken
from fencegate.core.ports import NO_CONDITIONS, Conditions, Key, Objects, Seen
from fencegate.testing.resource_suite import JOB, PER_KEY
from fencegate_adapters.objects import FolderObjects

KEY: Key = ("k",)
FENCE = "s:k"


async def parts(*data: bytes) -> AsyncIterator[bytes]:
    for part in data:
        yield part


async def put(
    objects: Objects, key: Key, fence: str, data: bytes, token: int, conditions: Conditions = NO_CONDITIONS
) -> Seen:
    return await objects.write(
        key, fence, token, parts(data), content_type="text/plain", metadata={"by": "me"}, conditions=conditions
    )


async def get(
    objects: Objects, key: Key, fence: str = FENCE, token: int | None = None, byte_range: tuple[int, int] | None = None
) -> bytes | None:
    info, body, _ = await objects.read(key, fence, token, byte_range)
    data = b"".join([part async for part in body])
    return None if info is None else data


@contextlib.asynccontextmanager
async def folder_objects(
    folder: Path, *, guard: str = PER_KEY, max_bytes: int = 2**26, lock_wait_s: float = 10.0
) -> AsyncIterator[FolderObjects]:
    objects = FolderObjects("s", folder, guard_template=guard, max_bytes=max_bytes, lock_wait_s=lock_wait_s)
    try:
        await objects.open()
        yield objects
    finally:
        await objects.close()


# --- what a process does ---------------------------------------------------------------------------------------------


def say(*words: object) -> None:
    print(*words, flush=True)


async def stop_then_write(folder: Path, token: str) -> None:
    """Stop at the failpoint of the first write."""
    failpoint.arm("resource.write=stop@1")
    async with folder_objects(folder) as objects:
        try:
            await put(objects, KEY, FENCE, b"of the paused one", int(token))
            say("written")
        except FencegateError as error:
            say(error.code)


async def write_for_ever(folder: Path, first: str) -> None:
    """Say each write once it is acknowledged; every fifth object is deleted again."""
    async with folder_objects(folder) as objects:
        number = int(first)
        while True:
            name = f"{number % 7}"
            await put(objects, ("d", name), f"s:{name}", body_of(number), number)
            say("put", name, number)
            if number % 5 == 0:
                await objects.delete(("d", name), f"s:{name}", number)
                say("deleted", name, number)
            number += 1


def body_of(number: int) -> bytes:
    """Long enough to be seen half-written, and unlike every other."""
    return f"{number}\n".encode() * (20_000 + number % 3)


async def race(folder: Path, offset: str, steps: str) -> None:
    """Write under one job fence with tokens that another process overtakes, and say what was accepted."""
    async with folder_objects(folder, guard=JOB) as objects:
        for step in range(int(steps)):
            token = 1 + 2 * (step // 3) + int(offset)
            began = time.monotonic_ns()  # the same clock in all processes of a machine
            try:
                await put(objects, (f"{step % 3}",), JOB, f"{token}".encode(), token)
                say("accepted", token, began, time.monotonic_ns())
            except StaleToken:
                say("refused", token, began, time.monotonic_ns())


async def write_on_a_full_disk(folder: Path) -> None:
    async with folder_objects(folder) as objects:
        limits.setrlimit(limits.RLIMIT_FSIZE, (600_000, 600_000))
        try:
            await put(objects, KEY, FENCE, b"x" * 900_000, 8)
        except FencegateError as error:
            say(error.code, error.members["outcome"])


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    command.__name__: command for command in (stop_then_write, write_for_ever, race, write_on_a_full_disk)
}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:]))
