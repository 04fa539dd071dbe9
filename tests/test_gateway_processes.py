"""Gateways as real processes over the same data: at once, killed, stopped, and fed with broken requests."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.gateway_server import Server, make_tables, serving


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Two gateways over the same data."""
    folder = tmp_path_factory.mktemp("pair")
    make_tables(folder)
    with serving(folder) as one, serving(folder) as two:
        for server in (one, two):
            httpx.get(f"{server.url}/v1/fences/rows/k", timeout=20)
        yield one, two


@pytest.fixture
def server(pair: tuple[Server, Server]) -> Server:
    return pair[0]


class Write(NamedTuple):
    began: float
    ended: float
    token: int
    status: int
    highest: int


def hammer(url: str, paths: list[str], tokens: Callable[[], int], go_on: Callable[[], bool], done: list[Write]) -> None:
    """Write, and put down in `done` what came of it."""
    chance = random.Random(url + str(threading.get_ident()))
    with httpx.Client(base_url=f"{url}/v1/resources/", timeout=60) as http:
        while go_on():
            token = tokens()
            began = time.monotonic()
            answer = http.put(
                chance.choice(paths), content=b'{"token": %d}' % token, headers={"Fencing-Token": str(token)}
            )
            highest = int(answer.headers["Fencing-Token-Highest"])
            done.append(Write(began, time.monotonic(), token, answer.status_code, highest))


def watch(url: str, path: str, go_on: Callable[[], bool]) -> list[int]:
    """The tokens of the values that a plain reader sees, in order."""
    seen = []
    with httpx.Client(base_url=f"{url}/v1/resources/", timeout=60) as http:
        while go_on():
            answer = http.get(path)
            if answer.status_code == 200:
                seen.append(answer.json()["token"])
    return seen


def highest_token(server: Server, path: str) -> int:
    answer = httpx.get(f"{server.url}/v1/fences/{path}", timeout=60)
    return int(answer.json()["highestToken"] or 0)


def never_decreases(writes: list[Write]) -> None:
    """No accepted write that began after another had been answered may have a lower token."""
    accepted = sorted((write for write in writes if write.status in (201, 204)), key=lambda write: write.began)
    answered = sorted(accepted, key=lambda write: write.ended)
    highest, at = 0, 0
    for write in accepted:
        while answered[at].ended < write.began:
            highest = max(highest, answered[at].token)
            at += 1
        assert write.token >= highest


@pytest.mark.parametrize(
    "paths", [["rows/k"], ["objects/k"], ["job/1", "job/2", "job/3"], ["jobs/1", "jobs/2"]], ids=lambda paths: paths[0]
)
def test_two_gateways_at_once_never_accept_a_token_below_an_accepted_one(
    pair: tuple[Server, Server], paths: list[str]
) -> None:
    one, two = pair
    before = highest_token(one, paths[0])
    with ThreadPoolExecutor(6) as threads:
        start = time.monotonic()
        chance = random.Random(0)
        writes: list[Write] = []

        def rising() -> int:
            """Around the time that has passed, so that stale and fresh ones meet all along."""
            return before + max(1, int((time.monotonic() - start) * 1000) + chance.randrange(-150, 150))

        def go_on() -> bool:
            """For a while, and until there is enough to show something."""
            passed_s = time.monotonic() - start
            fates = [write.status == 412 for write in tuple(writes)]
            return passed_s < 1.5 or (passed_s < 60 and not 10 < sum(fates) < len(fates) - 10)

        writers = [threads.submit(hammer, each.url, paths, rising, go_on, writes) for each in (one, two, one, two)]
        readers = [threads.submit(watch, each.url, paths[0], go_on) for each in (one, two)]
        for writer in writers:
            writer.result()
        for reader in readers:
            assert reader.result() == sorted(reader.result())
        refused = [write for write in writes if write.status == 412]
        accepted = [write for write in writes if write.status in (201, 204)]
        assert len(refused) > 10
        assert len(accepted) > 10
        assert len(refused) + len(accepted) == len(writes)
        assert all(write.highest > write.token for write in refused)
        never_decreases(writes)
        top = max(write.token for write in accepted)
        assert highest_token(one, paths[0]) == top
        values = [httpx.get(f"{two.url}/v1/resources/{path}", timeout=60).json()["token"] for path in paths]
        assert max(values) == top


