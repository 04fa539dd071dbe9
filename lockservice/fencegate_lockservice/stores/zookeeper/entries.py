"""Entries as nodes of ZooKeeper, and a commit as one multi.

The node of an entry has a child, its guard, whose name is the version. To replace the entry is to delete the guard of
the version that was expected, which fails when there is another, and to make the next one. ZooKeeper's own
`dataVersion` begins at 0 again when a node is deleted and made anew, and then a late commit would fit; a random name
never comes back, so nodes can be deleted, and nothing has to be remembered to compare.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fencegate.core.ports import Change, Entry
from fencegate_lockservice.stores.zookeeper import names, wire
from fencegate_lockservice.stores.zookeeper.connection import Connection
from fencegate_lockservice.stores.zookeeper.wire import Op, Refused


class Passing(NamedTuple):
    """An entry that may be forgotten from a time on, unless it was written anew."""

    key: str
    version: str
    until_us: int


class Entries:
    """See the head of this file."""

    def __init__(self, root: str, acl: bytes) -> None:
        self.path = f"{root}/entries"
        self._acl = acl
        self._folders: set[tuple[str, str]] = set()

    def folder(self, kind: str, shard: str) -> str:
        return f"{self.path}/{kind}/{shard}"

    def node(self, key: str) -> str:
        kind, shard = names.shard_of(key)
        return f"{self.path}/{kind}/{shard}/{names.name_of(key)}"

    def forget(self) -> None:
        """Another tree may be there from now on: folders have to be made again."""
        self._folders.clear()

    # --- writing ---

    def make_folders(self, connection: Connection, keys: Iterable[str]) -> None:
        """Have the folders of these keys made, before whatever is sent next; those that are there are there."""
        for kind, shard in {names.shard_of(key) for key in keys} - self._folders:
            connection.create(f"{self.path}/{kind}", b"", self._acl)
            connection.create(self.folder(kind, shard), b"", self._acl)
            self._folders.add((kind, shard))

    def ops(self, changes: Sequence[Change]) -> list[Op]:
        """Compare and write. UnicodeError when a key is no text."""
        ops: list[Op] = []
        for key, expected, version, value, compare_only, _ in changes:
            node = self.node(key)
            if expected is None and (compare_only or value is None):
                ops += wire.create(node, b"", self._acl), wire.delete(node)
            elif expected is None:
                ops += self._make(node, version, value or b"")
            elif compare_only:
                ops.append(wire.check(f"{node}/{names.escape(expected)}"))
            elif value is None:
                ops += self.removal(key, expected)
            else:
                guard = names.escape(version)
                ops += (
                    wire.delete(f"{node}/{names.escape(expected)}"),
                    wire.create(f"{node}/{guard}", b"", self._acl),
                    wire.put(node, b"%s\n%s" % (guard.encode(), value)),
                )
        return ops

    def _make(self, node: str, version: str, value: bytes) -> tuple[Op, Op]:
        guard = names.escape(version)
        data = b"%s\n%s" % (guard.encode(), value)
        return wire.create(node, data, self._acl), wire.create(f"{node}/{guard}", b"", self._acl)

    def removal(self, key: str, version: str) -> tuple[Op, Op]:
        node = self.node(key)
        return wire.delete(f"{node}/{names.escape(version)}"), wire.delete(node)

    # --- reading ---

    async def read(self, connection: Connection, keys: Sequence[str]) -> dict[str, Entry]:
        """Those that are there, in this order. Linearizable when it is sent behind a pulse."""
        asked = [(key, connection.get(self.node(key))) for key in keys]
        found: dict[str, Entry] = {}
        for key, answer in asked:
            try:
                data, _ = await answer
            except Refused as refused:
                if refused.code != wire.NO_NODE:
                    raise
                continue
            guard, _, value = data.partition(b"\n")
            found[key] = Entry(names.unescape(guard.decode()).decode(), value)
        return found
