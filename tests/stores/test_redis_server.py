"""What the Redis store does when the server is not what it should be, or becomes another one."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Changes, Conflict, Store, Unavailable
from fencegate.testing.change_log_suite import first_answer, log_revision
from fencegate.testing.committing import by, gather_log, put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redis import line as redis_line
from tests.eventually import eventually
from tests.real.redis import RedisServer, redis_program
from tests.stores.redis_fixtures import DURABLE, prefix, redis_server, redis_url, store

__all__ = ["prefix", "redis_program", "redis_server", "redis_url", "store"]


@pytest.fixture
def own_server(tmp_path: Path, redis_program: str) -> Iterator[RedisServer]:
    """A server that a test may kill or flush."""
    with ExitStack() as stack:
        server = RedisServer(tmp_path / "own", *DURABLE, program=redis_program).start()
        stack.callback(server.terminate)
        yield server


async def is_back(store: Store) -> bool:
    try:
        await store.load(["k"])
    except Unavailable:
        return False
    return True


async def reset_of(stream: AsyncIterator[Changes]) -> Changes:
    """The next answer that says that the past is gone."""
    async with asyncio.timeout(30):
        while True:
            changes = await anext(stream)
            if changes.reset:
                return changes


# --- another kind of server ------------------------------------------------------------------------------------------


async def test_a_cluster_is_refused(tmp_path: Path, redis_program: str) -> None:
    server = RedisServer(tmp_path / "cluster", "--cluster-enabled", "yes", program=redis_program).start()
    try:
        with pytest.raises(UnsafeConfiguration, match="cluster"):
            await open_store(server.url)
    finally:
        server.terminate()


async def test_a_password_that_the_server_does_not_understand_is_not_told(tmp_path: Path, redis_program: str) -> None:
    server = RedisServer(tmp_path / "open", "--rename-command", "AUTH", '""', program=redis_program).start()
    try:
        with pytest.raises(UnsafeConfiguration, match="user or the password") as refusal:
            await open_store(server.url.replace("//", "//bob:a-secret@"))
        assert "secret" not in str(refusal.value)
    finally:
        server.terminate()


@pytest.mark.parametrize("other", ["2", "3", "5"])
async def test_data_of_another_format_is_refused(
    redis_server: RedisServer, redis_url: str, prefix: str, other: str
) -> None:
    redis_server.ask("HSET", f"{prefix}fencegate-reign", "format", other)
    with pytest.raises(UnsafeConfiguration, match=f"format {other}"):
        await open_store(redis_url)


async def test_names_that_somebody_else_uses_are_refused(
    redis_server: RedisServer, redis_url: str, prefix: str
) -> None:
    redis_server.ask("SET", f"{prefix}fencegate-index", "mine")
    with pytest.raises(UnsafeConfiguration, match=r"\?prefix="):
        await open_store(redis_url)


async def test_a_lock_under_a_name_that_somebody_else_uses_is_refused_and_nothing_is_written(
    store: Store, redis_server: RedisServer, prefix: str
) -> None:
    redis_server.ask("SET", f"{prefix}lock:theirs", "mine")
    with pytest.raises(Unavailable, match=r"\?prefix="):
        await write(store, put("lock/ours"), put("lock/theirs"))
    with pytest.raises(Unavailable, match=r"\?prefix="):
        await store.load(["lock/theirs"])
    assert not await store.load(["lock/ours"])
    await write(store, put("lock/ours"))


async def test_a_commit_that_was_stopped_in_its_middle_by_a_name_that_somebody_took_is_unknown(
    store: Store, redis_server: RedisServer, prefix: str
) -> None:
    """The lock is there by then: to say that nothing was written would be wrong."""
    redis_server.ask("DEL", f"{prefix}fencegate-index")
    redis_server.ask("SET", f"{prefix}fencegate-index", "mine")
    with pytest.raises(Ambiguous, match=r"\?prefix="):
        await store.commit([put("lock/k")], [("lock/k", b"{}")], by(store))
    assert await store.load(["lock/k"])
    redis_server.ask("DEL", f"{prefix}fencegate-index")


async def test_a_server_of_another_protocol_is_unavailable() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable):
            await open_store(f"redis://127.0.0.1:{port}/0")


# --- a server that refuses -------------------------------------------------------------------------------------------


async def test_a_server_out_of_memory_is_unavailable_and_still_read(own_server: RedisServer) -> None:
    store = await open_store(own_server.url)
    first = put("k")
    await write(store, first)
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Unavailable, match="OOM"):
        await write(store, put("k", first.version))
    assert (await store.load(["k"]))["k"].version == first.version
    own_server.ask("CONFIG", "SET", "maxmemory", "0")
    await write(store, put("k", first.version))
    await store.close()


async def test_scripts_that_the_server_forgot_are_brought_again(store: Store, redis_server: RedisServer) -> None:
    for number in range(3):
        redis_server.ask("SCRIPT", "FLUSH")
        works = [write(store, put(f"{number}-{which}")) for which in range(20)]
        assert await asyncio.gather(*works) == [None] * 20
        redis_server.ask("SCRIPT", "FLUSH")
        assert len(await store.load([f"{number}-{which}" for which in range(20)])) == 20
        assert len(await store.scan(f"{number}-", "", 100)) == 20


async def test_a_replica_is_refused_with_the_advice_to_name_the_primary(
    own_server: RedisServer, tmp_path: Path
) -> None:
    following = ("--replicaof", own_server.host, str(own_server.port))
    replica = RedisServer(tmp_path / "replica", *following, program=own_server.program).start()
    try:
        with pytest.raises(Unavailable, match=r"primary|loading"):
            await open_store(replica.url)
    finally:
        replica.terminate()


async def test_a_primary_that_becomes_a_replica_is_neither_written_nor_read(own_server: RedisServer) -> None:
    store = await open_store(own_server.url)
    stream = store.changes(None)
    await first_answer(stream)
    await write(store, put("k"))
    own_server.ask("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(Unavailable):
        await store.load(["k"])
    with pytest.raises((Unavailable, Ambiguous)):
        await write(store, put("k2"))
    own_server.ask("REPLICAOF", "NO", "ONE")
    await eventually(lambda: is_back(store))
    assert set(await store.load(["k", "k2"])) == {"k"}
    await reset_of(stream)
    await write(store, put("k2"))
    await store.close()


async def test_a_beat_that_there_is_no_room_for_leaves_the_connection_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = store._server  # type: ignore[attr-defined]
    line = server.line
    with monkeypatch.context() as overloaded:
        overloaded.setattr(redis_line, "MAX_UNDER_WAY", -1)
        with pytest.raises(Unavailable, match="too much waits"):
            await store.load(["k"])
        await server._beat()
    assert (server.line, line.why) == (line, "")
    await write(store, put("k"))


# --- a server that forgets -------------------------------------------------------------------------------------------


async def test_a_flush_is_told_to_all_who_follow_and_revisions_go_on_rising(own_server: RedisServer) -> None:
    writer, idle = [await open_store(own_server.url) for _ in range(2)]
    streams = [writer.changes(None), idle.changes(None)]
    for stream in streams:
        await first_answer(stream)
    last = put("k")
    await write(writer, last)
    (line,) = await gather_log(streams[0], 1)
    own_server.ask("FLUSHALL")
    with pytest.raises(Conflict):
        await write(writer, put("k", last.version))
    for stream in streams:
        assert (await reset_of(stream)).revision > line.revision
    await write(writer, put("k"))
    for stream in streams:
        assert [(found.key, found.revision > line.revision) for found in await gather_log(stream, 1)] == [("k", True)]
    assert (await first_answer(idle.changes(line.revision))).reset
    for each in (writer, idle):
        await each.close()


async def test_a_flush_is_noticed_though_nobody_writes(own_server: RedisServer) -> None:
    store = await open_store(own_server.url)
    stream = store.changes(None)
    before = (await first_answer(stream)).revision
    own_server.ask("FLUSHALL")
    assert (await reset_of(stream)).revision > before
    await store.close()


async def test_a_restart_is_told_to_all_who_follow_and_revisions_go_on_rising(own_server: RedisServer) -> None:
    store = await open_store(own_server.url)
    stream = store.changes(None)
    await first_answer(stream)
    await write(store, put("k"))
    before = await log_revision(store)
    own_server.kill()
    await eventually(lambda: not store._server.up.is_set())  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        await store.load(["k"])
    await asyncio.to_thread(own_server.start)
    await eventually(lambda: is_back(store))
    assert "k" in await store.load(["k"])
    assert (await reset_of(stream)).revision > before
    await write(store, put("after"))
    assert [line.key for line in await gather_log(stream, 1)] == ["after"]
    await store.close()


async def test_connections_that_are_killed_come_back_and_who_follows_misses_nothing(
    store: Store, redis_server: RedisServer
) -> None:
    stream = store.changes(None)
    await first_answer(stream)
    expected = []
    for turn in range(3):
        for number in range(5):
            expected.append(f"{turn}-{number}")
            await write(store, put(expected[-1]))
        line = store._server.line  # type: ignore[attr-defined]
        redis_server.ask("CLIENT", "KILL", "TYPE", "normal")
        await eventually(lambda line=line: store._server.line not in (line, None))  # type: ignore[attr-defined, misc]
        await eventually(lambda: is_back(store))
    assert [line.key for line in await gather_log(stream, 15)] == expected  # and no reset


async def test_a_log_that_was_trimmed_brings_a_reset(redis_url: str, redis_server: RedisServer, prefix: str) -> None:
    store = await open_store(redis_url)
    start = await log_revision(store)
    for number in range(10):
        await write(store, put(f"k{number}"))
    await store.close()
    redis_server.ask("XTRIM", f"{prefix}fencegate-log", "MAXLEN", "5")
    again = await open_store(redis_url)
    for since in (start, 0):
        assert (await first_answer(again.changes(since))).reset
    newest = await log_revision(again)
    assert [line.key for line in await gather_log(again.changes(newest - 2), 2)] == ["k8", "k9"]
    await again.close()


async def test_closing_does_not_wait_for_a_server_that_is_gone_or_stands_still(own_server: RedisServer) -> None:
    stores = [await open_store(own_server.url) for _ in range(2)]
    own_server.stop()
    works = [asyncio.ensure_future(write(stores[0], put(f"k{number}"))) for number in range(5)]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await stores[0].close()
        results = await asyncio.gather(*works, return_exceptions=True)
    assert all(isinstance(result, Ambiguous | Unavailable) for result in results)
    own_server.kill()
    await eventually(lambda: not stores[1]._server.up.is_set())  # type: ignore[attr-defined]
    async with asyncio.timeout(30):
        await stores[1].close()


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and its certificate for 127.0.0.1, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no certificate can be made: put openssl on PATH")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *made, *name, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60)
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    return both


async def test_rediss_speaks_tls_and_believes_no_stranger(
    redis_server: RedisServer, prefix: str, certificate: Path
) -> None:
    """The server of the tests has no TLS of its own, so there is a terminator before it."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(redis_server.host, redis_server.port)
        await asyncio.gather(carry(reader, back), carry(there, writer), return_exceptions=True)

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as terminator:
        url = f"rediss://127.0.0.1:{terminator.sockets[0].getsockname()[1]}/0?prefix={prefix}"
        with pytest.raises(Unavailable, match="certificate"):
            await open_store(url)
        store = await open_store(f"{url}&ssl_ca_certs={certificate}")
        await asyncio.gather(*(write(store, put(f"k{number}", value=b"x" * 100_000)) for number in range(20)))
        assert len(await store.load([f"k{number}" for number in range(20)])) == 20
        await store.close()
