"""What the access lists of ZooKeeper do not allow is found out at start, and told with the node and the right."""

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl, make_digest_acl

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Store
from fencegate.testing.committing import by, gather_log, put, write
from fencegate_lockservice.stores import open_store
from tests.stores.zookeeper_fixtures import looking_at, url_of

RIGHTS = ("create", "delete", "read", "write")


ADMIN, READERS = [make_digest_acl("admin", "admin", all=True)], [make_acl("world", "anyone", read=True)]


def root_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


def anyone_but(right: str) -> list[ACL]:
    """Everybody may do everything but this; who administers ZooKeeper may do all."""
    rest = {name: name != right for name in RIGHTS}
    return [make_acl("world", "anyone", admin=False, **rest), *ADMIN]


def path_of(client: KazooClient, root: str, node: str) -> str:
    if node == "segment":
        return f"{root}/log/{client.get(f'{root}/log')[0].decode()}"
    return f"{root}/{node}" if node else root


def everything(client: KazooClient, path: str) -> dict[str, tuple[bytes, int]]:
    """All nodes below, with their data and the transaction that wrote them last."""
    data, stat = client.get(path)
    found = {path: (data, stat.mzxid)}
    for name in client.get_children(path):
        found |= everything(client, f"{path}/{name}")
    return found


async def used(store: Store) -> None:
    await write(store, put("lock/k"), put("done/x", keep_until_us=by(store)))
    await store.close()


@pytest.mark.parametrize(
    ("node", "right"),
    [
        ("", "read"),
        ("format", "read"),
        ("entries", "create"),
        ("entries", "read"),
        ("entries/lock", "create"),
        ("entries/lock", "read"),
        ("until", "create"),
        ("until", "delete"),
        ("until", "read"),
        ("log", "create"),
        ("log", "delete"),
        ("log", "read"),
        ("log", "write"),
        ("segment", "create"),
        ("segment", "delete"),
        ("segment", "read"),
        ("segment", "write"),
        ("pulse", "write"),
    ],
)
async def test_a_right_that_is_lacking_is_told_at_start_with_its_node_and_nothing_is_changed(
    zookeeper_server: list[str], node: str, right: str
) -> None:
    url = url_of(zookeeper_server)
    await used(await open_store(url))
    root = root_of(url)
    with looking_at(url) as client:
        client.add_auth("digest", "admin:admin")
        path = path_of(client, root, node)
        client.set_acls(path, anyone_but(right))
        before = everything(client, root)
        with pytest.raises(UnsafeConfiguration) as refused:
            await open_store(url)
        after = everything(client, root)
    assert path in str(refused.value)
    assert f" {right} " in str(refused.value)
    assert f"setAcl -R {root} world:anyone:cdrwa" in str(refused.value)
    pulse = f"{root}/pulse"
    assert {p: n for p, n in after.items() if p != pulse} == {p: n for p, n in before.items() if p != pulse}


async def test_a_root_that_may_not_be_made_is_told_as_such_and_no_outage(zookeeper_server: list[str]) -> None:
    url = url_of(zookeeper_server)
    closed = root_of(url)
    with looking_at(url) as client:
        client.ensure_path("/test")
        client.create(closed, b"", acl=[*READERS, *ADMIN])
        with pytest.raises(UnsafeConfiguration) as refused:
            await open_store(f"{url}/locks")
    assert closed in str(refused.value)
    assert " create " in str(refused.value)


async def test_a_root_that_was_made_for_a_user_is_enough_in_a_folder_that_is_closed(
    zookeeper_server: list[str],
) -> None:
    url = url_of(zookeeper_server)
    closed = root_of(url)
    with looking_at(url) as client:
        client.ensure_path("/test")
        client.create(closed, b"", acl=[*READERS, *ADMIN])
        client.add_auth("digest", "admin:admin")
        client.create(f"{closed}/locks", b"", acl=[make_digest_acl("us", "secret", all=True)])
    store = await open_store(f"{url.replace('://', '://us:secret@')}/locks")
    stream = store.changes(None)
    await anext(stream)
    await write(store, put("lock/k"))
    assert [line.key for line in await gather_log(stream, 1)] == ["lock/k"]
    await stream.aclose()
    await store.close()
