"""Which key of etcd holds what.

    /locks/{namespace}/{lock key}      a lock, where a person looks for it
    /fencegate/entries/{entry}         every other entry; and for a lock, nothing but its name: a scan goes by the order
                                       of names, and that of `/locks/t1/…` and `/locks/t12/…` is another one
    /fencegate/until/{time}/{name}     entries that are kept until then, of a group of commits; and their versions
    /fencegate/log/{number}            the log lines of a group, or of the commit that had this place in it
    /fencegate/gate                    there while a commit too large for one transaction is prepared
    /fencegate/layout                  which layout this is

A value is `version`, a line feed, and what was given. A version never repeats, whereas revisions of etcd do after a
restore, so it is the version that a commit compares; it is within the value, so that one key says it all. That a value
begins with `version` and a line feed is two comparisons: it lies above `version`, and below `version` followed by the
character after the line feed. (To compare whole values would mean to send the old one with the new one, and a queue
may have hundreds of kilobytes; a key of its own for the version would be one more write each time.)
"""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from fencegate.core.ports import Entry

LAYOUT = "fencegate 2"
LOCKS = "lock/"
KEPT_STEP_US = 100_000
"""What is kept until about the same time has one key in common."""
_END = b"\n"

_encode = msgspec.json.Encoder().encode
_decode_kept = msgspec.json.Decoder(list[tuple[str, str]]).decode


Place = tuple[bytes, bytes | None]
"""The key of an entry; and the one that stands for a lock in a scan, None for what is scanned itself."""


class Keys:
    """The keys of one root."""

    def __init__(self, root: str) -> None:
        self._root = root.encode()
        self._entries = self._root + b"/fencegate/entries/"
        self._until = self._root + b"/fencegate/until/"
        self.gate = self._root + b"/fencegate/gate"
        self.layout = self._root + b"/fencegate/layout"
        self.log, self.log_end = self._root + b"/fencegate/log/", self._root + b"/fencegate/log0"
        self.slots = [self._root + b"/fencegate/log/%03d" % number for number in range(128)]
        self._lock = lru_cache(maxsize=4096)(self._place_of_lock)

    @property
    def ranges(self) -> list[tuple[bytes, bytes]]:
        """All keys that are ever used: the first of each range, and its end, or nothing for a single key."""
        prefixes = (self._root + b"/locks/", self._entries, self._until, self.log)
        return [*((prefix, _next(prefix)) for prefix in prefixes), (self.gate, b""), (self.layout, b"")]

    def granted(self, key: bytes) -> str:
        """The prefix under which a person grants it."""
        return (self._root + b"/" + key[len(self._root) :].split(b"/")[1] + b"/").decode()

    def place(self, entry: str) -> Place:
        if entry.startswith(LOCKS):
            return self._lock(entry)
        return self._entries + entry.encode(), None

    def _place_of_lock(self, entry: str) -> Place:
        name = self._entries + entry.encode()
        lock_key = entry[len(LOCKS) :]
        namespace = lock_key.partition(":")[0] if ":" in lock_key else ""
        return self._root + f"/locks/{namespace}/{lock_key}".encode(), name

    def scanned(self, prefix: str, after: str) -> tuple[bytes, bytes]:
        """The range of etcd keys in which a scan looks."""
        first = self._entries + prefix.encode()
        start = max(first, self._entries + after.encode() + b"\0") if after else first
        return start, _next(first)

    def entry(self, key: bytes) -> str:
        """The entry that a scanned key stands for."""
        return key[len(self._entries) :].decode()

    # --- what is kept until a time ---

    def kept(self, until_us: int, entries: Sequence[tuple[str, str]]) -> tuple[bytes, bytes]:
        """A key and its value: these entries, of these versions, are kept until then. An entry and its version are
        written once, so no other commit has a key of that name."""
        entry, version = entries[0]
        return self._until + b"%016x/" % until_us + f"{version}/{entry}".encode(), _encode(entries)

    def kept_range(self, after: bytes) -> tuple[bytes, bytes]:
        """All of these, from where one left off."""
        return max(self._until, after + b"\0"), _next(self._until)

    def kept_until_us(self, key: bytes) -> int:
        return int(key[len(self._until) :][:16], 16)


def kept_time_us(keep_until_us: int) -> int:
    """The time at which it is forgotten: a little later."""
    return max(0, -(-keep_until_us // KEPT_STEP_US) * KEPT_STEP_US)


def kept_entries(value: bytes) -> list[tuple[str, str]]:
    """The entries of such a key, and their versions."""
    return _decode_kept(value)


def stored(version: str, value: bytes) -> bytes:
    return version.encode() + _END + value


def unpacked(value: bytes) -> Entry:
    version, _, rest = value.partition(_END)
    return Entry(version.decode(), rest)


def _next(prefix: bytes) -> bytes:
    """The first key that does not begin with this."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
