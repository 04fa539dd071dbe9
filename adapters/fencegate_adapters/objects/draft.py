"""A write that is being received: a file of its own, which nobody sees before it is published."""

import os
from contextlib import suppress
from io import FileIO
from threading import Lock

from msgspec.structs import replace

from fencegate_adapters.objects import disk, frame

ABANDONED_AFTER_S = 3600


class Draft:
    """One framed file under a name made of its nonce: body first, header last, then on the disk as a whole.

    Steps run in threads, which go on when their caller is cancelled. So each looks, under a lock, whether the draft
    was discarded meanwhile: a number of a closed file may already be somebody else's file.
    """

    def __init__(self, drafts: int, header: frame.Header) -> None:
        self.header = header
        self._drafts = drafts
        self._body_at = len(frame.encode(header))
        self._lock = Lock()
        self._file: FileIO | None = None
        self._discarded = False

    def append(self, data: bytes | bytearray) -> None:
        with self._lock:
            disk.write_all(self._opened().fileno(), data)
            self.header = replace(self.header, size=self.header.size + len(data))

    def finish(self, data: bytes | bytearray) -> None:
        """Append the rest, and bring the whole to the disk."""
        self.append(data)
        with self._lock:
            file = self._opened()
            file.seek(0)
            disk.write_all(file.fileno(), frame.encode(self.header))
            os.fsync(file.fileno())

    def publish(self, file_name: str, directory: int) -> None:
        with self._lock:
            self._opened()
            disk.rename(self.header.nonce, self._drafts, file_name, directory)

    def discard(self) -> None:
        """Let go, and leave nothing behind that was not published."""
        with self._lock:
            self._discarded = True
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
                with suppress(OSError):
                    os.unlink(self.header.nonce, dir_fd=self._drafts)

    def _opened(self) -> FileIO:
        if self._discarded:
            raise InterruptedError("the write was given up")
        if self._file is None:
            self._file = FileIO(disk.create(self.header.nonce, self._drafts), "w")
            self._file.seek(self._body_at)
        return self._file


def remove_abandoned(drafts: int, now_s: float) -> None:
    """Remove what crashed writers left. One that only slept finds its draft gone, and is told that it can't write."""
    for name in os.listdir(drafts):
        with suppress(OSError):
            if now_s - os.stat(name, dir_fd=drafts, follow_symlinks=False).st_mtime > ABANDONED_AFTER_S:
                os.unlink(name, dir_fd=drafts)
