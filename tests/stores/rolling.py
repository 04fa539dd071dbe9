"""Replicas that are restarted one after the other, and clients that go on meanwhile."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Self

import httpx

from tests.eventually import eventually
from tests.servers import Server, kept_address, start_server
from tests.stores.replica import LONG_MS, Json


async def all_go_on(clients: "list[Client]", works: Sequence[asyncio.Future[None]]) -> None:
    """Until each has had its lock twice more."""
    wanted = [len(client.tokens) + 2 for client in clients]

    def so() -> bool:
        for work in works:
            if work.done():
                work.result()
        return all(len(client.tokens) >= number for client, number in zip(clients, wanted, strict=True))

    await eventually(so, within_s=90)


class Restartable:
    """Three replicas at addresses that stay theirs."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self._folder = folder
        self._store_url = store_url
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._addresses = [self._stack.enter_context(kept_address()) for _ in range(3)]
        self.urls = [f"http://{address}" for address in self._addresses]
        self._servers: dict[int, Server] = {}
        self._stack.callback(self._kill)
        for number in range(3):
            self._start(number)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, number: int) -> None:
        data, listen = self._folder / f"rolling-{number}", self._addresses[number]
        self._servers[number] = start_server(data, "--store", self._store_url, "--role", "lockservice", listen=listen)

    def _kill(self) -> None:
        for server in self._servers.values():
            server.kill()

    def restart(self, number: int) -> None:
        assert self._servers[number].terminate() == 0
        self._start(number)


class Client:
    """Takes and releases a lock for ever, through whichever replica answers."""

    def __init__(self, urls: list[str], lock_key: str, number: int) -> None:
        self._urls = urls
        self.lock_key = lock_key
        self._number = number
        self.tokens: list[int] = []
        self.stop = False

    async def work(self) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            for turn in count():
                if self.stop:
                    return
                request = {"requestId": f"{self.lock_key}-{self._number}-{turn}", "waitMillis": 20_000}
                grant = await self._answer(http, "acquire", {"ttlMillis": LONG_MS, **request})
                self.tokens.append(int(grant["fencingToken"]))
                await self._answer(http, "release", {"lockToken": grant["lockToken"]})
                await asyncio.sleep(0.02)

    async def _answer(self, http: httpx.AsyncClient, verb: str, body: Json) -> Json:
        """Ask one after the other: only 'not now' may be heard before 'yes'."""
        for attempt in count(self._number):
            url = self._urls[attempt % len(self._urls)]
            try:
                answer = await http.post(f"{url}/v1/locks/{self.lock_key}/{verb}", json=body)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code != 503:
                assert answer.status_code == 200, answer.text
                return dict(answer.json())
            await asyncio.sleep(0.05)
        raise AssertionError
