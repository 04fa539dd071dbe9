"""A cache on trial: the source changes while a builder sleeps over its old page."""

import asyncio
from collections.abc import Sequence

from fencegate_demo.contents import read_object
from fencegate_demo.trials.bench import Bench
from fencegate_demo.trials.events import Touched
from fencegate_demo.trials.use import Findings, Place, Use
from fencegate_demo.uses import cache


class FileSource:
    """A page that is built from a file."""

    def __init__(self, place: Place) -> None:
        self._file = place.path / "source.txt"

    async def version(self) -> str:
        return self._file.read_text(encoding="utf-8")

    async def build(self) -> bytes:
        return f"page of {await self.version()}".encode()

    def change(self, version: str) -> None:
        self._file.write_text(version, encoding="utf-8")


def prepare(place: Place) -> None:
    FileSource(place).change("v1")


def meanwhile(place: Place) -> None:
    FileSource(place).change("v2")


def work(bench: Bench) -> None:
    async def refreshed() -> bool:
        if bench.was_stopped:  # whoever asked for the page has gone: no second try, which would put things right
            return False
        async with bench.async_locks() as locks, bench.async_http() as pages:
            return await cache.refresh(locks, pages, bench.place.name, FileSource(bench.place), ttl=bench.ttl)

    bench.attempt(lambda: asyncio.run(refreshed()))


async def examine(place: Place, touched: Sequence[Touched]) -> Findings:
    page = await read_object(place.settings, (place.name,))
    builds = sum(touch.kind == "write" and touch.accepted for touch in touched)
    holds = "nothing" if page is None else page.decode()
    wrong = [] if holds == "page of v2" else [f"the cache holds the {holds}, and the source is at v2"]
    return Findings({"builds": builds, "cached": holds}, wrong)


USE = Use(
    "cache",
    "cache rebuild: one builds, the others wait, and a late build never wins",
    "objects",
    prepare,
    work,
    examine,
    guard="cache:{key}",
    meanwhile=meanwhile,
)
