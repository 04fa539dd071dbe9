"""The folder as one thread sees it: blocking steps, each of which holds the fence over all that must be one step.

A process that is stopped while it holds a fence makes others wait, never pass: the kernel frees a flock only when its
holder lets go or dies.
"""

import os
import stat
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from fencegate.clock import Clock
from fencegate.core.errors import InvalidInput, NotFound, PreconditionFailed, ResourceUnavailable, StaleToken
from fencegate.core.fence import admit
from fencegate.core.ports import NO_CONDITIONS, Conditions, ObjectInfo, Seen, ShadowRefusal
from fencegate.core.token import Token
from fencegate_adapters.objects import disk, frame, listing
from fencegate_adapters.objects.draft import Draft, remove_abandoned
from fencegate_adapters.objects.fences import Fences
from fencegate_adapters.objects.layout import Layout
from fencegate_adapters.objects.names import FilePath, file_path
from fencegate_adapters.objects.record import Record


class Found(NamedTuple):
    """An object that is there, and its open file, which stays this version whatever is written meanwhile."""

    header: frame.Header
    body_at: int
    file: FileIO

    @property
    def info(self) -> ObjectInfo:
        it = self.header
        return ObjectInfo(it.size, it.nonce, it.token, it.content_type, it.metadata, it.modified_us)


class Folder:
    """Call `enter` or `raise_floor` first. A step that holds a fence raises Busy at once when another holds it."""

    _fences: Fences
    _tree: disk.Tree

    def __init__(self, path: Path, wanted: Record, clock: Clock) -> None:
        self._layout = Layout(path, wanted, clock)
        self._mode = wanted.mode
        self._clock = clock

    def enter(self) -> None:
        self._layout.enter()
        self._ready()
        remove_abandoned(self._layout.drafts, self._clock.now_us() / 1_000_000)

    def raise_floor(self, value: int) -> None:
        """Record the floor. Whoever read the record before may still write: see `pass_fences`."""
        self._layout.raise_floor(value)
        self._ready()

    def fence_locks(self) -> set[str]:
        return self._fences.locks()

    def pass_fences(self, locks: set[str]) -> None:
        """Go once through each of these fences; Busy while some are held, and only those are left in `locks`.

        A write reads the record while it holds its fence. So whoever holds one after this, or makes a new one, has
        read the record that was there when this began.
        """
        locks &= self._fences.held(locks)
        if locks:
            raise disk.Busy

    def close(self) -> None:
        self._layout.close()

    def draft(self, header: frame.Header) -> Draft:
        try:
            return Draft(self._layout.drafts, header)
        except ValueError as error:
            raise InvalidInput("metadata", str(error)) from error

    def mark(self, fence: str) -> int:
        """The lowest token that would be accepted: the highest seen, or the floor where that is higher."""
        return max(self._layout.record().floor, self._fences.mark(fence))

    def claim(self, fence: str, token: int) -> Seen:
        with self._fences.hold(fence):
            return self._admit(fence, token)

    def look(self, name: str, fence: str, token: int | None) -> tuple[Found | None, Seen]:
        """The object, deleted ones left out; with a token, the fence is claimed first, in the same step."""
        if token is None:
            found = self._find(name)
            # After the object, so that the mark is never below the token of what is told.
            return found, _seen(Seen(self.mark(fence)), found)
        with self._fences.hold(fence):
            seen = self._admit(fence, token)
            found = self._find(name)
        return found, _seen(seen, found)

    def publish(self, draft: Draft, fence: str, conditions: Conditions) -> Seen:
        """Make the draft the object, if its token and the conditions allow."""
        header = draft.header
        with self._fences.hold(fence):
            try:
                seen = self._admit(fence, header.token)
            except disk.Unsettled as error:  # of the mark, which may be raised or not; the object is untouched
                raise OSError(error.errno, error.strerror) from error
            etag = self._etag(header.key, conditions)
            if not conditions.hold(etag):
                raise PreconditionFailed(f"the object {header.key!r} is not as your condition wants it: read it again")
            if header.tombstone and etag is None:
                raise NotFound(f"there is no object {header.key!r}")
            *directories, file_name = file_path(header.key)
            with self._tree.directory(directories, make=True) as directory:
                draft.publish(file_name, directory)
        return Seen(seen.mark, None if header.tombstone else header.nonce, etag is None, seen.shadow)

    def page(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, ObjectInfo]]:
        told: list[tuple[str, ObjectInfo]] = []
        names = listing.names(self._tree, prefix, after)
        # The next name is not asked for before it is needed, since it may cost the reading of a directory.
        while len(told) < limit and (following := next(names, None)) is not None:
            found = self._find(*following)
            if found is not None:
                found.file.close()
                told.append((following[0], found.info))
        return told

    def refuse_stale(self, fence: str, token: int) -> None:
        """Refuse early, without the fence, what could only be refused later. To accept takes `publish`."""
        if self._mode == "enforce":
            admit(Token(token), self.mark(fence))

    def _ready(self) -> None:
        self._fences = Fences(self._layout.fences, self._layout.drafts, self._mode, self._clock)
        self._tree = disk.Tree(self._layout.objects)

    def _admit(self, fence: str, token: int) -> Seen:
        """Raise the mark; the caller holds the fence.

        The record is read each time, because another process may have raised the floor.
        """
        floor, mark = self._layout.record().floor, self._fences.mark(fence)
        try:
            admitted = admit(Token(token), max(mark, floor))
        except StaleToken as stale:
            if self._mode == "enforce":
                raise
            return Seen(stale.highest, shadow=ShadowRefusal(token, stale.highest))
        self._fences.keep(fence, mark, admitted)
        return Seen(admitted)

    def _etag(self, name: str, conditions: Conditions) -> str | None:
        try:
            found = self._find(name)
        except Damaged:
            if conditions != NO_CONDITIONS:
                raise
            return ""  # writing it anew is how a damaged object is mended
        if found is None:
            return None
        found.file.close()
        return found.header.nonce

    def _find(self, name: str, path: FilePath | None = None) -> Found | None:
        *directories, file_name = path or file_path(name)
        try:
            with self._tree.directory(directories) as directory:
                file = FileIO(disk.open_file(file_name, directory))
        except FileNotFoundError:
            return None
        try:
            header, body_at = _header(file, name)
        except frame.BadFrame as bad:
            file.close()
            raise Damaged(name, bad) from bad
        if header.tombstone:
            file.close()
            return None
        return Found(header, body_at, file)


class Damaged(ResourceUnavailable):
    """The object's file is not what was written."""

    def __init__(self, name: str, why: Exception) -> None:
        super().__init__(f"the object {name!r} is damaged ({why}): restore it, or write it anew")


def _header(file: FileIO, name: str) -> tuple[frame.Header, int]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise frame.BadFrame("not a file")
    header, body_at = frame.decode(os.pread(file.fileno(), frame.MAX_HEADER_BYTES, 0), status.st_size)
    if header.key != name:
        raise frame.BadFrame("the file is that of another object")
    return header, body_at


def _seen(seen: Seen, found: Found | None) -> Seen:
    return Seen(seen.mark, found.header.nonce if found else None, False, seen.shadow)
