"""Which key of etcd holds what.

    /locks/{namespace}/{lock key}      a lock, where a person looks for it
    /fencegate/entries/{entry}         every other entry; and for a lock, nothing but its name: a scan goes by the order
                                       of names, and that of `/locks/t1/…` and `/locks/t12/…` is another one
    /fencegate/until/{time}/{entry}    the version of an entry that is kept until then
    /fencegate/log/{number}            the log lines of the commit that had this place in its group
    /fencegate/gate                    there while a commit too large for one transaction is prepared
    /fencegate/layout                  which layout this is

A value is `version`, a line feed, and what was given. A version never repeats, whereas revisions of etcd do after a
restore, so it is the version that a commit compares; it is within the value, so that one key says it all. That a value
begins with `version` and a line feed is two comparisons: it lies above `version`, and below `version` followed by the
character after the line feed. (To compare whole values would mean to send the old one with the new one, and a queue
may have hundreds of kilobytes; a key of its own for the version would be one more write each time.)
"""

from functools import lru_cache
from typing import NamedTuple

from fencegate.core.ports import Entry

LAYOUT = "fencegate 1"
LOCKS = "lock/"
_END = b"\n"
_AFTER_END = b"\x0b"


class Place(NamedTuple):
    """Where an entry is."""

    key: bytes
    name: bytes | None
    """The key that stands for a lock in a scan; None for what is scanned itself."""


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

    def place(self, entry: str) -> Place:
        if entry.startswith(LOCKS):
            return self._lock(entry)
        return Place(self._entries + entry.encode(), None)

    def _place_of_lock(self, entry: str) -> Place:
        name = self._entries + entry.encode()
        lock_key = entry[len(LOCKS) :]
        namespace = lock_key.partition(":")[0] if ":" in lock_key else ""
        return Place(self._root + f"/locks/{namespace}/{lock_key}".encode(), name)

    def scanned(self, prefix: str, after: str) -> tuple[bytes, bytes]:
        """The range of etcd keys in which a scan looks."""
        first = self._entries + prefix.encode()
        start = max(first, self._entries + after.encode() + b"\0") if after else first
        return start, _next(first)

    def entry(self, key: bytes) -> str:
        """The entry that a scanned key stands for."""
        return key[len(self._entries) :].decode()

    # --- what is kept until a time ---

    def until(self, keep_until_us: int, entry: str) -> bytes:
        return self._until + b"%016x/" % max(0, keep_until_us) + entry.encode()

    def kept_range(self, after: bytes) -> tuple[bytes, bytes]:
        """All of these, from where one left off."""
        return max(self._until, after + b"\0"), _next(self._until)

    def kept(self, key: bytes) -> tuple[int, str]:
        """Until when, and which entry."""
        rest = key[len(self._until) :]
        return int(rest[:16], 16), rest[17:].decode()


def stored(version: str, value: bytes) -> bytes:
    return version.encode() + _END + value


def bounds(version: str) -> tuple[bytes, bytes]:
    """What the value of this version, and of no other, lies between."""
    raw = version.encode()
    return raw, raw + _AFTER_END


def unpacked(value: bytes) -> Entry:
    version, _, rest = value.partition(_END)
    return Entry(version.decode(), rest)


def _next(prefix: bytes) -> bytes:
    """The first key that does not begin with this."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
