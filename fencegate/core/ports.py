"""The two contracts of Fencegate: what a lock store must do, and what a protected resource must do."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

# --- stores ----------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """What a store holds under a key: an opaque value, and the id of the commit that wrote it."""

    version: str
    value: bytes


class Change(NamedTuple):
    """One key of a commit: compare it with `expected` (None: absent), then write `value` (None: delete) as `version`.

    With `compare_only` nothing is written, but the comparison holds until the commit does. `keep_until_us` lets the
    store forget the entry after that time by itself.
    """

    key: str
    expected: str | None
    version: str = ""
    value: bytes | None = None
    compare_only: bool = False
    keep_until_us: int | None = None


class Interval(NamedTuple):
    """The store's time, as far as it can be known: Unix microseconds, `earliest <= true <= latest`."""

    earliest: int
    latest: int


class LogEntry(NamedTuple):
    """One line of the change log: `line` tells apart those of one commit."""

    revision: int
    line: int
    key: str
    event: bytes


@dataclass(frozen=True, slots=True)
class Changes:
    """What `Store.changes` brings: log entries in order, up to `revision`; or `reset`, when the past is gone: go on
    from `revision`."""

    revision: int
    entries: Sequence[LogEntry] = ()
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store declares about itself."""

    clock: bool = True
    """Without one, a lease ends when a replica has watched it unchanged for long enough (ADR 14)."""
    several_keys: bool = True
    """Whether one commit may be about more than one lock. (The settled requests of a lock always go with it.)"""
    several_processes: bool = True
    durable: bool = True
    forgets: bool = True
    """Whether idle lock records may be removed, under a floor. Where not, they stay for good."""
    replays: bool = True
    """Whether the change log can be read again from an earlier revision; where not, its lines are hints."""
    lists_settled: bool = True
    """Whether a scan finds what became of requests. Where not, it is found by its name alone, and goes by itself."""
    max_value: int = 0
    """How many bytes a value may have; 0 when nothing but memory bounds it."""
    notes: tuple[str, ...] = ()


class Finding(NamedTuple):
    """What an inspection of a store says of one of its settings."""

    level: Literal["fine", "warning", "unsafe"]
    what: str
    """One sentence, such as "maxmemory-policy is allkeys-lru: locks may be evicted"."""
    advice: str = ""
    """What to do about it."""


class Conflict(Exception):
    """A comparison of the commit failed: nothing was written. Load again and decide anew."""


class TooLate(Exception):
    """The commit reached the store after its `not_after`: nothing was written. Decide anew.

    A store without a clock may say so by this replica's, of what it has not sent: that tells nothing of an earlier
    sending of the same (ADR 24).
    """


class Ambiguous(Exception):
    """The commit was sent, and its fate is unknown."""


class Unavailable(Exception):
    """The store can't be reached: nothing was written."""


class Store(Protocol):
    """Load, and commit if unchanged. No lock rule lives in a store.

    It is used in the event loop that opened it, unless it says more.
    """

    name: str
    capabilities: Capabilities

    async def open(self) -> None:
        """Reach the store for the first time and make what is missing in it. Unavailable when it can't be reached,
        UnsafeConfiguration when it is not what the URL says, or of another kind or version."""

    async def inspect(self) -> Sequence[Finding]:
        """What can be seen of its settings that makes locks in it safe or unsafe."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        """The entries of these keys, linearizable; absent ones are left out."""

    def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> Awaitable[None]:
        """Write all or nothing, with `log` (key, event) appended to the change log in the same step.

        Raises Conflict, TooLate, Ambiguous or Unavailable. A version never repeats for a key, since callers make it
        from chance.
        """

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        """The change log after revision `since` (None: from now on), for ever; `reset` when that is not known here.

        The first answer comes at once, and without entries when there are none yet: whoever has it follows, and
        misses nothing that is committed from then on. Every answer holds whole revisions.
        """

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        """Entries whose key starts with `prefix` and is above `after`, in the order of their UTF-8 bytes. Linearizable
        as a load is, entry by entry: what was committed before it was asked for is in it."""

    def now(self) -> Interval | None:
        """The store's time, without asking it; None when it has no clock. Unavailable when the time can't be known, or
        is so far from this replica's that one of the two is wrong."""

    async def close(self) -> None:
        """Finish what was begun, and let go."""


Landed = Callable[[BaseException | None], None]
"""Hears once what became of a commit: nothing when it landed, else what `commit` would have raised."""


