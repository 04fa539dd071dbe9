"""The fences of a folder: for each lock key a lock file that is never renamed, and beside it the mark.

Both are named by a digest of the lock key; the mark file also says the lock key itself. They are apart because a mark
is replaced by rename, and a flock on a file that is renamed over protects nothing.
"""

import hashlib
import json
import os
from contextlib import AbstractContextManager

from fencegate.clock import Clock
from fencegate_adapters.objects import disk
from fencegate_adapters.objects.record import Mode

_REMEMBERED = 10_000


class DamagedFence(Exception):
    """A mark file that can't be read. Missing would mean 'never seen'; this means 'unknown', so nothing is accepted."""


class Fences:
    """Marks on the disk. Whoever raises one holds its fence."""

    def __init__(self, directory: int, drafts: int, mode: Mode, clock: Clock) -> None:
        self._directory = directory
        self._drafts = drafts
        self._suffix = ".mark" if mode == "enforce" else ".shadow"
        self._clock = clock
        self._settled: dict[str, int] = {}

    def hold(self, fence: str) -> AbstractContextManager[None]:
        """The fence's flock, for mark and data together; raises Busy at once when another has it."""
        return disk.flocked(_digest(fence) + ".lock", self._directory)

    def mark(self, fence: str) -> int:
        """The highest token that the fence has seen; 0 when none."""
        try:
            data = disk.read_whole(_digest(fence) + self._suffix, self._directory)
        except FileNotFoundError:
            return 0
        try:
            fields = json.loads(data)
            if fields["lockKey"] == fence:
                return int(fields["mark"])
        except (ValueError, KeyError, TypeError):
            pass
        raise DamagedFence(fence)

    def keep(self, fence: str, mark: int, admitted: int) -> None:
        """Make `admitted` the mark, durably, where `mark` is what the fence says now."""
        if admitted != mark:
            data = json.dumps({"lockKey": fence, "mark": str(admitted)}).encode()
            name = _digest(fence) + self._suffix
            disk.replace(name, self._directory, data, drafts=self._drafts, draft=self._clock.random_id(16))
        elif self._settled.get(fence) == mark:
            return
        else:
            # Who wrote this mark may have died between rename and fsync: we can read it, but a power cut would undo it.
            os.fsync(self._directory)
        if len(self._settled) >= _REMEMBERED:
            self._settled.clear()
        self._settled[fence] = admitted

    def locks(self) -> set[str]:
        """The lock files of all fences."""
        return {name for name in os.listdir(self._directory) if name.endswith(".lock")}

    def held(self, locks: set[str]) -> set[str]:
        """Those that others hold; the rest have been free once since the call."""
        return {lock for lock in locks if not self._is_free(lock)}

    def _is_free(self, lock: str) -> bool:
        try:
            with disk.flocked(lock, self._directory):
                return True
        except disk.Busy:
            return False


def _digest(fence: str) -> str:
    return hashlib.sha256(fence.encode()).hexdigest()
