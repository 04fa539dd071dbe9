"""A worker, as a program of its own: `python -m fencegate.verify.real.worker PART`. It updates values under locks with
the real client, in both arms at once, and writes down what it did and was told.

It is told on stdin when an episode begins and when it is to end; when stdin ends, so does the worker.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec

from fencegate.client.locks import Locks, connect
from fencegate.clock import SYSTEM, seeded
from fencegate.core.errors import FencegateError
from fencegate.verify.real.record import (
    ARMS,
    Arm,
    Finished,
    Granted,
    HasRead,
    HasWritten,
    LetGo,
    NotGranted,
    Reads,
    Record,
    Told,
    Writes,
)

ANSWER_WITHIN_S = 1.5
"""A gateway that stands still is given up before the lock is: so a stale write can be on its way."""
TTLS_S = (1.0, 1.2, 2.0)
WAITS_S = (0.5, 2.0, 6.0)
LAST_WAIT_S = 20.0
CHECKS = 0.1
"""How often it looks at its lease right before it writes; most programs never do."""


CROSSES, DELETES = 0.12, 0.8


class Part(msgspec.Struct, frozen=True):
    """Who this worker is, and where its locks and its data are."""

    name: str
    number: int
    record: str
    seed: str
    locks: list[str]
    gateways: list[str]
    resources: dict[Arm, str]


class Order(msgspec.Struct, frozen=True):
    """Begin this episode, on these keys; or bring it to its end."""

    episode: int
    keys: list[str]
    crossed: str = ""
    """A key that is written and deleted by turns, where the resource can delete."""
    last: bool = False


class _Broken(Exception):
    """This round is over."""


class Worker:
    def __init__(self, part: Part) -> None:
        self._part = part
        self._record = Record(Path(part.record))
        self._locks: list[Locks] = [connect(url, timeout=2.0) for url in part.locks]
        self._http = httpx.AsyncClient(timeout=ANSWER_WITHIN_S, trust_env=False)
        self._number = 0
        self._order: Order | None = None
        self._ordered = asyncio.Event()

    def obey(self, order: Order) -> None:
        self._order = order
        self._ordered.set()

    async def work(self, arm: Arm) -> None:
        chance = seeded(f"{self._part.seed}/{self._part.name}/{arm}")
        finished = 0
        while True:
            order = self._order
            if order is None or order.episode <= finished:
                self._ordered.clear()
                await self._ordered.wait()
                continue
            if not order.last:
                await asyncio.sleep(chance.random() * 0.2)
                crosses = bool(order.crossed) and chance.random() < CROSSES
                key = order.crossed if crosses else chance.choice(order.keys)
                if not await self._round(arm, order, key, chance):
                    await asyncio.sleep(chance.random() * 0.4)
                continue
            key = order.keys[self._part.number % len(order.keys)]
            if not await self._round(arm, order, key, chance):
                await asyncio.sleep(0.1)
                continue
            finished = order.episode
            self._record.say(Finished(**self._where(arm, order, key)))

    def _where(self, arm: Arm, order: Order, key: str) -> dict[str, Any]:
        now_us = SYSTEM.monotonic_us()
        return {"episode": order.episode, "arm": arm, "client": self._part.name, "key": key, "at_us": now_us}

    async def _round(self, arm: Arm, order: Order, key: str, chance: Any) -> bool:
        """Whether all that it wrote was acknowledged."""
        lock_key = f"{self._part.resources[arm]}:{key}"
        locks = chance.choice(self._locks)
        ttl, wait = chance.choice(TTLS_S), LAST_WAIT_S if order.last else chance.choice(WAITS_S)
        asked_us = SYSTEM.monotonic_us()
        granted = written = False
        try:
            async with locks.hold(lock_key, ttl=ttl, wait=wait) as lease:
                granted = True
                where = self._where(arm, order, key)
                token = int(lease.token)
                self._record.say(Granted(**where, token=token, asked_us=asked_us, until_us=lease._deadline_us()))
                try:
                    does = self._cross if key == order.crossed else self._update
                    await does(arm, order, key, lease, chance)
                    written = True
                finally:
                    where = self._where(arm, order, key)
                    since_us = min(where["at_us"], lease._deadline_us())
                    self._record.say(LetGo(**where, token=token, since_us=since_us))
        except (FencegateError, _Broken) as error:
            if not granted:
                where = self._where(arm, order, key)
                self._record.say(NotGranted(**where, asked_us=asked_us, why=type(error).__name__))
        return written

    async def _update(self, arm: Arm, order: Order, key: str, lease: Any, chance: Any) -> None:
        """Read all that is there, think, add one's own, write it back; sometimes twice."""
        token = int(lease.token)
        updates = await self._read(arm, order, key, token, chance)
        for _ in range(1 if order.last else chance.choice((1, 1, 2))):
            if not order.last:
                await asyncio.sleep(chance.random() * chance.choice((0.05, 0.5)))
            if chance.random() < CHECKS:
                lease.ensure_held()
            updates = (*updates, f"{self._part.name}.{self._number}")
            await self._write(arm, order, key, token, updates, chance)

    async def _cross(self, arm: Arm, order: Order, key: str, lease: Any, chance: Any) -> None:
        """Write something, and mostly delete it again. Whoever slept meanwhile must not bring it back."""
        token = int(lease.token)
        await self._read(arm, order, key, token, chance)
        await asyncio.sleep(chance.random() * chance.choice((0.05, 0.5)))
        await self._write(arm, order, key, token, (f"{self._part.name}.{self._number}",), chance)
        if chance.random() < DELETES:
            await self._write(arm, order, key, token, (f"-{self._part.name}.{self._number}",), chance, "DELETE")

    async def _read(self, arm: Arm, order: Order, key: str, token: int, chance: Any) -> tuple[str, ...]:
        self._number += 1
        number = self._number
        self._record.say(Reads(**self._where(arm, order, key), number=number, token=token))
        updates: tuple[str, ...] | None = None
        why = ""
        try:
            answer = await self._http.get(self._url(arm, key, chance), headers={"Fencing-Token": str(token)})
            if answer.status_code == 404:
                updates = ()
            elif answer.status_code == 200:
                updates = tuple(str(answer.json()["updates"]).split())
            else:
                why = _why(answer)
        except httpx.HTTPError as error:
            why = type(error).__name__
        self._record.say(HasRead(**self._where(arm, order, key), number=number, updates=updates, why=why))
        if updates is None:
            raise _Broken
        return updates

    async def _write(
        self,
        arm: Arm,
        order: Order,
        key: str,
        token: int,
        updates: tuple[str, ...],
        chance: Any,
        method: str = "PUT",
    ) -> None:
        self._number += 1
        number = self._number
        self._record.say(Writes(**self._where(arm, order, key), number=number, token=token, update=updates[-1]))
        value = {"by": self._part.name, "updates": " ".join(updates)}  # texts, for not all resources have lists
        told: Told
        try:
            headers = {"Fencing-Token": str(token)}
            url = self._url(arm, key, chance)
            body = value if method == "PUT" else None
            answer = await self._http.request(method, url, headers=headers, json=body)
            told, why = _told(answer)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            told, why = "not-written", type(error).__name__  # nothing of it has left
        except httpx.HTTPError as error:
            told, why = "unknown", type(error).__name__
        self._record.say(HasWritten(**self._where(arm, order, key), number=number, told=told, why=why))
        if told != "done":
            raise _Broken

    def _url(self, arm: Arm, key: str, chance: Any) -> str:
        return f"{chance.choice(self._part.gateways)}/v1/resources/{self._part.resources[arm]}/{key}"


def _told(answer: httpx.Response) -> tuple[Told, str]:
    if answer.is_success:
        return "done", ""
    why = _why(answer)
    if answer.status_code == 412 and why.startswith("STALE_TOKEN"):
        return "refused", why
    if answer.status_code == 503 and _document(answer).get("outcome") == "not-written":
        return "not-written", why
    return "unknown", why


def _why(answer: httpx.Response) -> str:
    document = _document(answer)
    return f"{document.get('error', answer.status_code)} {document.get('detail', '')}"[:200]


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def _main(part: Part) -> None:
    worker = Worker(part)
    arms = [asyncio.ensure_future(worker.work(arm)) for arm in ARMS]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while line := await reader.readline():
        worker.obey(msgspec.json.decode(line, type=Order))
        for arm in arms:
            if arm.done():
                arm.result()  # what is wrong with the worker itself is said
    for arm in arms:
        arm.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*arms)


if __name__ == "__main__":
    asyncio.run(_main(msgspec.json.decode(sys.argv[1], type=Part)))
