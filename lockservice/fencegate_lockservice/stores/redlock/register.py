"""What one register holds: the entries of one lock, as bytes; and how a commit edits them.

A lock record and its settled requests are in one register, since one register is all that a commit can write. The
settled requests in it are bounded, for the register is carried whole in every commit.
"""

from collections.abc import Mapping, Sequence

import msgspec

from fencegate.core.model import DONE, LOCKS
from fencegate.core.ports import Change, Entry
from fencegate_lockservice.stores.redlock.paxos import Fit

MAX_VALUE = 1_000_000
MAX_SETTLED = 64
MAX_SETTLED_BYTES = 64_000
RECENT = 16


class Kept(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An entry, and until when it is kept (0: for good)."""

    version: str
    value: bytes
    keep_until_us: int = 0


class Register(msgspec.Struct, array_like=True, frozen=True):
    """The entries by name, in the order in which they were written; and the commits that made it, newest first."""

    commits: tuple[str, ...] = ()
    entries: dict[str, Kept] = {}

    def live(self, now_us: int) -> dict[str, Kept]:
        return {name: kept for name, kept in self.entries.items() if not 0 < kept.keep_until_us < now_us}


EMPTY = Register()

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Register).decode


def decode(value: bytes | None) -> Register:
    return EMPTY if value is None else _decode(value)


def register_of(entry: str) -> str:
    """The register that an entry lives in: that of its lock, or one of its own. It has the name of its main entry."""
    if entry.startswith(DONE):
        _, separator, lock_key = entry.removeprefix(DONE).partition("/")
        if separator:
            return LOCKS + lock_key
    return entry


def found_in(value: bytes | None, names: Sequence[str], now_us: int) -> dict[str, Entry]:
    """Those of the named entries that the register holds."""
    if value is None:
        return {}
    live = decode(value).live(now_us)
    return {name: Entry(live[name].version, live[name].value) for name in names if name in live}


class Identity:
    """The edit that changes nothing: it brings the nodes to agree on what is there."""

    def judge(self, value: bytes | None) -> Fit:
        return Fit.THERE

    def apply(self, value: bytes | None) -> tuple[bytes, bytes]:
        raise AssertionError("there is nothing to apply")

    def withdraw(self) -> None:
        raise AssertionError("nothing was applied")


class Commit:
    """The edit that compares versions and writes entries, once."""

    def __init__(self, register: str, changes: Sequence[Change], hint: bytes, commit_id: str, now_us: int) -> None:
        self._register = register
        self._changes = changes
        self._hint = hint
        self._id = commit_id
        self._now_us = now_us
        self._base: str | None = None
        """The commit that made what this was last applied to ('' for nothing at all)."""
        self._base_before: str | None = None

    @property
    def proposed(self) -> bool:
        """Whether others may have come to see it."""
        return self._base is not None

    def judge(self, value: bytes | None) -> Fit:
        register = decode(value)
        if self._base is not None and self._id in register.commits:
            return Fit.THERE
        if self._base is not None and self._base not in register.commits and len(register.commits) >= RECENT:
            return Fit.UNKNOWN  # its past does not reach back to where this was proposed
        live = register.live(self._now_us)
        fits = all(_version(live, change.key) == change.expected for change in self._changes)
        return Fit.FITS if fits else Fit.NEVER

    def apply(self, value: bytes | None) -> tuple[bytes, bytes]:
        register = decode(value)
        self._base, self._base_before = register.commits[0] if register.commits else "", self._base
        entries = register.live(self._now_us)
        for change in self._changes:
            if change.compare_only:
                continue
            entries.pop(change.key, None)  # what is written comes last
            if change.value is not None:
                entries[change.key] = Kept(change.version, change.value, change.keep_until_us or 0)
        _bound(entries, self._register)
        commits = (self._id, *register.commits[: RECENT - 1])
        return encode(Register(commits, entries)), self._hint

    def withdraw(self) -> None:
        self._base = self._base_before


def _version(entries: Mapping[str, Kept], name: str) -> str | None:
    kept = entries.get(name)
    return kept.version if kept is not None else None


def _bound(entries: dict[str, Kept], register: str) -> None:
    """Drop the oldest of the settled requests while there are too many of them, or too large ones."""
    settled = [name for name in entries if name != register]
    size = sum(len(entries[name].value) for name in settled)
    for place, name in enumerate(settled):
        if len(settled) - place <= MAX_SETTLED and size <= MAX_SETTLED_BYTES:
            return
        size -= len(entries.pop(name).value)
