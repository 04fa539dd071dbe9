"""kill -9 of the server in the middle of grants and writes: nothing acknowledged is lost, no token is issued twice.

Clients never stop while the server is killed and started again on the same data. What each was told is kept, and in
the end compared with what the server and the resource hold.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import Server, kept_address, start_server

ROUNDS = 4
KILLS_PER_ROUND = 50
CLIENTS = 5
KEYS = 5


@dataclass
class Told:
    """What the clients were told, by every life of the server."""

    mutex: threading.Lock = field(default_factory=threading.Lock)
    tokens: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    written: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    unknown: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def counts(self) -> tuple[int, int]:
        """How many grants, and how many writes."""
        with self.mutex:
            return sum(map(len, self.tokens.values())), sum(map(len, self.written.values()))

    def has(self, grants: int, writes: int) -> bool:
        return all(have >= wanted for have, wanted in zip(self.counts(), (grants, writes), strict=True))

    def has_all_keys(self) -> bool:
        with self.mutex:
            return sum(map(bool, self.written.values())) == KEYS


class Client(threading.Thread):
    """Acquires, writes and releases for ever, with a request id each time; a lost answer is asked for again."""

    def __init__(self, number: int, url: str, told: Told, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._told = told
        self._stop_event = stop
        self._http = httpx.Client(base_url=url, timeout=20)
        self._random = random.Random(number)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            turn = 0
            while not self._stop_event.is_set():
                turn += 1
                time.sleep(0.01)  # there is always something to lose, and the next server needs the processor too
                self._turn(f"k{self._random.randrange(KEYS)}", f"c{self._number}-{turn}")
        except BaseException as error:
            self.error = error
        finally:
            self._http.close()

    def _turn(self, key: str, request: str) -> None:
        path = f"/v1/locks/rows:{key}"
        body = {"ttlMillis": 3_000, "requestId": request, "ownerId": request, "waitMillis": 300}
        answer = self._until_answered(lambda: self._http.post(f"{path}/acquire", json=body))
        if answer is None or answer.status_code != 200:
            return
        grant = answer.json()
        token = int(grant["fencingToken"])
        with self._told.mutex:
            self._told.tokens[key].append(token)
        self._write(key, request, token)
        self._until_answered(lambda: self._http.post(f"{path}/release", json={"lockToken": grant["lockToken"]}))

    def _write(self, key: str, request: str, token: int) -> None:
        with self._told.mutex:
            self._told.unknown[key].add(request)
        try:
            headers = {"Fencing-Token": str(token)}
            answer = self._http.put(f"/v1/resources/rows/{key}", json={"by": request}, headers=headers)
        except httpx.HTTPError:
            return
        with self._told.mutex:
            if answer.status_code in (200, 201, 204):
                self._told.written[key].append((token, request))
            elif answer.status_code == 412:
                self._told.unknown[key].discard(request)

    def _until_answered(self, call: Callable[[], httpx.Response]) -> httpx.Response | None:
        """Repeat until there is an answer: that is what request ids are for."""
        while not self._stop_event.is_set():
            try:
                answer = call()
            except httpx.HTTPError:
                time.sleep(0.1)  # sooner, the clients would take the processor that the next server starts on
                continue
            if answer.status_code != 503:
                return answer
            time.sleep(0.02)
        return None


@pytest.mark.timeout(400)
@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_50_kills_lose_nothing_that_was_acknowledged_and_issue_no_token_twice(
    tmp_path: Path, round_number: int
) -> None:
    told = Told()
    with kept_address() as address:
        kills = _round(tmp_path, address, told, round_number)
    assert kills == KILLS_PER_ROUND
    grants, writes = told.counts()
    assert grants > kills  # there was work to be lost
    assert writes > kills / 2


def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def _round(tmp_path: Path, address: str, told: Told, round_number: int) -> int:
    """Kill the server again and again under load, then look at what is there."""
    data = tmp_path / "data"
    server = start_server(data, listen=address)
    stop = threading.Event()
    clients = [Client(round_number * CLIENTS + number, server.url, told, stop) for number in range(CLIENTS)]
    chance = random.Random(round_number)
    for client in clients:
        client.start()
    kills = 0
    try:
        while kills < KILLS_PER_ROUND:
            time.sleep(chance.uniform(0.0, 0.12))
            _until(partial(told.has, kills + 2, kills // 2 + 2))
            server.kill()
            kills += 1
            server = start_server(data, listen=address)
        time.sleep(0.5)
        _until(told.has_all_keys)
    finally:
        stop.set()
        for client in clients:
            client.join(60)
    assert [client.error for client in clients if client.error] == []
    try:
        _check(server, told)
    finally:
        assert server.terminate() == 0
    return kills


def _check(server: Server, told: Told) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for number in range(KEYS):
            key = f"k{number}"
            tokens = told.tokens[key]
            assert len(tokens) == len(set(tokens)), f"a token of {key} was issued twice"
            status = http.get(f"/v1/locks/rows:{key}").json()
            highest = status.get("fencingToken") or status.get("highestToken")
            assert int(highest) >= max(tokens), "the lock service forgot a token that it had given out"
            _check_row(http, key, told)


def _check_row(http: httpx.Client, key: str, told: Told) -> None:
    """The row is the newest acknowledged write, or one of unknown outcome that came after it."""
    writes = told.written[key]
    row: dict[str, Any] = http.get(f"/v1/resources/rows/{key}").json()
    fence = http.get(f"/v1/fences/rows/{key}").json()
    assert int(fence["highestToken"]) >= max(token for token, _ in writes)
    newest = max(writes)[1]
    acknowledged = {request for _, request in writes}
    assert row["by"] == newest or (row["by"] in told.unknown[key] and row["by"] not in acknowledged)
