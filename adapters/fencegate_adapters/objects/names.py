"""How the name of an object becomes file names, and back: nothing can escape, collide or run over a length.

A name is the joined key. Its `/` become directories (`.d`), its last segment a file (`.o`), so that `a` and `a/b` live
side by side. All but lower-case letters, digits, `-`, `_` and `.` is percent-encoded byte by byte: no file system
folds case or normalises what is left. A long segment is continued in directories (`.c`) of 80 bytes each.
"""

import re
from typing import Literal, NamedTuple

from fencegate.core.names import check_path
from fencegate.core.ports import Key

PIECE_BYTES = 80
"""Percent-encoded it is at most 240 characters, and the common limit for a file name is 255."""

FilePath = tuple[str, ...]
Suffix = Literal[".c", ".d", ".o"]

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_WRITTEN = tuple(chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in range(256))
_ESCAPE = re.compile(rb"%([0-9a-f]{2})")


class Piece(NamedTuple):
    """What one file name stands for: `.o` an object, `.d` a segment with more behind it, `.c` the start of one."""

    raw: bytes
    suffix: str


def object_name(key: Key) -> str:
    """The name of the object under `key`; InvalidInput when it can't be one."""
    return check_path("key", "/".join(key))


def file_path(name: str) -> FilePath:
    """Where the object of this name is kept: directories, then the file.

    >>> file_path("Logs/today")
    ('%4cogs.d', 'today.o')
    """
    *folders, last = name.encode().split(b"/")
    parts = [part for segment in folders for part in _written(segment, ".d")]
    return (*parts, *_written(last, ".o"))


def _written(segment: bytes, suffix: Suffix) -> list[str]:
    parts = []
    while len(segment) > PIECE_BYTES:
        parts.append(_quoted(segment[:PIECE_BYTES]) + ".c")
        segment = segment[PIECE_BYTES:]
    return [*parts, _quoted(segment) + suffix]


def _quoted(raw: bytes) -> str:
    return "".join(_WRITTEN[byte] for byte in raw)


def piece(file_name: str) -> Piece | None:
    """What this file name stands for; None when it is not one of ours."""
    stem, suffix = file_name[:-2], file_name[-2:]
    if suffix not in (".c", ".d", ".o") or not stem.isascii():
        return None
    raw = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), stem.encode())
    return Piece(raw, suffix) if _quoted(raw) == stem else None
