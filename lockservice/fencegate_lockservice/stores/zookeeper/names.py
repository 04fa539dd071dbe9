"""Where things are in ZooKeeper's tree, in names that a person can read.

    ROOT/format                              what this is, and in which version
    ROOT/entries/lock/3f/orders:17           an entry: its version on the first line, then its value
    ROOT/entries/lock/3f/orders:17/VERSION   its guard: it is there as long as that version is the newest
    ROOT/log/1700000000000/0000000012        a line of the change log (`log`)
    ROOT/until/1700000060/…                  what may be forgotten from then on (`forget`)
    ROOT/pulse                               written to ask what time it is, and whether there is a quorum

Entries of a kind lie in 64 folders, for a folder with very many children can't be listed. Which one follows from the
first part of the key after its kind: what lies below a lock, or belongs to a session, is found in one of them.
"""

import re
import zlib
from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes

SHARDS = 64
_PLAIN = re.compile(r"[A-Za-z0-9_:@,+=~-][A-Za-z0-9_:@,+=~./-]*").fullmatch
"""With slashes: whatever else has to be escaped is rare, and takes longer."""
_KINDLESS = "%-"
"""The folder of keys without a `/`. No escaped name is like it."""


def escape(text: str) -> str:
    """As the name of a node: without `/`, never empty, `.` or `..`, in plain ASCII."""
    if _PLAIN(text):
        return text.replace("/", "%2F")
    name = quote_from_bytes(text.encode(), safe=":@,+=~")
    return f"%2E{name[1:]}" if name.startswith(".") else name or "%"


def unescape(name: str) -> bytes:
    return b"" if name == "%" else unquote_to_bytes(name)


_escape_kind = lru_cache(maxsize=256)(escape)
_SHARD_NAMES = tuple(f"{shard:02x}" for shard in range(SHARDS))


def shard_of(key: str) -> tuple[str, str]:
    """The folder of its kind, and the one in it that has this key."""
    kind, slash, rest = key.partition("/")
    if not slash:
        kind, rest = "", key
    shard = _SHARD_NAMES[zlib.crc32(rest.partition("/")[0].encode()) % SHARDS]
    return (_escape_kind(kind) if slash else _KINDLESS), shard


def name_of(key: str) -> str:
    _, slash, rest = key.partition("/")
    return escape(rest if slash else key)


def key_of(kind: str, name: str) -> bytes:
    """The key, as bytes, of a name in a folder of that kind."""
    return unescape(name) if kind == _KINDLESS else unescape(kind) + b"/" + unescape(name)


def kinds_for(prefix: str, kinds: list[str]) -> list[str]:
    """Those of the folders of `kinds` that may have keys with this prefix."""
    kind, slash, _ = prefix.partition("/")
    if slash:
        return [escape(kind)] if escape(kind) in kinds else []
    first = prefix.encode()
    return [kind for kind in kinds if kind == _KINDLESS or unescape(kind).startswith(first)]


def shards_for(prefix: str) -> list[str]:
    """The folders of a kind that may have keys with this prefix: one, when it says all that decides."""
    if prefix.count("/") > 1:
        return [shard_of(prefix)[1]]
    return [*_SHARD_NAMES]
