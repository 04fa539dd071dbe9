"""`LeaseAuth`: a lease's headers on each request of httpx, over real connections, and none once it is lost."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import fencegate.sync
from fencegate import LockLost, Locks, ResourceUnavailable, connect
from fencegate.core.errors import InvalidInput
from fencegate.httpx import GatewayKey, GatewayResource, LeaseAuth
from tests.servers import Server


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was sent; `/to?URL` redirects there."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
        if self.path.startswith("/to?"):
            self.send_response(307)
            self.send_header("Location", self.path.removeprefix("/to?"))
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT

    def log_message(self, *_: object) -> None:
        pass


class EchoServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Echo)
        self.seen: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class BothEcho(EchoServer):
    """Speaks TLS with those who do, and plainly with others, under one name."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if connection.recv(1, socket.MSG_PEEK) == b"\x16":  # a TLS handshake
            connection = self._context.wrap_socket(connection, server_side=True)
        return connection, address


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    yield from echoing()


@pytest.fixture
def elsewhere() -> Iterator[EchoServer]:
    yield from echoing()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[EchoServer]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no certificate can be made: put openssl on PATH")
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=me"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run([openssl, *made, *files], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    yield from echoing(BothEcho(context))


def echoing(server: EchoServer | None = None) -> Iterator[EchoServer]:
    with server or EchoServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


class Lease:
    """A lease that is lost when its test says so, and counts how often it was asked."""

    def __init__(self) -> None:
        self.lost = False
        self.lost_after = 1000

    def ensure_held(self) -> None:
        self.lost_after -= 1
        if self.lost or self.lost_after < 0:
            raise LockLost("it ran out")

    def headers(self) -> dict[str, str]:
        self.ensure_held()
        return {"Fencing-Token": "34", "Fencing-Lock": "job:x"}


async def put(face: str, url: str, auth: httpx.Auth, **how: object) -> httpx.Response:
    """The same request by the sync or the async client."""
    if face == "sync":
        with httpx.Client(auth=auth, trust_env=False, verify=False, timeout=30, **how) as client:  # type: ignore[arg-type]
            return client.put(url, json={})
    async with httpx.AsyncClient(auth=auth, trust_env=False, verify=False, timeout=30, **how) as client:  # type: ignore[arg-type]
        return await client.put(url, json={})


both_faces = pytest.mark.parametrize("face", ["sync", "async"])


@both_faces
async def test_each_request_carries_the_headers_of_the_lease(face: str, echo: EchoServer) -> None:
    told = (await put(face, echo.url, LeaseAuth(Lease()))).json()
    assert (told["fencing-token"], told["fencing-lock"]) == ("34", "job:x")


@both_faces
async def test_a_request_that_is_sent_again_asks_no_lease_but_the_one_it_is_sent_with(
    face: str, echo: EchoServer
) -> None:
    before, lease = Lease(), Lease()
    request = httpx.Request("PUT", echo.url)
    async with httpx.AsyncClient(trust_env=False, verify=False) as by_async:
        with httpx.Client(trust_env=False, verify=False) as by_sync:
            for number, given in enumerate((before, lease)):
                auth = LeaseAuth(given)
                answer = by_sync.send(request, auth=auth) if face == "sync" else await by_async.send(request, auth=auth)
                assert (answer.status_code, len(echo.seen)) == (200, number + 1)
                before.lost = True


@both_faces
async def test_nothing_is_sent_once_the_lease_is_lost(face: str, echo: EchoServer) -> None:
    lease = Lease()
    lease.lost = True
    with pytest.raises(LockLost):
        await put(face, echo.url, LeaseAuth(lease))
    assert echo.seen == []


@both_faces
async def test_nothing_is_sent_when_it_is_lost_while_the_request_waits_for_its_connection(
    face: str, echo: EchoServer
) -> None:
    lease = Lease()
    lease.lost_after = 1  # it was held when the headers were made, and is lost when they are about to leave
    with pytest.raises(LockLost):
        await put(face, echo.url, LeaseAuth(lease))
    assert echo.seen == []


@both_faces
async def test_a_redirect_within_the_host_keeps_the_headers(face: str, echo: EchoServer) -> None:
    answer = await put(face, f"{echo.url}/to?/there", LeaseAuth(Lease()), follow_redirects=True)
    assert answer.json()["fencing-token"] == "34"
    assert echo.seen == ["/to?/there", "/there"]