@runtime_checkable
class CallingStore(Store, Protocol):
    """A store that tells of a commit by a call, in the very moment that it hears of it.

    A future would cost one more turn of the event loop for each commit, which is a system call.
    """

    def commit_then(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        """As `commit` does. `landed` is called in the event loop, at once when it can't even be sent; it raises
        nothing."""


# --- resources -------------------------------------------------------------------------------------------------------

Key = tuple[str, ...]
"""A key of a resource: the decoded segments of its path."""


class ShadowRefusal(NamedTuple):
    """A write that `shadow` mode let through, and `enforce` would have refused."""

    token: int
    highest: int


@dataclass(frozen=True, slots=True)
class Conditions:
    """The caller's own conditions, judged after the token and in the same step. `*` stands for 'any'."""

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None

    def hold(self, etag: str | None) -> bool:
        """Whether they hold for what is there now (None: nothing)."""
        if self.if_match is not None and (etag is None or ("*" not in self.if_match and etag not in self.if_match)):
            return False
        if self.if_none_match is None or etag is None:
            return True
        return "*" not in self.if_none_match and etag not in self.if_none_match


NO_CONDITIONS = Conditions()


@dataclass(frozen=True, slots=True)
class Seen:
    """What an adapter says after a claim, a read or a write."""

    mark: int
    """The highest token that the fence has seen; 0 when none."""
    etag: str | None = None
    """Names the value that is there now; None when nothing is."""
    created: bool = False
    shadow: ShadowRefusal | None = None


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What an adapter promises, in words that end up in `/v1/fences`."""

    kind: Literal["atomic", "best-effort"]
    durability: str


class Resource(Protocol):
    """What every kind of protected resource does. Check and write are one step, inside the resource.

    `fence` is the lock key that guards `key`. Everything that takes a token raises StaleToken when it is below the
    mark (in shadow mode it is reported in `Seen.shadow` instead), and ResourceUnavailable when the resource can't be
    reached. Kinds add their own `read` and `write`: see `Rows` and `Objects`.
    """

    guarantee: Guarantee

    async def open(self) -> None:
        """Make what is missing, and check what is recorded; UnsafeConfiguration when it doesn't fit."""

    async def claim(self, fence: str, token: int) -> Seen:
        """Raise the fence to `token`, durably, and write nothing else."""

    async def mark(self, fence: str) -> int:
        """The highest token that the fence has seen; 0 when none."""

    async def delete(self, key: Key, fence: str, token: int, conditions: Conditions = NO_CONDITIONS) -> Seen:
        """Remove the value and keep the mark. NotFound when there is nothing (the mark is raised all the same)."""

    async def raise_floor(self, value: int) -> None:
        """From now on nothing below `value` is accepted by any fence; also accepts a changed guard or mode."""

    async def close(self) -> None:
        """Finish what was begun, and let go."""


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowWrite:
    """One write of a batch: `put` replaces or creates, `patch` merges (RFC 7396), `delete` removes."""

    op: Literal["put", "patch", "delete"]
    key: Key
    value: Row = field(default_factory=dict)
    conditions: Conditions = NO_CONDITIONS


class Rows(Resource, Protocol):
    """Rows of a database, as JSON objects."""

    key_columns: tuple[str, ...]

    async def read(self, key: Key, fence: str, token: int | None = None) -> tuple[Row | None, Seen]:
        """The row, None when there is none; with a token, the fence is claimed first, in the same step."""

    async def write(self, fence: str, token: int, writes: Sequence[RowWrite]) -> tuple[list[Row | None], Seen]:
        """All of these, or none, in one transaction; the rows as they are afterwards, and `Seen` of the last write.

        A failed condition raises PreconditionFailed, a patch or delete of nothing NotFound, an unknown column or a
        wrong type InvalidInput; nothing is written then, but the mark stays raised.
        """


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known of an object beside its bytes."""

    size: int
    etag: str
    token: int
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)
    modified_us: int = 0


Body = bytes | AsyncIterator[bytes]
"""The bytes of an object that is written: as they come, or whole when they are there."""


class Objects(Resource, Protocol):
    """Bytes under names."""

    max_bytes: int

    async def read(
        self, key: Key, fence: str, token: int | None = None, byte_range: tuple[int, int] | None = None
    ) -> tuple[ObjectInfo | None, AsyncIterator[bytes], Seen]:
        """The object (`byte_range`: first and last byte, inclusive), streamed; None when there is none."""

    async def head(self, key: Key, fence: str, token: int | None = None) -> tuple[ObjectInfo | None, Seen]:
        """What is known of the object, without its bytes."""

    async def write(
        self,
        key: Key,
        fence: str,
        token: int,
        body: Body,
        *,
        content_type: str,
        metadata: Mapping[str, str],
        conditions: Conditions = NO_CONDITIONS,
    ) -> Seen:
        """Replace or create the object. TooLarge over `max_bytes`, and then nothing is written."""

    async def list(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, ObjectInfo]]:
        """Objects whose joined key starts with `prefix` and is above `after`, in order."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request on its way to an HTTP service."""

    method: str
    target: bytes
    """The path below the service's base, and the query, as they are spelt on the wire."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """As the caller sent them; which of them go on is the adapter's to say."""
    body: bytes | AsyncIterator[bytes] | None = None
    length: int | None = None
    """Of a body that is an iterator, where it is known."""
    writes: bool = False
    via: Mapping[bytes, bytes] = field(default_factory=dict)
    """What the service is told of the caller, in headers that no caller can set."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """The answer of an HTTP service. Its body must be read to the end, or closed."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: "Streamed"


class Streamed(Protocol):
    """Bytes that arrive piece by piece."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def __anext__(self) -> bytes: ...
    async def aclose(self) -> None: ...


class Upstream(Resource, Protocol):
    """An HTTP service, whose requests are passed on."""

    async def forward(self, request: Outgoing, fence: str, token: int | None = None) -> tuple[Incoming, Seen]:
        """Pass a request on. A write is admitted by the fence first, and stays known there until it was answered; a
        read with a token claims first.

        ResourceUnavailable with `not-written` when nothing was sent, and with `unknown` when something was.
        """
