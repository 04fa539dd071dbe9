"""The etcd store and how an etcd is set up: what is wrong with it, its users, its certificates; and the URL."""

import asyncio
import base64
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Unavailable
from fencegate.testing.committing import by, gather_log, put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.etcd import client as etcd_client
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.client import RANGE, Client
from fencegate_lockservice.stores.etcd.endpoint import Endpoint
from fencegate_lockservice.stores.etcd.grpc import NotSent, Status
from fencegate_lockservice.stores.etcd.inspect import version_finding
from fencegate_lockservice.stores.etcd.store import EtcdStore
from fencegate_lockservice.stores.etcd.url import parse
from tests.eventually import eventually
from tests.real.etcd import EtcdCluster, EtcdServer
from tests.servers import kept_address
from tests.stores.etcd_fixtures import when_it_is_back

# --- what is wrong with an etcd --------------------------------------------------------------------------------------


async def test_an_etcd_whose_quota_is_used_up_is_said_to_be_so(own_etcd: Callable[..., EtcdServer]) -> None:
    server = own_etcd(f"--quota-backend-bytes={2 * 1024 * 1024}")
    store = await open_store(server.url)
    assert "unsafe" not in {finding.level for finding in await store.inspect()}
    refused: list[BaseException] = []
    async with asyncio.timeout(60):  # etcd looks at its size now and then, and takes more meanwhile
        while not refused:
            changes = [put(SYSTEM.random_id(), value=b"x" * 60_000) for _ in range(6)]  # a group leaves little room
            results = await asyncio.gather(*(write(store, change) for change in changes), return_exceptions=True)
            for change, result in zip(changes, results, strict=True):
                if result is None:
                    assert change.key in await store.load([change.key])
                else:
                    refused.append(result)
    for error in refused:
        assert isinstance(error, Ambiguous)  # etcd says the same whether it has written it or not
        assert re.search(r"quota.*defragment", str(error))
    (unsafe,) = [finding for finding in await store.inspect() if finding.level == "unsafe"]
    assert "NOSPACE" in unsafe.what

    async def is_nearly_full() -> bool:
        return any("of its quota" in finding.what for finding in await store.inspect())

    await eventually(is_nearly_full)  # it tells of its size when it has written what it gathered
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