@pytest.mark.parametrize("resource", ["rows", "objects"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, resource: str) -> None:
    make_tables(tmp_path)
    token = acknowledged = 0
    for _ in range(4):
        with serving(tmp_path) as server, httpx.Client(base_url=f"{server.url}/v1/", timeout=20) as http:
            mark = int(http.get(f"fences/{resource}/k").json()["highestToken"] or 0)
            assert acknowledged <= mark <= token
            if acknowledged:
                assert acknowledged <= http.get(f"resources/{resource}/k").json()["token"] <= mark
                late = http.put(f"resources/{resource}/k", content=b"{}", headers={"Fencing-Token": str(mark - 1)})
                assert late.json()["error"] == "STALE_TOKEN"
            killer, first = threading.Timer(0.3, server.process.kill), token
            try:
                while True:
                    token += 1
                    if token == first + 4:
                        killer.start()
                    headers = {"Fencing-Token": str(token)}
                    answer = http.put(f"resources/{resource}/k", content=b'{"token": %d}' % token, headers=headers)
                    assert answer.status_code in (201, 204)
                    acknowledged = token
            except httpx.TransportError:
                assert acknowledged > 1
            finally:
                killer.cancel()


def test_a_job_guard_holds_over_rows_that_the_successor_never_touched(pair: tuple[Server, Server]) -> None:
    one, two = pair
    mark = highest_token(one, "job/row-0")
    older, newer = str(mark + 1), str(mark + 2)
    for number in range(4):
        url = f"{two.url}/v1/resources/job/row-{number}"
        assert httpx.put(url, content=b'{"by": "B"}', headers={"Fencing-Token": newer}).status_code == 201
    for number in range(6):
        url = f"{one.url}/v1/resources/job/row-{number}"
        late = httpx.put(url, content=b'{"by": "A"}', headers={"Fencing-Token": older})
        assert (late.status_code, late.json()["lockKey"]) == (412, "job:rebuild")


# --- broken requests, byte by byte -----------------------------------------------------------------------------------


def send(server: Server, data: bytes, *, then_close: bool = False, within_s: float = 30) -> bytes:
    """What comes back for exactly these bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(data)
        if then_close:
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(within_s)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except TimeoutError:
            pass
        return received


HEAD = b"PUT /v1/resources/%s/broken HTTP/1.1\r\nHost: x\r\nFencing-Token: 34\r\nConnection: close\r\n"


@pytest.mark.parametrize("resource", [b"rows", b"objects"])
def test_a_broken_request_writes_nothing_and_the_gateway_goes_on(server: Server, resource: bytes) -> None:
    head = HEAD % resource
    for rest in (
        b"Content-Length: 10\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        b"Content-Length: -2\r\n\r\n{}",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"Fencing-Token: 35\r\nContent-Length: 2\r\n\r\n{}",
        b"Fencing-\x00Token: 35\r\nContent-Length: 2\r\n\r\n{}",
    ):
        answer = send(server, head + rest, then_close=True, within_s=3)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), (rest, answer)
    name = resource.decode()
    assert httpx.get(f"{server.url}/v1/resources/{name}/broken").status_code == 404
    assert send(server, head + b"Content-Length: 2\r\n\r\n{}").startswith(b"HTTP/1.1 201")


def test_a_raw_path_that_climbs_is_refused(server: Server) -> None:
    for path in (
        b"/v1/resources/objects/../../etc",
        b"/v1/resources/objects/%2e%2e%2fx",
        b"/v1/resources/objects/a%00",
    ):
        answer = send(server, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 422"), (path, answer)
        assert b"INVALID_KEY" in answer


def test_an_escaped_slash_reaches_the_gateway_as_part_of_the_key(server: Server) -> None:
    url = f"{server.url}/v1/resources/rows/a%2Fclaim"
    assert httpx.put(url, content=b"{}", headers={"Fencing-Token": "34"}).status_code == 201
    assert httpx.post(url, headers={"Fencing-Token": "35"}).status_code == 405
    assert httpx.post(f"{url}/claim", headers={"Fencing-Token": "35"}).json()["key"] == "a/claim"


def test_sigterm_lets_go_of_the_resources(tmp_path: Path) -> None:
    make_tables(tmp_path)
    with serving(tmp_path) as server:
        assert httpx.get(f"{server.url}/v1/fences/rows/k", timeout=20).status_code == 200
        assert server.stop() == "closed\n"
