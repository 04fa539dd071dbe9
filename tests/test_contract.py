"""What the contract says, checked as a stranger would: a real server, real commands, the snippets of the README.

One test for each paragraph; what is checked in depth elsewhere (hostile input, waiting, time) is not repeated here.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import String
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import fencegate.sync
from fencegate import LockHeld, LockLost, StaleToken, connect
from fencegate.sql import fenced
from tests.servers import MakeServer, Server, start_server
from tests.test_serve import run

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")

CONFIG = """
[resources.accounts]
url   = "sqlite:///{folder}/app.db"
table = "accounts"
key   = ["tenant", "id"]
guard = "acct:{{tenant}}"

[resources.jobs]
url   = "sqlite:///{folder}/jobs.db"
guard = "job:rebuild"

[resources.trial]
url  = "sqlite:///{folder}/trial.db"
mode = "shadow"

[resources.files]
url       = "file://{folder}/files"
max_bytes = 1000

[resources.rebuild]
url = "sqlite:///{folder}/rebuild.db"
"""

TABLE = (
    "CREATE TABLE accounts (tenant TEXT, id INTEGER, balance DECIMAL(12, 2), rate NUMERIC, big BIGINT, made TIMESTAMP,"
    " day DATE, photo BLOB, active BOOLEAN, PRIMARY KEY (tenant, id))"
)


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose resources come from a TOML file."""
    folder = tmp_path_factory.mktemp("contract")
    with closing(sqlite3.connect(folder / "app.db")) as database:
        database.execute(TABLE)
    (folder / "fencegate.toml").write_text(CONFIG.format(folder=folder))
    running = start_server(folder / "data", "--config", str(folder / "fencegate.toml"))
    yield running
    assert running.terminate() == 0


@pytest.fixture
def gate(configured: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{configured.url}/v1", timeout=30) as client:
        yield client


def token(value: int | str, **more: str) -> dict[str, str]:
    return {"Fencing-Token": str(value), **{name.replace("_", "-"): text for name, text in more.items()}}


def refused(answer: httpx.Response, status: int, error: str, **members: Any) -> dict[str, Any]:
    """The problem document of a refusal, with all that every one of them has."""
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["status"], problem["error"]) == (status, status, error), answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert problem["type"]
    assert problem["title"]
    assert problem["detail"]
    assert members.items() <= problem.items()
    return problem


# --- locks -----------------------------------------------------------------------------------------------------------


def test_every_lock_call_also_takes_its_key_in_the_body(gate: httpx.Client) -> None:
    key = "ns:a/b/acquire"  # a key that ends like a verb can't be mistaken here, nor with %2F
    grant = gate.post("/acquire", json={"lockKey": key, "ownerId": "me"}).json()
    assert (grant["lockKey"], grant["ttlMillis"], grant["mode"], grant["sequencer"]) == (key, 30000, "exclusive", None)
    proof = {"lockToken": grant["lockToken"], "ownerId": "me"}
    renewed = gate.post("/renew", json={"lockKey": key, **proof}).json()
    assert renewed.keys() >= {"lockKey", "fencingToken", "sequencer", "expiresAt", "remainingMillis"}
    assert gate.get("/locks/ns:a%2Fb%2Facquire").json()["fencingToken"] == grant["fencingToken"]
    assert gate.get("/locks/ns:a/b/acquire").json()["ownerId"] == "me"
    released = gate.post("/locks/ns:a%2Fb%2Facquire/release", json=proof).json()
    assert released == {"status": "RELEASED", "lockKey": key, "reentrancyCount": 0}
    assert gate.post("/release", json={"lockKey": key, **proof}).json() == released
    refused(gate.post("/force-release", json={"lockKey": key, "reason": "test"}), 404, "LOCK_FREE")
    refused(gate.post("/acquire", json={}), 422, "INVALID_LOCK_KEY", field="lockKey")


