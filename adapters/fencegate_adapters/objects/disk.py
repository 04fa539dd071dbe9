"""Durable steps on a disk: what is done here stays done after a crash, or was never there.

Everything is reached from an open directory and no step follows a symbolic link, so a link that somebody puts into
the folder can't lead a read or a write out of it.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REMEMBERED = 10_000


class Busy(Exception):
    """Another process or thread holds this lock file now."""


class Unsettled(OSError):
    """A rename was begun, and whether it lasts is unknown."""


def open_directory(name: str, within: int | None = None) -> int:
    return os.open(name, _DIRECTORY, dir_fd=within)


def make_directory(name: str, within: int) -> int:
    """Open this directory, made if it is missing, and sure to be there after a crash."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=within)
    # Even when it existed: who made it may have died before this line.
    os.fsync(within)
    return open_directory(name, within)


def create(name: str, within: int) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=within)


def open_file(name: str, within: int) -> int:
    # O_NONBLOCK: a pipe that lies where an object should be must not hang the reader.
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)


def read_whole(name: str, within: int) -> bytes:
    with open(open_file(name, within), "rb") as file:
        return file.read()


def write_all(file: int, data: bytes | bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def rename(name: str, within: int, new_name: str, new_within: int) -> None:
    """Put a file that is already on the disk in its place, durably; Unsettled when that fails."""
    try:
        os.rename(name, new_name, src_dir_fd=within, dst_dir_fd=new_within)
        os.fsync(new_within)
    except OSError as error:
        raise Unsettled(error.errno, error.strerror) from error


def replace(name: str, within: int, data: bytes, *, drafts: int, draft: str) -> None:
    """Replace a small file by `data`, all or nothing, durably."""
    file = create(draft, drafts)
    try:
        try:
            write_all(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        rename(draft, drafts, name, within)
    except OSError:
        with suppress(OSError):
            os.unlink(draft, dir_fd=drafts)
        raise


@contextmanager
def flocked(name: str, within: int) -> Iterator[None]:
    """Hold the flock on this file, or raise Busy at once. The file is made when missing, and never removed or renamed.

    A flock belongs to the inode: on a file that is ever renamed over, a waiter would lock the orphan.
    """
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=within)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(name) from None
        try:
            yield
        finally:
            # A forked child shares the lock, and would keep it if we only closed our side. An error here must not make
            # a write that is done look as if it were not.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        with suppress(OSError):
            os.close(file)


class Tree:
    """Directories below an open one, made as needed."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._settled: set[tuple[str, ...]] = set()

    @contextmanager
    def directory(self, path: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """The directory at `path`, open; with `make` it is sure to be there after a crash."""
        here = os.dup(self._root)
        try:
            for depth, part in enumerate(path, 1):
                below = self._made(tuple(path[:depth]), here) if make else open_directory(part, here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def _made(self, path: tuple[str, ...], parent: int) -> int:
        if path in self._settled:
            return open_directory(path[-1], parent)
        directory = make_directory(path[-1], parent)
        if len(self._settled) >= _REMEMBERED:
            self._settled.clear()
        self._settled.add(path)
        return directory
