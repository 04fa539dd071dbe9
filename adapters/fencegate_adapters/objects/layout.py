"""The folder's own files: the record that says what it is for, and the directories beside it.

fencegate.json   the record       fencegate.lock   held while the record changes
fences/          for each lock key a lock file and its mark
objects/         the framed files, deleted ones too, as tombstones
drafts/          writes under way
"""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate_adapters.objects import disk
from fencegate_adapters.objects.record import Record, reopen

_RECORD = "fencegate.json"
_RECORD_LOCK = "fencegate.lock"


class Layout:
    """Open directories. Call `enter` or `raise_floor` first; both raise Busy rather than wait."""

    def __init__(self, path: Path, wanted: Record, clock: Clock) -> None:
        self._path = path
        self._wanted = wanted
        self._clock = clock
        self._opened: dict[str, int] = {}

    @property
    def fences(self) -> int:
        return self._opened["fences"]

    @property
    def objects(self) -> int:
        return self._opened["objects"]

    @property
    def drafts(self) -> int:
        return self._opened["drafts"]

    def enter(self) -> None:
        """Open the folder, made if it is missing, when its record fits."""
        root = self._open_root()
        with disk.flocked(_RECORD_LOCK, root):
            try:
                self.record()
            except FileNotFoundError:
                self._require_new(root)
                self._write_record(root, self._wanted)
        self._open_rest()

    def raise_floor(self, floor: int) -> None:
        """Record the configuration that we were given, with a floor that is never lowered."""
        root = self._open_root()
        with disk.flocked(_RECORD_LOCK, root):
            with suppress(FileNotFoundError):
                floor = max(floor, self._recorded().floor)
            self._write_record(root, replace(self._wanted, floor=floor))
        self._open_rest()

    def record(self) -> Record:
        """The record as it is now, which another process may have changed; it must still fit."""
        recorded = self._recorded()
        recorded.check(self._wanted)
        return recorded

    def close(self) -> None:
        while self._opened:
            os.close(self._opened.popitem()[1])

    def _recorded(self) -> Record:
        return Record.decode(disk.read_whole(_RECORD, self._opened["root"]))

    def _write_record(self, root: int, record: Record) -> None:
        disk.replace(_RECORD, root, record.encode(), drafts=self.drafts, draft=self._clock.random_id(16))

    def _require_new(self, root: int) -> None:
        """The record is written before fences are made: fences without one have lost it, and with it their floor."""
        if {"fences", "objects"} & set(os.listdir(root)):
            raise UnsafeConfiguration(
                f"resource {self._wanted.name!r}: the folder holds data, but its fencegate.json is missing. "
                + reopen(self._wanted.name)
            )

    def _open_root(self) -> int:
        if "root" not in self._opened:
            try:
                _make_folder(self._path)
            except (FileExistsError, NotADirectoryError):
                raise UnsafeConfiguration(f"resource {self._wanted.name!r}: {self._path} is not a folder") from None
            self._opened["root"] = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._open("drafts")
        return self._opened["root"]

    def _open_rest(self) -> None:
        for name in ("fences", "objects"):
            self._open(name)

    def _open(self, name: str) -> None:
        if name not in self._opened:
            self._opened[name] = disk.make_directory(name, self._opened["root"])


def _make_folder(path: Path) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
