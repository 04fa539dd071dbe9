"""Entries in the order of their keys, though they lie in many folders: the names of each are kept until they change.

A folder's `pzxid` tells of its last new or removed child. Asking for that costs little, so a scan page by page lists
each folder once, not once a page.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import merge
from itertools import islice

from fencegate.core.ports import Entry
from fencegate_lockservice.stores.zookeeper import names, wire
from fencegate_lockservice.stores.zookeeper.connection import Connection
from fencegate_lockservice.stores.zookeeper.entries import Entries
from fencegate_lockservice.stores.zookeeper.wire import Refused

MAX_NAMES = 200_000
READ_AT_ONCE = 500


class Scanner:
    """See the head of this file."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._folders: dict[str, tuple[int, list[bytes]]] = {}
        self._names = 0

    def forget(self) -> None:
        """Another server, or another tree, may answer from now on."""
        self._folders.clear()
        self._names = 0

    async def scan(self, connection: Connection, prefix: str, after: str, limit: int) -> list[tuple[str, Entry]]:
        """Reads that go out behind a pulse: the caller has sent one."""
        folders = await self._matching(connection, prefix)
        first, beyond = prefix.encode(), after.encode()
        found: list[tuple[str, Entry]] = []
        while len(found) < limit:
            wanted = min(limit - len(found), READ_AT_ONCE)
            page = _page(folders, first, beyond, wanted)
            keys = [key.decode() for key in page]
            found += (await self._entries.read(connection, keys)).items()
            if len(page) < wanted:
                break
            beyond = page[-1]
        return found

    async def _matching(self, connection: Connection, prefix: str) -> list[list[bytes]]:
        """The sorted keys of every folder that may have some with this prefix."""
        kinds, _ = await connection.children(self._entries.path)
        places = [(kind, shard) for kind in names.kinds_for(prefix, kinds) for shard in names.shards_for(prefix)]
        paths = [self._entries.folder(kind, shard) for kind, shard in places]
        # Another scan may let go of any of them while this one waits.
        before = {path: self._folders[path] for path in paths if path in self._folders}
        looks = [connection.exists(path) if path in before else None for path in paths]
        stale = []
        for (kind, _), path, look in zip(places, paths, looks, strict=True):
            if look is None or (await look).pzxid != before[path][0]:
                before.pop(path, None)
                stale.append((kind, path, connection.children(path)))
        listed: dict[str, list[bytes]] = {}
        for kind, path, listing in stale:
            try:
                children, stat = await listing
            except Refused as refused:
                if refused.code != wire.NO_NODE:
                    raise
                continue
            listed[path] = sorted(names.key_of(kind, name) for name in children)
            self._keep(path, stat.pzxid, listed[path])
        return [
            listed[path] if path in listed else before[path][1] for path in paths if path in listed or path in before
        ]

    def _keep(self, path: str, pzxid: int, keys: list[bytes]) -> None:
        _, before = self._folders.pop(path, (0, []))
        self._names -= len(before)
        if self._names + len(keys) > MAX_NAMES:
            return
        self._folders[path] = (pzxid, keys)
        self._names += len(keys)


def _page(folders: Sequence[list[bytes]], prefix: bytes, after: bytes, limit: int) -> list[bytes]:
    parts = []
    for keys in folders:
        start = max(bisect_left(keys, prefix), bisect_right(keys, after))
        part = keys[start : start + limit]
        if part and part[0].startswith(prefix):
            parts.append(part)
    return [key for key in islice(merge(*parts), limit) if key.startswith(prefix)]
