"""Writes under way: a newer holder's first write waits for older ones, and none is sent after its time."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.child import Child
from tests.eventually import eventually
from tests.resources.gateways import start_gateway
from tests.resources.plain_service import PlainService
from tests.servers import Server

Start = Callable[..., Server]


@pytest.fixture(scope="module")
def service() -> Iterator[PlainService]:
    running = PlainService()
    yield running
    running.kill()


@pytest.fixture
def start(service: PlainService, tmp_path: Path) -> Iterator[Start]:
    """Gateways that share one fence."""
    started: list[Server] = []

    def make(name: str = "gateway", failpoint: str = "", url: str = service.url, **more: Any) -> Server:
        environment = {"FENCEGATE_FAILPOINT": failpoint} if failpoint else {}
        started.append(start_gateway(tmp_path, {"api": {"url": url, **more}}, name, **environment))
        return started[-1]

    yield make
    for server in started:
        with contextlib.suppress(ProcessLookupError):
            server.signal(signal.SIGCONT)
        server.kill()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as client:
        yield client


class Holder:
    """A holder of one token, who writes through one gateway."""

    def __init__(self, http: httpx.AsyncClient, gateway: Server, key: str, token: int) -> None:
        self._http = http
        self._url = f"{gateway.url}/v1/resources/api/{key}"
        self._headers = {"Fencing-Token": str(token)}
        self._text = f"of {token}".encode()

    async def put(self, query: str = "") -> httpx.Response:
        return await self._http.put(self._url + query, content=self._text, headers=self._headers)

    def putting(self, query: str = "") -> "asyncio.Task[httpx.Response]":
        return asyncio.create_task(self.put(query))

    async def get(self) -> httpx.Response:
        return await self._http.get(self._url, headers=self._headers)

    async def claim(self) -> httpx.Response:
        return await self._http.post(f"{self._url}/claim", headers=self._headers)


async def held(http: httpx.AsyncClient, service: PlainService, name: str) -> None:
    """Wait until the service has a write in its hands."""

    async def there() -> bool:
        return name in (await http.get(f"{service.url}/_held")).json()

    await eventually(there)


def highest(answer: httpx.Response) -> str:
    return answer.headers["Fencing-Token-Highest"]


async def marked(http: httpx.AsyncClient, gateway: Server, key: str, token: int) -> None:
    async def there() -> bool:
        fence = (await http.get(f"{gateway.url}/v1/fences/api/{key}")).json()
        return bool(fence["highestToken"] == str(token))

    await eventually(there)


async def applied(http: httpx.AsyncClient, service: PlainService, key: str) -> list[str]:
    lines = (await http.get(f"{service.url}/_applied")).json()
    return [text for _, path, _, text in lines if path == f"/{key}"]


def stopped(server: Server) -> Callable[[], bool]:
    return lambda: Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# --- older writes are awaited ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gateways", [1, 2])
async def test_a_newer_holders_write_waits_for_an_older_one_that_is_under_way(
    http: httpx.AsyncClient, service: PlainService, start: Start, gateways: int
) -> None:
    one = start("one")
    two = start("two") if gateways == 2 else one
    key, hold = f"kv/waits{gateways}", f"waits{gateways}"
    older = Holder(http, one, key, 7).putting(f"?hold={hold}")
    await held(http, service, hold)
    newer = Holder(http, two, key, 8).putting()
    await marked(http, two, key, 8)
    assert (await Holder(http, one, key, 7).put()).status_code == 412
    assert await applied(http, service, key) == []
    await http.get(f"{service.url}/_release/{hold}")
    assert [(await write).status_code for write in (older, newer)] == [201, 200]
    assert await applied(http, service, key) == ["of 7", "of 8"]


@pytest.mark.parametrize("how", ["claim", "get"])
async def test_a_claim_and_a_fenced_read_wait_too_so_that_what_is_read_stays(
    http: httpx.AsyncClient, service: PlainService, start: Start, how: str
) -> None:
    gateway, key = start(), f"kv/claimed-by-{how}"
    older = Holder(http, gateway, key, 7).putting(f"?hold={how}")
    await held(http, service, how)
    newer = Holder(http, gateway, key, 8)
    claim = asyncio.create_task(newer.claim() if how == "claim" else newer.get())
    await marked(http, gateway, key, 8)
    assert not claim.done()
    await http.get(f"{service.url}/_release/{how}")
    assert (await claim).status_code == 200
    assert how == "claim" or (await claim).text == "of 7"
    assert (await older).status_code == 201
    assert await applied(http, service, key) == ["of 7"]


async def test_writes_of_one_holder_and_of_other_locks_do_not_wait(
    http: httpx.AsyncClient, service: PlainService, start: Start
) -> None:
    gateway = start()
    first = Holder(http, gateway, "kv/same", 7).putting("?hold=same")
    await held(http, service, "same")
    assert (await Holder(http, gateway, "kv/same", 7).put()).status_code == 201
    assert (await Holder(http, gateway, "kv/other", 8).put()).status_code == 201
    await http.get(f"{service.url}/_release/same")
    assert (await first).status_code == 200


async def test_one_that_waits_too_long_is_refused_with_nothing_sent(
    http: httpx.AsyncClient, service: PlainService, start: Start
) -> None:
    gateway = start(drain_timeout=0.2)
    older = Holder(http, gateway, "kv/limit", 7).putting("?hold=limit")
    await held(http, service, "limit")
    refused = await Holder(http, gateway, "kv/limit", 8).put()
    assert (refused.status_code, refused.json()["outcome"]) == (503, "not-written")
    assert 1 <= int(refused.headers["retry-after"]) <= 62
    claim = await Holder(http, gateway, "kv/limit", 8).claim()
    assert (claim.status_code, claim.json()["outcome"], highest(claim)) == (503, "not-written", "8")
    await http.get(f"{service.url}/_release/limit")
    assert (await older).status_code == 201
    assert (await Holder(http, gateway, "kv/limit", 8).put()).status_code == 200
    assert await applied(http, service, "kv/limit") == ["of 7", "of 8"]


# --- what became of a write is not known -----------------------------------------------------------------------------


async def test_a_killed_gateways_write_still_blocks_a_newer_one_through_another(
    http: httpx.AsyncClient, service: PlainService, start: Start
) -> None:
    one, two = start("one", drain_timeout=0.2), start("two", drain_timeout=0.2)
    older = Holder(http, one, "kv/killed", 7).putting("?hold=killed")
    await held(http, service, "killed")
    one.kill()
    with pytest.raises(httpx.TransportError):
        await older
    again = start("one", drain_timeout=0.2)
    for gateway in (two, again):
        refused = await Holder(http, gateway, "kv/killed", 8).put()
        assert (refused.status_code, refused.json()["outcome"]) == (503, "not-written")
    await http.get(f"{service.url}/_release/killed")


async def test_a_service_that_dies_midway_makes_the_outcome_unknown_and_blocks_newer_ones(
    http: httpx.AsyncClient, start: Start
) -> None:
    mortal = PlainService()
    try:
        gateway = start(url=mortal.url, drain_timeout=0.2)
        write = Holder(http, gateway, "kv/dies", 7).putting("?hold=dies")
        await held(http, mortal, "dies")
    finally:
        mortal.kill()
    answer = await write
    assert (answer.status_code, answer.json()["outcome"], highest(answer)) == (503, "unknown", "7")
    newer = await Holder(http, gateway, "kv/dies", 8).put()
    assert (newer.status_code, newer.json()["outcome"], highest(newer)) == (503, "not-written", "8")
    # Nobody is there to connect to, so that nothing is sent, and nothing is left behind.
    for _ in range(2):
        unreachable = await Holder(http, gateway, "kv/elsewhere", 7).put()
        assert (unreachable.status_code, unreachable.json()["outcome"]) == (503, "not-written")
        assert highest(unreachable) == "7"


# --- a gateway that stands still -------------------------------------------------------------------------------------


async def test_a_gateway_that_was_stopped_before_it_sent_sends_nothing_after_its_time(
    http: httpx.AsyncClient, service: PlainService, start: Start
) -> None:
    paused = start("paused", failpoint="upstream.send=stop@1", total_timeout=3)
    other = start("other", drain_timeout=20, total_timeout=30)
    older = Holder(http, paused, "kv/paused", 7).putting()
    await eventually(stopped(paused))
    # It waits until the time of the older one is over: it can't know that nothing was sent.
    assert (await Holder(http, other, "kv/paused", 8).put()).status_code == 201
    paused.signal(signal.SIGCONT)
    answer = await older
    assert (answer.status_code, answer.json()["outcome"]) == (503, "not-written")
    assert await applied(http, service, "kv/paused") == ["of 8"]


async def test_a_gateway_stopped_at_the_very_last_line_is_why_this_is_best_effort(
    http: httpx.AsyncClient, service: PlainService, start: Start
) -> None:
    paused = start("paused", failpoint="upstream.last-part=stop@1", total_timeout=3)
    other = start("other", drain_timeout=20, total_timeout=30)
    fence = (await http.get(f"{other.url}/v1/fences/api/kv/last")).json()
    assert fence["guarantee"] == "best-effort"
    older = Holder(http, paused, "kv/last", 7).putting()
    await eventually(stopped(paused))
    assert (await Holder(http, other, "kv/last", 8).put()).status_code == 201
    paused.signal(signal.SIGCONT)
    await older

    async def landed() -> bool:
        return await applied(http, service, "kv/last") == ["of 8", "of 7"]

    await eventually(landed)


ACCOUNTS = """
import socket, uvicorn
from fencegate_demo.services.fastapi_app import app
listening = socket.create_server(("127.0.0.1", 0))
say("http://127.0.0.1:%d" % listening.getsockname()[1])
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
"""


async def test_a_service_that_compares_by_itself_refuses_that_write_after_a_newer_claim_or_write(
    http: httpx.AsyncClient, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'accounts.db'}")
    with Child(ACCOUNTS) as accounts:
        checks = {
            "url": accounts.line(),
            "upstream_checks": True,
            "upstream_claims": True,
            "routes": [{"path": "/accounts/{id:int}", "guard": "acct:{id}"}],
        }
        stops = [start(f"paused{number}", failpoint="upstream.last-part=stop@1", **checks) for number in (1, 2)]
        other = start("other", **checks)
        url = "/v1/resources/api/accounts"

        async def put(gateway: Server, account: int, token: int) -> httpx.Response:
            headers = {"Fencing-Token": str(token)}
            return await http.put(f"{gateway.url}{url}/{account}", json={"balance": token}, headers=headers)

        assert (await put(other, 1, 6)).status_code == (await put(other, 2, 6)).status_code == 204
        older = [asyncio.create_task(put(gateway, account, 7)) for account, gateway in enumerate(stops, 1)]
        for gateway in stops:
            await eventually(stopped(gateway))
        # At once, both of them: the service compares, so nobody waits for what is under way.
        claim = await http.post(f"{other.url}{url}/1/claim", headers={"Fencing-Token": "8"})
        assert (claim.status_code, claim.json()["highestToken"]) == (200, "8")
        assert (await put(other, 2, 8)).status_code == 204
        for gateway, write in zip(stops, older, strict=True):
            gateway.signal(signal.SIGCONT)
            answer = await write
            assert (answer.status_code, answer.json()["error"]) == (412, "STALE_TOKEN")
            assert answer.headers["fencing-token-highest"] == "8"
        balances = [(await http.get(f"{other.url}{url}/{account}")).json()["balance"] for account in (1, 2)]
        assert balances == [6, 8]
        fence = (await http.get(f"{other.url}/v1/fences/api/accounts/1")).json()
        assert (fence["guarantee"], fence["lockKey"]) == ("atomic", "acct:1")