def test_wait_millis_alone_implies_wait_and_wait_false_does_not_wait(gate: httpx.Client) -> None:
    gate.post("/locks/waiting/acquire", json={"ownerId": "holder"})

    def asked(**body: Any) -> float:
        before = time.monotonic()
        answer = gate.post("/locks/waiting/acquire", json=body)
        problem = refused(answer, 409, "LOCK_ALREADY_HELD", currentOwner="holder")
        assert int(answer.headers["Retry-After"]) == -(-problem["retryAfterMillis"] // 1000)
        return time.monotonic() - before

    assert asked(waitMillis=300) > 0.29  # timers count whole milliseconds
    assert asked(wait=False, waitMillis=60000) < 20
    assert asked() < 20


def test_a_request_id_answers_the_same_until_the_lease_is_over(gate: httpx.Client) -> None:
    body = {"requestId": "r-1", "ownerId": "me", "ttlMillis": 50000}
    first = gate.post("/locks/once/acquire", json=body).json()
    again = gate.post("/locks/once/acquire", json={**body, "waitMillis": 100}).json()
    assert (again["lockToken"], again["fencingToken"]) == (first["lockToken"], first["fencingToken"])
    refused(gate.post("/locks/once/acquire", json={**body, "ttlMillis": 60000}), 409, "REQUEST_ID_REUSED")
    gate.post("/locks/once/release", json={"lockToken": first["lockToken"]})
    refused(gate.post("/locks/once/acquire", json=body), 409, "LOCK_EXPIRED")
    free = refused(gate.get("/locks/once"), 404, "LOCK_FREE", lockKey="once", locked=False)
    assert free["highestToken"] == first["fencingToken"]


def test_a_reentrant_lock_is_said_to_be_held_until_its_last_hold_ends(gate: httpx.Client) -> None:
    body = {"ownerId": "me", "reentrant": True}
    short = gate.post("/locks/twice/acquire", json={**body, "ttlMillis": 60000}).json()
    long = gate.post("/locks/twice/acquire", json={**body, "ttlMillis": 600000}).json()
    status = gate.get("/locks/twice").json()
    assert (status["expiresAt"], status["reentrancyCount"]) == (long["expiresAt"], 2)
    held = refused(gate.post("/locks/twice/acquire", json={"ownerId": "other"}), 409, "LOCK_ALREADY_HELD")
    assert held["retryAfterMillis"] > 500000
    assert gate.post("/locks/twice/release", json={"lockToken": short["lockToken"]}).json()["reentrancyCount"] == 1


def test_the_list_takes_its_parameters_even_when_they_are_empty(gate: httpx.Client) -> None:
    for number in range(3):
        gate.post(f"/locks/listed:{number}/acquire", json={})
    first = gate.get("/locks?namespace=listed&prefix=&limit=2&cursor=").json()
    rest = gate.get("/locks", params={"namespace": "listed", "limit": 2, "cursor": first["nextCursor"]}).json()
    assert [lock["lockKey"] for lock in first["locks"] + rest["locks"]] == [f"listed:{number}" for number in range(3)]
    assert rest["nextCursor"] is None
    assert gate.get("/locks?namespace=&prefix=listed:1").json()["locks"][0]["lockKey"] == "listed:1"


# --- protected resources ---------------------------------------------------------------------------------------------


def test_a_grant_of_the_lock_service_opens_the_resource_that_its_lock_guards(gate: httpx.Client) -> None:
    old = gate.post("/locks/acct:acme/acquire", json={"ttlMillis": 1000}).json()["fencingToken"]
    new = gate.post("/locks/acct:acme/acquire", json={"waitMillis": 30000}).json()["fencingToken"]
    claimed = gate.post("/resources/accounts/acme/1/claim", headers=token(new, Fencing_Lock="acct:acme"))
    assert (claimed.status_code, claimed.headers["Fencing-Token-Highest"]) == (200, new)
    stale = {"token": old, "highestToken": new, "resource": "accounts", "key": "acme/2", "lockKey": "acct:acme"}
    refused(gate.put("/resources/accounts/acme/2", json={}, headers=token(old)), 412, "STALE_TOKEN", **stale)
    assert gate.put("/resources/accounts/acme/2", json={}, headers=token(new)).is_success
    other = gate.put("/resources/accounts/acme/2", json={}, headers=token(new, Fencing_Lock="acct:other"))
    refused(other, 403, "TOKEN_NOT_FOR_THIS_KEY")
    refused(gate.put("/resources/accounts/acme/2", json={}), 428, "TOKEN_REQUIRED")
    refused(gate.put("/resources/accounts/acme/2", json={}, headers=token("x.y.z")), 401, "BAD_SEQUENCER")
    refused(gate.get("/resources/accounts/acme/99"), 404, "NOT_FOUND")
    fence = gate.get("/fences/accounts/acme/77").json()
    assert (fence["highestToken"], fence["lockKey"], fence["guarantee"]) == (new, "acct:acme", "atomic")
    assert fence["durability"]


def test_where_one_lock_guards_all_it_is_claimed_without_a_key(gate: httpx.Client) -> None:
    assert gate.post("/resources/jobs/claim", headers=token(34)).json()["lockKey"] == "job:rebuild"
    refused(gate.put("/resources/jobs/never-seen", json={}, headers=token(33)), 412, "STALE_TOKEN", highestToken="34")
    refused(gate.post("/resources/files/claim", headers=token(34)), 400, "INVALID_KEY", field="key")


def test_columns_travel_as_the_contract_says(gate: httpx.Client) -> None:
    row = {
        "balance": "12.50",
        "rate": "1.125",
        "big": "9223372036854775807",
        "made": "2030-01-31T12:00:00Z",
        "day": "2030-01-31",
        "photo": "AAH/",
        "active": True,
    }
    headers = token(5, Prefer="return=representation")
    put = gate.put("/resources/accounts/types/7", json=row, headers=headers)
    assert (put.status_code, put.json()) == (201, {"tenant": "types", "id": 7, **row})
    assert gate.put("/resources/accounts/types/7", json=put.json(), headers=headers).json() == put.json()
    later = gate.patch("/resources/accounts/types/7", json={"made": "2030-01-31T12:00:00+02:00"}, headers=headers)
    assert later.json()["made"] == "2030-01-31T10:00:00Z"
    unknown = gate.patch("/resources/accounts/types/7", json={"nope": 1}, headers=token(5))
    refused(unknown, 422, "INVALID_NOPE", field="nope")


def test_rows_are_put_merged_created_only_once_deleted_and_batched(gate: httpx.Client) -> None:
    where, headers = "/resources/jobs/rows/one", token(1000, Prefer="return=representation")
    assert gate.put(where, json={"a": {"b": 1}, "c": 2}, headers={**headers, "If-None-Match": "*"}).status_code == 201
    again = gate.put(where, json={}, headers={**headers, "If-None-Match": "*"})
    refused(again, 412, "PRECONDITION_FAILED")
    refused(gate.put(where, json={}, headers=token(999, If_None_Match="*")), 412, "STALE_TOKEN")
    assert gate.patch(where, json={"a": {"d": 3}, "c": None}, headers=headers).json() == {"a": {"b": 1, "d": 3}}
    assert gate.head(where).headers["Fencing-Token-Highest"] == "1000"
    writes = [{"op": "put", "key": "rows/two", "value": {"n": 2}}, {"op": "delete", "key": "rows/one"}]
    assert gate.post("/resources/jobs/batch", json={"writes": writes}, headers=token(1001)).is_success
    refused(gate.post("/resources/jobs/batch", json={"writes": writes}, headers=token(1000)), 412, "STALE_TOKEN")
    refused(gate.get(where), 404, "NOT_FOUND")
    assert gate.get("/resources/jobs/rows/two", headers=token(1002)).json() == {"n": 2}
    refused(gate.put("/resources/jobs/rows/two", json={}, headers=token(1001)), 412, "STALE_TOKEN")


def test_objects_keep_type_and_metadata_and_have_ranges_a_listing_and_a_limit(gate: httpx.Client) -> None:
    headers = token(7, Content_Type="text/plain", X_Meta_Colour="Red")
    assert gate.put("/resources/files/d/one", content=b"0123456789", headers=headers).status_code == 201
    head = gate.head("/resources/files/d/one").headers
    assert (head["Content-Type"], head["Content-Length"], head["X-Meta-Colour"]) == ("text/plain", "10", "Red")
    part = gate.get("/resources/files/d/one", headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, b"234", "bytes 2-4/10")
    refused(gate.put("/resources/files/d/big", content=b"x" * 1001, headers=token(7)), 413, "TOO_LARGE")
    parts = (b"x" * 300 for _ in range(4))
    refused(gate.put("/resources/files/d/big", content=parts, headers=token(7)), 413, "TOO_LARGE")
    gate.put("/resources/files/d/two", content=b"", headers=token(7))
    first = gate.get("/resources/files", params={"prefix": "d/", "limit": 1}).json()
    rest = gate.get("/resources/files", params={"prefix": "d/", "cursor": first["nextCursor"]}).json()
    assert [found["key"] for found in first["objects"] + rest["objects"]] == ["d/one", "d/two"]
    wrong = gate.patch("/resources/files/d/one", headers=token(7))
    assert wrong.status_code == 405
    assert wrong.headers.get_list("Allow") == ["GET, HEAD, PUT, DELETE"]


def test_shadow_mode_counts_and_does_not_refuse(gate: httpx.Client) -> None:
    gate.put("/resources/trial/k", json={"by": "new"}, headers=token(9))
    late = gate.put("/resources/trial/k", json={"by": "old"}, headers=token(8))
    assert (late.status_code, late.headers["Fencing-Token-Highest"]) == (204, "9")
    assert gate.get("/resources/trial/k").json() == {"by": "old"}
    assert gate.get("/fences/trial/k").json()["shadowRefusals"] == 1


# --- command line ----------------------------------------------------------------------------------------------------


def test_settings_come_from_variables_and_from_files_that_they_name(make_server: MakeServer, tmp_path: Path) -> None:
    (tmp_path / "role").write_text("lockservice\n")
    server = make_server("locks", FENCEGATE_ROLE_FILE=str(tmp_path / "role"), FENCEGATE_STORE="memory://")
    assert httpx.post(f"{server.url}/v1/locks/a/acquire", timeout=30).is_success
    assert httpx.get(f"{server.url}/v1/resources/rows/a", timeout=30).status_code == 404
    assert not (server.data / "locks.db").exists()
    (tmp_path / "url").write_text(f"{server.url}\n")
    assert "a" in run("locks", FENCEGATE_URL_FILE=str(tmp_path / "url")).stdout
    for arguments in (["locks"], ["serve", "--listen", "127.0.0.1:0"]):
        missing = run(*arguments, FENCEGATE_URL_FILE="/no/file", FENCEGATE_ROLE_FILE="/no/file")
        assert (missing.returncode, "Traceback" in missing.stderr) == (2, False)
        assert "/no/file" in missing.stderr
    twice = run("serve", "--store", "memory://", "--store", "memory://other", "--listen", "127.0.0.1:0")
    assert (twice.returncode, "store" in twice.stderr) == (2, True)


def test_commands_show_keys_and_owners_as_they_are_and_take_a_store_for_a_server(
    server: Server, tmp_path: Path
) -> None:
    key, owner = "odd:[red]x[/b]", "[/i]me"  # what a terminal library might take for markup
    httpx.post(f"{server.url}/v1/acquire", json={"lockKey": key, "ownerId": owner}, timeout=30)
    for arguments in (["locks", "--prefix", "odd:"], ["status", key]):
        shown = run(*arguments, "--url", server.url)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert key in shown.stdout
        assert owner in shown.stdout
    forced = run("force-release", key, "--reason", "test", "--json", "--url", server.url)
    assert json.loads(forced.stdout) == {"status": "FORCE_RELEASED", "lockKey": key}
    refusal = run("force-release", key, "--reason", "test", "--url", server.url)
    assert (refusal.returncode, key in refusal.stderr) == (1, True)
    assert run("locks", "--url", f"sqlite:///{tmp_path / 'locks.db'}").returncode == 0


def test_sigterm_finishes_a_write_that_is_under_way_and_exits_with_0(make_server: MakeServer) -> None:
    server = make_server()
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    head = "PUT /v1/resources/objects/k HTTP/1.1\r\nHost: x\r\nFencing-Token: 5\r\nExpect: 100-continue\r\n"
    with socket.create_connection(address, timeout=60) as upload:
        upload.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        assert upload.recv(100).startswith(b"HTTP/1.1 100 ")  # it has begun
        upload.sendall(b"4\r\npart\r\n")
        server.signal(signal.SIGTERM)
        _until_nobody_listens(address)
        upload.sendall(b"4\r\npart\r\n0\r\n\r\n")
        assert upload.recv(100).startswith(b"HTTP/1.1 201 ")
    server.process.join(60)
    assert server.process.exitcode == 0


def _until_nobody_listens(address: tuple[str, int]) -> None:
    end = time.monotonic() + 30
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < end:
            socket.create_connection(address, timeout=30).close()
            time.sleep(0.01)
        pytest.fail("it still takes connections")


# --- Python ----------------------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Report(Base):
    __tablename__ = "reports"
    name: Mapped[str] = mapped_column(String, primary_key=True)


async def test_the_twenty_lines_of_use(configured: Server, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    url = f"{configured.url}/v1/resources/rebuild/eu"
    async with connect(configured.url) as locks, httpx.AsyncClient(timeout=30) as http:
        async with locks.hold("rebuild:eu", ttl=30, wait=10) as lease:
            assert (lease.token > 1, lease.sequencer, lease.lost.is_set()) == (True, None, False)
            lease.ensure_held()
            async with AsyncSession(engine) as s, fenced(s, lease):
                s.add(Report(name="eu"))
            headers = lease.headers()
            assert (await http.put(url, json={"n": 1}, headers=headers)).is_success
            with pytest.raises(LockHeld):
                await locks.hold("rebuild:eu").acquire()
            async with locks.try_hold("rebuild:eu") as none:
                assert none is None
        async with locks.hold("rebuild:eu", wait=20) as successor:
            async with AsyncSession(engine) as s, fenced(s, successor):
                assert await s.get(Report, "eu") is not None
            with pytest.raises(LockLost):
                lease.ensure_held()
            with pytest.raises(StaleToken):
                async with AsyncSession(engine) as s, fenced(s, lease):
                    s.add(Report(name="late"))
            await http.put(url, json={"n": 2}, headers=successor.headers())
            refused(await http.put(url, json={"n": 1}, headers=headers), 412, "STALE_TOKEN")
    await engine.dispose()


@pytest.mark.parametrize("kind", ["server", "sqlite", "memory"])
def test_the_same_without_await_over_every_address(kind: str, server: Server, tmp_path: Path) -> None:
    url = {"server": server.url, "sqlite": f"sqlite:///{tmp_path}/locks.db", "memory": "memory://contract"}[kind]
    with fencegate.sync.connect(url) as locks, fencegate.sync.connect(url) as rival:
        hold = locks.hold("sync:contract", ttl=30, wait=20)
        lease = hold.acquire()
        with pytest.raises(LockHeld):
            rival.hold("sync:contract").acquire()
        assert rival.try_hold("sync:contract").acquire() is None
        assert rival.status("sync:contract")["fencingToken"] == str(lease.token)
        attached = rival.attach(lease.export()).acquire()
        assert attached.token == lease.token
        rival.force_release("sync:contract", "test")
        with pytest.raises(LockLost):
            hold.release()
        with rival.hold("sync:contract", wait=20) as successor:
            assert successor.token > lease.token


# --- the README ------------------------------------------------------------------------------------------------------


def snippet(language: str, holding: str) -> str:
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(block for block in blocks if holding in block)


async def test_the_python_snippet_of_the_readme_runs(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEGATE_URL", server.url)
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

    async def build_report() -> Report:
        return Report(name="eu")

    names: dict[str, Any] = {"AsyncSession": AsyncSession, "engine": engine, "build_report": build_report}
    body = "".join(f"    {line}\n" for line in snippet("python", "hold(").splitlines())
    exec(f"async def main():\n{body}    await locks.aclose()\n", names)
    await names["main"]()
    async with AsyncSession(engine) as session:
        assert await session.get(Report, "eu") is not None
    await engine.dispose()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl on PATH")
def test_the_curl_snippet_of_the_readme_runs(make_server: MakeServer) -> None:
    server = make_server()
    acquire, put, fence = (line for line in snippet("sh", "curl").splitlines() if line.startswith("curl"))

    def sh(line: str) -> Any:
        line = line.replace("localhost:7420", server.url).replace("curl", "curl -sf", 1)
        said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, env=dict(os.environ))
        return json.loads(said.stdout or "null")

    granted = sh(acquire)["fencingToken"]
    sh(re.sub(r"Fencing-Token: \d+", f"Fencing-Token: {granted}", put))
    assert sh(fence)["highestToken"] == granted


def test_the_configuration_of_the_readme_serves(make_server: MakeServer, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as database:
        database.execute(TABLE)
    config = snippet("toml", "[resources.accounts]").replace("/var/lib/app", str(tmp_path))
    (tmp_path / "fencegate.toml").write_text(config)
    server = make_server("data", FENCEGATE_CONFIG=str(tmp_path / "fencegate.toml"))
    fence = httpx.get(f"{server.url}/v1/fences/accounts/acme/1", timeout=30).json()
    assert (fence["lockKey"], fence["mode"]) == ("acct:acme", "shadow")
