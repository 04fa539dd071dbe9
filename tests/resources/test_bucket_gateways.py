"""Gateways as real processes over one bucket of a real S3 server: at once, stopped midway, and with large objects."""

import hashlib
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.eventually import eventually_sync
from tests.servers import MakeServer, Server
from tests.test_gateway_processes import Write, hammer, never_decreases

MIB = 1024 * 1024
MAX_BYTES = {"framed": 64 * MIB, "pointer": 2048 * MIB}

Start = Callable[..., Server]


@pytest.fixture
def start(make_server: MakeServer, tmp_path: Path, seaweed_url: str, bucket_credentials: dict[str, str]) -> Start:
    """Starts a gateway process over this test's part of the bucket."""

    def gateway(name: str, layout: str, **environment: str) -> Server:
        settings = f'url = "{seaweed_url}"\nlayout = "{layout}"\nmax_bytes = {MAX_BYTES[layout]}\n'
        config = tmp_path / f"{name}.toml"
        config.write_text(f"[resources.files]\n{settings}")
        return make_server(name, "--role", "gateway", "--config", str(config), **bucket_credentials, **environment)

    return gateway


def put(server: Server, data: bytes | Iterator[bytes], token: int, key: str = "k") -> httpx.Response:
    headers = {"Fencing-Token": str(token), "Content-Type": "text/plain", "X-Meta-By": "me"}
    return httpx.put(f"{server.url}/v1/resources/files/{key}", content=data, headers=headers, timeout=120)


def get(server: Server, key: str = "k", **headers: str) -> httpx.Response:
    return httpx.get(f"{server.url}/v1/resources/files/{key}", headers=headers, timeout=120)


def status_of(server: Server, field: str) -> str:
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{field}:")).split()[1]


def test_the_calls_of_an_object_over_http(start: Start) -> None:
    server = start("one", "framed")
    created = put(server, b"0123456789", 7, "a/b")
    assert created.status_code == 201
    read = get(server, "a/b")
    assert (read.content, read.headers["etag"]) == (b"0123456789", created.headers["etag"])
    assert (read.headers["content-type"], read.headers["x-meta-by"]) == ("text/plain", "me")
    assert read.headers["fencing-token-highest"] == "7"
    part = get(server, "a/b", Range="bytes=3-5")
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"345", "bytes 3-5/10")
    fence = httpx.get(f"{server.url}/v1/fences/files/a/b", timeout=60).json()
    assert (fence["highestToken"], fence["guarantee"], fence["lockKey"]) == ("7", "atomic", "files:a/b")
    stale = put(server, b"late", 6, "a/b")
    assert (stale.status_code, stale.json()["error"], stale.json()["highestToken"]) == (412, "STALE_TOKEN", "7")
    listed = httpx.get(f"{server.url}/v1/resources/files?prefix=a", timeout=60).json()
    assert [(each["key"], each["size"]) for each in listed["objects"]] == [("a/b", 10)]
    gone = httpx.delete(f"{server.url}/v1/resources/files/a/b", headers={"Fencing-Token": "8"}, timeout=60)
    assert (gone.status_code, get(server, "a/b").status_code) == (204, 404)
    assert put(server, b"late", 7, "a/b").status_code == 412


@pytest.mark.parametrize("layout", ["framed", "pointer"])
def test_two_gateways_at_once_never_accept_a_token_below_an_accepted_one(start: Start, layout: str) -> None:
    one, two = start("one", layout), start("two", layout)
    chance, numbers, lock = random.Random(7), itertools.count(40), threading.Lock()
    writes: list[Write] = []

    def rising() -> int:
        """Tokens rise with the writes and overlap between the writers, so that both answers are common."""
        with lock:
            return next(numbers) // 2 + chance.randrange(-8, 8)

    def go_on() -> bool:
        return len(writes) < 60

    with ThreadPoolExecutor(4) as threads:
        for writer in [threads.submit(hammer, each.url, ["files/k"], rising, go_on, writes) for each in (one, two) * 2]:
            writer.result()
    accepted = [write for write in writes if write.status in (201, 204)]
    refused = [write for write in writes if write.status == 412]
    assert len(accepted) + len(refused) == len(writes)
    assert accepted
    assert refused
    assert all(write.highest > write.token for write in refused)
    never_decreases(writes)
    highest = max(write.token for write in accepted)
    for server in (one, two):
        assert get(server).json() == {"token": highest}


@pytest.mark.parametrize("layout", ["framed", "pointer"])
def test_a_gateway_that_is_stopped_in_the_middle_of_a_write_is_refused_once_the_successor_wrote(
    start: Start, layout: str
) -> None:
    other = start("other", layout)
    assert put(other, b"first", 6).status_code == 201
    paused = start("paused", layout, FENCEGATE_FAILPOINT="resource.write=stop@1")
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(put, paused, b"of the paused one", 7)
        eventually_sync(lambda: status_of(paused, "State") == "T")
        assert get(other).content == b"first"
        assert put(other, b"of the successor", 8).status_code == 204
        paused.signal(signal.SIGCONT)
        answer = late.result()
    assert (answer.status_code, answer.json()["error"]) == (412, "STALE_TOKEN")
    for server in (other, paused):
        assert get(server).content == b"of the successor"


def test_a_large_object_goes_through_in_bounded_memory(start: Start) -> None:
    """80 MiB here; `python -m bench.large_object` sends a GiB."""
    server = start("one", "pointer")
    assert put(server, b"warm", 7).status_code == 201
    before_kib = int(status_of(server, "VmHWM"))
    piece, sent, received = os.urandom(MIB), hashlib.sha256(), hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for number in range(80):
            part = piece[number:] + piece[:number]
            sent.update(part)
            yield part

    assert put(server, pieces(), 7).status_code == 204
    with httpx.stream("GET", f"{server.url}/v1/resources/files/k", timeout=120) as answer:
        assert answer.headers["content-length"] == str(80 * MIB)
        for part in answer.iter_raw():
            received.update(part)
    assert received.digest() == sent.digest()
    assert get(server, Range=f"bytes={50 * MIB}-{50 * MIB + 9}").content == (piece[50:] + piece[:50])[:10]
    assert int(status_of(server, "VmHWM")) - before_kib < 60 * 1024