async def test_an_etcd_whose_clock_can_not_be_seen_is_warned_of(etcd_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(etcd_url)
    assert not [finding for finding in await store.inspect() if "clock" in finding.what]

    async def no_page(endpoint: Endpoint, path: str) -> tuple[dict[str, str], bytes]:
        raise NotSent(f"{endpoint.name} has no {path}")

    monkeypatch.setattr(Endpoint, "get", no_page)
    (found,) = [finding for finding in await store.inspect() if "clock" in finding.what]
    assert (found.level, "can't be compared" in found.what) == ("warning", True)
    await store.close()


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
    for login, said in (("root:hidden@", "authentication failed"), ("", "wants a user and a password")):
        with pytest.raises(UnsafeConfiguration, match=said) as refused:
            await open_store(f"etcd://{login}{server.address}")
        assert "hidden" not in str(refused.value)


Permission = tuple[str, str, str]
"""What, on which keys: a key and the end of the range, or just a key."""


def give_rights(server: EtcdServer, *permissions: Permission) -> str:
    """A URL of a user who may do this, and no more."""

    def as_bytes(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    def post(path: str, **body: object) -> None:
        server.post(f"/v3/auth/{path}", body)

    for user in ("root", "modest"):
        post("user/add", name=user, password="secret")
        post("role/add", name=user)
        post("user/grant", user=user, role=user)
    for kind, key, end in permissions:
        permission = {"permType": kind, "key": as_bytes(key), "range_end": as_bytes(end)}
        post("role/grant", name="modest", perm=permission)
    post("enable")
    return f"etcd://modest:secret@{server.address}/team"


EVERYTHING = ("READ", "\0", "\0")
LOCKS, OURS = ("/team/locks/", "/team/locks0"), ("/team/fencegate/", "/team/fencegate0")


@pytest.mark.parametrize(
    ("permissions", "needed"),
    [
        ([EVERYTHING], ["/team/locks/", "/team/fencegate/"]),
        ([("READWRITE", *OURS)], ["/team/locks/"]),
        ([("READWRITE", *LOCKS)], ["/team/fencegate/"]),
        ([("READWRITE", *OURS), ("READ", *LOCKS)], ["/team/locks/"]),
        ([("READWRITE", *OURS), ("WRITE", *LOCKS)], ["/team/locks/"]),
        ([("READWRITE", *OURS), ("READWRITE", "/team/locks/a", "/team/locks/b")], ["/team/locks/"]),
        ([("READWRITE", *LOCKS), ("READWRITE", "/team/fencegate/", "/team/fencegate/log0")], ["/team/fencegate/"]),
    ],
)
async def test_a_user_who_lacks_a_right_is_refused_at_start_and_told_what_it_needs_and_nothing_was_written(
    own_etcd: Callable[..., EtcdServer], permissions: list[Permission], needed: list[str]
) -> None:
    server = own_etcd()
    url = give_rights(server, *permissions)
    with pytest.raises(UnsafeConfiguration, match="permission denied") as refused:
        await open_store(url)
    lines = re.findall(r"etcdctl role grant-permission --prefix ROLE readwrite ([^`]+)`", str(refused.value))
    assert sorted(lines) == sorted(needed)
    assert "secret" not in str(refused.value)
    raw = await open_store(url.replace("modest", "root").replace("/team", "/other"))
    assert isinstance(raw, EtcdStore)
    found = await raw._client.read(RANGE, proto.range_of(b"/team/", b"/team0"), proto.range_answer)
    assert found.kvs == []
    await raw.close()


async def test_a_user_who_may_do_no_more_than_needed_is_enough(own_etcd: Callable[..., EtcdServer]) -> None:
    parts = [(f"/team/fencegate/{part}/", f"/team/fencegate/{part}0") for part in ("entries", "until", "log")]
    keys = [("/team/fencegate/gate", ""), ("/team/fencegate/layout", "")]
    url = give_rights(own_etcd(), *(("READWRITE", *where) for where in (LOCKS, *parts, *keys)))
    store = await open_store(url)
    stream = store.changes(None)
    await anext(stream)
    await write(store, put("lock/k"), put("done/x", keep_until_us=by(store, 0)))
    assert [line.key for line in await gather_log(stream, 1)] == ["lock/k"]
    assert [key for key, _ in await store.scan("lock/", "", 10)] == ["lock/k"]

    async def is_forgotten() -> bool:
        return not await store.load(["done/x"])

    await eventually(is_forgotten)
    many = [put(f"session/{number}") for number in range(130)]  # more than a transaction takes: through the gate
    await write(store, *many)
    await store.close()


async def test_those_who_wait_for_a_login_at_a_silent_member_do_not_each_wait_for_it() -> None:
    async def keep_silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    server = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(parse(f"etcd://u:p@127.0.0.1:{port}"), SYSTEM, b"k")
    try:
        async with asyncio.timeout(20):  # one waits for 2 s; twenty, one after the other, would for 40
            asking = [client.write("/a/b", b"", proto.nothing) for _ in range(20)]
            results = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(result) for result in results] == [Unavailable] * 20
    finally:
        await client.close()
        server.close()


class Member:
    """Stands in for the line to a member that has a leader or not."""

    alive = True
    has_leader = True

    async def ask(self, _head: bytes, _message: bytes, _within_s: float) -> bytes:
        if not self.has_leader:
            raise Status(14, "etcdserver: no leader")
        return b""


async def test_an_election_is_waited_for_however_long_the_one_before_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member()
    monkeypatch.setattr(Endpoint, "ready", property(lambda _: member))
    monkeypatch.setattr(etcd_client, "ELECTION_US", 1_000_000)
    client = Client(parse("etcd://127.0.0.1:1"), SYSTEM, b"k")
    try:
        async with asyncio.timeout(20):
            member.has_leader = False
            with pytest.raises(Unavailable):  # it takes too long
                await client.write("/a/b", b"", proto.nothing)
            member.has_leader = True
            await eventually(lambda: client.endpoints[0].trouble is None)
            await client.write("/a/b", b"", proto.nothing)
            await asyncio.sleep(1.1)
            member.has_leader = False
            writing = asyncio.create_task(client.write("/a/b", b"", proto.nothing))
            await eventually(lambda: client.endpoints[0].trouble is not None)
            member.has_leader = True
            await writing
    finally:
        await client.close()


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
        "etcd://u:not?hidden@a:2379",
        "etcd://u:not?hidden=1@a:2379",
        "etcd://u:not?hidden&more@a:2379",
        "etcd://u:hidden@a?compact=perhaps",
        "etcd://u:hidden@a?ca=/nowhere",
        "etcds://u:hidden@a?ca=/nowhere",
        "etcds://u:hidden@a?key=/nowhere",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UnsafeConfiguration) as refused:
        parse(url)
    assert "hidden" not in str(refused.value)


def test_settings_can_be_shown_without_their_password() -> None:
    assert "hidden" not in repr(parse("etcd://u:hidden@a"))
