"""`history` in both faces of the client, with a server and without, and on the command line."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fencegate.sync
from fencegate import InvalidInput, LockHistory, PastHold, connect
from tests.servers import Server

FENCEGATE = str(Path(sys.executable).parent / "fencegate")


@pytest.fixture(params=["http", "memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "http":
        server: Server = request.getfixturevalue("server")
        return server.url
    return "memory://history" if request.param == "memory" else f"sqlite:///{tmp_path / 'locks.db'}"


def check(found: LockHistory, lock_key: str, tokens: list[int]) -> None:
    held, forced, shared = found
    assert (found.lock_key, found.complete, len(found)) == (lock_key, True, 3)
    assert [hold.token for hold in found] == tokens
    assert (held.ending, held.ended_at, held.slot) == (None, None, 0)
    assert (forced.owner_id, forced.ending, forced.reason) == ("b", "forced", "too slow")
    assert (shared.owner_id, shared.mode, shared.ending, shared.reason) == ("a", "shared", "released", None)
    assert shared.ended_at is not None
    assert time.time() - 600 < shared.acquired_at <= shared.ended_at <= forced.acquired_at < time.time() + 600


async def test_the_async_client_tells_the_history(url: str) -> None:
    async with connect(url, owner_id="a") as a, connect(url, owner_id="b") as b:
        lock_key = "client-history:async"
        async with a.hold(lock_key, shared=True) as first:
            pass
        second = await b.hold(lock_key).acquire()
        await a.force_release(lock_key, "too slow")
        async with a.hold(lock_key, limit=2) as third:
            check(await b.history(lock_key), lock_key, [third.token, second.token, first.token])
            newest = await b.history(lock_key, limit=1)
        assert [hold.token for hold in newest] == [third.token]
        assert isinstance(newest.holds[0], PastHold)


def test_the_blocking_client_tells_the_history(url: str) -> None:
    with fencegate.sync.connect(url, owner_id="a") as a, fencegate.sync.connect(url, owner_id="b") as b:
        lock_key = "client-history:sync"
        with a.hold(lock_key, shared=True) as first:
            pass
        second = b.hold(lock_key).acquire()
        a.force_release(lock_key, "too slow")
        with a.hold(lock_key, limit=2) as third:
            check(b.history(lock_key), lock_key, [third.token, second.token, first.token])


async def test_what_is_asked_for_may_take_several_pages(server: Server) -> None:
    async with connect(server.url) as locks:
        tokens = []
        for _ in range(5):
            async with locks.hold("client-history:pages") as lease:
                tokens.append(lease.token)
        found = await locks.history("client-history:pages", limit=1_000_000)
        assert [hold.token for hold in found] == tokens[::-1]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "10"])
async def test_a_bad_limit_or_key_is_refused_before_anything_is_sent(limit: object) -> None:
    async with connect("http://127.0.0.1:9") as locks:
        with pytest.raises(InvalidInput, match="limit"):
            await locks.history("a", limit=limit)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="lockKey"):
            await locks.history("")


async def test_without_a_server_it_is_whole_for_another_process_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    for number in range(3):
        async with connect(url, owner_id=f"o{number}") as locks, locks.hold("a"):
            pass
        await asyncio.sleep(0)
    read = "import fencegate.sync as s, sys\nfor h in s.connect(sys.argv[1]).history('a'): print(h.owner_id, h.ending)"
    told = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", read, url], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.splitlines() == ["o2 released", "o1 released", "o0 released"]


def command(server: Server, *arguments: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FENCEGATE_URL": server.url, "COLUMNS": str(columns)}
    return subprocess.run([FENCEGATE, *arguments], capture_output=True, text=True, timeout=60, env=environment)


def test_the_command_tells_it_as_a_table_and_as_json(server: Server) -> None:
    lock_key = "client-history:cli"
    with fencegate.sync.connect(server.url, owner_id="[me]") as locks:
        locks.hold(lock_key, limit=3).acquire()
        held = command(server, "status", lock_key)
        assert "permits" in held.stdout
        assert f"{lock_key}#0" in held.stdout
        done = command(server, "force-release", lock_key, "--reason", "[bold]no[/]", "--json")
        assert json.loads(done.stdout)["status"] == "FORCE_RELEASED"
        with locks.hold(lock_key):
            table = command(server, "history", lock_key)
            told = json.loads(command(server, "history", lock_key, "--limit", "2", "--json").stdout)
    assert table.returncode == 0
    for text in ("[me]", "held", "forced [bold]no[/]", "(slot 0)"):
        assert text in table.stdout
    assert [(hold["ending"], hold.get("reason")) for hold in told["history"]] == [
        (None, None),
        ("forced", "[bold]no[/]"),
    ]
    assert told["complete"] is True


def test_a_narrow_terminal_cuts_neither_keys_nor_tokens(server: Server) -> None:
    """A key or a token that ends in dots can't be copied; and a pipe is 80 columns wide."""
    lock_key = "client-history:narrow/" + "0123456789/" * 5 + "end"
    with fencegate.sync.connect(server.url, owner_id="worker-of-a-cluster-in-the-north-77") as locks:
        leases = [locks.hold(lock_key, limit=2).acquire() for _ in range(2)]
        for arguments in (["locks", "--prefix", lock_key], ["status", lock_key]):
            table = command(server, *arguments, columns=80).stdout
            assert "…" not in table
            assert str(leases[1].token) in table
            assert max(len(line) for line in table.splitlines() if lock_key not in line) <= 80
        for lease in leases:
            lease.release()


@pytest.mark.parametrize("columns", [40, 20])
def test_a_terminal_that_is_too_narrow_for_a_table_shows_everything_all_the_same(server: Server, columns: int) -> None:
    lock_key = f"client-history:{columns}"
    with fencegate.sync.connect(server.url, owner_id="worker-7") as locks, locks.hold(lock_key) as lease:
        for arguments in (["locks", "--prefix", lock_key], ["history", lock_key]):
            told = command(server, *arguments, columns=columns).stdout
            assert "worker-7" in told
            assert str(lease.token) in told
            assert (lock_key in told) == (arguments[0] == "locks")


def test_the_command_asks_before_it_takes(server: Server) -> None:
    lock_key = "client-history:grace"
    with fencegate.sync.connect(server.url) as locks:
        lease = locks.hold(lock_key).acquire()
        asked = command(server, "force-release", lock_key, "--reason", "maintenance", "--grace", "10m")
        assert "asked to release" in asked.stdout
        assert "maintenance" in command(server, "status", lock_key).stdout
        lease.release()
        (hold,) = locks.history(lock_key)
        assert hold.ending == "released"
    bad = command(server, "force-release", lock_key, "--reason", "r", "--grace", "soon")
    assert bad.returncode == 2
    assert "--grace" in bad.stderr