@both_faces
async def test_a_redirect_to_another_host_does_not_get_the_headers(
    face: str, echo: EchoServer, elsewhere: EchoServer
) -> None:
    url = f"{echo.url}/to?{elsewhere.url}/there"
    told = (await put(face, url, LeaseAuth(Lease()), follow_redirects=True)).json()
    assert elsewhere.seen == ["/there"]
    assert "fencing-token" not in told
    assert "fencing-lock" not in told


@both_faces
async def test_a_redirect_from_tls_to_none_does_not_get_the_headers(face: str, both: EchoServer) -> None:
    url = f"{both.url.replace('http:', 'https:')}/to?{both.url}/there"
    told = (await put(face, url, LeaseAuth(Lease()), follow_redirects=True)).json()
    assert len(both.seen) == 2
    assert "fencing-token" not in told


@both_faces
async def test_a_redirect_to_another_host_is_not_followed_once_the_lease_is_lost(
    face: str, echo: EchoServer, elsewhere: EchoServer
) -> None:
    lease = Lease()
    lease.lost_after = 2  # by now it was asked for the headers, and before they left
    with pytest.raises(LockLost):
        await put(face, f"{echo.url}/to?{elsewhere.url}/there", LeaseAuth(lease), follow_redirects=True)
    assert elsewhere.seen == []


@both_faces
async def test_another_auth_goes_with_it(face: str, echo: EchoServer) -> None:
    told = (await put(face, echo.url, LeaseAuth(Lease(), httpx.BasicAuth("me", "secret")))).json()
    assert told["authorization"].startswith("Basic ")
    assert told["fencing-token"] == "34"


async def test_the_callers_own_trace_is_still_called(echo: EchoServer) -> None:
    heard: list[str] = []

    async def trace(name: str, info: dict[str, object]) -> None:
        heard.append(name)

    async with httpx.AsyncClient(auth=LeaseAuth(Lease()), trust_env=False, verify=False) as client:
        await client.get(echo.url, extensions={"trace": trace})
    assert "http11.send_request_headers.started" in heard


async def test_a_real_lease_writes_through_the_gateway_until_it_is_released(server: Server) -> None:
    url = f"{server.url}/v1/resources/rows/by-httpx"
    locks: Locks = connect(server.url)
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        async with locks.hold("rows:by-httpx") as lease:
            assert (await client.put(url, json={"n": 1}, auth=LeaseAuth(lease))).status_code == 201
        with pytest.raises(LockLost):
            await client.put(url, json={"n": 2}, auth=LeaseAuth(lease))
        assert (await client.get(url)).json() == {"n": 1}
    await locks.aclose()


def test_the_same_without_await(server: Server) -> None:
    url = f"{server.url}/v1/resources/rows/by-httpx-sync"
    with fencegate.sync.connect(server.url) as locks, httpx.Client(trust_env=False, verify=False) as client:
        with locks.hold("rows:by-httpx-sync") as lease:
            assert client.put(url, json={"n": 1}, auth=LeaseAuth(lease)).status_code == 201
        with pytest.raises(LockLost):
            client.put(url, json={"n": 2}, auth=LeaseAuth(lease))


def test_a_server_that_takes_a_claim_without_telling_its_mark_has_raised_no_fence(echo: EchoServer) -> None:
    with pytest.raises(ResourceUnavailable, match="Fencing-Token-Highest"):
        GatewayKey(echo.url, "7").claim("accounts:7", 34)
    assert echo.seen == ["/7/claim"]


@pytest.mark.parametrize("tail", ["/7?tenant=eu", "/7#eu", "/a#b/7"])
def test_a_key_whose_url_goes_on_behind_the_path_is_refused_since_its_claim_would_be_another_call(
    echo: EchoServer, tail: str
) -> None:
    """`POST /7?tenant=eu/claim` is a write of the key itself, with the token of who only wanted to claim it."""
    for claimed in (GatewayKey, GatewayResource):
        with pytest.raises(InvalidInput, match="url"):
            claimed(echo.url + tail).claim("accounts:7", 34)
    assert echo.seen == []
